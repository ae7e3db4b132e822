package amqp_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/amqp/amqptest"
)

func TestDescribesTheTopology(t *testing.T) {
	ladder := amqp.Ladder{time.Second, 30 * 24 * time.Hour}
	quorum := amqp.Topology{
		Ladder: ladder, Kinds: []string{"order.payment_timeout"},
		Subscriptions: map[string][]string{"order.payment_timeout": {"order.#", "stock.low"}},
	}
	rest := amqp091.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(1_000_000)}
	rung := func(ttl int64) amqp091.Table {
		return amqp091.Table{"x-queue-type": "quorum", "x-message-ttl": ttl, "x-dead-letter-exchange": "lapse.due", "x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}
	}
	want := amqp.Objects{
		Exchanges: []amqp.Exchange{
			{"lapse.parked", "fanout", nil}, {"lapse.dead", "fanout", nil}, {"lapse.unrouted", "fanout", nil},
			{"lapse.due", "direct", amqp091.Table{"alternate-exchange": "lapse.unrouted"}},
			{"lapse.delay.1s", "fanout", nil}, {"lapse.delay.720h", "fanout", nil},
			{"lapse.events", "topic", nil},
		},
		Queues: []amqp.Queue{
			{"lapse.parked", rest}, {"lapse.dead", rest}, {"lapse.unrouted", rest},
			{"lapse.due.order.payment_timeout", amqp091.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(1000), "x-dead-letter-exchange": "lapse.dead", "x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}},
			{"lapse.delay.1s", rung(1000)}, {"lapse.delay.720h", rung(2_592_000_000)},
			{"lapse.events.log", amqp091.Table{"x-queue-type": "stream", "x-max-age": "604800s"}},
		},
		Bindings: []amqp.Binding{
			{"lapse.parked", "lapse.parked", ""}, {"lapse.dead", "lapse.dead", ""}, {"lapse.unrouted", "lapse.unrouted", ""},
			{"lapse.due", "lapse.due.order.payment_timeout", "order.payment_timeout"},
			{"lapse.delay.1s", "lapse.delay.1s", ""}, {"lapse.delay.720h", "lapse.delay.720h", ""},
			{"lapse.events", "lapse.events.log", "#"},
			{"lapse.events", "lapse.due.order.payment_timeout", "order.#"}, {"lapse.events", "lapse.due.order.payment_timeout", "stock.low"},
		},
	}
	if diff := cmp.Diff(want, quorum.Objects()); diff != "" {
		t.Error(diff)
	}
	classic := quorum
	classic.Type = amqp.Classic
	for _, q := range classic.Objects().Queues {
		if q.Arguments["x-queue-type"] == "stream" {
			continue
		}
		for argument := range q.Arguments {
			switch argument {
			case "x-queue-type", "x-message-ttl", "x-dead-letter-exchange":
			default:
				t.Errorf("classic queue %s has %s", q.Name, argument)
			}
		}
	}
}

func TestTopologyThatCannotBeDeclaredIsRefused(t *testing.T) {
	for name, topology := range map[string]amqp.Topology{
		"namespace":     {Namespace: "a b"},
		"the broker's":  {Namespace: "amq.x"},
		"queue type":    {Type: "stream"},
		"rung":          {Ladder: amqp.Ladder{time.Microsecond}},
		"order":         {Ladder: amqp.Ladder{time.Minute, time.Second}},
		"rung twice":    {Ladder: amqp.Ladder{time.Minute, 60 * time.Second}},
		"kind":          {Kinds: []string{"a/b"}},
		"empty kind":    {Kinds: []string{""}},
		"kind twice":    {Kinds: []string{"a", "a"}},
		"short history": {History: time.Millisecond},
	} {
		if err := topology.Validate(); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if err := (amqp.Topology{}).Validate(); err != nil {
		t.Error(err)
	}
}

func TestDeclaringTwiceChangesNothing(t *testing.T) {
	for _, queues := range []amqp.QueueType{amqp.Quorum, amqp.Classic} {
		t.Run(string(queues), func(t *testing.T) {
			topology := amqp.Topology{Namespace: amqptest.Namespace(), Type: queues, Kinds: []string{"a", "b"}}
			conn := amqptest.Conn(t)
			amqptest.Declare(t, conn, topology)
			if err := topology.Declare(within(t, 10*time.Second), conn); err != nil {
				t.Error(err)
			}
		})
	}
}

// https://github.com/spring-projects/spring-amqp/issues/1999: one clear error, at once.
func TestARungWithAnotherTTLIsOneError(t *testing.T) {
	topology := amqp.Topology{Namespace: amqptest.Namespace(), Ladder: amqp.Ladder{time.Second, 30 * time.Minute}}
	conn := amqptest.Conn(t)
	amqptest.Declare(t, conn, topology)
	channel, err := conn.Channel(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer channel.Close()
	name := topology.Delay(30 * time.Minute)
	other := topology.Objects().Queues[4].Arguments
	other["x-message-ttl"] = int64(60_000)
	if _, err := channel.QueueDelete(name, false, false, false); err != nil {
		t.Fatal(err)
	}
	if _, err := channel.QueueDeclare(name, true, false, false, false, other); err != nil {
		t.Fatal(err)
	}
	started := time.Now()
	err = topology.Declare(within(t, 20*time.Second), conn)
	if took := time.Since(started); took > 2*time.Second {
		t.Errorf("it took %s", took)
	}
	want := &amqp.MismatchError{Object: `queue "` + name + `"`, Argument: "x-message-ttl", Wanted: "1800000", Found: "60000"}
	var got *amqp.MismatchError
	if !errors.As(err, &got) || *got != *want {
		t.Fatalf("got %v; want %v", err, want)
	}
	for _, part := range []string{name, "x-message-ttl", "1800000", "60000"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q does not say %s", err, part)
		}
	}
	if err := conn.Ready(); err != nil {
		t.Errorf("the connection suffered: %v", err)
	}
}

// Losing the connection in the middle delays a declaration; the end of its context ends it.
func TestDeclaringOnABadNetwork(t *testing.T) {
	proxy, uri := amqptest.NewBrokerProxy(t, amqptest.URL(t))
	conn := open(t, amqp.Config{URIs: []string{uri}, MinBackoff: 10 * time.Millisecond, Logger: amqptest.Logger(t)})
	topology := amqp.Topology{Namespace: amqptest.Namespace(), Kinds: []string{"a"}}
	until(t, conn, "up", func() bool { return conn.Ready() == nil })

	proxy.Stall()
	started := time.Now()
	if err := topology.Declare(within(t, 300*time.Millisecond), conn); !errors.Is(err, context.DeadlineExceeded) || time.Since(started) > time.Second {
		t.Errorf("after %s: %v", time.Since(started), err)
	}
	declared := make(chan error, 1)
	go func() { declared <- topology.Declare(within(t, 30*time.Second), conn) }()
	proxy.Refuse()
	until(t, conn, "down", func() bool { return conn.Ready() != nil })
	proxy.Restore()
	if err := <-declared; err != nil {
		t.Fatal(err)
	}
	amqptest.Declare(t, amqptest.Conn(t), topology)
}
