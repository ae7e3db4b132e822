package deadletter

import (
	"context"

	"golang.org/x/sync/errgroup"

	"github.com/lapse-go/lapse/amqp"
)

// Run runs replays, resolves letters that the guard finds settled, and deletes those whose retention is over, until
// ctx ends, and then returns the context's error. Any number of processes may run it.
func (d *Desk) Run(ctx context.Context, publisher *amqp.Publisher) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return d.replay(ctx, publisher) })
	group.Go(func() error { return d.settle(ctx) })
	group.Go(func() error { return d.prune(ctx) })
	return group.Wait()
}
