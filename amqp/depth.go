package amqp

import (
	"context"
	"errors"
	"fmt"
	"strings"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

// Depth is how much waits in one queue of a topology.
type Depth struct {
	Queue string
	// Role is what the queue is for: "due", "dead", "unrouted", "parked" or "rung".
	Role string
	// Messages is how many are ready. Those that a consumer holds are not among them.
	Messages int64
	// Consumers is how many read the queue.
	Consumers int64
	// Missing says that there is no such queue.
	Missing bool
}

// Depths asks the broker for every queue of the topology but the events log, on one channel, which it
// closes. It changes nothing, and that a queue is missing is an answer. Of a quorum
// queue without a leader the broker says, after a quarter of a second, that it is empty (RabbitMQ 3.10).
//
// It waits for a connection and for each queue's answer, until ctx ends. What was learnt until then it
// returns with the error, which names the queue that did not answer; those that people are waiting for
// come before the rungs.
func (t Topology) Depths(ctx context.Context, conn *Conn) ([]Depth, error) {
	t = t.withDefaults()
	queues := t.depths()
	answers := make(chan answer, len(queues)) // all of them, so that nobody is waited for
	go t.ask(ctx, conn, queues, answers)
	var found []Depth
	for _, q := range queues {
		select {
		case a := <-answers:
			if a.err != nil {
				return found, fmt.Errorf("queue %q: %w", q.Queue, a.err)
			}
			found = append(found, a.Depth)
		case <-ctx.Done():
			return found, fmt.Errorf("queue %q: the broker did not answer: %w", q.Queue, context.Cause(ctx))
		}
	}
	return found, nil
}

// depths are those queues, not asked for yet.
func (t Topology) depths() []Depth {
	var queues []Depth
	for _, kind := range t.Kinds {
		queues = append(queues, Depth{Queue: t.DueQueue(kind), Role: "due"})
	}
	queues = append(queues,
		Depth{Queue: t.Dead(), Role: "dead"}, Depth{Queue: t.Unrouted(), Role: "unrouted"}, Depth{Queue: t.Parked(), Role: "parked"})
	for _, rung := range t.Ladder {
		queues = append(queues, Depth{Queue: t.Delay(rung), Role: "rung"})
	}
	return queues
}

type answer struct {
	Depth
	err error
}

// ask sends one answer for each queue, up to the first that is an error. amqp091 waits for each however
// long it takes, so it may end after the caller has.
func (Topology) ask(ctx context.Context, conn *Conn, queues []Depth, answers chan<- answer) {
	var ch *amqp091.Channel
	defer func() {
		if ch != nil {
			ch.Close()
		}
	}()
	for _, q := range queues {
		err := ctx.Err()
		if err == nil && ch == nil {
			ch, err = conn.Channel(ctx)
		}
		var found amqp091.Queue
		if err == nil {
			found, err = ch.QueueDeclarePassive(q.Queue, true, false, false, false, nil)
			q.Messages, q.Consumers = int64(found.Messages), int64(found.Consumers)
		}
		if isMissing(err) {
			q.Missing, err, ch = true, nil, nil // the broker has closed the channel
		}
		answers <- answer{q, err}
		if err != nil {
			return
		}
	}
}

// isMissing tells a queue that does not exist from one whose node is down, which is not found either.
// These are the words of RabbitMQ 3.10 to 4.3.
func isMissing(err error) bool {
	var refusal *amqp091.Error
	return errors.As(err, &refusal) && refusal.Code == amqp091.NotFound && strings.Contains(refusal.Reason, "no queue ")
}
