package amqp_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/amqp/amqptest"
)

func TestDepths(t *testing.T) {
	b := newBench(t)
	rung, gone := b.topology.Delay(time.Second), b.topology.Delay(500*time.Millisecond)
	channel, err := b.conn.Channel(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer channel.Close()
	for _, queue := range []string{gone, b.topology.Parked()} {
		if _, err := channel.QueueDelete(queue, false, false, false); err != nil {
			t.Fatal(err)
		}
	}
	b.publish(numbered(3)...)
	b.publish(amqp.Message{Kind: "nobody.reads.it"})
	want := []amqp.Depth{
		{Queue: b.topology.DueQueue(kind), Role: "due", Messages: 3},
		{Queue: b.topology.Dead(), Role: "dead"},
		{Queue: b.topology.Unrouted(), Role: "unrouted", Messages: 1},
		{Queue: b.topology.Parked(), Role: "parked", Missing: true},
		{Queue: b.topology.Delay(250 * time.Millisecond), Role: "rung"},
		{Queue: gone, Role: "rung", Missing: true},
		{Queue: rung, Role: "rung"},
	}
	// A quorum queue counts what it has confirmed only a moment later.
	var diff string
	defer func() { t.Log(diff) }()
	eventually(t, "all is counted", func() bool {
		got, err := b.topology.Depths(within(t, 10*time.Second), b.conn)
		if err != nil {
			t.Fatal(err)
		}
		diff = cmp.Diff(want, got)
		return diff == ""
	})
}

func TestDepthsWithoutABroker(t *testing.T) {
	b := newBench(t)
	nowhere := open(t, amqp.Config{URIs: []string{"amqp://guest:guest@127.0.0.1:1/"}, Logger: amqptest.Logger(t)})
	begin := time.Now()
	got, err := b.topology.Depths(within(t, 300*time.Millisecond), nowhere)
	if len(got) != 0 || !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) > 2*time.Second {
		t.Errorf("after %s: %v, %v", time.Since(begin), got, err)
	}
}

// silence has a classic queue answer nothing any more.
func silence(node *amqptest.Node, queue string) {
	node.Ctl("eval", fmt.Sprintf(`{ok, Q} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"/">>, queue, <<"%s">>)), sys:suspend(amqqueue:get_pid(Q)).`, queue))
}

// bringDown makes a classic queue one that is stopped, of a node that is gone.
func bringDown(node *amqptest.Node, queue string) {
	node.Ctl("eval", fmt.Sprintf(`N = rabbit_misc:r(<<"/">>, queue, <<"%s">>),
		Stop = fun(Q) -> amqqueue:set_state(amqqueue:set_pid(Q, binary_to_term(<<131, 88, 119, 14, "gone@localhost", 1:32, 0:32, 1:32>>)), stopped) end,
		case code:ensure_loaded(rabbit_db_queue) of
			{module, M} -> M:update(N, Stop);
			_ -> rabbit_misc:execute_mnesia_transaction(fun() -> rabbit_amqqueue:update(N, Stop) end)
		end.`, queue))
}

// A queue whose process does not answer costs its own answer and those of the queues after it, no more.
func TestDepthsOfAQueueThatDoesNotAnswer(t *testing.T) {
	node := amqptest.NewNode(t)
	b := benchOn(t, node.URL())
	b.topology.Type = amqp.Classic
	b.topology.Namespace = "lapse-classic"
	if err := b.topology.Declare(within(t, 10*time.Second), b.conn); err != nil {
		t.Fatal(err)
	}
	stuck := b.topology.Delay(time.Second)
	silence(node, stuck)
	begin := time.Now()
	got, err := b.topology.Depths(within(t, time.Second), b.conn)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), stuck) || time.Since(begin) > 3*time.Second {
		t.Errorf("after %s: %v", time.Since(begin), err)
	}
	if !slices.ContainsFunc(got, func(d amqp.Depth) bool { return d.Role == "dead" }) || len(got) != 5 {
		t.Errorf("the other queues: %v", got)
	}
}
