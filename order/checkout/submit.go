package checkout

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/order"
	"github.com/lapse-go/lapse/order/orderamqp"
)

// Submit publishes the draft as a message of [orderamqp.KindPlace] and returns when the broker has
// confirmed it: the order will be placed, or refused by an order.refused, also if the database is away at
// present. The time to pay runs from when it is placed; without a window it is that of whoever places it. The
// draft needs an id (see [order.Service.Prepare]), by which the order can be asked for.
//
// It needs [Closer.Serve] with the role [API]. The error wraps [order.ErrInvalid] if the draft is not
// valid, and else [order.ErrNotAccepted]: at once while the broker is away or takes no messages, and in any case
// when ctx ends or Config.Shutdown has passed.
func (c *Checkout) Submit(ctx context.Context, d order.Draft) error {
	if err := d.Validate(); err != nil {
		return err
	}
	m, err := orderamqp.EncodePlace(d)
	if err != nil {
		return err
	}
	m.AppID = c.topology.Namespace
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(c.cfg.Shutdown, 10*time.Second))
	defer cancel()
	err = c.intake.publish(ctx, amqp.Publishing{Message: m, Exchange: c.topology.Due()})
	if errors.Is(err, errNoIntake) {
		err = c.intakeClosed()
	}
	if err != nil {
		return fmt.Errorf("%w: %w", order.ErrNotAccepted, err)
	}
	return nil
}

// intake is the publisher of what is submitted, while there is one.
type intake struct {
	mu        sync.RWMutex // held for reading by whoever publishes
	publisher *amqp.Publisher
}

var errNoIntake = errors.New("this process does not serve the role api")

// intakeClosed is why nothing can be submitted while the intake is not open.
func (c *Closer) intakeClosed() error {
	p := c.process.Load()
	if p == nil || !p.submits() {
		return errNoIntake
	}
	if err := p.publishing.Ready(); err != nil {
		return err
	}
	return errors.New("not all exchanges and queues are there yet, or the process is ending")
}

func (i *intake) open(p *amqp.Publisher) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.publisher = p
}

// close takes no more, and waits for what is being published.
func (i *intake) close() { i.open(nil) }

func (i *intake) publish(ctx context.Context, m amqp.Publishing) error {
	if !i.mu.TryRLock() { // it is being closed
		return errNoIntake
	}
	defer i.mu.RUnlock()
	if i.publisher == nil {
		return errNoIntake
	}
	if err := i.publisher.Ready(); err != nil {
		return err
	}
	return i.publisher.Publish(ctx, m)[0]
}

// ready is nil while publishing does not only wait.
func (i *intake) ready() error {
	if !i.mu.TryRLock() {
		return errNoIntake
	}
	defer i.mu.RUnlock()
	if i.publisher == nil {
		return errNoIntake
	}
	return i.publisher.Ready()
}
