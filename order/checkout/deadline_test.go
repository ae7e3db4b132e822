package checkout_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/google/go-cmp/cmp"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"gorm.io/gorm"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/amqp/amqptest"
	"github.com/lapse-go/lapse/amqp/database"
	"github.com/lapse-go/lapse/order"
	"github.com/lapse-go/lapse/order/checkout"
	"github.com/lapse-go/lapse/order/orderamqp"
)

// noSweep leaves all to the timers.
const noSweep = time.Hour

// A customer gets more time in the last moment, as in github.com/mollie/magento2/issues/658, where an
// order was closed by the deadline that it had first. And one gets less time.
func TestOnlyTheCurrentDeadlineCloses(t *testing.T) {
	s := newShop(t, place{}, checkout.Config{SweepEvery: noSweep})
	r := s.startHere(s.url, checkout.Relay, checkout.Timer)
	r.awaitReady()
	later, earlier := s.order("later", 1500*time.Millisecond), s.order("earlier", time.Minute)
	offset := s.clock()
	time.Sleep(time.Until(later.Deadline.Add(-offset - 100*time.Millisecond)))
	for id, to := range map[string]time.Time{"later": later.Deadline.Add(1500 * time.Millisecond), "earlier": later.Deadline.Add(time.Second)} {
		if o, err := s.extend(t.Context(), id, to); err != nil || o.Status != order.Pending {
			t.Fatalf("extending %s: %s, %v", id, o.Status, err)
		}
	}
	v := s.judge(10 * time.Second)
	if late := v.Lateness(nil); late.Orders != 2 || late.Max > time.Second {
		t.Errorf("lateness: %s", late)
	}
	if got := s.get("earlier"); got.ClosedAt.After(earlier.Deadline.Add(-30 * time.Second)) {
		t.Errorf("closed at %s", got.ClosedAt)
	}
	if hops := r.metric("lapse_timers_total", "outcome", "not due"); hops < 1 || hops > 6 {
		t.Errorf("timers came %v times too early", hops)
	}
}

// dueNow publishes timers to where they come when they are due.
func (s *shop) dueNow(timers ...order.Timer) {
	s.t.Helper()
	publisher := amqp.NewPublisher(s.broker, amqp.PublisherConfig{})
	defer publisher.Close()
	publishings := make([]amqp.Publishing, len(timers))
	for i, timer := range timers {
		m, err := orderamqp.EncodeTimer(timer)
		if err != nil {
			s.t.Fatal(err)
		}
		publishings[i] = amqp.Publishing{Message: m, Exchange: s.Topology().Due()}
	}
	for _, err := range publisher.Publish(s.t.Context(), publishings...) {
		if err != nil {
			s.t.Fatal(err)
		}
	}
}

// letters takes n dead letters.
func (s *shop) letters(n int) (letters []amqp091.Delivery) {
	s.t.Helper()
	channel, err := s.broker.Channel(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	defer channel.Close()
	await(s.t, 30*time.Second, fmt.Sprintf("%d dead letters", n), func() bool {
		letter, ok, err := channel.Get(s.Topology().Dead(), true)
		if err != nil {
			s.t.Fatal(err)
		}
		if ok {
			letters = append(letters, letter)
		}
		return len(letters) == n
	})
	return letters
}

// A timer that is published outside of the order's transaction can overtake it, as in
// github.com/iflytek/skillhub/issues/612; and the transaction may be rolled back.
func TestTimerOfAnOrderThatIsNotThere(t *testing.T) {
	s := newShop(t, place{}, checkout.Config{
		SweepEvery: noSweep, Retry: amqp.RetryPolicy{Tries: 4, Initial: time.Second, Jitter: amqp.NoJitter},
	})
	r := s.start(s.url, checkout.Relay, checkout.Timer)
	r.awaitReady()
	deadline := time.Now().Add(s.clock() + time.Second)
	s.dueNow(order.Timer{OrderID: "slow", Deadline: deadline}, order.Timer{OrderID: "rolled-back", Deadline: deadline})

	time.Sleep(3 * time.Second)
	s.order("slow", time.Millisecond)
	rollback := errors.New("the customer's card was refused")
	err := s.db.Transaction(func(tx *gorm.DB) error {
		if _, err := s.PlaceIn(tx, draft("rolled-back", 0, time.Millisecond)); err != nil {
			return err
		}
		return rollback
	})
	if !errors.Is(err, rollback) {
		t.Fatal(err)
	}
	letter := s.letters(1)[0]
	reason := fmt.Sprint(letter.Headers[amqp.HeaderReason], letter.Headers[amqp.HeaderAttempt], letter.Headers[amqp.HeaderError])
	if !bytes.Contains(letter.Body, []byte(`"rolled-back"`)) || !strings.HasPrefix(reason, string(amqp.ReasonOutOfTries)+"4order rolled-back: no such order") {
		t.Errorf("%s is a dead letter: %s", letter.Body, reason)
	}
	s.judge(10 * time.Second)
	if n := r.metric("lapse_messages_total", "outcome", "retried"); n < 4 || n > 6 {
		t.Errorf("the two were tried again %v times", n)
	}
	if n := r.metric("lapse_messages_total", "outcome", "deferred"); n < 2 {
		t.Errorf("before their deadline the two were looked for again %v times", n)
	}
	// Its own timer finds the order closed already, or does so itself; neither is a failure.
	if n := s.queued(s.Topology().Dead()); n != 0 {
		t.Errorf("there are %d more dead letters", n)
	}
}

// As in github.com/magento/magento2/issues/9969, where stock came back twice.
func TestTimerSweepAndOperatorAtOnce(t *testing.T) {
	s := newShop(t, place{}, checkout.Config{SweepEvery: 10 * time.Millisecond, SweepGrace: time.Millisecond, Logger: quiet(t)})
	s.start(s.url).awaitReady()
	s.start(s.url).awaitReady()
	ids := s.orders("o", 400, 2*time.Second)
	offset := s.clock()
	time.Sleep(time.Until(s.get(ids[0]).Deadline.Add(-offset)))
	told := make(map[string]int)
	for range 20 {
		for batch := range slices.Chunk(ids, 50) {
			expiries, err := s.Expire(t.Context(), batch)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range expiries.Orders {
				if e.Outcome == order.OutcomeExpired {
					told[e.ID]++
				}
			}
		}
	}
	for id, n := range told {
		if n > 1 {
			t.Errorf("the operator was told %d times that %s was expired", n, id)
		}
	}
	if v := s.judge(10 * time.Second); v.Expired != len(ids) {
		t.Errorf("%d orders expired", v.Expired)
	}
	t.Logf("the operator expired %d of %d orders", len(told), len(ids))
}

// As in Truxify/Truxify#7491.
func TestTwoReplicasGetEveryTimerTwice(t *testing.T) {
	s := newShop(t, place{}, checkout.Config{SweepEvery: noSweep})
	ids := s.orders("o", 1000, time.Millisecond)
	var timers []order.Timer
	for _, id := range ids {
		timers = append(timers, order.Timer{OrderID: id, Deadline: time.Now()})
	}
	s.dueNow(append(timers, timers...)...)
	replicas := []*replica{s.start(s.url, checkout.Timer), s.start(s.url, checkout.Timer)}
	handled := func(outcome string) float64 {
		return replicas[0].metric("lapse_timers_total", "outcome", outcome) + replicas[1].metric("lapse_timers_total", "outcome", outcome)
	}
	await(t, 20*time.Second, "all timers are handled", func() bool { return handled("expired")+handled("already expired") == 2000 })
	s.startHere(s.url, checkout.Relay)
	if v := s.judge(10 * time.Second); v.Expired != 1000 || handled("expired") != 1000 {
		t.Errorf("%d orders are expired, %v times", v.Expired, handled("expired"))
	}
	for i, r := range replicas {
		if r.metric("lapse_timers_total") == 0 {
			t.Errorf("replica %d handled none", i)
		}
	}
}

// As in github.com/mollie/WooCommerce/issues/1252: a payment two hours after expiry, by the database's clock, which
// the provider sends twice.
func TestLatePayment(t *testing.T) {
	s := newShop(t, place{}, checkout.Config{})
	s.start(s.url).awaitReady()
	s.order("o", 250*time.Millisecond)
	await(t, 10*time.Second, "the order is expired", func() bool { return s.get("o").Status == order.Expired })
	before := s.get("o")
	stock, err := s.Stock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	later := s.twoHoursLater()
	for range 2 {
		o, err := later.Pay(t.Context(), "o", order.Payment{Reference: "pay-1"})
		s.ledger.Paid("o", "pay-1", o, err)
		if !errors.Is(err, order.ErrLatePayment) || o.Status != order.Expired {
			t.Errorf("the payment was answered %s, %v", o.Status, err)
		}
	}
	v := s.judge(10 * time.Second)
	if v.LatePayments != 1 || v.Events != 3 {
		t.Errorf("%d late payments, %d events", v.LatePayments, v.Events)
	}
	after := s.get("o")
	if late := after.Payments[0].At.Sub(before.ClosedAt); late < 2*time.Hour-time.Minute || late > 3*time.Hour {
		t.Errorf("the payment came %s after expiry", late)
	}
	if now, err := s.Stock(t.Context()); err != nil || !slices.Equal(now, stock) {
		t.Errorf("the stock changed: %v", err)
	}
	after.Version, after.Payments = before.Version, before.Payments
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("the order changed (-before +after):\n%s", diff)
	}
}

// twoHoursLater is the shop in sessions whose clock is two hours ahead.
func (s *shop) twoHoursLater() *checkout.Checkout {
	s.t.Helper()
	config, err := mysql.ParseDSN(amqptest.DSN(s.t, s.db))
	if err != nil {
		s.t.Fatal(err)
	}
	config.Params = map[string]string{"timestamp": fmt.Sprint(time.Now().Add(s.clock() + 2*time.Hour).Unix())}
	db, err := database.Open(config.FormatDSN(), database.Options{MaxOpen: 1})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		if pool, err := db.DB(); err == nil {
			pool.Close()
		}
	})
	c, err := checkout.New(db, checkout.Config{Namespace: s.cfg.Namespace})
	if err != nil {
		s.t.Fatal(err)
	}
	return c
}

func TestPause(t *testing.T) {
	s := newShop(t, place{}, checkout.Config{SweepEvery: 100 * time.Millisecond, SweepGrace: time.Millisecond, Logger: quiet(t)})
	replicas := []*replica{s.start(s.url), s.start(s.url)}
	for _, r := range replicas {
		r.awaitReady()
	}
	s.orders("before", 100, 500*time.Millisecond)
	expired := func() int64 { return s.sql("SELECT COUNT(*) FROM lapse_orders WHERE status = 'expired'") }
	await(t, 10*time.Second, "what is due is expired", func() bool { return expired() == 100 })

	if err := s.Pause(t.Context(), order.By{Who: "test", Why: "the payment provider is down"}); err != nil {
		t.Fatal(err)
	}
	ids := s.orders("during", 100, 250*time.Millisecond)
	// With those of former orders, perhaps, where the sweep was first.
	await(t, 5*time.Second, "the timers are back in their queue", func() bool {
		return s.queued(s.Topology().DueQueue(orderamqp.KindPaymentTimeout)) >= len(ids)
	})
	for _, r := range replicas {
		if err := r.Ready(); err != nil {
			t.Errorf("a replica that is only paused is not ready: %v", err)
		}
	}
	time.Sleep(time.Second) // in which neither timers nor the sweep may expire them
	if _, err := s.Expire(t.Context(), ids); !errors.Is(err, order.ErrPaused) {
		t.Errorf("an operator expired: %v", err)
	}
	for _, id := range ids[:50] {
		if _, err := s.pay(t.Context(), id, "pay-"+id); err != nil {
			t.Errorf("paying while paused: %v", err)
		}
	}
	if n := expired(); n != 100 {
		t.Errorf("%d orders were expired while paused", n-100)
	}
	if err := s.Resume(t.Context(), order.By{Who: "test"}); err != nil {
		t.Fatal(err)
	}
	await(t, 2*time.Second, "what became overdue is expired", func() bool { return expired() == 150 })
	await(t, 2*time.Second, "both replicas are ready", func() bool { return replicas[0].Ready() == nil && replicas[1].Ready() == nil })
	if v := s.judge(10 * time.Second); v.Paid != 50 {
		t.Errorf("%d orders are paid", v.Paid)
	}
	for _, r := range replicas {
		if n := r.metric("lapse_messages_total", "outcome", "retried"); n != 0 {
			t.Errorf("pausing counted %v attempts", n)
		}
	}
}

// The checkout's own rows and the order are there together or not at all.
func TestPlaceIn(t *testing.T) {
	s := newShop(t, place{}, checkout.Config{})
	s.startHere(s.url).awaitReady()
	s.exec("CREATE TABLE baskets (order_id VARCHAR(64) PRIMARY KEY)")
	rollback := errors.New("changed my mind")
	checkOut := func(id string, end error) error {
		d := draft(id, 0, time.Second)
		var placed order.Order
		err := s.db.Transaction(func(tx *gorm.DB) (err error) {
			if err := tx.Exec("INSERT INTO baskets VALUES (?)", id).Error; err != nil {
				return err
			}
			if placed, err = s.PlaceIn(tx, d); err != nil {
				return err
			}
			return end
		})
		s.Wake()
		if err == nil {
			s.ledger.Placed(d, placed, nil)
		}
		return err
	}
	if err := checkOut("committed", nil); err != nil {
		t.Fatal(err)
	}
	if err := checkOut("rolled-back", rollback); !errors.Is(err, rollback) {
		t.Fatal(err)
	}
	if _, err := s.Get(t.Context(), "rolled-back"); !errors.Is(err, order.ErrNotFound) {
		t.Errorf("the order that was rolled back: %v", err)
	}
	if n := s.sql("SELECT COUNT(*) FROM baskets"); n != 1 {
		t.Errorf("%d baskets", n)
	}
	if v := s.judge(10 * time.Second); v.Expired != 1 {
		t.Errorf("%d orders expired", v.Expired)
	}
}

// A window need not be whole milliseconds.
func TestAnyWindow(t *testing.T) {
	s := newShop(t, place{}, checkout.Config{SweepEvery: noSweep})
	s.startHere(s.url).awaitReady()
	for i, window := range []time.Duration{time.Second + time.Microsecond, 1234567 * time.Microsecond, 2*time.Second + time.Nanosecond} {
		s.order(fmt.Sprint("o", i), window)
	}
	s.judge(10 * time.Second)
}
