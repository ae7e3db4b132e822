package checkout

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"

	"gorm.io/gorm"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/amqp/deadletter"
	"github.com/lapse-go/lapse/amqp/outbox"
	"github.com/lapse-go/lapse/migrations"
	"github.com/lapse-go/lapse/order"
	"github.com/lapse-go/lapse/order/orderamqp"
	"github.com/lapse-go/lapse/order/orderdb"
)

// Closer closes orders when they are due, wherever they are kept. Safe for concurrent use.
type Closer struct {
	db       *gorm.DB // that of the outbox, nil if there is none
	store    order.Store
	placer   orderamqp.Orders // nil if orders cannot be placed here
	tables   []migrations.Set // that the database has to have
	cfg      Config
	topology amqp.Topology
	metrics  metrics
	desk     *deadletter.Desk // nil if there is no database
	relay    atomic.Pointer[outbox.Relay]
	intake   intake
	process  atomic.Pointer[process]

	overviews overviews
	measured  atomic.Pointer[Known[Queues]] // by the watch
}

// NewCloser closes the orders of a store that the shop has written itself (ordertest tests it). If the store has
// a method Check(ctx) error, [Closer.Check] asks it, too, and so does [Closer.Serve] before it begins, which waits
// as long as the error wraps [order.ErrUnavailable]. Without a store no orders are closed, as in a subscriber that
// only handles [Config].Kinds. The pool is that of the database which has the outbox, which is then relayed, and the
// inbox; nil if there is none.
func NewCloser(db *gorm.DB, store order.Store, cfg Config) (*Closer, error) {
	c := &Closer{db: db, tables: []migrations.Set{migrations.Transport}}
	if err := c.init(store, cfg); err != nil {
		return nil, err
	}
	return c, nil
}

// NewForTable closes the orders of a table of the shop's own, and has order.expired published for each. The
// [orderdb.Table] is the store.
func NewForTable(db *gorm.DB, m orderdb.Mapping, cfg Config) (*Closer, *orderdb.Table, error) {
	c := &Closer{db: db, tables: migrations.OwnTable}
	table := orderdb.NewTable(db, m, orderdb.Config{Emit: orderamqp.Emit(cfg.Topology()), Committed: c.Wake})
	if err := c.init(table, cfg); err != nil {
		return nil, nil, err
	}
	return c, table, nil
}

func (c *Closer) init(store order.Store, cfg Config) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	cfg.Logger = cmp.Or(cfg.Logger, slog.Default())
	c.store, c.cfg, c.topology, c.metrics = store, cfg, cfg.Topology(), newMetrics(cfg.Registerer)
	if c.db != nil {
		c.desk = deadletter.New(deadletter.Config{
			DB: c.db, Topology: c.topology, Guard: orderamqp.Guard{Store: c.store}, Keep: cfg.DeskKeep, Registerer: cfg.Registerer, Logger: cfg.Logger,
		})
	}
	for _, consumer := range c.consumers(c.Roles()) {
		if err := consumer.Validate(); err != nil {
			return err
		}
	}
	return nil
}

// Roles are those that [Closer.Serve] can do here.
func (c *Closer) Roles() []Role {
	return slices.DeleteFunc(slices.Clone(Roles), func(r Role) bool { return c.cannot(r) != nil })
}

// cannot is why a role cannot be done here, or nil.
func (c *Closer) cannot(r Role) error {
	switch {
	case (r == Timer || r == Sweep) && c.store == nil:
		return errors.New("there is no store of orders")
	case r == Relay && c.db == nil:
		return errors.New("there is no database with an outbox")
	case r == Desk && c.db == nil:
		return errors.New("there is no database to keep dead letters in")
	case r == Place && c.placer == nil:
		return errors.New("the orders are kept by the shop itself, which places them itself")
	case !slices.Contains(Roles, r):
		return fmt.Errorf("there is none but %v", Roles)
	}
	return nil
}

// Desk is where dead letters are worked on; nil if there is no database.
func (c *Closer) Desk() *deadletter.Desk { return c.desk }

// Topology is that of the service.
func (c *Closer) Topology() amqp.Topology { return c.topology }

// Sweeper is the sweep of the service as [Closer.Serve] runs it, for a round at once.
func (c *Closer) Sweeper() *order.Sweep {
	return &order.Sweep{
		Store: c.store, Every: c.cfg.SweepEvery, Grace: c.cfg.SweepGrace, Batch: c.cfg.Batch, Logger: c.cfg.Logger,
		OnExpired: c.metrics.sweptOrder, OnRound: c.metrics.sweepRound,
	}
}

// Wake has this process's relay, if it runs one, publish at once what was just committed, instead of
// at its next look within a second.
func (c *Closer) Wake() {
	if relay := c.relay.Load(); relay != nil {
		relay.Wake()
	}
}
