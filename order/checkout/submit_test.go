package checkout_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lapse-go/lapse/amqp/amqptest"
	"github.com/lapse-go/lapse/migrations"
	"github.com/lapse-go/lapse/order"
	"github.com/lapse-go/lapse/order/checkout"
	"github.com/lapse-go/lapse/order/orderamqp"
)

// submissions are what clients were answered by Submit.
type submissions struct {
	mu                   sync.Mutex
	accepted, unanswered []order.Draft
}

// submit has callers submit n orders each, as fast as they are answered, and returns when all are.
func (s *shop) submit(c *checkout.Checkout, prefix string, callers, n int, window time.Duration) *submissions {
	s.t.Helper()
	var done submissions
	var all sync.WaitGroup
	for caller := range callers {
		all.Go(func() {
			for i := range n {
				d := draft(fmt.Sprintf("%s-%d-%03d", prefix, caller, i), i, window)
				ctx, cancel := context.WithTimeout(s.t.Context(), 2*time.Second)
				err := c.Submit(ctx, d)
				cancel()
				done.mu.Lock()
				if err == nil {
					done.accepted = append(done.accepted, d)
				} else if done.unanswered = append(done.unanswered, d); !errors.Is(err, order.ErrNotAccepted) {
					s.t.Errorf("%s: %v", d.ID, err)
				}
				done.mu.Unlock()
				if err != nil {
					time.Sleep(5 * time.Millisecond) // as a client does that backs off
				}
			}
		})
	}
	all.Wait()
	s.t.Logf("%s: %d accepted, %d not", prefix, len(done.accepted), len(done.unanswered))
	return &done
}

// awaitPlaced waits until every order that was accepted is there, and tells the ledger.
func (s *shop) awaitPlaced(patience time.Duration, done *submissions) {
	s.t.Helper()
	ids := make([]string, len(done.accepted))
	for i, d := range done.accepted {
		ids[i] = d.ID
	}
	await(s.t, patience, "all that was accepted is placed", func() bool {
		return len(ids) == 0 || s.sql("SELECT COUNT(*) FROM lapse_orders WHERE id IN ?", ids) == int64(len(ids))
	})
	for _, d := range done.accepted {
		s.ledger.Placed(d, s.get(d.ID), nil)
	}
	for _, d := range done.unanswered {
		s.ledger.Placed(d, order.Order{}, order.ErrNotAccepted)
	}
}

// While the database is away orders are taken in all the same, by a process that was started then, too.
// They wait in their queue, are placed once when it is back, and have their whole time to pay from then on.
func TestOrdersAreTakenInWithoutADatabase(t *testing.T) {
	const window = 3 * time.Second
	mysql := amqptest.NewMySQL(t)
	s := newShop(t, place{db: mysql.Database(t)}, checkout.Config{SweepEvery: noSweep, Window: window, Logger: quiet(t)})
	before := s.start(s.url)
	before.awaitReady()
	if err := before.Check(t.Context()); err != nil {
		t.Errorf("all is well, and it says %v", err)
	}
	during := make(chan *submissions)
	go func() { during <- s.submit(before.Checkout, "during", 4, 150, 0) }()
	await(t, 10*time.Second, "some are placed", func() bool { return s.sql("SELECT COUNT(*) FROM lapse_orders") > 20 })
	mysql.Stop()
	stopped := <-during

	api := s.start(s.url, checkout.API)
	api.awaitReady()
	all := s.start(s.url)
	await(t, 10*time.Second, "a process with all roles takes orders in", func() bool {
		return all.Submit(t.Context(), draft("first", 0, 0)) == nil
	})
	accepted := []*submissions{
		stopped, {accepted: []order.Draft{draft("first", 0, 0)}},
		s.submit(api.Checkout, "api", 4, 50, 0), s.submit(all.Checkout, "all", 4, 50, 0), s.submit(before.Checkout, "before", 4, 50, 0),
	}
	await(t, 10*time.Second, "who is to place orders is not ready", func() bool { return before.Ready() != nil })
	if all.Ready() == nil {
		t.Error("ready without a database")
	}
	if err := api.Ready(); err != nil {
		t.Errorf("who only takes orders in is not ready: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if err := api.Check(ctx); err == nil {
		t.Error("the check finds the database that is away")
	}

	time.Sleep(window) // which is no part of the time to pay
	back := time.Now().Add(-time.Second)
	mysql.Start()
	for _, done := range accepted {
		if len(done.unanswered) > 0 {
			t.Errorf("%d orders were not accepted, although the broker was there all the time", len(done.unanswered))
		}
		s.awaitPlaced(30*time.Second, done)
	}
	for _, d := range accepted[2].accepted {
		if o := s.get(d.ID); o.PlacedAt.Before(back) || o.Deadline.Sub(o.PlacedAt) != window {
			t.Fatalf("%s was placed at %s, to be paid by %s; the database was back at %s", d.ID, o.PlacedAt, o.Deadline, back)
		}
	}
	if v := s.judge(30 * time.Second); v.Expired != 600+1+3*200 {
		t.Errorf("%d orders expired", v.Expired)
	}
	replicas := []*replica{before, api, all}
	for _, outcome := range []string{"retried", "dead"} {
		if n := total(replicas, "lapse_messages_total", "outcome", outcome); n != 0 {
			t.Errorf("%v messages were %s, although the outage was not their fault", n, outcome)
		}
	}
	for _, r := range replicas {
		await(t, 10*time.Second, "a replica is ready", func() bool { return r.Check(t.Context()) == nil })
	}
}

// What was confirmed is placed, whatever happens to the connection; what was not may be.
func TestTheConnectionIsCutDuringSubmit(t *testing.T) {
	s := newShop(t, place{}, checkout.Config{SweepEvery: noSweep, Logger: quiet(t)})
	proxy, url := amqptest.NewBrokerProxy(t, s.url)
	api := s.start(url, checkout.API)
	api.awaitReady()
	ctx, stop := context.WithCancel(t.Context())
	var cutting sync.WaitGroup
	cutting.Go(func() {
		for ctx.Err() == nil {
			time.Sleep(70 * time.Millisecond)
			proxy.Stall() // so that some of what is sent is lost for certain
			time.Sleep(20 * time.Millisecond)
			proxy.Reset()
			proxy.Restore()
		}
	})
	done := s.submit(api.Checkout, "o", 8, 150, 2*time.Second)
	stop()
	cutting.Wait()
	if len(done.accepted) == 0 || len(done.unanswered) == 0 {
		t.Errorf("%d accepted, %d not: this shows nothing", len(done.accepted), len(done.unanswered))
	}
	s.start(s.url, checkout.Place, checkout.Relay, checkout.Timer)
	s.awaitPlaced(20*time.Second, done)
	await(t, 10*time.Second, "nothing waits to be placed", func() bool { return s.queued(s.Topology().DueQueue(orderamqp.KindPlace)) == 0 })
	s.judge(20 * time.Second)
}

// Whoever is told to end while orders come in finishes those that it has, and says of the others that they
// are not accepted.
func TestServeEndsDuringSubmit(t *testing.T) {
	s := newShop(t, place{}, checkout.Config{SweepEvery: noSweep, Shutdown: 5 * time.Second, Logger: quiet(t)})
	var all []*submissions
	for i := range 4 {
		r := s.start(s.url)
		r.awaitReady()
		submitted := make(chan *submissions)
		go func() { submitted <- s.submit(r.Checkout, fmt.Sprint("round", i), 4, 100, 2*time.Second) }()
		time.Sleep(time.Duration(i+1) * 20 * time.Millisecond)
		begin := time.Now()
		r.end()
		if took := time.Since(begin); took > 6*time.Second {
			t.Errorf("ending took %s", took)
		}
		all = append(all, <-submitted)
	}
	s.start(s.url)
	for _, done := range all {
		s.awaitPlaced(20*time.Second, done)
	}
	await(t, 10*time.Second, "nothing waits to be placed", func() bool { return s.queued(s.Topology().DueQueue(orderamqp.KindPlace)) == 0 })
	s.judge(20 * time.Second)
}

func TestSubmitSaysWhyNot(t *testing.T) {
	s := newShop(t, place{}, checkout.Config{SweepEvery: noSweep})
	proxy, url := amqptest.NewBrokerProxy(t, s.url)
	submit := func(c *checkout.Checkout, limit time.Duration) (time.Duration, error) {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		begin := time.Now()
		err := c.Submit(ctx, draft("o", 0, time.Second))
		return time.Since(begin), err
	}
	if _, err := submit(s.Checkout, time.Second); !errors.Is(err, order.ErrNotAccepted) || !strings.Contains(err.Error(), "role api") {
		t.Errorf("without the role: %v", err)
	}
	for _, change := range []func(*order.Draft){
		func(d *order.Draft) { d.ID = "" },
		func(d *order.Draft) { d.Lines[0].Quantity = 0 },
		func(d *order.Draft) { d.Window = -time.Minute },
	} {
		d := draft("o", 0, 0)
		change(&d)
		if err := s.Submit(t.Context(), d); !errors.Is(err, order.ErrInvalid) || errors.Is(err, order.ErrNotAccepted) {
			t.Errorf("%+v: %v", d, err)
		}
	}

	r := s.start(url, checkout.API)
	r.awaitReady()
	if err := r.Check(t.Context()); err != nil {
		t.Errorf("all is well, and it says %v", err)
	}
	proxy.Stall()
	if took, err := submit(r.Checkout, 500*time.Millisecond); !errors.Is(err, order.ErrNotAccepted) || !errors.Is(err, context.DeadlineExceeded) || took > time.Second {
		t.Errorf("with a broker that does not answer, after %s: %v", took, err)
	}
	proxy.Refuse()
	await(t, 10*time.Second, "it is not ready", func() bool { return r.Ready() != nil })
	if took, err := submit(r.Checkout, 10*time.Second); !errors.Is(err, order.ErrNotAccepted) || took > time.Second {
		t.Errorf("without a broker, after %s: %v", took, err)
	}
	if r.Check(t.Context()) == nil {
		t.Error("the check finds a broker")
	}
	proxy.Restore()
	r.awaitReady()
	if _, err := submit(r.Checkout, 10*time.Second); err != nil {
		t.Errorf("when the broker is back: %v", err)
	}
	s.exec("DROP TABLE lapse_schema_orders")
	if err := r.Check(t.Context()); !errors.Is(err, migrations.ErrPending) {
		t.Errorf("the check of a database that is behind: %v", err)
	}
	if err := r.Ready(); err != nil {
		t.Errorf("to take orders in needs no tables: %v", err)
	}
}

// A broker that is short of memory takes nothing in, and it is said at once.
func TestSubmitToABrokerThatBlocks(t *testing.T) {
	node := amqptest.NewNode(t)
	s := openShop(t, place{url: node.URL()}, checkout.Config{})
	r := s.start(s.url, checkout.API)
	r.awaitReady()
	if err := r.Submit(t.Context(), draft("before", 0, 0)); err != nil {
		t.Fatal(err)
	}
	node.Ctl("set_vm_memory_high_watermark", "absolute", "1")
	// The broker tells who publishes that it is blocked; the first one to do so may wait for that.
	await(t, 10*time.Second, "it is not ready", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		err := r.Submit(ctx, draft("during", 0, 0))
		if err != nil && !errors.Is(err, order.ErrNotAccepted) {
			t.Errorf("while it blocks: %v", err)
		}
		return r.Ready() != nil
	})
	begin := time.Now()
	if err := r.Submit(t.Context(), draft("during", 0, 0)); !errors.Is(err, order.ErrNotAccepted) || !strings.Contains(err.Error(), "accepts no messages") || time.Since(begin) > time.Second {
		t.Errorf("while it blocks, after %s: %v", time.Since(begin), err)
	}
	node.Ctl("set_vm_memory_high_watermark", "0.6")
	r.awaitReady()
	if err := r.Submit(t.Context(), draft("after", 0, 0)); err != nil {
		t.Errorf("when it is over: %v", err)
	}
}
