package amqp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"time"

	"golang.org/x/sync/errgroup"
)

// Handler does the work that messages of one kind stand for.
//
// It gets what has arrived, at least one message, and answers one outcome for each, in their order. An
// error instead means that no message is to blame: the server behind the handler is away, and nothing
// is known of any of them. The batch is then held and handled again when [ConsumerConfig.Probe]
// succeeds, without an attempt being counted; an error that wraps [ErrPaused] has it handed back to the
// queue at once. A panic is a failure of the message that caused it: the batch is split until that
// one is alone.
//
// A message may come more than once, also after it was done, and several batches are handled at the
// same time. ctx ends when a shutdown has taken longer than [ConsumerConfig.Shutdown].
type Handler interface {
	Handle(ctx context.Context, batch []Message) ([]Outcome, error)
}

// HandlerFunc is a function as a [Handler].
type HandlerFunc func(ctx context.Context, batch []Message) ([]Outcome, error)

// Handle calls f.
func (f HandlerFunc) Handle(ctx context.Context, batch []Message) ([]Outcome, error) {
	return f(ctx, batch)
}

// Outcome is what became of one message. Make one with [Done], [Defer], [Retry], [Dead] or [Park].
type Outcome struct {
	verb  verb
	after time.Duration
	err   error
}

type verb string

const (
	verbDone     verb = "done"
	verbDeferred verb = "deferred"
	verbRetried  verb = "retried"
	verbDead     verb = "dead"
	verbParked   verb = "parked"
)

// Done: the work is done, or there was none to do.
func Done() Outcome { return Outcome{verb: verbDone} }

// Defer: it came too early; it comes again after that time, and no attempt is counted.
func Defer(after time.Duration) Outcome { return Outcome{verb: verbDeferred, after: after} }

// Retry: it failed; it comes again as the retry policy says, or is buried when it is out of tries.
func Retry(err error) Outcome { return Outcome{verb: verbRetried, err: err} }

// Dead: it can never succeed; it is buried at once.
func Dead(err error) Outcome { return Outcome{verb: verbDead, err: err} }

// Park: there is nowhere to keep this dead letter. It goes to [Topology.Parked] with all that it came with and the
// reason in [HeaderParked], so that it can be put back when that is mended.
func Park(err error) Outcome { return Outcome{verb: verbParked, err: err} }

// String is for logs and tests: "done", "deferred by 5s", "dead: no such order".
func (o Outcome) String() string {
	switch {
	case o.verb == verbDeferred:
		return fmt.Sprintf("%s by %s", o.verb, o.after)
	case o.err != nil:
		return fmt.Sprintf("%s: %v", o.verb, o.err)
	}
	return string(o.verb)
}

// ConsumerConfig says what a [Consumer] reads and how. Fields without a default are required.
type ConsumerConfig struct {
	// Conn is the connection to consume on. It should not be the publisher's: while the broker is
	// short of memory or disk it stops reading from connections that publish, acks included.
	Conn *Conn
	// Publisher publishes hops, retries and dead letters.
	Publisher *Publisher
	// Topology the queue belongs to. Its Kinds include Kind.
	Topology Topology
	// Kind is the kind of message handled here, whatever its routing key.
	Kind string
	// Queue is consumed instead of the kind's due queue. Kind is then no more than the name in logs and metrics: each
	// message has its routing key as its kind. No rung leads back there, so any outcome but [Done] parks the message,
	// and so does a panic.
	Queue   string
	Handler Handler
	// Probe asks whether the server behind the handler can work again: nil says that it can. Without
	// one, the batch itself is tried again and again.
	Probe func(ctx context.Context) error
	// Retry is the policy for messages that fail.
	Retry RetryPolicy

	// Workers, each with a channel of its own, handle batches at the same time. 2 when zero.
	Workers int
	// Batch is the most messages that a handler gets at once. 200 when zero.
	Batch int
	// BatchBytes ends a batch early: one that has reached it takes no further message. 4 MiB when
	// zero.
	BatchBytes int
	// Prefetch is how many unsettled messages a worker holds at most. Twice Batch when zero, and
	// never less than Batch.
	Prefetch int
	// Hold is how long messages are kept unsettled through an outage before they are handed back. It
	// has to stay well below the broker's consumer_timeout, which AMQP does not tell. 10 min when zero,
	// a third of that time-out's default (https://www.rabbitmq.com/docs/consumers#acknowledgement-timeout).
	Hold time.Duration
	// Shutdown is how long Run goes on, once its context has ended, to finish what was taken. 10 s
	// when zero.
	Shutdown time.Duration
	// Idle is how long a worker that gets nothing trusts its channel: a quorum queue that was deleted
	// and declared again at once can keep a consumer that it never serves. 1 min when zero.
	Idle time.Duration

	Metrics *Metrics
	Logger  *slog.Logger
}

// Validate says what is wrong with the numbers, or nil.
func (c ConsumerConfig) Validate() error {
	if c.Workers < 0 || c.Batch < 0 || c.BatchBytes < 0 || c.Prefetch < 0 || c.Hold < 0 || c.Shutdown < 0 || c.Idle < 0 {
		return errors.New("workers, batch, prefetch and durations of a consumer cannot be negative; zero means the default")
	}
	if prefetch := c.withDefaults().Prefetch; prefetch > math.MaxUint16 {
		return fmt.Errorf("a prefetch of %d: AMQP allows at most %d, which is twice the largest batch", prefetch, math.MaxUint16)
	}
	return c.Retry.Validate()
}

func (c ConsumerConfig) queue() string { return cmp.Or(c.Queue, c.Topology.DueQueue(c.Kind)) }

func (c ConsumerConfig) withDefaults() ConsumerConfig {
	c.Topology = c.Topology.withDefaults()
	c.Workers = cmp.Or(c.Workers, 2)
	c.Batch = cmp.Or(c.Batch, 200)
	c.BatchBytes = cmp.Or(c.BatchBytes, 4<<20)
	c.Prefetch = max(cmp.Or(c.Prefetch, 2*c.Batch), c.Batch)
	c.Hold = cmp.Or(c.Hold, 10*time.Minute)
	c.Shutdown = cmp.Or(c.Shutdown, 10*time.Second)
	c.Idle = cmp.Or(c.Idle, time.Minute)
	c.Metrics = cmp.Or(c.Metrics, NewMetrics(nil))
	c.Logger = cmp.Or(c.Logger, slog.Default()).With("kind", c.Kind)
	return c
}

// Consumer takes the messages of one kind from their due queue, has them handled in batches, and
// settles each as its outcome says: acknowledged when it is done; published again, confirmed, and then
// acknowledged when it is deferred, retried, buried or parked.
type Consumer struct {
	cfg     ConsumerConfig
	workers []*worker
	outage  *outage
}

// NewConsumer returns a consumer; [Consumer.Run] makes it work.
func NewConsumer(cfg ConsumerConfig) (*Consumer, error) {
	if cfg.Conn == nil || cfg.Publisher == nil || cfg.Handler == nil || cfg.Kind == "" {
		return nil, errors.New("a consumer needs a connection, a publisher, a handler and a kind")
	}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	cfg.Metrics.consumer(cfg.Kind)
	c := &Consumer{cfg: cfg, outage: &outage{logger: cfg.Logger, count: cfg.Metrics.Outages.WithLabelValues(cfg.Kind)}}
	for range cfg.Workers {
		c.workers = append(c.workers, &worker{cfg: cfg, outage: c.outage})
	}
	return c, nil
}

// Run consumes until ctx ends, through outages of the broker and of the handler's server, and then
// finishes what it has taken and returns nil. It fails only where going on is senseless: with a
// [*MismatchError] when a queue that was lost cannot be declared as it should be.
func (c *Consumer) Run(ctx context.Context) error {
	workers := c.cfg.Metrics.Workers.WithLabelValues(c.cfg.Kind)
	workers.Add(float64(len(c.workers)))
	defer workers.Sub(float64(len(c.workers)))
	group, ctx := errgroup.WithContext(ctx)
	for _, w := range c.workers {
		group.Go(func() error { return w.run(ctx) })
	}
	return group.Wait()
}

// Ready is nil while every worker is consuming and able to do its work, and else says why not.
func (c *Consumer) Ready() error {
	if _, err := c.outage.current(); err != nil {
		return fmt.Errorf("%s: %w", c.cfg.Kind, err)
	}
	for _, w := range c.workers {
		if !w.consuming() {
			return fmt.Errorf("%s: a worker is not consuming", c.cfg.Kind)
		}
	}
	return nil
}
