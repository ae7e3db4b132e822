package checkout_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/amqp/amqptest"
	"github.com/lapse-go/lapse/amqp/database"
	"github.com/lapse-go/lapse/order"
	"github.com/lapse-go/lapse/order/checkout"
)

// fresh has the overview be found out anew, once the last is too old.
func fresh(t testing.TB, c interface {
	Overview(context.Context) checkout.Overview
}, what string, so func(checkout.Overview) bool) {
	t.Helper()
	var last checkout.Overview
	defer func() {
		if t.Failed() {
			t.Logf("the overview is %+v", last)
		}
	}()
	await(t, rounds, what, func() bool {
		last = c.Overview(t.Context())
		return so(last)
	})
}

func TestOverview(t *testing.T) {
	s := openShop(t, place{}, checkout.Config{SweepEvery: noSweep, SweepGrace: time.Millisecond})
	c, err := checkout.New(s.db, s.cfg)
	if err != nil {
		t.Fatal(err)
	}
	o := c.Overview(t.Context())
	if !strings.Contains(o.Trouble, "not serving yet") || o.Queues.Err == nil || o.Orders.Err != nil || o.Outbox.Err != nil || o.Letters.Err != nil {
		t.Errorf("before it serves: %+v", o)
	}
	proxy, url := amqptest.NewBrokerProxy(t, s.url)
	serve(t, c, nil, url, checkout.Relay, checkout.Timer)
	s.orders("soon", 5, 100*time.Millisecond)
	s.orders("late", 3, time.Hour)
	s.exec("INSERT INTO lapse_dead_letters (identity, message_id, kind, subject, queue, exchange, routing_key, reason, attempts, error, first_error, fingerprint, properties, headers, body, size, died_at, collected_at, replays, replayed_by, state) " +
		"VALUES ('1', '', '', '', '', '', '', 'unknown', 0, '', '', '', '{}', '{}', '', 0, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), 0, '', 'open')")
	fresh(t, c, "all is known", func(o checkout.Overview) bool {
		return o.Trouble == "" && o.Orders.Value[order.Expired] == 5 && o.Queues.Err == nil && waiting(o) == 3
	})
	o = c.Overview(t.Context())
	want := map[order.Status]int{order.Pending: 3, order.Paid: 0, order.Cancelled: 0, order.Expired: 5}
	if diff := cmp.Diff(want, o.Orders.Value); diff != "" {
		t.Error("orders (-want +got): ", diff)
	}
	if c := o.Closing.Value; c.Orders != 5 || c.P50 <= 0 || c.P99 < c.P50 || c.P99 > 20*time.Second || c.Rate <= 0 {
		t.Errorf("closing: %+v", c)
	}
	if o.Letters.Value != 1 || o.Overdue.Value.Orders != 0 {
		t.Errorf("%+v %+v", o.Letters, o.Overdue)
	}

	// The same answer is for all who ask within some seconds.
	s.orders("more", 1, time.Hour)
	if again := c.Overview(t.Context()); !again.At.Equal(o.At) || again.Orders.Value[order.Pending] != 3 {
		t.Errorf("asked again at once, it finds out again: %+v", again)
	}

	// Without the broker, the rest is known.
	proxy.Refuse()
	s.orders("overdue", 2, time.Millisecond)
	fresh(t, c, "that the broker is away", func(o checkout.Overview) bool {
		return o.Trouble != "" && o.Queues.Err != nil && o.Overdue.Value.Orders == 2 && o.Orders.Value[order.Pending] == 6 && o.Outbox.Value.Rows > 0
	})
}

// A process that does not serve asks the broker itself, and says of each server that it is away, and still the rest.
func TestLook(t *testing.T) {
	s := openShop(t, place{}, checkout.Config{SweepEvery: noSweep})
	serve(t, s.Checkout, nil, s.url, checkout.Relay, checkout.Timer)
	s.orders("late", 3, time.Hour)
	c, err := checkout.New(s.db, s.cfg)
	if err != nil {
		t.Fatal(err)
	}
	proxy, url := amqptest.NewBrokerProxy(t, s.url)
	broker := amqp.Config{URIs: []string{url}, Logger: amqptest.Logger(t)}
	var o checkout.Overview
	await(t, rounds, "the timers are in the rungs", func() bool {
		o = c.Look(t.Context(), broker)
		return waiting(o) == 3
	})
	if o.Trouble != "" || o.Queues.Err != nil || o.Orders.Value[order.Pending] != 3 || o.Pause.Err != nil || o.Pause.Value.Paused {
		t.Errorf("%+v", o)
	}
	proxy.Refuse()
	o = c.Look(t.Context(), broker)
	if !errors.Is(o.Queues.Err, checkout.ErrBroker) || !strings.Contains(o.Trouble, "no connection to the broker") || o.Orders.Value[order.Pending] != 3 {
		t.Errorf("without the broker: %+v", o)
	}
	nowhere, err := database.Open("nobody@tcp(127.0.0.1:1)/nothing", database.Options{Logger: amqptest.Logger(t)})
	if err != nil {
		t.Fatal(err)
	}
	pool, err := nowhere.DB()
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if c, err = checkout.New(nowhere, s.cfg); err != nil {
		t.Fatal(err)
	}
	proxy.Restore()
	o = c.Look(t.Context(), broker)
	if o.Trouble == "" || o.Queues.Err != nil || waiting(o) != 3 || !database.IsOutage(o.Orders.Err) || !database.IsOutage(o.Letters.Err) || !database.IsOutage(o.Outbox.Err) {
		t.Errorf("without the database: %+v", o)
	}
}

func waiting(o checkout.Overview) (timers int64) {
	for _, d := range o.Queues.Value.Depths {
		if d.Role == "rung" {
			timers += d.Messages
		}
	}
	return timers
}

// A process that only sweeps, and one without orders or database, say nothing of what they do not have.
func TestOverviewOfLess(t *testing.T) {
	c, err := checkout.NewCloser(nil, nil, checkout.Config{Namespace: amqptest.Namespace()})
	if err != nil {
		t.Fatal(err)
	}
	o := c.Overview(t.Context())
	if o.Orders != nil || o.Overdue != nil || o.Closing != nil || o.Outbox != nil || o.Letters != nil || o.Queues.Err == nil || o.Trouble == "" {
		t.Errorf("%+v", o)
	}
}
