package amqp_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/amqp/amqptest"
)

// put publishes straight to the dead letters.
func (b *bench) put(key string, messages ...amqp091.Publishing) {
	b.t.Helper()
	channel, err := b.conn.Channel(b.t.Context())
	if err != nil {
		b.t.Fatal(err)
	}
	defer channel.Close()
	if err := channel.Confirm(false); err != nil {
		b.t.Fatal(err)
	}
	for _, m := range messages {
		confirm, err := channel.PublishWithDeferredConfirm(b.topology.Dead(), key, true, false, m)
		if err != nil {
			b.t.Fatal(err)
		}
		confirm.Wait()
	}
}

// What a consumer of another queue than a due queue does not settle is parked: no rung leads back there, and
// whatever is rejected from there is lost.
func TestAnotherQueueIsConsumed(t *testing.T) {
	b := newBench(t)
	cfg := b.config(each(func(m amqp.Message) amqp.Outcome {
		if m.Kind != "a.b" || m.Arrival() != (amqp.Arrival{Exchange: b.topology.Dead(), RoutingKey: "a.b"}) {
			t.Errorf("kind %q, %+v", m.Kind, m.Arrival())
		}
		switch m.ID {
		case "retry":
			return amqp.Retry(errors.New("why"))
		case "dead":
			return amqp.Dead(errors.New("why"))
		case "panic":
			panic("why")
		case "park":
			return amqp.Park(errors.New("why"))
		case "huge":
			return amqp.Park(errors.New(strings.Repeat("e", 1024)))
		}
		return amqp.Done()
	}))
	cfg.Kind, cfg.Queue, cfg.Workers = "desk", b.topology.Dead(), 1
	b.run(cfg)
	deep := amqp091.Table{}
	for range 20 {
		deep = amqp091.Table{"t": deep}
	}
	filler := strings.Repeat("h", 130_000)
	want := map[string]string{"retry": "why", "dead": "why", "panic": "the handler panicked: why", "park": "why", "huge": ""}
	b.put("a.b", amqp091.Publishing{MessageId: "done"}, amqp091.Publishing{MessageId: "retry"}, amqp091.Publishing{MessageId: "dead"},
		amqp091.Publishing{MessageId: "panic"}, amqp091.Publishing{MessageId: "park", Headers: amqp091.Table{"n": int32(5), "deep": deep}},
		amqp091.Publishing{MessageId: "huge", Headers: amqp091.Table{"filler": filler}})
	for _, d := range b.take(b.topology.Parked(), len(want)) {
		why, _ := d.Headers[amqp.HeaderParked].(string)
		if expected, found := want[d.MessageId]; !found || why != expected || d.RoutingKey != "a.b" {
			t.Errorf("%q is parked, with key %s: %s", d.MessageId, d.RoutingKey, why)
		}
		delete(want, d.MessageId)
		if d.MessageId == "park" && d.Headers["n"] != int32(5) || d.MessageId == "huge" && d.Headers["filler"] != filler {
			t.Errorf("%s has lost its headers", d.MessageId)
		}
	}
	if got := testutil.ToFloat64(b.metrics.Handled.WithLabelValues("desk", "parked")); got != 5 {
		t.Errorf("%v parked counted", got)
	}
	eventually(t, "the queue is empty", func() bool { return b.depth(b.topology.Dead()) == 0 })
}

// What cannot even be parked stays where it is, and holds up nothing.
func TestWhatCannotBeParkedStays(t *testing.T) {
	b := newBench(t)
	small := amqp.NewPublisher(amqptest.Conn(t), amqp.PublisherConfig{MaxBytes: 10})
	t.Cleanup(func() { _ = small.Close() })
	handled := make(chan string, 10)
	cfg := b.config(func(_ context.Context, batch []amqp.Message) ([]amqp.Outcome, error) {
		var outcomes []amqp.Outcome
		for _, m := range batch {
			handled <- m.ID
			outcomes = append(outcomes, amqp.Done())
			if m.ID == "large" {
				outcomes[len(outcomes)-1] = amqp.Park(errors.New("why"))
			}
		}
		return outcomes, nil
	})
	cfg.Kind, cfg.Queue, cfg.Workers, cfg.Publisher = "desk", b.topology.Dead(), 1, small
	_, stop := b.run(cfg)
	b.put("k", amqp091.Publishing{MessageId: "large", Body: make([]byte, 11)})
	<-handled
	b.put("k", amqp091.Publishing{MessageId: "small"})
	if id := <-handled; id != "small" {
		t.Errorf("%s came again", id)
	}
	eventually(t, "the other is settled", func() bool { return testutil.ToFloat64(b.metrics.Handled.WithLabelValues("desk", "done")) == 1 })
	stop()
	eventually(t, "it is there still", func() bool { return b.depth(b.topology.Dead()) == 1 })
}
