package checkout_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/lapse-go/lapse/amqp/amqptest"
	"github.com/lapse-go/lapse/order"
	"github.com/lapse-go/lapse/order/checkout"
	"github.com/lapse-go/lapse/order/ordertest"
)

// rush is many customers at once.
type rush struct {
	market
	t         testing.TB
	ledger    *ordertest.Ledger
	customers sync.WaitGroup
	offset    time.Duration // of the database's clock

	mu     sync.Mutex
	moved  map[string]time.Time // when an order's deadline was moved, which may take a timer more
	paying []time.Duration      // how long each payment took
}

// market is where the customers are: a shop with Lapse's tables, or with one of its own. Paying, cancelling and
// extending tell the ledger themselves.
type market interface {
	draft(id string, n int, window time.Duration) order.Draft
	PlaceAll(ctx context.Context, drafts []order.Draft) ([]order.Placement, error)
	pay(ctx context.Context, id, reference string) (order.Order, error)
	cancel(ctx context.Context, id string) (order.Order, error)
	extend(ctx context.Context, id string, to time.Time) (order.Order, error)
	clock() time.Duration
}

func newRush(t testing.TB, m market, l *ordertest.Ledger) *rush {
	return &rush{market: m, t: t, ledger: l, moved: make(map[string]time.Time)}
}

const (
	placing     = 16 * time.Second // all orders are placed within
	placeEvery  = 50 * time.Millisecond
	shortWindow = 500 * time.Millisecond
	longWindow  = 10 * time.Second
)

// run places n orders, evenly, with windows up to ten seconds, of which a quarter are rungs. Half of
// them are paid, at any moment before their deadline; some of those within the last milliseconds
// before it, or right around it. Some are cancelled, and some get more or less time. It returns when all
// of that is done. Only answers that are unknown are tried again.
func (r *rush) run(n int) {
	r.t.Helper()
	r.offset = r.clock()
	ticks := int(placing / placeEvery)
	ticker := time.NewTicker(placeEvery)
	defer ticker.Stop()
	for tick := range ticks {
		first := n * tick / ticks
		var drafts []order.Draft
		for next := first; next < n*(tick+1)/ticks; next++ {
			window := (shortWindow + rand.N(longWindow-shortWindow)).Truncate(time.Millisecond)
			if next%4 == 0 {
				window = []time.Duration{1, 2, 5, 10}[next/4%4] * time.Second
			}
			drafts = append(drafts, r.draft(fmt.Sprintf("o%05d", next), next, window))
		}
		r.customers.Go(func() { r.place(first, drafts) })
		<-ticker.C
	}
	r.customers.Wait()
}

// place places orders, the first of which has this number.
func (r *rush) place(first int, drafts []order.Draft) {
	ctx := r.t.Context()
	var placed []order.Placement
	r.persist(func() (failed error) {
		answers, err := r.PlaceAll(ctx, drafts)
		placed = answers
		for i, d := range drafts {
			p := order.Placement{Err: err}
			if err == nil {
				p = answers[i]
			}
			r.ledger.Placed(d, p.Order, p.Err)
			failed = cmp.Or(failed, p.Err)
		}
		return failed
	})
	for i, p := range placed {
		if p.Err != nil {
			r.t.Errorf("placing %s: %v", drafts[i].ID, p.Err)
			continue
		}
		r.customers.Go(func() { r.customer(ctx, first+i, p.Order) })
	}
}

// customer does with an order what its number says.
func (r *rush) customer(ctx context.Context, n int, o order.Order) {
	before := rand.N(o.Window) // the deadline
	switch n % 10 {
	case 1: // at the last moment
		before = rand.N(5 * time.Millisecond)
		fallthrough
	case 0, 2, 3, 4:
		r.until(o.Deadline.Add(-before))
		begin := time.Now()
		r.persist(func() error { _, err := r.pay(ctx, o.ID, "pay-"+o.ID); return err })
		r.mu.Lock()
		r.paying = append(r.paying, time.Since(begin))
		r.mu.Unlock()
	case 5: // around the deadline, and once again
		r.until(o.Deadline.Add(20*time.Millisecond - rand.N(40*time.Millisecond)))
		r.persist(func() error { _, err := r.pay(ctx, o.ID, "pay-"+o.ID); return err })
		r.persist(func() error { _, err := r.pay(ctx, o.ID, "pay-"+o.ID); return err })
	case 6:
		if n%20 == 6 {
			r.until(o.Deadline.Add(-before))
			r.persist(func() error { _, err := r.cancel(ctx, o.ID); return err })
			return
		}
		to := o.Deadline.Add(time.Second)
		if n%40 == 16 && o.Window > 3*time.Second {
			to = o.Deadline.Add(-time.Second)
		}
		r.until(o.Deadline.Add(-max(before, 1500*time.Millisecond)))
		r.mu.Lock()
		r.moved[o.ID] = r.now()
		r.mu.Unlock()
		r.persist(func() error { _, err := r.extend(ctx, o.ID, to); return err })
	}
}

func (r *rush) now() time.Time { return time.Now().Add(r.offset) }

// until waits for an instant by the database's clock.
func (r *rush) until(at time.Time) { time.Sleep(at.Sub(r.now())) }

// persist does something again while the database is away. Any other error is an answer.
func (r *rush) persist(do func() error) {
	for over := time.Now().Add(time.Minute); errors.Is(do(), order.ErrUnavailable); {
		if time.Now().After(over) || r.t.Context().Err() != nil {
			r.t.Error("the database was away for a minute")
			return
		}
		time.Sleep(200 * time.Millisecond)
	}
}

func orders(many int) int {
	if testing.Short() {
		return many / 5
	}
	return many
}

// TestFiveThousandOrders is the main job under stress: two replicas with all that competes to expire
// orders, customers that pay until the last millisecond, and a relay that is cut off from the broker for
// two seconds in the middle.
func TestFiveThousandOrders(t *testing.T) {
	s := newShop(t, place{}, rushConfig(t))
	s.endure(s, orders(5000), 0)
}

func rushConfig(t testing.TB) checkout.Config {
	return checkout.Config{SweepEvery: 500 * time.Millisecond, SweepGrace: time.Second, Logger: quiet(t)}
}

// endure has n orders placed in the market, and judges what became of them. Deadlines are rounded by as much.
func (s *shop) endure(m market, n int, rounded time.Duration) {
	t := s.t
	t.Helper()
	toBroker, relayURL := amqptest.NewBrokerProxy(t, s.url)
	replicas := []*replica{
		s.start(s.url, checkout.Timer, checkout.Sweep),
		s.start(s.url, checkout.Timer, checkout.Sweep),
		s.start(relayURL, checkout.Relay),
	}
	for _, r := range replicas {
		r.awaitReady()
	}
	r := newRush(t, m, s.ledger)
	var begin, end time.Time
	r.customers.Go(func() {
		time.Sleep(placing / 2)
		begin = r.now()
		toBroker.Stall()
		time.Sleep(2 * time.Second)
		toBroker.Restore()
		if !within(30*time.Second, func() bool { return s.backlog() < 500*time.Millisecond }) {
			t.Error("the relay has not caught up")
		}
		end = r.now()
	})
	r.run(n)
	v := s.judge(30 * time.Second)

	// What was made just before the stall, or during it, was relayed late.
	stalled := func(at time.Time) bool { return at.After(begin.Add(-200*time.Millisecond)) && at.Before(end) }
	lateness := v.Lateness(func(o order.Order) bool { return !stalled(o.PlacedAt) && !stalled(r.moved[o.ID]) })
	t.Logf("lateness of what was not stalled: %s; the relay was behind for %s", lateness, end.Sub(begin).Round(time.Millisecond))
	if end.Sub(begin) < 2*time.Second || lateness.Orders == 0 {
		t.Error("the relay was not stalled, or all was")
	}
	// On a machine that has much else to do the customers' own transactions tell how much it can bear.
	slices.Sort(r.paying)
	paying := r.paying[len(r.paying)*99/100]
	if lateness.P99 >= max(500*time.Millisecond, 3*paying)+rounded {
		t.Errorf("lateness of what was not stalled: %s, where 99 %% of the payments took up to %s", lateness, paying)
	}
	swept := replicas[0].metric("lapse_swept_total") + replicas[1].metric("lapse_swept_total")
	byTimer := replicas[0].metric("lapse_timers_total", "outcome", "expired") + replicas[1].metric("lapse_timers_total", "outcome", "expired")
	t.Logf("%v orders were expired by timers, %v by the sweep", byTimer, swept)
	if int(swept+byTimer) != v.Expired {
		t.Errorf("timers and sweep say that they expired %v orders, but it were %d", swept+byTimer, v.Expired)
	}
	for i, r := range replicas[:2] {
		if r.metric("lapse_timers_total") == 0 {
			t.Errorf("replica %d handled no timer", i)
		}
	}
	wantEverything(t, v)
}

// backlog is the age of the oldest message that was not relayed.
func (s *shop) backlog() time.Duration {
	s.t.Helper()
	return time.Duration(s.sql("SELECT COALESCE(TIMESTAMPDIFF(MICROSECOND, (SELECT created_at FROM lapse_outbox ORDER BY id LIMIT 1), UTC_TIMESTAMP(6)), 0)")) * time.Microsecond
}

// wantEverything makes sure that the rush did all that it promises.
func wantEverything(t testing.TB, v *ordertest.Verdict) {
	t.Helper()
	if slices.Min([]int{v.Paid, v.Cancelled, v.Expired, v.LatePayments}) == 0 {
		t.Errorf("something did not happen: %d paid, %d cancelled, %d expired, %d late payments", v.Paid, v.Cancelled, v.Expired, v.LatePayments)
	}
}

// TestServersRestart is the same while broker and database are shut down, killed, and come back, one after
// the other.
func TestServersRestart(t *testing.T) {
	node, mysql := amqptest.NewNode(t), amqptest.NewMySQL(t)
	s := newShop(t, place{url: node.URL(), db: mysql.Database(t)}, checkout.Config{
		SweepEvery: 500 * time.Millisecond, SweepGrace: 2 * time.Second, Logger: quiet(t),
	})
	s.start(s.url, checkout.Timer, checkout.Sweep).awaitReady()
	relay := s.start(s.url)
	relay.awaitReady()
	r := newRush(t, s, s.ledger)
	r.customers.Go(func() {
		for _, restart := range []struct{ end, begin func() }{
			{node.Stop, node.Start}, {mysql.Kill, mysql.Start}, {node.Kill, node.Start}, {mysql.Stop, mysql.Start},
		} {
			time.Sleep(placing / 12)
			restart.end()
			time.Sleep(time.Second)
			restart.begin()
		}
	})
	r.run(orders(2500))
	v := s.judge(time.Minute)
	wantEverything(t, v)
	if v.Unknown == 0 {
		t.Error("no customer noticed")
	}
}

// quiet logs warnings only: outages make more noise than a test's log needs.
func quiet(t testing.TB) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
}
