package orderdb_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/lapse-go/lapse/amqp/amqptest"
	"github.com/lapse-go/lapse/amqp/database"
	"github.com/lapse-go/lapse/order"
)

// replica is another process's shop on the database of s. Params are added to the DSN.
func (s *shop) replica(params string) *shop {
	s.t.Helper()
	db, err := database.Open(amqptest.DSN(s.t, s.db)+params, database.Options{})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		if pool, err := db.DB(); err == nil {
			pool.Close()
		}
	})
	if err := db.Use(database.NewMetrics(nil)); err != nil {
		s.t.Fatal(err)
	}
	return newShopOn(s.t, db)
}

// reruns is how often a replica's transactions were run again because of a server error.
func (s *shop) reruns(code string) int {
	metrics := s.db.Config.Plugins["lapse:database"].(*database.Metrics)
	return int(testutil.ToFloat64(metrics.Reruns.WithLabelValues(code)))
}

// audit checks what has to be true of any database at rest: every order is closed at most once, its
// events and its timeline have its versions without gaps, and stock is where the orders say it is, of
// which the shop had so many pieces each.
func (s *shop) audit(pieces int64) {
	s.t.Helper()
	for what, sql := range map[string]string{
		"orders whose events are not numbered by their version": `SELECT o.id FROM lapse_orders o LEFT JOIN published p ON p.order_id = o.id AND p.version > 0
			GROUP BY o.id, o.version HAVING COUNT(p.id) <> o.version OR COUNT(DISTINCT p.version) <> o.version OR MAX(p.version) <> o.version`,
		"orders whose timeline differs from their events": `SELECT o.id FROM lapse_orders o LEFT JOIN lapse_timeline l ON l.order_id = o.id
			LEFT JOIN published p ON p.order_id = o.id AND p.version = l.version AND p.type = l.type
			GROUP BY o.id, o.version HAVING COUNT(p.id) <> o.version`,
		"orders whose closing events differ from their status": `SELECT o.id FROM lapse_orders o LEFT JOIN published p ON p.order_id = o.id
			GROUP BY o.id, o.status HAVING SUM(p.type IN ('order.paid', 'order.cancelled', 'order.expired')) <> (o.status <> 'pending')
			OR SUM(p.type = CONCAT('order.', o.status)) <> (o.status <> 'pending')`,
		"orders with a payment that is neither theirs nor late": `SELECT o.id FROM lapse_orders o JOIN lapse_payments p ON p.order_id = o.id
			GROUP BY o.id, o.status HAVING SUM(NOT p.late) <> (o.status = 'paid')`,
		"events of orders that do not exist": `SELECT p.order_id FROM published p LEFT JOIN lapse_orders o ON o.id = p.order_id
			WHERE o.id IS NULL AND p.type <> 'order.refused'`,
		"articles with pieces in the wrong place": fmt.Sprintf(`SELECT s.sku FROM lapse_stock s
			LEFT JOIN (SELECT l.sku, SUM(IF(o.status = 'pending', l.quantity, 0)) AS pending, SUM(IF(o.status = 'paid', l.quantity, 0)) AS paid
				FROM lapse_order_lines l JOIN lapse_orders o ON o.id = l.order_id GROUP BY l.sku) x ON x.sku = s.sku
			WHERE s.reserved <> COALESCE(x.pending, 0) OR s.sold <> COALESCE(x.paid, 0) OR s.available + s.reserved + s.sold <> %d`, pieces),
	} {
		var wrong []string
		if err := s.db.Raw(sql).Scan(&wrong).Error; err != nil {
			s.t.Fatal(err)
		}
		if len(wrong) > 0 {
			s.t.Errorf("%d %s: %.200v", len(wrong), what, wrong)
		}
	}
}

// As in github.com/magento/magento2/issues/9969: the timers of two replicas, the sweep and an operator
// expire the same 1,000 orders at once. Stock comes back once, and each is announced once.
func TestTimersSweepAndOperatorAtOnce(t *testing.T) {
	s := newShop(t)
	s.setStock(2000, "shoe")
	ids := names("o-", 1000)
	s.placeMany(ids)
	s.makeDue(-time.Hour, ids...)
	other := s.replica("")
	var expired atomic.Int64
	var all sync.WaitGroup
	for i, on := range []*shop{s, other, s, other} {
		all.Go(func() {
			mine := slices.Clone(ids)
			rand.Shuffle(len(mine), func(i, j int) { mine[i], mine[j] = mine[j], mine[i] })
			for batch := range slices.Chunk(mine, 50+50*i) {
				got, err := on.Expire(t.Context(), batch)
				if err != nil {
					t.Error(err)
					return
				}
				for _, e := range got.Orders {
					switch e.Outcome {
					case order.OutcomeExpired:
						expired.Add(1)
					case order.OutcomeAlreadyExpired:
					default:
						t.Errorf("%s: %s %v", e.ID, e.Outcome, e.Err)
					}
				}
			}
		})
	}
	all.Go(func() {
		sweep := order.Sweep{Store: s.store, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))}
		sum, err := sweep.Once(t.Context())
		if err != nil || sum.Failed > 0 {
			t.Errorf("%+v, %v", sum, err)
		}
		expired.Add(int64(sum.Expired))
	})
	all.Wait()
	if n := expired.Load(); n != 1000 {
		t.Errorf("%d orders were expired", n)
	}
	s.wantStock("shoe", 2000, 0, 0)
	s.audit(2000)
}

// As in github.com/woocommerce/woocommerce-gateway-stripe/issues/5268, made to happen: the payment has
// the row when the expiry wants it, and commits.
func TestPaymentCommitsWhileExpiryWaits(t *testing.T) {
	s := newShop(t)
	s.setStock(3, "shoe")
	ids := []string{"a-" + order.NewID(), "b-" + order.NewID(), "c-" + order.NewID()}
	s.placeMany(ids)
	s.makeDue(-time.Minute, ids...)
	locked, release := make(chan struct{}), make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() {
		_, err := s.store.Change(t.Context(), ids[1], func(o order.Order, now time.Time) (order.Order, order.Event, error) {
			close(locked)
			<-release
			return order.Pay(order.Payment{Reference: "p-1"})(o, now)
		})
		if err != nil {
			t.Error(err)
		}
	})
	<-locked
	all.Go(func() {
		got, err := s.Expire(t.Context(), ids)
		if err != nil {
			t.Error(err)
			return
		}
		outcomes := []order.Outcome{got.Orders[0].Outcome, got.Orders[1].Outcome, got.Orders[2].Outcome}
		if diff := cmp.Diff([]order.Outcome{order.OutcomeExpired, order.OutcomeAlreadyPaid, order.OutcomeExpired}, outcomes); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
	s.waitForLock(ids[1])
	close(release)
	all.Wait()
	s.wantStock("shoe", 2, 0, 1)
	s.audit(3)
}

// Once Pause has returned nothing is expired any more: it waits for an expiry that has found the switch
// off, and that waits for others itself.
func TestPauseWaitsForExpiriesUnderWay(t *testing.T) {
	s := newShop(t)
	s.setStock(1, "shoe", "sock")
	s.placeMany([]string{"o-1"})
	s.makeDue(-time.Minute, "o-1")
	blocker := s.db.Begin()
	defer blocker.Rollback()
	exec(t, blocker, "UPDATE lapse_stock SET available = available WHERE sku = 'shoe'")
	var all sync.WaitGroup
	defer all.Wait()
	all.Go(func() {
		got, err := s.Expire(t.Context(), []string{"o-1"})
		if err != nil || got.Orders[0].Outcome != order.OutcomeExpired {
			t.Errorf("%+v, %v", got, err)
		}
	})
	s.waitForLock("lapse_stock")
	var paused atomic.Bool
	all.Go(func() {
		if err := s.Pause(t.Context(), order.By{Who: "ann"}); err != nil {
			t.Error(err)
		}
		paused.Store(true)
		o, err := s.Get(t.Context(), "o-1")
		state, stateErr := s.Paused(t.Context())
		if err != nil || stateErr != nil || o.Status != order.Expired || o.ClosedAt.After(state.Since) {
			t.Errorf("paused at %s, and the order is %s since %s: %v, %v", state.Since, o.Status, o.ClosedAt, err, stateErr)
		}
	})
	s.waitForLock("lapse_control")
	if paused.Load() {
		t.Error("it has returned")
	}
	// Whoever only wants to know does not wait.
	if state, err := s.Paused(t.Context()); err != nil || state.Paused {
		t.Errorf("%+v, %v", state, err)
	}
	blocker.Rollback()
}

// waitForLock waits until a statement that contains the text waits for a lock.
func (s *shop) waitForLock(text string) {
	s.t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	// The server looks anew only if it has not been asked for a tenth of a second.
	for n := 0; n == 0; time.Sleep(120 * time.Millisecond) {
		err := s.db.Raw("SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT' AND trx_query LIKE ?", "%"+text+"%").Scan(&n).Error
		if err != nil || time.Now().After(deadline) {
			s.t.Fatalf("nothing waits for a lock: %v", err)
		}
	}
}

// The same by chance: payments and expiry go for the same orders, in batches and one by one.
func TestPaymentsAgainstExpiry(t *testing.T) {
	n := 10_000
	if testing.Short() {
		n = 600
	}
	s := newShop(t)
	s.setStock(int64(n), "shoe")
	ids := names("o-", n)
	s.placeMany(ids)
	s.makeDue(-time.Minute, ids...)
	other := s.replica("")
	const payers = 4
	var paid, late, expired atomic.Int64
	var all sync.WaitGroup
	for payer := range payers {
		all.Go(func() {
			for i := payer; i < n; i += payers {
				switch err := s.pay(t.Context(), ids[i]); {
				case err == nil:
					paid.Add(1)
				case errors.Is(err, order.ErrLatePayment):
					late.Add(1)
				default:
					t.Error(err)
				}
			}
		})
	}
	all.Go(func() {
		// From the other end, so that they meet.
		for end := n; end > 0 && paid.Load()+late.Load() < int64(n); {
			size := min(end, 1+rand.IntN(20))
			got, err := other.Expire(t.Context(), ids[end-size:end])
			if err != nil {
				t.Error(err)
				return
			}
			for _, e := range got.Orders {
				switch e.Outcome {
				case order.OutcomeExpired:
					expired.Add(1)
				case order.OutcomeAlreadyPaid:
				default:
					t.Errorf("%s: %s %v", e.ID, e.Outcome, e.Err)
				}
			}
			end -= size
		}
	})
	all.Wait()
	t.Logf("%d paid, %d paid too late, %d expired", paid.Load(), late.Load(), expired.Load())
	if paid.Load()+late.Load() != int64(n) || late.Load() != expired.Load() {
		t.Errorf("%d paid and %d late of %d, %d expired", paid.Load(), late.Load(), n, expired.Load())
	}
	s.wantStock("shoe", expired.Load(), 0, paid.Load())
	s.audit(int64(n))
}

// Everything at once over a few hot articles: no conflict reaches a caller, and the books are right at
// the end.
func TestEverythingAtOnce(t *testing.T) {
	duration := 20 * time.Second
	if testing.Short() {
		duration = 5 * time.Second
	}
	const pieces = 3000
	skus := []string{"a", "b", "c", "d"}
	first := newShop(t)
	first.setStock(pieces, skus...)
	shops := []*shop{first.replica(""), first.replica("")}

	ctx, cancel := context.WithTimeout(t.Context(), duration)
	defer cancel()
	var mu sync.Mutex
	var known []string
	some := func(n int) (ids []string) {
		mu.Lock()
		defer mu.Unlock()
		for range min(n, len(known)) {
			// Mostly new ones: the old are closed.
			i := len(known) - 1 - int(rand.ExpFloat64()*100)
			ids = append(ids, known[max(i, 0)])
		}
		return ids
	}
	var counts sync.Map
	run := func(what string, workers int, do func(s *shop) error) func(*sync.WaitGroup) {
		done := new(atomic.Int64)
		counts.Store(what, done)
		return func(all *sync.WaitGroup) {
			for worker := range workers {
				all.Go(func() {
					for ctx.Err() == nil {
						err := do(shops[worker%len(shops)])
						switch {
						case err == nil:
							done.Add(1)
						case ctx.Err() != nil:
						default:
							t.Errorf("%s: %v", what, err)
							return
						}
					}
				})
			}
		}
	}
	ignore := func(err error, targets ...error) error {
		for _, target := range targets {
			if errors.Is(err, target) {
				return nil
			}
		}
		return err
	}
	one := func(do func(id string) error) error {
		for _, id := range some(1) {
			return do(id)
		}
		time.Sleep(time.Millisecond)
		return nil
	}
	closed := []error{order.ErrAlreadyPaid, order.ErrAlreadyCancelled, order.ErrAlreadyExpired, order.ErrLatePayment}
	drafts := func(n int) (ds []order.Draft) {
		for range n {
			var lines []string
			for range 1 + rand.IntN(3) {
				lines = append(lines, skus[rand.IntN(len(skus))])
			}
			d := draft(order.NewID(), lines...)
			d.Window = time.Duration(rand.IntN(2000)+1) * time.Millisecond
			d.Tags = []string{"tag-" + skus[rand.IntN(len(skus))]}
			ds = append(ds, d)
			if rand.IntN(10) == 0 {
				ds = append(ds, d) // sent twice
			}
		}
		return ds
	}
	place := func(n int) func(s *shop) error {
		return func(s *shop) error {
			placed, err := s.PlaceAll(ctx, drafts(n))
			if err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			for _, p := range placed {
				if err := ignore(p.Err, order.ErrOutOfStock); err != nil {
					return err
				}
				if p.Err == nil && !p.Repeated {
					known = append(known, p.Order.ID)
				}
			}
			return nil
		}
	}
	expire := func(s *shop) error {
		ids := some(30)
		rand.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
		got, err := s.Expire(ctx, ids)
		for _, e := range got.Orders {
			if e.Outcome == order.OutcomeFailed || e.Outcome == order.OutcomeNotFound {
				return fmt.Errorf("%s: %s %w", e.ID, e.Outcome, e.Err)
			}
		}
		return ignore(err, order.ErrPaused)
	}
	sweep := func(s *shop) error {
		sum, err := (&order.Sweep{Store: s.store, Grace: time.Millisecond}).Once(ctx)
		if sum.Failed > 0 {
			return fmt.Errorf("the sweep says %+v", sum)
		}
		return err
	}
	var all sync.WaitGroup
	for _, start := range []func(*sync.WaitGroup){
		run("place", 2, place(1)),
		run("place batches", 2, place(20)),
		run("pay", 3, func(s *shop) error {
			return one(func(id string) error {
				reference := fmt.Sprintf("%s/%d", id, rand.IntN(2))
				_, err := s.Pay(ctx, id, order.Payment{Reference: reference})
				return ignore(err, closed...)
			})
		}),
		run("cancel", 2, func(s *shop) error {
			return one(func(id string) error {
				_, err := s.Cancel(ctx, id, order.By{Who: "tester"})
				return ignore(err, closed...)
			})
		}),
		run("extend", 2, func(s *shop) error {
			return one(func(id string) error {
				_, err := s.Extend(ctx, id, time.Now().Add(time.Duration(rand.IntN(1000)+100)*time.Millisecond), order.By{})
				return ignore(err, closed...)
			})
		}),
		run("extend all", 2, func(s *shop) error {
			r := order.ExtendRequest{Key: fmt.Sprint("k-", time.Now().UnixMilli()/500), More: time.Second}
			_, err := s.ExtendAll(ctx, r)
			time.Sleep(20 * time.Millisecond)
			return err
		}),
		run("extend a tag", 1, func(s *shop) error {
			r := order.ExtendRequest{Key: order.NewID(), More: 300 * time.Millisecond, Tag: "tag-" + skus[rand.IntN(len(skus))]}
			_, err := s.ExtendAll(ctx, r)
			time.Sleep(20 * time.Millisecond)
			return err
		}),
		run("expire", 2, expire),
		run("sweep", 2, sweep),
		run("pause", 1, func(s *shop) error {
			if err := s.Pause(ctx, order.By{Who: "tester"}); err != nil {
				return err
			}
			time.Sleep(10 * time.Millisecond)
			err := s.Resume(ctx, order.By{Who: "tester"})
			time.Sleep(40 * time.Millisecond)
			return err
		}),
	} {
		start(&all)
	}
	all.Wait()
	counts.Range(func(what, n any) bool {
		t.Logf("%-14s %6d", what, n.(*atomic.Int64).Load())
		return true
	})
	for _, code := range []string{"1213", "1205", "1020"} {
		t.Logf("reruns for %s: %d", code, shops[0].reruns(code)+shops[1].reruns(code))
	}
	first.audit(pieces)
}
