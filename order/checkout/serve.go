package checkout

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v4"
	"golang.org/x/sync/errgroup"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/amqp/database"
	"github.com/lapse-go/lapse/amqp/outbox"
	"github.com/lapse-go/lapse/migrations"
	"github.com/lapse-go/lapse/order"
	"github.com/lapse-go/lapse/order/orderamqp"
)

// Role is a loop that [Checkout.Serve] runs. Any number of processes may run each.
type Role string

const (
	Relay Role = "relay" // publishes what the outbox holds
	Timer Role = "timer" // expires orders whose timers are due
	Sweep Role = "sweep" // expires overdue orders whose timer did not come
)

// Roles are all of them.
var Roles = []Role{Relay, Timer, Sweep}

// ParseRoles reads roles separated by commas; empty means all.
func ParseRoles(text string) ([]Role, error) {
	if strings.TrimSpace(text) == "" {
		return Roles, nil
	}
	var roles []Role
	for word := range strings.SplitSeq(text, ",") {
		role := Role(strings.TrimSpace(word))
		if !slices.Contains(Roles, role) {
			return nil, fmt.Errorf("role %q: give some of relay, timer, sweep, separated by commas", role)
		}
		if slices.Contains(roles, role) {
			return nil, fmt.Errorf("role %q is there twice", role)
		}
		roles = append(roles, role)
	}
	return roles, nil
}

// Serve runs the roles, all of them if none is named, until ctx ends; it then finishes what it has in
// hand and returns nil. It waits for servers that are away, at the start too. It fails where waiting is
// senseless: when the database refuses the login or lacks tables, or the broker has a queue with other
// arguments.
func (c *Checkout) Serve(ctx context.Context, broker amqp.Config, roles ...Role) error {
	if len(roles) == 0 {
		roles = Roles
	}
	if err := broker.Validate(); err != nil {
		return err
	}
	if err := c.awaitDatabase(ctx); err != nil {
		return orEnded(ctx, err)
	}
	group, ctx := errgroup.WithContext(ctx)
	if slices.Contains(roles, Sweep) {
		// It needs no broker, and is needed most while there is none.
		group.Go(func() error { return c.sweep().Run(ctx) })
	}
	if slices.Contains(roles, Relay) || slices.Contains(roles, Timer) {
		group.Go(func() error { return c.transport(ctx, broker, roles) })
	} else {
		c.setReady([]func() error{})
		defer c.setReady(nil)
	}
	err := group.Wait()
	if ctx.Err() != nil {
		c.cfg.Logger.Info("stopped")
	}
	return orEnded(ctx, err)
}

// transport runs the roles that need the broker.
func (c *Checkout) transport(ctx context.Context, broker amqp.Config, roles []Role) error {
	// The connections outlive ctx: what is in hand when it ends has still to be confirmed and
	// acknowledged. So they are closed last, the one to publish after the loops that publish.
	stay := context.WithoutCancel(ctx)
	consuming, err := c.open(stay, broker, "consume")
	if err != nil {
		return err
	}
	defer consuming.Close()
	publishing, err := c.open(stay, broker, "publish")
	if err != nil {
		return err
	}
	defer publishing.Close()
	publisher := amqp.NewPublisher(publishing, amqp.PublisherConfig{Metrics: c.metrics.transport, Logger: c.cfg.Logger})
	defer publisher.Close()
	cfg := c.timers()
	cfg.Conn, cfg.Publisher = consuming, publisher
	consumer, err := amqp.NewConsumer(cfg)
	if err != nil {
		return err
	}
	if err := c.declare(ctx, consuming); err != nil {
		return err
	}

	group, ctx := errgroup.WithContext(ctx)
	ready := []func() error{publishing.Ready}
	if slices.Contains(roles, Relay) {
		relay := outbox.NewRelay(c.db, publisher, outbox.RelayConfig{
			Topology: c.topology, Metrics: c.metrics.outbox, Logger: c.cfg.Logger,
		})
		c.relay.Store(relay)
		defer c.relay.Store(nil)
		group.Go(func() error { return relay.Run(ctx) })
	}
	if slices.Contains(roles, Timer) {
		ready = append(ready, consuming.Ready, consumer.Ready)
		group.Go(func() error { return consumer.Run(ctx) })
	}
	c.setReady(ready)
	defer c.setReady(nil)
	c.cfg.Logger.Info("serving", "roles", roles, "namespace", c.topology.Namespace)
	return group.Wait()
}

// declare waits for the broker, however long it takes, and then for the topology, but not for long: part
// of it may be out of reach, for instance a queue whose nodes are down, without the rest being so. The
// consumers declare what they find missing.
func (c *Checkout) declare(ctx context.Context, conn *amqp.Conn) error {
	channel, err := conn.Channel(ctx)
	if err != nil {
		return err
	}
	defer channel.Close()
	bounded, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	err = c.topology.Declare(bounded, conn)
	if err != nil && bounded.Err() != nil && ctx.Err() == nil {
		c.cfg.Logger.Warn("serving although not all queues could be declared", "error", err)
		return nil
	}
	return err
}

// orEnded is nil if all that happened is that ctx ended.
func orEnded(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return nil
	}
	return err
}

func (c *Checkout) open(ctx context.Context, broker amqp.Config, use string) (*amqp.Conn, error) {
	broker.Name = c.topology.Namespace + "/" + use
	broker.Metrics = c.metrics.transport
	broker.Logger = c.cfg.Logger
	return amqp.Open(ctx, broker)
}

// timers is how the consumer of timers works, but for its connections.
func (c *Checkout) timers() amqp.ConsumerConfig {
	expirer := &orderamqp.Expirer{Store: c.store, Metrics: c.metrics.timers}
	return amqp.ConsumerConfig{
		Topology: c.topology, Kind: orderamqp.KindPaymentTimeout,
		Handler: expirer, Probe: expirer.Probe, Retry: c.cfg.Retry,
		Workers: c.cfg.Workers, Batch: c.cfg.Batch, Hold: c.cfg.Hold, Shutdown: c.cfg.Shutdown,
		Metrics: c.metrics.transport, Logger: c.cfg.Logger,
	}
}

func (c *Checkout) sweep() *order.Sweep {
	return &order.Sweep{
		Store: c.store, Every: c.cfg.SweepEvery, Grace: c.cfg.SweepGrace, Batch: c.cfg.Batch, Logger: c.cfg.Logger,
		OnExpired: func(n int) { c.metrics.swept.Add(float64(n)) },
	}
}

// awaitDatabase waits until the database answers, and fails if its tables are not those of this
// program.
func (c *Checkout) awaitDatabase(ctx context.Context) error {
	pool, err := c.db.DB()
	if err != nil {
		return err
	}
	waiting := false
	pause := backoff.WithContext(backoff.NewExponentialBackOff(
		backoff.WithMaxInterval(5*time.Second), backoff.WithMaxElapsedTime(0)), ctx)
	return backoff.Retry(func() error {
		err := migrations.Check(ctx, pool)
		switch {
		case err == nil:
			return nil
		case database.IsRefused(err):
			return backoff.Permanent(fmt.Errorf("%w (does the database exist? `lapse migrate` creates it)", err))
		case !database.IsOutage(err):
			return backoff.Permanent(err)
		}
		if !waiting {
			c.cfg.Logger.Warn("waiting for the database", "error", err)
			waiting = true
		}
		return err
	}, pause)
}

// Ready is nil while [Checkout.Serve] is connected to the broker and its timers are being handled, or
// expiry is paused, and else says why not. A process that only sweeps is always ready.
func (c *Checkout) Ready() error {
	ready := c.ready.Load()
	if ready == nil {
		return errors.New("not serving yet")
	}
	return (*ready)()
}

func (c *Checkout) setReady(checks []func() error) {
	if checks == nil {
		c.ready.Store(nil)
		return
	}
	all := func() error {
		for _, check := range checks {
			if err := check(); err != nil && !errors.Is(err, amqp.ErrPaused) {
				return err
			}
		}
		return nil
	}
	c.ready.Store(&all)
}
