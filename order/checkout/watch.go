package checkout

import (
	"context"

	"github.com/lapse-go/lapse/amqp"
)

// watch looks after what no loop tells of itself, until ctx ends. conn is nil in a process that consumes
// nothing.
func (c *Checkout) watch(ctx context.Context, _ *amqp.Conn) error {
	<-ctx.Done()
	return ctx.Err()
}
