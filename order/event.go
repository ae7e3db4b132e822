package order

import (
	"fmt"
	"strings"
	"time"
)

// EventType says what happened to an order.
type EventType string

const (
	EventPlaced      EventType = "order.placed"
	EventPaid        EventType = "order.paid"
	EventCancelled   EventType = "order.cancelled"
	EventExpired     EventType = "order.expired"
	EventExtended    EventType = "order.extended"
	EventLatePayment EventType = "order.payment_late" // to be refunded
	EventRefused     EventType = "order.refused"      // not placed; Cause says why
)

// Event is something that happened to an order, with all that a subscriber needs to act on it.
type Event struct {
	// ID is the event's own, and the same however often it is published.
	ID   string
	Type EventType
	// Order is the order after the event. Its Version is the event's place among the order's events,
	// without gaps; 0 for order.refused, which comes before there is an order.
	Order Order
	// At is when it happened, by the database's clock.
	At time.Time
	// By says who caused it, for order.cancelled and order.extended.
	By By
	// Payment is the one that came, for order.paid and order.payment_late.
	Payment Payment
	// OldDeadline is the deadline before order.extended.
	OldDeadline time.Time
	// Cause says why, for order.refused. It is or wraps a [ShortageError], [ErrConflict] or [ErrInvalid].
	Cause error
}

// newEvent is what happened to o, which is the order after it.
func newEvent(t EventType, o Order, at time.Time) Event {
	return Event{ID: fmt.Sprintf("%s.%d", o.ID, o.Version), Type: t, Order: o, At: at}
}

// None reports whether nothing happened.
func (e Event) None() bool { return e.Type == "" }

// Detail says for people what the type does not.
func (e Event) Detail() string {
	const layout = time.RFC3339
	switch e.Type {
	case EventPlaced:
		return fmt.Sprintf("%s, to be paid by %s", e.Order.Total, e.Order.Deadline.Format(layout))
	case EventPaid:
		return fmt.Sprintf("%s by %s", e.Payment.Amount, e.Payment.Reference)
	case EventLatePayment:
		return fmt.Sprintf("%s by %s for an order that was %s, to be refunded", e.Payment.Amount, e.Payment.Reference, e.Order.Status)
	case EventExtended:
		return fmt.Sprintf("deadline moved from %s to %s", e.OldDeadline.Format(layout), e.Order.Deadline.Format(layout))
	case EventExpired:
		return fmt.Sprintf("not paid by %s", e.Order.Deadline.Format(layout))
	case EventRefused:
		return e.Cause.Error()
	}
	return strings.TrimPrefix(string(e.Type), "order.")
}

// Entry is one line of an order's timeline, one for each of its events.
type Entry struct {
	Version int64
	At      time.Time
	Type    EventType
	By      By
	// Detail is for people.
	Detail string
}

// Entry is the event's line in the timeline.
func (e Event) Entry() Entry {
	return Entry{Version: e.Order.Version, At: e.At, Type: e.Type, By: e.By, Detail: e.Detail()}
}

// Timer is a wish to be called back when an order is due.
type Timer struct {
	OrderID string
	// Deadline is the order's at the time; the order's own rules.
	Deadline time.Time
	// Window is the delay that the timer was made for, or zero when it was made for none in
	// particular.
	Window time.Duration
}
