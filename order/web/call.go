package web

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/lapse-go/lapse/amqp/database"
	"github.com/lapse-go/lapse/order"
)

const (
	// callTimeout is for a call of the database, the wait for a place included: it is refused within two
	// seconds when the database is away. Others that keep rows locked for so long make it fail, too.
	callTimeout = 1800 * time.Millisecond
	// longTimeout is for calls that go through all orders.
	longTimeout = time.Minute
	// How many calls use the database at the same time: fewer than the 16 connections that a pool has by
	// default, since the loops that close orders live on the same pool. What looks, and waits for no lock,
	// has places of its own, and so have the few that take long, and those that look through all letters of the
	// desk: exports, and searches for a text.
	maxChanges  = 8
	maxLooks    = 4
	maxLong     = 2
	maxSearches = 1
)

// call changes something in the database, within callTimeout.
func call[T any](ctx context.Context, s *Server, do func(context.Context) (T, error)) (T, error) {
	return within(ctx, s, s.changes, callTimeout, do)
}

// look reads from the database, within callTimeout.
func look[T any](ctx context.Context, s *Server, do func(context.Context) (T, error)) (T, error) {
	return within(ctx, s, s.looks, callTimeout, do)
}

// callLong calls the database, within longTimeout, once that has answered a small question.
func callLong[T any](ctx context.Context, s *Server, do func(context.Context) (T, error)) (T, error) {
	return longCall(ctx, s, s.long, do)
}

// longCall is callLong with other places.
func longCall[T any](ctx context.Context, s *Server, places chan struct{}, do func(context.Context) (T, error)) (T, error) {
	if _, err := look(ctx, s, s.cfg.Switch.Paused); err != nil {
		var none T
		return none, err
	}
	return within(ctx, s, places, longTimeout, do)
}

// within returns when the call has ended, or its time is over. The call then ends by itself, and keeps its
// place until it has: a commit that hangs is not bound by its context.
func within[T any](ctx context.Context, s *Server, places chan struct{}, timeout time.Duration, do func(context.Context) (T, error)) (value T, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	defer func() { s.database.note(errors.Is(err, order.ErrUnavailable), err) }()
	late := func() (T, error) {
		var none T
		return none, fmt.Errorf("%w: no answer within %s: %w", order.ErrUnavailable, timeout, ctx.Err())
	}
	select {
	case places <- struct{}{}:
	case <-ctx.Done():
		return late()
	}
	type result struct {
		value T
		err   error
	}
	done := make(chan result)
	go func() {
		defer func() { <-places }()
		var r result
		r.err = safely(func() (err error) { r.value, err = do(ctx); return outageOf(err) })
		select {
		case done <- r:
		case <-ctx.Done(): // nobody waits any more
			if p, ok := errors.AsType[*panicError](r.err); ok {
				s.cfg.Logger.Error("a call that was given up failed", "error", p)
			}
		}
	}()
	select {
	case r := <-done:
		return r.value, r.err
	case <-ctx.Done():
		return late()
	}
}

// outageOf marks errors of the database after which the same call may succeed. Those about orders are so already.
func outageOf(err error) error {
	if (database.IsOutage(err) || database.IsConflict(err)) && !errors.Is(err, order.ErrUnavailable) {
		return fmt.Errorf("%w: %w", order.ErrUnavailable, err)
	}
	return err
}

// panicError is a panic as an error.
type panicError struct {
	value any
	stack []byte
}

func (p *panicError) Error() string { return fmt.Sprintf("panic: %v\n%s", p.value, p.stack) }

// safely has a panic be an error.
func safely(do func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &panicError{p, debug.Stack()}
		}
	}()
	return do()
}
