package checkout

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v4"
	"golang.org/x/sync/errgroup"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/amqp/inbox"
	"github.com/lapse-go/lapse/amqp/outbox"
)

// Serve does the work of the roles, of all that it can do if none is named, until ctx ends; it then finishes what
// it has in hand and returns nil. It waits for servers that are away, at the start too; the role [API]
// needs no database. It fails where waiting is senseless: when a role is none of [Closer.Roles], when the database
// refuses the login or lacks tables, or the store cannot work, unless API is all there is to do, or when the broker
// has a queue with other arguments. A broker that refuses the login it asks again and again, since it does not tell
// that from being in trouble.
func (c *Closer) Serve(ctx context.Context, broker amqp.Config, roles ...Role) error {
	if len(roles) == 0 {
		roles = c.Roles()
	}
	for _, role := range roles {
		if !slices.Contains(c.Roles(), role) {
			return fmt.Errorf("role %s: %w", role, c.cannot(role))
		}
	}
	if err := broker.Validate(); err != nil {
		return err
	}
	p := &process{Closer: c, roles: roles, declared: make(chan struct{})}
	group, ctx := errgroup.WithContext(ctx)
	if p.talks() {
		// What is in hand when ctx ends has still to be confirmed and acknowledged, so the connections
		// outlive it, and what is submitted while the loops end is taken in all the same.
		if err := p.connect(context.WithoutCancel(ctx), broker); err != nil {
			return err
		}
		defer p.disconnect()
		group.Go(func() error { return p.declare(ctx) })
	}
	c.process.Store(p)
	defer c.process.Store(nil)
	group.Go(func() error { return c.watch(ctx, p.consuming) })
	if p.loops() {
		group.Go(func() error { return p.loop(ctx) })
	}
	err := group.Wait()
	if ctx.Err() != nil {
		c.cfg.Logger.Info("stopped")
	}
	return orEnded(ctx, err)
}

// process is one call of Serve.
type process struct {
	*Closer
	roles []Role

	// Apart, because a broker that is short of memory or disk reads no acks from who publishes. Nil in a
	// process that only sweeps.
	consuming, publishing *amqp.Conn
	// The loops and Submit have one each: a queue that does not answer holds up its own publisher. That of the desk
	// publishes whatever the broker has taken before.
	publisher, submitter, republisher *amqp.Publisher

	declared chan struct{}                  // closed when the loops may begin
	started  atomic.Pointer[[]func() error] // what has to be ready, once the loops have begun
}

func (p *process) has(r Role) bool { return slices.Contains(p.roles, r) }

// submits is whether orders can be submitted. For orders that the shop keeps itself there is no such thing, and the
// role [API] nothing to do.
func (p *process) submits() bool { return p.has(API) && p.placer != nil }

// talks is whether the broker is needed, and loops whether there is more to do than to submit.
func (p *process) talks() bool {
	return slices.ContainsFunc(p.roles, func(r Role) bool { return r != Sweep })
}
func (p *process) loops() bool {
	return slices.ContainsFunc(p.roles, func(r Role) bool { return r != API })
}

func (p *process) connect(ctx context.Context, broker amqp.Config) (err error) {
	broker.Metrics, broker.Logger = p.metrics.transport, p.cfg.Logger
	open := func(use string) *amqp.Conn {
		broker.Name = p.topology.Namespace + "/" + use
		conn, failed := amqp.Open(ctx, broker)
		err = errors.Join(err, failed)
		return conn
	}
	if p.consuming, p.publishing = open("consume"), open("publish"); err != nil {
		return err
	}
	cfg := amqp.PublisherConfig{Metrics: p.metrics.transport, Logger: p.cfg.Logger}
	p.publisher, p.submitter = amqp.NewPublisher(p.publishing, cfg), amqp.NewPublisher(p.publishing, cfg)
	cfg.MaxBytes = maxMessage
	p.republisher = amqp.NewPublisher(p.publishing, cfg)
	return nil
}

// maxMessage is the largest message that any broker can be told to take
// (https://www.rabbitmq.com/docs/configure, max_message_size).
const maxMessage = 512 << 20

func (p *process) disconnect() {
	p.intake.close()
	p.republisher.Close()
	p.submitter.Close()
	p.publisher.Close()
	p.publishing.Close()
	p.consuming.Close()
}

// declare waits for the broker, however long it takes, and makes the topology. Part of that may be out of
// reach for long, for instance a queue whose nodes are down, without the rest being so: the loops begin
// after the first try, and their consumers declare what they find missing. Submit takes in nothing before
// all is there: of an order that no queue is bound for yet the broker confirms that it is in
// [amqp.Topology.Unrouted].
func (p *process) declare(ctx context.Context) error {
	channel, err := p.consuming.Channel(ctx)
	if err != nil {
		return err
	}
	channel.Close()
	pause := backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(time.Second), backoff.WithMaxInterval(5*time.Minute), backoff.WithMaxElapsedTime(0))
	for tries := 0; ; tries++ {
		bounded, cancel := context.WithTimeout(ctx, declareWait)
		err := p.topology.Declare(bounded, p.consuming)
		late := bounded.Err() != nil
		cancel()
		if err != nil && (ctx.Err() != nil || !late) {
			return err
		}
		if tries == 0 {
			close(p.declared)
		}
		if err == nil {
			break
		}
		if tries == 0 {
			p.cfg.Logger.Warn("serving although not all queues could be declared; orders that are submitted wait for them", "error", err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause.NextBackOff()):
		}
	}
	if p.submits() {
		p.intake.open(p.submitter)
		p.cfg.Logger.Info("orders can be submitted", "namespace", p.topology.Namespace)
	}
	return nil
}

// declareWait is how long the whole topology may take.
const declareWait = 15 * time.Second

// loop runs all that needs the database.
func (p *process) loop(ctx context.Context) error {
	if err := p.awaitDatabase(ctx); err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	if p.has(Sweep) {
		// It needs no broker, and is needed most while there is none.
		group.Go(func() error { return p.Sweeper().Run(ctx) })
	}
	if (p.has(Sweep) || p.has(Kinds)) && p.db != nil {
		pruner := inbox.Pruner{DB: p.db, Keep: p.cfg.InboxKeep, Logger: p.cfg.Logger}
		group.Go(func() error { return pruner.Run(ctx) })
	}
	if p.talks() {
		group.Go(func() error {
			select {
			case <-p.declared:
				return p.carry(ctx)
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	} else {
		p.begin(nil)
	}
	return group.Wait()
}

// carry runs what needs the broker as well: the relay, the desk and the consumers.
func (p *process) carry(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	var ready []func() error
	if p.has(Relay) {
		relay := outbox.NewRelay(p.db, p.publisher, outbox.RelayConfig{
			Topology: p.topology, Metrics: p.metrics.outbox, OnRound: p.metrics.relayRound, Logger: p.cfg.Logger,
		})
		p.relay.Store(relay)
		defer p.relay.Store(nil)
		ready = append(ready, p.publishing.Ready)
		group.Go(func() error { return relay.Run(ctx) })
	}
	if p.has(Desk) {
		ready = append(ready, p.publishing.Ready)
		group.Go(func() error { return p.desk.Run(ctx, p.republisher) })
	}
	for _, cfg := range p.consumers(p.roles) {
		cfg.Conn, cfg.Publisher = p.consuming, p.publisher
		if cfg.Queue != "" {
			cfg.Publisher = p.republisher
		}
		consumer, err := amqp.NewConsumer(cfg)
		if err != nil {
			return err // init has validated it
		}
		ready = append(ready, p.publishing.Ready, p.consuming.Ready, consumer.Ready)
		group.Go(func() error { return consumer.Run(ctx) })
	}
	p.begin(ready)
	return group.Wait()
}

func (p *process) begin(ready []func() error) {
	p.started.Store(&ready)
	p.cfg.Logger.Info("serving", "roles", p.roles, "namespace", p.topology.Namespace)
}

// orEnded is nil if all that happened is that ctx ended.
func orEnded(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return nil
	}
	return err
}
