package main

import (
	"context"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"time"

	"github.com/lapse-go/lapse/order"
)

// A plan is what will be done with one order of the demonstration.
type plan struct {
	id     string
	window time.Duration
	after  time.Duration // from placing to doing it
	do     func(context.Context, *demoRun, order.Order) error
	ends   order.Status
	late   bool // a payment comes when it is too late
}

// demoPlans pays a third, cancels and extends some, pays one too late, and leaves the rest alone.
func demoPlans() []plan {
	plans := make([]plan, demoOrders)
	for i := range plans {
		window := 3*time.Second + time.Duration(i)*5*time.Second/(demoOrders-1)
		p := plan{id: fmt.Sprintf("demo-%02d", i+1), window: window.Round(time.Millisecond), ends: order.Expired}
		p.after = mathrand.N(window - time.Second)
		switch {
		case i == 1:
			p.late, p.after, p.do = true, 0, payTooLate
		case i%3 == 0:
			p.ends, p.do = order.Paid, pay
		case i%10 == 4:
			p.ends, p.do = order.Cancelled, cancelOrder
		case i%10 == 5:
			p.do = extend
		}
		plans[i] = p
	}
	return plans
}

func pay(ctx context.Context, d *demoRun, o order.Order) error {
	_, err := d.Pay(ctx, o.ID, order.Payment{Reference: "pay-" + o.ID})
	return err
}

func cancelOrder(ctx context.Context, d *demoRun, o order.Order) error {
	_, err := d.Cancel(ctx, o.ID, order.By{Who: "demo", Why: "changed my mind"})
	return err
}

func extend(ctx context.Context, d *demoRun, o order.Order) error {
	_, err := d.Extend(ctx, o.ID, o.Deadline.Add(2*time.Second), order.By{Who: "demo", Why: "asked for more time"})
	return err
}

func payTooLate(ctx context.Context, d *demoRun, o order.Order) error {
	for {
		now, err := d.Get(ctx, o.ID)
		if err != nil {
			return err
		}
		if now.Status != order.Pending {
			break
		}
		if err := rest(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
	if err := pay(ctx, d, o); !errors.Is(err, order.ErrLatePayment) {
		return fmt.Errorf("a payment that was too late was answered: %w", err)
	}
	return nil
}
