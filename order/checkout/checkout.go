package checkout

import (
	"gorm.io/gorm"

	"github.com/lapse-go/lapse/migrations"
	"github.com/lapse-go/lapse/order"
	"github.com/lapse-go/lapse/order/orderamqp"
	"github.com/lapse-go/lapse/order/orderdb"
)

// Checkout places orders and holds them to their payment deadlines. Safe for concurrent use.
type Checkout struct {
	*order.Service
	*Closer

	orders *orderdb.Store
}

// New puts a Checkout together on a pool, which should come from [database.Open] but may be the shop's
// own. It does not talk to the database; the tables are made by `lapse migrate up`, or by
// [migrations.Up].
//
// [database.Open]: https://pkg.go.dev/github.com/lapse-go/lapse/amqp/database#Open
func New(db *gorm.DB, cfg Config) (*Checkout, error) {
	c := &Checkout{Closer: &Closer{db: db, tables: migrations.All}}
	c.orders = orderdb.New(db, orderdb.Config{Emit: orderamqp.Emit(cfg.Topology()), Committed: c.Wake})
	c.Service = &order.Service{Repository: c.orders, Window: cfg.Window}
	c.placer = c.Service
	if err := c.init(c.orders, cfg); err != nil {
		return nil, err
	}
	return c, nil
}

// PlaceIn places an order in a transaction of the caller's, which so creates its own rows and the order
// together or not at all. The transaction should be READ COMMITTED, as [database.Transact] makes it, and
// has to be rolled back after any error that does not wrap [order.ErrInvalid], [order.ErrConflict],
// [order.ErrOutOfStock] or [order.ErrUnknownSKU]; running it again is the caller's business. [Closer.Wake]
// may be called after it has committed.
//
// [database.Transact]: https://pkg.go.dev/github.com/lapse-go/lapse/amqp/database#Transact
func (c *Checkout) PlaceIn(tx *gorm.DB, d order.Draft) (order.Order, error) {
	return c.orders.PlaceIn(tx, c.Prepare(d))
}
