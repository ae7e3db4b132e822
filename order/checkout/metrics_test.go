package checkout_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/order/checkout"
)

const kindPaymentTimeout = "order.payment_timeout"

// TestEverySeries runs a little service and wants every series to be there with a believable value.
func TestEverySeries(t *testing.T) {
	s := openShop(t, place{}, checkout.Config{SweepGrace: time.Second, SweepEvery: time.Second, Workers: 3})
	r := s.startHere(s.url)
	r.awaitReady()
	begin := time.Now()

	expire := s.orders("expire", 5, time.Second)
	s.order("pay", time.Minute)
	if _, err := s.pay(t.Context(), "pay", "p-1"); err != nil {
		t.Fatal(err)
	}
	s.order("wait", 2*time.Hour)
	s.loseTimer("swept", 300*time.Millisecond)
	s.deliver(amqp.Message{Kind: kindPaymentTimeout, ID: "bad", Body: []byte("nonsense"), Timestamp: time.Now()},
		amqp.Message{Kind: "order.unheard_of", ID: "mistyped", Body: []byte("{}")})

	queue := func(name string) []string { return []string{"queue", s.Topology().Namespace + "." + name} }
	const due = kindPaymentTimeout
	between := func(from, to float64) func(float64) bool {
		return func(v float64) bool { return v >= from && v <= to }
	}
	exactly := func(v float64) func(float64) bool { return between(v, v) }
	anything := between(0, 1e9)
	recent := func(v float64) bool { return v >= float64(begin.Unix())-1 && v <= float64(time.Now().Unix())+1 }
	orders := float64(len(expire) + 3)
	type labels = []string
	for _, want := range []struct {
		name    string
		labels  labels
		ok      func(float64) bool
		patient bool // it becomes so
	}{
		{"lapse_reconnections_total", labels{"connection", s.Topology().Namespace + "/consume"}, exactly(0), false},
		{"lapse_connection_blocked", labels{"connection", s.Topology().Namespace + "/publish"}, exactly(0), false},
		{"lapse_connection_blocked_seconds_total", labels{"connection", s.Topology().Namespace + "/publish"}, exactly(0), false},
		// Each order has a timer and an event that it was placed, and most have one for their end.
		{"lapse_published_total", labels{"result", "confirmed"}, between(2*orders+6, 3*orders+10), true},
		{"lapse_published_total", labels{"result", "unconfirmed"}, anything, false},
		{"lapse_messages_total", labels{"kind", due, "outcome", "done"}, between(5, 6), true},
		{"lapse_messages_total", labels{"kind", due, "outcome", "deferred"}, anything, false},
		{"lapse_messages_total", labels{"kind", due, "outcome", "retried"}, exactly(0), false},
		{"lapse_messages_total", labels{"kind", due, "outcome", "dead"}, exactly(1), true},
		{"lapse_dead_letters_total", labels{"kind", due, "reason", "hopeless"}, exactly(1), true},
		{"lapse_dead_letters_total", labels{"kind", due, "reason", "out-of-tries"}, exactly(0), false},
		{"lapse_dead_letters_total", labels{"kind", due, "reason", "rejected"}, exactly(0), false},
		{"lapse_workers", labels{"kind", due}, exactly(3), false},
		{"lapse_workers_busy", labels{"kind", due}, exactly(0), true},
		{"lapse_due_age_seconds", labels{"kind", due}, between(0, 10), false},
		{"lapse_batch_size", labels{"kind", due}, between(1, 10), false},
		{"lapse_consumer_repairs_total", labels{"kind", due, "cause", "channel"}, exactly(0), false},
		{"lapse_handler_outages_total", labels{"kind", due}, exactly(0), false},
		{"lapse_handler_panics_total", labels{"kind", due}, exactly(0), false},
		{"lapse_messages_returned_total", labels{"kind", due}, exactly(0), false},
		{"lapse_outbox_relayed_total", labels{"result", "confirmed"}, between(2*orders, 3*orders+10), true},
		{"lapse_outbox_relayed_total", labels{"result", "unroutable"}, exactly(0), false},
		{"lapse_timers_published_total", nil, exactly(orders - 1), true},
		{"lapse_outbox_rows", nil, between(0, 3*orders), false},
		{"lapse_outbox_set_aside_rows", nil, exactly(0), false},
		{"lapse_outbox_oldest_seconds", nil, between(0, 60), false},
		{"lapse_timers_total", labels{"outcome", "expired"}, exactly(float64(len(expire))), true},
		{"lapse_lateness_seconds", nil, exactly(float64(len(expire)) + 1), true}, // observations; one by the sweep
		{"lapse_swept_total", nil, exactly(1), true},
		{"lapse_queue_messages", append(queue("due."+due), "role", "due"), exactly(0), true},
		{"lapse_queue_messages", append(queue("dead"), "role", "dead"), exactly(0), true},
		{"lapse_queue_messages", append(queue("unrouted"), "role", "unrouted"), exactly(0), true},
		{"lapse_messages_total", labels{"kind", "desk.dead", "outcome", "done"}, exactly(1), true},
		{"lapse_messages_total", labels{"kind", "desk.dead", "outcome", "parked"}, exactly(0), true},
		{"lapse_messages_total", labels{"kind", "desk.unrouted", "outcome", "done"}, exactly(1), true},
		{"lapse_desk_collected_total", labels{"reason", "hopeless"}, exactly(1), true},
		{"lapse_desk_open_letters", labels{"reason", "hopeless"}, exactly(1), true},
		{"lapse_desk_open_letters", labels{"reason", "unroutable"}, exactly(1), true},
		{"lapse_desk_open_letters", labels{"reason", "expired"}, exactly(0), true},
		{"lapse_queue_messages", append(queue("parked"), "role", "parked"), exactly(0), true},
		{"lapse_queue_messages", append(queue("delay.2h"), "role", "rung"), exactly(1), true},
		{"lapse_queue_messages", append(queue("delay.1m"), "role", "rung"), exactly(1), true},
		{"lapse_loop_duration_seconds", labels{"loop", "relay"}, between(2, 1e6), true},
		{"lapse_loop_duration_seconds", labels{"loop", "sweep"}, between(2, 1e6), true},
		{"lapse_loop_duration_seconds", labels{"loop", "watch"}, between(2, 1e6), true},
		{"lapse_loop_runs_total", labels{"loop", "relay", "result", "success"}, between(2, 1e6), true},
		{"lapse_loop_runs_total", labels{"loop", "sweep", "result", "success"}, between(2, 1e6), true},
		{"lapse_loop_runs_total", labels{"loop", "watch", "result", "success"}, between(2, 1e6), true},
		{"lapse_loop_runs_total", labels{"loop", "watch", "result", "failure"}, exactly(0), false},
		{"lapse_loop_last_success_timestamp_seconds", labels{"loop", "relay"}, recent, false},
		{"lapse_loop_last_success_timestamp_seconds", labels{"loop", "sweep"}, recent, false},
		{"lapse_loop_last_success_timestamp_seconds", labels{"loop", "watch"}, recent, false},
		{"lapse_paused", nil, exactly(0), false},
		{"lapse_overdue_orders", nil, exactly(0), true},
		{"lapse_overdue_oldest_seconds", nil, exactly(0), true},
	} {
		var got float64
		so := func() bool {
			got = r.metric(want.name, want.labels...)
			return r.series(want.name, want.labels...) == 1 && want.ok(got)
		}
		if !want.patient && so() || want.patient && within(20*time.Second, so) {
			continue
		}
		t.Errorf("%s%v: %d series, value %v", want.name, want.labels, r.series(want.name, want.labels...), got)
	}

	problems, err := testutil.GatherAndLint(r.metrics)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

// series is how many series of a metric have these labels.
func (r *replica) series(name string, labels ...string) (n int) {
	r.t.Helper()
	families, err := r.metrics.Gather()
	if err != nil {
		r.t.Fatal(err)
	}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			have := make(map[string]string)
			for _, pair := range m.GetLabel() {
				have[pair.GetName()] = pair.GetValue()
			}
			same := family.GetName() == name
			for i := 0; i < len(labels); i += 2 {
				same = same && have[labels[i]] == labels[i+1]
			}
			if same {
				n++
			}
		}
	}
	return n
}

// deliver publishes messages to the due exchange.
func (s *shop) deliver(messages ...amqp.Message) {
	s.t.Helper()
	p := amqp.NewPublisher(s.broker, amqp.PublisherConfig{Logger: s.cfg.Logger})
	defer p.Close()
	out := make([]amqp.Publishing, len(messages))
	for i, m := range messages {
		out[i] = amqp.Publishing{Message: m, Exchange: s.Topology().Due()}
	}
	for _, err := range p.Publish(s.t.Context(), out...) {
		if err != nil {
			s.t.Fatal(err)
		}
	}
}

// loseTimer places an order and removes its timer before any relay can see it, so that only the sweep
// finds it.
func (s *shop) loseTimer(id string, window time.Duration) {
	s.t.Helper()
	tx := s.db.Begin()
	defer tx.Rollback()
	_, err := s.PlaceIn(tx, draft(id, 0, window))
	if err == nil {
		err = tx.Exec("DELETE FROM lapse_outbox WHERE due_at IS NOT NULL AND body LIKE ?", fmt.Sprintf("%%%q%%", id)).Error
	}
	if err == nil {
		err = tx.Commit().Error
	}
	if err != nil {
		s.t.Fatal(err)
	}
}
