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
	// Missing says that there is no such queue.
	Missing bool
}

// Depths asks the broker for every queue of the topology but the events log. It changes nothing, and that a
// queue is missing is an answer. Of a quorum queue without a leader the broker says, after a quarter of a
// second, that it is empty (RabbitMQ 3.10).
//
// It waits for a connection and for each queue's answer, until ctx ends. What was learnt until then it
// returns with the error, which names the queue that did not answer; those that people are waiting for
// come before the rungs.
func (t Topology) Depths(ctx context.Context, conn *Conn) ([]Depth, error) {
	var found []Depth
	for _, q := range t.withDefaults().depths() {
		var err error
		if q.Messages, err = ready(ctx, conn, q.Queue); isMissing(err) {
			q.Messages, q.Missing = 0, true
		} else if err != nil {
			return found, fmt.Errorf("queue %q: %w", q.Queue, err)
		}
		found = append(found, q)
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

// ready is how many messages are ready in a queue, −1 with an error.
func ready(ctx context.Context, conn *Conn, queue string) (int64, error) {
	var found amqp091.Queue
	err := conn.Do(ctx, func(ch *amqp091.Channel) (err error) {
		found, err = ch.QueueDeclarePassive(queue, true, false, false, false, nil)
		return err
	})
	if err != nil {
		return -1, err
	}
	return int64(found.Messages), nil
}

// isMissing tells an exchange or queue that does not exist from a queue that is down, or whose node is,
// which is not found either. These are the words of RabbitMQ 3.10 to 4.3.
func isMissing(err error) bool {
	var refusal *amqp091.Error
	return errors.As(err, &refusal) && refusal.Code == amqp091.NotFound &&
		(strings.Contains(refusal.Reason, "no queue ") || strings.Contains(refusal.Reason, "no exchange "))
}
