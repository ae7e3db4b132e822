package order

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"slices"
	"time"
)

// Status is where an order stands: pending, then exactly one of the others, for good.
type Status string

const (
	Pending   Status = "pending"
	Paid      Status = "paid"
	Cancelled Status = "cancelled" // by a person
	Expired   Status = "expired"   // by its deadline
)

// Transition decides what becomes of an order at the instant now. It is pure: the same order and
// instant give the same answer, and nothing else happens.
//
//   - an event and no error: the order becomes the one returned;
//   - an event and an error: the same, and the caller is told the error ([ErrLatePayment],
//     [ErrAlreadyPaid]);
//   - no event ([Event.None]): the order stays as it is, with an error if it should not have been asked
//     for, without one if it was done before.
type Transition func(o Order, now time.Time) (Order, Event, error)

// Place is how an order begins. The draft has to be valid.
func Place(d Draft, now time.Time) (Order, Event, error) {
	total, err := d.total()
	if err != nil {
		return Order{}, Event{}, err
	}
	o := d.order(total, now)
	return o, newEvent(EventPlaced, o, now), nil
}

func (d Draft) order(total Money, now time.Time) Order {
	window := cmp.Or(d.Window, DefaultWindow).Truncate(time.Microsecond)
	return Order{
		ID: d.ID, Customer: d.Customer, Region: d.Region, Tags: sortedTags(d.Tags), Lines: slices.Clone(d.Lines),
		Total: total, Status: Pending, PlacedAt: now, Window: window, Deadline: now.Add(window), Version: 1,
	}
}

// Refuse is the event of an order that was not placed, and why. Each time it is another event.
func Refuse(o Order, cause error, now time.Time) Event {
	o.Version = 0
	e := newEvent(EventRefused, o, now)
	e.ID = fmt.Sprintf("%s.%d", e.ID, now.UnixMicro()) // it may be refused again
	e.Cause = cause
	return e
}

// RefuseDraft is [Refuse] for a draft, which need not be valid but for its id: what is longer than an order
// may have is left out of the event, and the total is zero if there is none. The same [Draft.Request]
// refused again is the same event.
func RefuseDraft(d Draft, cause error, now time.Time) Event {
	d = d.bounded()
	total, err := d.total()
	if err != nil {
		total = Money{}
	}
	e := Refuse(d.order(total, now), cause, now)
	if d.Request != "" {
		sum := sha256.Sum256([]byte(d.Request)) // of which an id may have every byte
		e.ID = fmt.Sprintf("%s.0.%x", d.ID, sum[:16])
	}
	return e
}

// Pay makes a pending order paid, also after its deadline, as long as nothing has expired it. A
// payment for an order that is no longer pending is recorded as late. The same reference again gets
// the same answer as the first time, and records nothing; its amount need not be given again.
func Pay(p Payment) Transition {
	return func(o Order, now time.Time) (Order, Event, error) {
		for _, known := range o.Payments {
			switch {
			case known.Reference != p.Reference:
			case p.Amount != (Money{}) && known.Amount != p.Amount:
				return o, Event{}, fmt.Errorf("%w: payment %s of %s came before, with %s", ErrConflict, p.Reference, p.Amount, known.Amount)
			case known.Late:
				return o, Event{}, late(o, p)
			default:
				return o, Event{}, nil
			}
		}
		if p.Amount == (Money{}) {
			p.Amount = o.Total
		}
		if o.Status == Pending && p.Amount != o.Total {
			return o, Event{}, invalid("payment %s of %s for order %s: its total is %s", p.Reference, p.Amount, o.ID, o.Total)
		}
		p.At, p.Late = now, o.Status != Pending
		o.Payments = append(slices.Clone(o.Payments), p)
		if p.Late {
			o.Version++
			e := newEvent(EventLatePayment, o, now)
			e.Payment = p
			return o, e, late(o, p)
		}
		o = closed(o, Paid, now)
		e := newEvent(EventPaid, o, now)
		e.Payment = p
		return o, e, nil
	}
}

func late(o Order, p Payment) error {
	cause := ErrLatePayment
	if o.Status == Paid {
		cause = ErrAlreadyPaid
	}
	return fmt.Errorf("%w: order %s was %s at %s; payment %s has to be refunded", cause, o.ID, o.Status, o.ClosedAt.Format(time.RFC3339), p.Reference)
}

// Cancel closes a pending order. Cancelling it again is no error.
func Cancel(by By) Transition {
	return func(o Order, now time.Time) (Order, Event, error) {
		if o.Status == Cancelled {
			return o, Event{}, nil
		}
		if err := o.closedError(); err != nil {
			return o, Event{}, err
		}
		o = closed(o, Cancelled, now)
		e := newEvent(EventCancelled, o, now)
		e.By = by
		return o, e, nil
	}
}

// Expire closes a pending order whose deadline has come.
func Expire(o Order, now time.Time) (Order, Event, error) {
	if err := o.closedError(); err != nil {
		return o, Event{}, err
	}
	if now.Before(o.Deadline) {
		return o, Event{}, fmt.Errorf("%w: order %s is due at %s", ErrNotDue, o.ID, o.Deadline.Format(time.RFC3339Nano))
	}
	o = closed(o, Expired, now)
	return o, newEvent(EventExpired, o, now), nil
}

// Extend moves a pending order's deadline, to an instant that is still to come and at most a year
// away. Asking for the deadline that it has is no error.
func Extend(to time.Time, by By) Transition {
	to = to.UTC().Truncate(time.Microsecond)
	return func(o Order, now time.Time) (Order, Event, error) {
		if err := o.closedError(); err != nil {
			return o, Event{}, err
		}
		if to.Equal(o.Deadline) {
			return o, Event{}, nil
		}
		if !to.After(now) || to.After(now.Add(MaxWindow)) {
			return o, Event{}, invalid("deadline %s: give one after now, %s, and within a year", to.Format(time.RFC3339), now.Format(time.RFC3339))
		}
		return extended(o, to, by, now)
	}
}

// ExtendBy gives a pending order more time: from its deadline on, or from now on if that has passed,
// but never to more than a year from now.
func ExtendBy(more time.Duration, by By) Transition {
	return func(o Order, now time.Time) (Order, Event, error) {
		if err := o.closedError(); err != nil {
			return o, Event{}, err
		}
		to := o.Deadline
		if to.Before(now) {
			to = now
		}
		to = to.Add(more).Truncate(time.Microsecond)
		if latest := now.Add(MaxWindow); to.After(latest) {
			to = latest
		}
		if !to.After(o.Deadline) {
			return o, Event{}, nil
		}
		return extended(o, to, by, now)
	}
}

func extended(o Order, to time.Time, by By, now time.Time) (Order, Event, error) {
	old := o.Deadline
	o.Deadline = to
	o.Version++
	e := newEvent(EventExtended, o, now)
	e.By, e.OldDeadline = by, old
	return o, e, nil
}

func closed(o Order, s Status, now time.Time) Order {
	o.Status, o.ClosedAt = s, now
	o.Version++
	return o
}

// closedError is nil while the order is pending, else an error that says how it was closed.
func (o Order) closedError() error {
	var cause error
	switch o.Status {
	case Pending:
		return nil
	case Paid:
		cause = ErrAlreadyPaid
	case Cancelled:
		cause = ErrAlreadyCancelled
	case Expired:
		cause = ErrAlreadyExpired
	default:
		return invalid("order %s has the unknown status %q", o.ID, o.Status)
	}
	return fmt.Errorf("order %s: %w at %s", o.ID, cause, o.ClosedAt.Format(time.RFC3339))
}
