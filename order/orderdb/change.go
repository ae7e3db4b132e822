package orderdb

import (
	"context"
	"fmt"

	"gorm.io/gorm"

	"github.com/lapse-go/lapse/amqp/database"
	"github.com/lapse-go/lapse/order"
)

// Change applies a transition to an order.
func (s *Store) Change(ctx context.Context, id string, t order.Transition) (order.Order, error) {
	var (
		after   order.Order
		told    error
		emitted bool
	)
	err := database.Transact(ctx, s.db, func(tx *gorm.DB) error {
		before, now, err := load(tx, id, forUpdate)
		if err != nil {
			return err
		}
		var event order.Event
		after, event, told = t(before, now)
		if emitted = !event.None(); !emitted {
			return nil
		}
		return s.keep(tx, before, after, event)
	})
	if err != nil {
		return order.Order{}, unavailable(err)
	}
	if emitted {
		s.committed()
	}
	return after, told
}

// keep writes what a transition made of an order, whose row is locked.
func (s *Store) keep(tx *gorm.DB, before, after order.Order, event order.Event) error {
	if after.Version != before.Version+1 || before.Status != order.Pending && after.Status != before.Status {
		// For instance a copy that was loaded before somebody paid.
		return fmt.Errorf("%w: order %s is %s with version %d and cannot become %s with version %d",
			order.ErrConflict, before.ID, before.Status, before.Version, after.Status, after.Version)
	}
	updated := tx.Exec(`UPDATE lapse_orders SET status = ?, deadline = ?, closed_at = ?, version = ?
		WHERE id = ? AND status = ? AND version = ?`,
		after.Status, instant(after.Deadline), instant(after.ClosedAt), after.Version, before.ID, before.Status, before.Version)
	if updated.Error != nil {
		return fmt.Errorf("updating order %s: %w", before.ID, updated.Error)
	}
	if updated.RowsAffected != 1 {
		return fmt.Errorf("order %s changed although its row was locked", before.ID)
	}
	for _, p := range after.Payments[len(before.Payments):] {
		if err := insertPayment(tx, after, p); err != nil {
			return err
		}
	}
	if err := insertTimeline(tx, []order.Event{event}); err != nil {
		return err
	}
	var timers []order.Timer
	if after.Status == order.Pending && after.Deadline.Before(before.Deadline) {
		// The timers that are under way come too late for it.
		timers = []order.Timer{{OrderID: after.ID, Deadline: after.Deadline}}
	}
	if err := s.emit(tx, []order.Event{event}, timers); err != nil {
		return err
	}
	if before.Status != order.Pending || after.Status == order.Pending {
		return nil
	}
	move := release
	if after.Status == order.Paid {
		move = sell
	}
	_, err := moveStock(tx, move, after)
	return err
}

func insertPayment(tx *gorm.DB, o order.Order, p order.Payment) error {
	err := insert(tx, "lapse_payments", []string{"reference", "order_id", "version", "amount", "currency", "at", "late"},
		[][]any{{p.Reference, o.ID, o.Version, p.Amount.Amount, p.Amount.Currency, instant(p.At), p.Late}})
	if database.IsDuplicate(err) {
		// The order's own payments were known, so it is another's.
		return fmt.Errorf("%w: payment %s came before, for another order than %s", order.ErrConflict, p.Reference, o.ID)
	}
	return err
}
