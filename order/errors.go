package order

import (
	"errors"
	"fmt"
	"strings"
)

// What can go wrong. Errors of this package and of every [Store], [Book] and [Office] wrap one of
// them where a caller has a decision to make; the text around it says what was wrong and what to do.
var (
	// ErrInvalid: the request can never succeed as it is.
	ErrInvalid = errors.New("invalid")
	// ErrNotFound: there is no such order.
	ErrNotFound = errors.New("no such order")
	// ErrConflict: the id, payment reference or request key is in use for something else.
	ErrConflict = errors.New("conflict")
	// ErrOutOfStock: at least one article cannot be reserved. The error is a [ShortageError].
	ErrOutOfStock = errors.New("out of stock")
	// ErrUnknownSKU: at least one article has never been in stock. The error is a [ShortageError].
	ErrUnknownSKU = errors.New("unknown sku")
	// ErrAlreadyPaid: the order was paid before. A payment with another reference was recorded, to be
	// refunded.
	ErrAlreadyPaid = errors.New("already paid")
	// ErrAlreadyCancelled: a person cancelled the order before.
	ErrAlreadyCancelled = errors.New("already cancelled")
	// ErrAlreadyExpired: the order's deadline closed it before.
	ErrAlreadyExpired = errors.New("already expired")
	// ErrLatePayment: the payment came after the order was expired or cancelled. It was recorded, to
	// be refunded, and the order stays closed.
	ErrLatePayment = errors.New("payment came too late")
	// ErrNotDue: the order's deadline is still to come.
	ErrNotDue = errors.New("not due yet")
	// ErrPaused: expiry is paused. Nothing was expired.
	ErrPaused = errors.New("expiry is paused")
	// ErrNotAccepted: the broker did not confirm in time that it has the order. It may have it all the
	// same; sending it again, with the same id, is safe.
	ErrNotAccepted = errors.New("not accepted by the broker")
	// ErrUnavailable: the database is away, read-only, overloaded or incomplete, or others keep locked
	// what the work needs. It may or may not have been done; doing it again is safe, if [Service] does
	// not say otherwise.
	ErrUnavailable = errors.New("database unavailable")
)

// ShortageError says which articles an order could not get. It is [ErrUnknownSKU] if any of them is
// unknown, else [ErrOutOfStock].
type ShortageError struct {
	// Short are the articles of which too few are available, Unknown those that have no stock at
	// all; both in ascending order.
	Short, Unknown []string
}

func (e *ShortageError) Error() string {
	var parts []string
	if len(e.Unknown) > 0 {
		parts = append(parts, fmt.Sprintf("unknown sku %s: set its stock first", strings.Join(e.Unknown, ", ")))
	}
	if len(e.Short) > 0 {
		parts = append(parts, fmt.Sprintf("out of stock: %s", strings.Join(e.Short, ", ")))
	}
	return strings.Join(parts, "; ")
}

// Unwrap makes errors.Is tell the two kinds apart.
func (e *ShortageError) Unwrap() error {
	if len(e.Unknown) > 0 {
		return ErrUnknownSKU
	}
	return ErrOutOfStock
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrInvalid, fmt.Errorf(format, args...))
}
