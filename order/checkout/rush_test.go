package checkout_test

import (
	"context"
	"errors"
	"fmt"
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
	*shop
	customers sync.WaitGroup
	offset    time.Duration // of the database's clock

	mu    sync.Mutex
	moved map[string]time.Time // when an order's deadline was moved, which may take a timer more
}

const (
	placing     = 8 * time.Second // all orders are placed within
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
	for tick, next := 0, 0; tick < ticks; tick++ {
		drafts := make([]order.Draft, 0, n/ticks+1)
		for ; next < n*(tick+1)/ticks; next++ {
			window := shortWindow + rand.N(longWindow-shortWindow)
			if next%4 == 0 {
				window = []time.Duration{1, 2, 5, 10}[next/4%4] * time.Second
			}
			drafts = append(drafts, draft(fmt.Sprintf("o%05d", next), next, window))
		}
		r.customers.Go(func() { r.place(drafts) })
		<-ticker.C
	}
	r.customers.Wait()
}

func (r *rush) place(drafts []order.Draft) {
	ctx := r.t.Context()
	var placed []order.Placement
	r.persist(func() (err error) {
		placed, err = r.PlaceAll(ctx, drafts)
		for i, d := range drafts {
			p := order.Placement{Err: err}
			if err == nil {
				p = placed[i]
			}
			r.ledger.Placed(d, p.Order, p.Err)
			err = errors.Join(err, p.Err)
		}
		return err
	})
	for i, p := range placed {
		if p.Err != nil {
			r.t.Errorf("placing %s: %v", drafts[i].ID, p.Err)
			continue
		}
		r.customers.Go(func() { r.customer(ctx, p.Order) })
	}
}

// customer does with an order what its number says.
func (r *rush) customer(ctx context.Context, o order.Order) {
	var n int
	fmt.Sscanf(o.ID, "o%d", &n)
	before := rand.N(o.Window) // the deadline
	switch n % 10 {
	case 1: // at the last moment
		before = rand.N(5 * time.Millisecond)
		fallthrough
	case 0, 2, 3, 4:
		r.until(o.Deadline.Add(-before))
		r.persist(func() error { _, err := r.pay(ctx, o.ID, "pay-"+o.ID); return err })
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
	s := newShop(t, place{}, checkout.Config{SweepEvery: 500 * time.Millisecond, SweepGrace: time.Second})
	toBroker, relayURL := amqptest.NewBrokerProxy(t, s.url)
	replicas := []*replica{
		s.start(s.url, checkout.Timer, checkout.Sweep),
		s.start(s.url, checkout.Timer, checkout.Sweep),
		s.start(relayURL, checkout.Relay),
	}
	for _, r := range replicas {
		r.awaitReady()
	}
	r := &rush{shop: s, moved: make(map[string]time.Time)}
	stalled := make(chan [2]time.Time, 1)
	time.AfterFunc(placing/2, func() {
		begin := time.Now()
		toBroker.Stall()
		time.Sleep(2 * time.Second)
		toBroker.Restore()
		stalled <- [2]time.Time{begin, time.Now()}
	})
	r.run(orders(5000))
	stall := <-stalled
	v := s.judge(30 * time.Second)

	// Timers were not relayed in time if they were made during the stall, or while it was caught up.
	begin, end := stall[0].Add(r.offset-250*time.Millisecond), stall[1].Add(r.offset+time.Second)
	late := func(at time.Time) bool { return at.After(begin) && at.Before(end) }
	lateness := v.Lateness(func(o order.Order) bool { return !late(o.PlacedAt) && !late(r.moved[o.ID]) })
	t.Logf("lateness of those that were not stalled: %s", lateness)
	if lateness.Orders < v.Expired/2 || lateness.P99 >= 500*time.Millisecond {
		t.Errorf("the 99th percentile of lateness is %s", lateness.P99)
	}
	swept := replicas[0].metric("lapse_swept_total") + replicas[1].metric("lapse_swept_total")
	byTimer := replicas[0].metric("lapse_lateness_seconds") + replicas[1].metric("lapse_lateness_seconds")
	t.Logf("%v orders were expired by timers, %v by the sweep", byTimer, swept)
	if int(swept+byTimer) != v.Expired {
		t.Errorf("timers and sweep say that they expired %v orders, but it were %d", swept+byTimer, v.Expired)
	}
	for i, r := range replicas[:2] {
		if r.metric("lapse_timers_total") == 0 {
			t.Errorf("replica %d handled no timer", i)
		}
	}
	wantEveryOutcome(t, v)
}

// wantEveryOutcome makes sure that the rush did all that it promises.
func wantEveryOutcome(t *testing.T, v *ordertest.Verdict) {
	t.Helper()
	if slices.Min([]int{v.Paid, v.Cancelled, v.Expired, v.LatePayments}) == 0 {
		t.Errorf("something did not happen: %d paid, %d cancelled, %d expired, %d late payments", v.Paid, v.Cancelled, v.Expired, v.LatePayments)
	}
}
