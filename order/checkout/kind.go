package checkout

import (
	"context"

	"github.com/lapse-go/lapse/amqp"
)

// Kind is a further kind of messages, for instance order.pickup_reminder. They get what payment timeouts get:
// delays, retries, dead letters and metrics.
type Kind struct {
	// Name is the routing key of its messages. Letters, digits, dots, dashes and underscores.
	Name string
	// Events are patterns of events, such as order.expired or order.#, that come to the handler as well: a
	// subscriber is a kind of its own. One that is taken away here goes on coming until its binding is deleted, which
	// [amqp.Topology.Plan] finds as long as there is another.
	Events []string
	// Handler handles them in processes with the role [Kinds]. It has to end soon after its context does, or the process
	// does not end either. When nil, this program only makes the queue.
	Handler amqp.Handler
	// Probe asks whether the server behind the handler works again, see [amqp.ConsumerConfig].
	Probe func(ctx context.Context) error
	// Workers is how many batches are handled at the same time, and Batch the most messages of one. 2 and
	// 200 when zero.
	Workers, Batch int
}
