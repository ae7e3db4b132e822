package order

import (
	"context"
	"time"
)

// Store is what timers, the sweep and operators' replays need of the place where orders are kept. A
// shop that keeps them in its own MySQL table describes it to orderdb.Table; one that keeps them elsewhere
// implements these four methods and runs the suite in ordertest over them. It is safe for use by several
// goroutines and several processes.
type Store interface {
	// Find looks orders up. One that does not exist, or whose id is no valid one, is not in the answer.
	Find(ctx context.Context, ids []string) (map[string]Head, error)

	// Expire expires those of the orders that are pending and due by the database's clock, gives
	// their stock back and has the events published, all in one transaction, or in a few when the
	// batch is large. It gives one answer for each id, in their order; an id may be given more than once,
	// and only one of its answers is then [OutcomeExpired].
	//
	// It fails as a whole only for what no order is to blame for: the error then wraps [ErrPaused] or
	// [ErrUnavailable]. An order that makes the database fail costs the others nothing: its own answer
	// is [OutcomeFailed]. So is that of one whose rows others keep locked, which is not the order's own
	// failure: its Err wraps ErrUnavailable. A payment that commits before the expiry does wins.
	Expire(ctx context.Context, ids []string) (Expiries, error)

	// Overdue lists up to limit pending orders whose deadline passed at least grace ago, from the
	// earliest deadline on, those after the cursor only. It locks nothing.
	Overdue(ctx context.Context, grace time.Duration, after Cursor, limit int) ([]Overdue, error)

	// Paused reports whether expiry is paused.
	Paused(ctx context.Context) (bool, error)
}

// Head is the little of an order that says whether it is still worth a timer.
type Head struct {
	ID       string
	Status   Status
	Deadline time.Time
}

// Expiries is what became of a batch.
type Expiries struct {
	// Now is the time by the database's clock.
	Now time.Time
	// Orders has one answer for each id that was given, in their order.
	Orders []Expiry
}

// Expiry is what became of one order.
type Expiry struct {
	ID      string
	Outcome Outcome
	// Deadline is the order's own; zero when it was not found or failed.
	Deadline time.Time
	// Remaining is the time until the deadline, for [OutcomeNotDue]: more than zero, by the
	// database's clock.
	Remaining time.Duration
	// Err is why, for [OutcomeFailed]. If it wraps [ErrUnavailable], the order is not to blame, and trying
	// it again later is no further try of a thing that fails.
	Err error
}

// Outcome is what an attempt to expire an order came to.
type Outcome string

const (
	OutcomeExpired          Outcome = "expired"
	OutcomeAlreadyPaid      Outcome = "already paid"
	OutcomeAlreadyCancelled Outcome = "already cancelled"
	OutcomeAlreadyExpired   Outcome = "already expired"
	OutcomeNotDue           Outcome = "not due"
	OutcomeNotFound         Outcome = "not found"
	OutcomeFailed           Outcome = "failed"
)

// Overdue is an order that should have been expired by now.
type Overdue struct {
	ID       string
	Deadline time.Time
	// Late is how long ago its deadline was, by the database's clock.
	Late time.Duration
}

// Cursor is a place in the list of overdue orders; the zero cursor is its beginning.
type Cursor struct {
	Deadline time.Time
	ID       string
}

// Cursor is the place right after the order.
func (o Overdue) Cursor() Cursor { return Cursor{Deadline: o.Deadline, ID: o.ID} }
