package checkout

import (
	"cmp"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"gorm.io/gorm"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/amqp/outbox"
	"github.com/lapse-go/lapse/order"
	"github.com/lapse-go/lapse/order/orderamqp"
	"github.com/lapse-go/lapse/order/orderdb"
)

// Config says how a service works. The zero value serves. What concerns placing has to be the same in
// every process of the service; the rest concerns only those that call [Checkout.Serve].
type Config struct {
	// Namespace begins the names of all exchanges and queues. "lapse" when empty. Placing needs it, too:
	// what is written to the outbox names the exchange that it goes to.
	Namespace string
	// QueueType is [amqp.Quorum] when empty.
	QueueType amqp.QueueType
	// Ladder is the delays for which there is a queue each. [amqp.DefaultLadder] when empty.
	Ladder amqp.Ladder
	// Window is how long a customer has to pay unless the order says otherwise, from a millisecond to a
	// year. 30 min when zero.
	Window time.Duration

	// The rest is for Serve.

	// Retry is the policy for messages that fail.
	Retry amqp.RetryPolicy
	// Workers is how many batches of timers one process handles at the same time. 2 when zero.
	Workers int
	// PlaceWorkers is how many batches of orders to place. 2 when zero.
	PlaceWorkers int
	// Batch is the most messages handled at once. 200 when zero.
	Batch int
	// SweepEvery and SweepGrace: see [order.Sweep]. 1 min and 30 s when zero.
	SweepEvery, SweepGrace time.Duration
	// Hold and Shutdown: see [amqp.ConsumerConfig]. 10 min and 10 s when zero.
	Hold, Shutdown time.Duration

	// Registerer takes the metrics; two Checkouts need two. None when nil.
	Registerer prometheus.Registerer
	Logger     *slog.Logger
}

// Topology is that of the service.
func (cfg Config) Topology() amqp.Topology {
	return amqp.Topology{
		Namespace: cmp.Or(cfg.Namespace, "lapse"), Type: cfg.QueueType, Ladder: cfg.Ladder,
		Kinds: []string{orderamqp.KindPaymentTimeout, orderamqp.KindPlace},
	}
}

// Checkout places orders and holds them to their payment deadlines. Safe for concurrent use.
type Checkout struct {
	*order.Service

	db       *gorm.DB
	store    *orderdb.Store
	cfg      Config
	topology amqp.Topology
	metrics  metrics
	relay    atomic.Pointer[outbox.Relay]
	intake   intake
	process  atomic.Pointer[process]
}

// New puts a Checkout together on a pool, which should come from [database.Open] but may be the shop's
// own. It does not talk to the database; the tables are made by `lapse migrate up`, or by
// [migrations.Up].
//
// [database.Open]: https://pkg.go.dev/github.com/lapse-go/lapse/amqp/database#Open
// [migrations.Up]: https://pkg.go.dev/github.com/lapse-go/lapse/migrations#Up
func New(db *gorm.DB, cfg Config) (*Checkout, error) {
	topology := cfg.Topology()
	if err := topology.Validate(); err != nil {
		return nil, err
	}
	if cfg.Window != 0 && (cfg.Window < order.MinWindow || cfg.Window > order.MaxWindow) {
		return nil, fmt.Errorf("a default payment window of %s: give a millisecond up to a year, for instance 30m", cfg.Window)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	c := &Checkout{db: db, cfg: cfg, topology: topology, metrics: newMetrics(cfg.Registerer)}
	c.store = orderdb.New(db, orderdb.Config{Emit: orderamqp.Emit(topology), Committed: c.Wake})
	c.Service = &order.Service{Repository: c.store, Window: cfg.Window}
	for _, consumer := range []amqp.ConsumerConfig{c.timers(), c.placements()} {
		if err := consumer.Validate(); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// Topology is that of the service.
func (c *Checkout) Topology() amqp.Topology { return c.topology }

// PlaceIn places an order in a transaction of the caller's, which so creates its own rows and the order
// together or not at all. The transaction should be READ COMMITTED, as [database.Transact] makes it, and
// has to be rolled back after any error that does not wrap [order.ErrInvalid], [order.ErrConflict],
// [order.ErrOutOfStock] or [order.ErrUnknownSKU]; running it again is the caller's business. [Checkout.Wake]
// may be called after it has committed.
//
// [database.Transact]: https://pkg.go.dev/github.com/lapse-go/lapse/amqp/database#Transact
func (c *Checkout) PlaceIn(tx *gorm.DB, d order.Draft) (order.Order, error) {
	return c.store.PlaceIn(tx, c.Prepare(d))
}

// Sweeper is the sweep of the service as [Checkout.Serve] runs it, for a round at once.
func (c *Checkout) Sweeper() *order.Sweep {
	return &order.Sweep{
		Store: c.store, Every: c.cfg.SweepEvery, Grace: c.cfg.SweepGrace, Batch: c.cfg.Batch, Logger: c.cfg.Logger,
		OnExpired: c.metrics.sweptOrder, OnRound: c.metrics.sweepRound,
	}
}

// Wake has this process's relay, if it runs one, publish at once what was just committed, instead of
// at its next look within a second.
func (c *Checkout) Wake() {
	if relay := c.relay.Load(); relay != nil {
		relay.Wake()
	}
}
