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
	"github.com/lapse-go/lapse/order/orderamqp"
)

// Role is work that [Checkout.Serve] does. Any number of processes may do each.
type Role string

const (
	Relay Role = "relay" // publishes what the outbox holds
	Timer Role = "timer" // expires orders whose timers are due
	Sweep Role = "sweep" // expires overdue orders whose timer did not come
	Place Role = "place" // places orders that come by message
	API   Role = "api"   // keeps a connection to the broker for [Checkout.Submit]
)

// Roles are all of them.
var Roles = []Role{Relay, Timer, Sweep, Place, API}

// ParseRoles reads roles separated by commas; empty means all.
func ParseRoles(text string) ([]Role, error) {
	if strings.TrimSpace(text) == "" {
		return Roles, nil
	}
	var roles []Role
	for word := range strings.SplitSeq(text, ",") {
		role := Role(strings.TrimSpace(word))
		if !slices.Contains(Roles, role) {
			return nil, fmt.Errorf("role %q: give some of relay, timer, sweep, place, api, separated by commas", role)
		}
		if slices.Contains(roles, role) {
			return nil, fmt.Errorf("role %q is there twice", role)
		}
		roles = append(roles, role)
	}
	return roles, nil
}

// Serve does the work of the roles, of all of them if none is named, until ctx ends; it then finishes what
// it has in hand and returns nil. It waits for servers that are away, at the start too; the role [API]
// needs no database. It fails where waiting is senseless: when the database refuses the login or lacks
// tables, or the broker has a queue with other arguments.
func (c *Checkout) Serve(ctx context.Context, broker amqp.Config, roles ...Role) error {
	if len(roles) == 0 {
		roles = Roles
	}
	if err := broker.Validate(); err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	var ready []func() error
	if slices.Contains(roles, API) {
		// What is submitted while the loops end is taken in all the same, so this is closed after them.
		conn, publisher, err := c.openPublisher(context.WithoutCancel(ctx), broker, "submit")
		if err != nil {
			return err
		}
		defer conn.Close()
		defer publisher.Close()
		defer c.intake.close()
		ready = append(ready, c.intake.ready)
		group.Go(func() error { return c.takeIn(ctx, conn, publisher) })
	}
	defer c.setReady(nil)
	loops := slices.DeleteFunc(slices.Clone(roles), func(r Role) bool { return r == API })
	if len(loops) > 0 {
		c.setReady(append(slices.Clone(ready), func() error { return errors.New("waiting for the database, or for the broker at the start") }))
		group.Go(func() error { return c.loop(ctx, broker, loops, ready) })
	} else {
		c.setReady(ready)
		group.Go(func() error { return c.watch(ctx, nil) })
	}
	err := group.Wait()
	if ctx.Err() != nil {
		c.cfg.Logger.Info("stopped")
	}
	return orEnded(ctx, err)
}

// takeIn has [Checkout.Submit] publish as soon as there is a queue for it.
func (c *Checkout) takeIn(ctx context.Context, conn *amqp.Conn, publisher *amqp.Publisher) error {
	if err := c.declare(ctx, conn); err != nil {
		return err
	}
	c.intake.open(publisher)
	c.cfg.Logger.Info("serving", "roles", []Role{API}, "namespace", c.topology.Namespace)
	<-ctx.Done()
	return ctx.Err()
}

// loop runs the roles that need the database. ready is what else has to be.
func (c *Checkout) loop(ctx context.Context, broker amqp.Config, roles []Role, ready []func() error) error {
	if err := c.awaitDatabase(ctx); err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	if slices.Contains(roles, Sweep) {
		// It needs no broker, and is needed most while there is none.
		group.Go(func() error { return c.Sweeper().Run(ctx) })
	}
	if slices.ContainsFunc(roles, func(r Role) bool { return r != Sweep }) {
		group.Go(func() error { return c.transport(ctx, broker, roles, ready) })
	} else {
		c.setReady(ready)
		group.Go(func() error { return c.watch(ctx, nil) })
	}
	return group.Wait()
}

// transport runs the roles that need the broker as well.
func (c *Checkout) transport(ctx context.Context, broker amqp.Config, roles []Role, ready []func() error) error {
	// The connections outlive ctx: what is in hand when it ends has still to be confirmed and
	// acknowledged. So they are closed last, the one to publish after the loops that publish.
	stay := context.WithoutCancel(ctx)
	consuming, err := c.open(stay, broker, "consume")
	if err != nil {
		return err
	}
	defer consuming.Close()
	publishing, publisher, err := c.openPublisher(stay, broker, "publish")
	if err != nil {
		return err
	}
	defer publishing.Close()
	defer publisher.Close()

	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return c.watch(ctx, consuming) }) // at once: that there is no broker has to be seen, too
	group.Go(func() error {
		if err := c.declare(ctx, consuming); err != nil {
			return err
		}
		return c.carry(ctx, roles, consuming, publisher, append(ready, publishing.Ready))
	})
	return group.Wait()
}

// carry runs the relay and the consumers, with the topology in place.
func (c *Checkout) carry(ctx context.Context, roles []Role, consuming *amqp.Conn, publisher *amqp.Publisher, ready []func() error) error {
	group, ctx := errgroup.WithContext(ctx)
	if slices.Contains(roles, Relay) {
		relay := outbox.NewRelay(c.db, publisher, outbox.RelayConfig{
			Topology: c.topology, Metrics: c.metrics.outbox, OnRound: c.metrics.relayRound, Logger: c.cfg.Logger,
		})
		c.relay.Store(relay)
		defer c.relay.Store(nil)
		group.Go(func() error { return relay.Run(ctx) })
	}
	for role, cfg := range map[Role]amqp.ConsumerConfig{Timer: c.timers(), Place: c.placements()} {
		if !slices.Contains(roles, role) {
			continue
		}
		cfg.Conn, cfg.Publisher = consuming, publisher
		consumer, err := amqp.NewConsumer(cfg)
		if err != nil {
			return err // New has validated it
		}
		ready = append(ready, consuming.Ready, consumer.Ready)
		group.Go(func() error { return consumer.Run(ctx) })
	}
	c.setReady(ready)
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

func (c *Checkout) openPublisher(ctx context.Context, broker amqp.Config, use string) (*amqp.Conn, *amqp.Publisher, error) {
	conn, err := c.open(ctx, broker, use)
	if err != nil {
		return nil, nil, err
	}
	return conn, amqp.NewPublisher(conn, amqp.PublisherConfig{Metrics: c.metrics.transport, Logger: c.cfg.Logger}), nil
}

// timers is how the consumer of timers works, but for its connections.
func (c *Checkout) timers() amqp.ConsumerConfig {
	expirer := &orderamqp.Expirer{Store: c.store, Metrics: c.metrics.timers}
	cfg := c.consumer(orderamqp.KindPaymentTimeout, expirer)
	cfg.Probe, cfg.Workers = expirer.Probe, c.cfg.Workers
	return cfg
}

// placements is how the consumer of orders to place works, but for its connections.
func (c *Checkout) placements() amqp.ConsumerConfig {
	placer := &orderamqp.Placer{Orders: c.Service, Metrics: c.metrics.timers}
	cfg := c.consumer(orderamqp.KindPlace, placer)
	cfg.Probe, cfg.Workers = placer.Probe, c.cfg.PlaceWorkers
	return cfg
}

func (c *Checkout) consumer(kind string, handler amqp.Handler) amqp.ConsumerConfig {
	return amqp.ConsumerConfig{
		Topology: c.topology, Kind: kind, Handler: handler, Retry: c.cfg.Retry,
		Batch: c.cfg.Batch, Hold: c.cfg.Hold, Shutdown: c.cfg.Shutdown,
		Metrics: c.metrics.transport, Logger: c.cfg.Logger,
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
			return backoff.Permanent(fmt.Errorf("%w (does the database exist? `lapse migrate up` creates it)", err))
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

// Ready is nil while [Checkout.Serve] is connected to the broker, its timers and the orders to place are
// being handled, or expiry is paused, and [Checkout.Submit] can publish, as far as these are its roles; it
// else says why not. A process that only sweeps is always ready.
func (c *Checkout) Ready() error {
	ready := c.ready.Load()
	if ready == nil {
		return errors.New("not serving yet")
	}
	return (*ready)()
}

// Check is nil while the process is ready (see [Checkout.Ready]) and the database answers and has the tables
// of this program, and else says why not. It takes as long as ctx lets it.
func (c *Checkout) Check(ctx context.Context) error {
	if err := c.Ready(); err != nil {
		return err
	}
	pool, err := c.db.DB()
	if err != nil {
		return err
	}
	return migrations.Check(ctx, pool)
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
