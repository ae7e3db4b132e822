package main

import (
	"context"
	"errors"

	"github.com/lapse-go/lapse/amqp/deadletter"
	"github.com/lapse-go/lapse/order"
)

// did has the audit tell what was done by hand, or tried, and ended with err. Requests that make no sense are not in it.
func (f byFlags) did(ctx context.Context, desk *deadletter.Desk, e deadletter.Entry, err error) {
	if errors.Is(err, order.ErrInvalid) {
		return
	}
	e.Actor, e.Reason = f.Who, f.Why
	desk.Did(ctx, e, err)
}

// didOne is did for one order.
func (f byFlags) didOne(ctx context.Context, desk *deadletter.Desk, action, id string, err error) {
	e := deadletter.Entry{Action: action, Subject: id}
	if err == nil {
		e.Count = 1
	}
	f.did(ctx, desk, e, err)
}
