package web

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/lapse-go/lapse/amqp/deadletter"
	"github.com/lapse-go/lapse/order"
)

// What people do to orders by hand. Each is in the audit of the desk, also if the order was not so that it could be done;
// only requests that make no sense are not.

func (s *Server) cancelOrder(ctx context.Context, id string, by order.By) (order.Order, error) {
	return call(ctx, s, audited(s, deadletter.Entry{Action: "order.cancel", Subject: id}, by, one,
		func(ctx context.Context) (order.Order, error) { return s.cfg.Orders.Cancel(ctx, id, by) }))
}

func (s *Server) extendOrder(ctx context.Context, id string, to time.Time, by order.By) (order.Order, error) {
	return call(ctx, s, audited(s, deadletter.Entry{Action: "order.extend", Subject: id}, by, one,
		func(ctx context.Context) (order.Order, error) { return s.cfg.Orders.Extend(ctx, id, to, by) }))
}

func (s *Server) extendOrders(ctx context.Context, r order.ExtendRequest) (order.ExtendProgress, error) {
	return callLong(ctx, s, audited(s, ExtendAllEntry(r), r.By,
		func(p order.ExtendProgress, err error) (int64, error) { return p.Extended, err },
		func(ctx context.Context) (order.ExtendProgress, error) { return s.cfg.Orders.ExtendAll(ctx, r) }))
}

func (s *Server) pause(ctx context.Context, by order.By) error {
	return s.turn(ctx, "pause", by, s.cfg.Switch.Pause)
}

func (s *Server) resume(ctx context.Context, by order.By) error {
	return s.turn(ctx, "resume", by, s.cfg.Switch.Resume)
}

func (s *Server) turn(ctx context.Context, action string, by order.By, turn func(context.Context, order.By) error) error {
	_, err := call(ctx, s, audited(s, deadletter.Entry{Action: action}, by,
		func(_ struct{}, err error) (int64, error) { return 0, err },
		func(ctx context.Context) (struct{}, error) { return struct{}{}, turn(ctx, by) }))
	return err
}

// sweep does one round. That expiry is paused is a problem.
func (s *Server) sweep(ctx context.Context, by order.By) (order.Summary, error) {
	return callLong(ctx, s, audited(s, deadletter.Entry{Action: "sweep"}, by,
		func(sum order.Summary, err error) (int64, error) {
			if err == nil && sum.Failed > 0 {
				err = fmt.Errorf("%d orders could not be expired", sum.Failed)
			}
			return int64(sum.Expired), err
		},
		func(ctx context.Context) (order.Summary, error) {
			sum, err := s.cfg.Sweep(ctx)
			if err == nil && sum.Paused {
				err = problem(paused, "expiry is paused, %d orders were expired before that: resume it first", sum.Expired)
			}
			return sum, err
		}))
}

func one(_ order.Order, err error) (int64, error) {
	if err != nil {
		return 0, err
	}
	return 1, nil
}

// ExtendAllEntry is the entry in the audit about an extension of many orders, without who asked for it and what came of it.
func ExtendAllEntry(r order.ExtendRequest) deadletter.Entry {
	selection, _ := json.Marshal(struct { // texts and nothing else, so that it never fails
		By  string `json:"by"`
		Tag string `json:"tag,omitempty"`
	}{r.More.String(), r.Tag})
	return deadletter.Entry{Action: "order.extend-all", Subject: r.Key, Selection: string(selection)}
}

// audited is do with an entry about it. How many orders it changed, and what went wrong, is told by outcome. The entry is
// written before the answer, so also when nobody waits for that any more.
func audited[T any](s *Server, e deadletter.Entry, by order.By, outcome func(T, error) (int64, error), do func(context.Context) (T, error)) func(context.Context) (T, error) {
	return func(ctx context.Context) (T, error) {
		value, err := do(ctx)
		if errors.Is(err, order.ErrInvalid) {
			return value, err
		}
		e := e
		e.Actor, e.Reason = by.Who, by.Why
		count, trouble := outcome(value, err)
		e.Count = count
		if err != nil {
			e.Result = problemOf(err, requestOf(ctx)).Error() // of servers it tells no names
		}
		s.cfg.Desk.Did(ctx, e, trouble)
		return value, err
	}
}

// requestOf is the number by which the log knows the request.
func requestOf(ctx context.Context) string {
	if a, ok := ctx.Value(answerKey{}).(*answer); ok {
		return a.request
	}
	return ""
}
