package checkout_test

import (
	"context"

	"gorm.io/gorm"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/amqp/database"
	"github.com/lapse-go/lapse/amqp/inbox"
	"github.com/lapse-go/lapse/order/checkout"
	"github.com/lapse-go/lapse/order/orderamqp"
)

// Notifier tells customers that their orders expired, once each: it writes a mail for each into a table, in a
// database that may be its own (lapse migrate up has made the table lapse_inbox there).
type Notifier struct {
	db   *gorm.DB
	name string
}

// Kind goes into checkout.Config.Kinds. A subscriber is a kind of its own, and so has a queue of its own, in which
// what failed is tried again and of which the dead letters are told apart.
func (n *Notifier) Kind() checkout.Kind {
	return checkout.Kind{Name: n.name, Events: []string{"order.expired"}, Handler: amqp.Each(n.handle)}
}

func (n *Notifier) handle(ctx context.Context, m amqp.Message) error {
	event, err := orderamqp.DecodeEvent(m)
	if err != nil {
		return amqp.Hopeless(err)
	}
	err = database.Transact(ctx, n.db, func(tx *gorm.DB) error {
		first, err := inbox.Once(tx, n.name, event.ID)
		if err != nil || !first {
			return err
		}
		return tx.Exec("INSERT INTO mails (sender, customer, order_id) VALUES (?, ?, ?)", n.name, event.Data.Customer, event.Data.OrderID).Error
	})
	if database.IsOutage(err) {
		return amqp.Away(err)
	}
	return err
}
