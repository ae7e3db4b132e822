package order

import (
	"context"
	"time"
)

// Book is what placing and paying need of the place where orders are kept, in addition to [Store].
type Book interface {
	// Place places the drafts, which have to be valid, and gives one answer for each, in their
	// order. It fails as a whole only with an error that wraps [ErrUnavailable].
	Place(ctx context.Context, drafts []Draft) ([]Placement, error)

	// Refuse has order.refused published for drafts that were not placed, in one transaction: errs[i]
	// says why drafts[i] was not. The drafts have valid ids; nothing else of them need be valid, and
	// there may be another order with the id. It changes no order, no stock and no timeline. Placing has it
	// published itself for what lacks stock.
	Refuse(ctx context.Context, drafts []Draft, errs []error) error

	// Change locks the order, lets the transition decide by the database's clock, and keeps what it
	// decided: the order, its stock, the event, and a timer if the deadline is now earlier. It returns
	// the order as it then is, with the transition's error.
	Change(ctx context.Context, id string, t Transition) (Order, error)

	// ExtendSome takes one bounded step of a request: it extends the next of its orders, in one
	// transaction. The first step of a request fixes which orders it concerns.
	ExtendSome(ctx context.Context, r ExtendRequest) (ExtendProgress, error)

	// Get loads an order. The error wraps [ErrNotFound] if there is none.
	Get(ctx context.Context, id string) (Order, error)

	// Timeline lists what happened to an order, from its first event on.
	Timeline(ctx context.Context, id string) ([]Entry, error)
}

// Office is what the people in the office need.
type Office interface {
	PauseSwitch
	// SetStock sets how many pieces of an article are available; those that are reserved or sold
	// stay so.
	SetStock(ctx context.Context, sku string, available int64) (Stock, error)
	// AddStock adds a delta, which is not zero, to the pieces of an article that are available. It makes
	// the article known if delta is more than zero, and otherwise fails with [ErrUnknownSKU]. It fails
	// with [ErrOutOfStock] rather than make them fewer than none, and with [ErrInvalid] rather than add
	// to more than [MaxStock].
	AddStock(ctx context.Context, sku string, delta int64) (Stock, error)
	// Stock lists the stock of the articles, in ascending order of their skus; of all articles when
	// none is given.
	Stock(ctx context.Context, skus ...string) ([]Stock, error)
}

// Repository keeps orders.
type Repository interface {
	Store
	Book
	Office
}

// Placement is what became of one draft.
type Placement struct {
	// Order is set unless there is an error.
	Order Order
	// Repeated says that the same order had been placed before.
	Repeated bool
	// Err wraps [ErrInvalid], [ErrConflict] (the id is taken by another order), [ErrOutOfStock],
	// [ErrUnknownSKU] or [ErrUnavailable] (others kept locked what it needs); anything else is the
	// database's complaint about this order.
	Err error
}

// ExtendRequest asks for more time for many orders at once.
type ExtendRequest struct {
	// Key identifies the request, so that it is done once however often it is sent: an id like an
	// order's.
	Key string
	// More is by how much deadlines move: from a millisecond to a year. An order whose deadline has
	// passed gets so much from now on, and none gets more than a year from now.
	More time.Duration
	// Tag limits the request to the orders that carry it; empty for all.
	Tag string
	By  By
}

// Validate says what is wrong with the request, or nil. The error wraps [ErrInvalid].
func (r ExtendRequest) Validate() error {
	if r.More < MinWindow || r.More > MaxWindow {
		return invalid("an extension by %s: give %s to %s", r.More, MinWindow, MaxWindow)
	}
	if err := ValidateID("request key", r.Key); err != nil {
		return err
	}
	if r.Tag != "" {
		if err := ValidateID("tag", r.Tag); err != nil {
			return err
		}
	}
	return r.By.Validate()
}

// ExtendProgress is how far an [ExtendRequest] has come, whoever took it there.
type ExtendProgress struct {
	Key string
	// Extended is the number of orders that have got more time.
	Extended int64
	// StartedAt is when the request was first made; orders that were placed later are left alone.
	StartedAt time.Time
	// Done says that nothing is left to do.
	Done bool
}
