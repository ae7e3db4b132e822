package checkout_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"gorm.io/gorm"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/amqp/database"
	"github.com/lapse-go/lapse/amqp/outbox"
	"github.com/lapse-go/lapse/order/checkout"
)

// Reminders tell customers what they might forget. They are kinds of messages of the shop's own, which get the
// delays, retries, dead letters and metrics that payment timeouts get.
type Reminders struct {
	db   *gorm.DB
	tell func(ctx context.Context, customer, text string) error
}

// Kinds go into checkout.Config.Kinds of the program that handles them, and of nobody else.
func (r *Reminders) Kinds() []checkout.Kind {
	return []checkout.Kind{
		{Name: "order.pickup_reminder", Handler: amqp.Each(r.remind)},
		{Name: "coupon.expiring", Handler: amqp.Each(r.warn)},
	}
}

// Shelve puts an order on the shelf, and has its customer reminded if it is still there after a while.
func (r *Reminders) Shelve(ctx context.Context, id, customer string, after time.Duration) error {
	return database.Transact(ctx, r.db, func(tx *gorm.DB) error {
		if err := tx.Exec("INSERT INTO shelf (order_id, customer) VALUES (?, ?)", id, customer).Error; err != nil {
			return err
		}
		reminder := amqp.Message{Kind: "order.pickup_reminder", Body: fmt.Appendf(nil, `{"order_id": %q}`, id)}
		return outbox.Add(tx, outbox.Message{Message: reminder, Window: after})
	})
}

func (r *Reminders) remind(ctx context.Context, m amqp.Message) error {
	var about struct {
		OrderID string `json:"order_id"`
	}
	if err := json.Unmarshal(m.Body, &about); err != nil {
		return amqp.Hopeless(err) // it will never be anything else
	}
	var customer string
	err := r.db.WithContext(ctx).Raw("SELECT customer FROM shelf WHERE order_id = ?", about.OrderID).Row().Scan(&customer)
	if errors.Is(err, sql.ErrNoRows) {
		return nil // it was picked up
	}
	if database.IsOutage(err) {
		return amqp.Away(err) // which is no fault of the message's
	}
	if err != nil {
		return err // it is tried again
	}
	return r.tell(ctx, customer, "Your order "+about.OrderID+" is waiting for you.")
}

// Issue gives a customer a coupon, and has him warned before it is worth nothing.
func (r *Reminders) Issue(ctx context.Context, coupon, customer string, warnAt time.Time) error {
	return database.Transact(ctx, r.db, func(tx *gorm.DB) error {
		if err := tx.Exec("INSERT INTO coupons (id, customer, warn_at) VALUES (?, ?, ?)", coupon, customer, warnAt).Error; err != nil {
			return err
		}
		return outbox.Add(tx, outbox.Message{Message: amqp.Message{Kind: "coupon.expiring", Body: []byte(coupon)}, Deadline: warnAt})
	})
}

func (r *Reminders) warn(ctx context.Context, m amqp.Message) error {
	var customer string
	var micros int64
	err := r.db.WithContext(ctx).Raw("SELECT customer, TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), warn_at) FROM coupons WHERE id = ?",
		m.Body).Row().Scan(&customer, &micros)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return amqp.Hopeless(errors.New("no such coupon"))
	case database.IsOutage(err):
		return amqp.Away(err)
	case err != nil:
		return err
	case micros > 0:
		return amqp.NotYet(time.Duration(micros) * time.Microsecond) // it was made valid for longer
	}
	return r.tell(ctx, customer, "Your coupon is about to expire.")
}
