package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/amqp/deadletter"
	"github.com/lapse-go/lapse/order"
	"github.com/lapse-go/lapse/order/orderamqp"
)

// bad are messages that no order stands behind: malformed ones, which are hopeless, and the timers of orders that do not
// exist, which run out of tries.
var bad = []string{
	`not JSON`,
	`{"deadline": "2030-01-01T00:00:00Z"}`,
	`{"order_id": "demo-01"}`,
	`{"order_id": "nobody-placed-me-1", "deadline": "2020-01-01T00:00:00Z"}`,
	`{"order_id": "nobody-placed-me-2", "deadline": "2020-01-01T00:00:00Z"}`,
}

const (
	malformed   = 3                    // of the bad ones
	placedLate  = "nobody-placed-me-1" // is placed once its timer is a dead letter,
	paidLate    = "nobody-placed-me-2" // and so is this, and paid at once
	lateArticle = "samovar"            // of which both are
	lateWindow  = 5 * time.Second      // more than the replay takes
)

func (d *demoRun) publishBad(ctx context.Context) error {
	publisher := amqp.NewPublisher(d.broker, amqp.PublisherConfig{})
	defer publisher.Close()
	messages := make([]amqp.Publishing, len(bad))
	for i, body := range bad {
		messages[i] = amqp.Publishing{
			Message:  amqp.Message{Kind: orderamqp.KindPaymentTimeout, Body: []byte(body)},
			Exchange: d.topology.Due(),
		}
	}
	return errors.Join(publisher.Publish(ctx, messages...)...)
}

// work does what operators do about the dead letters: look at them, mend what is wrong, and replay them.
func (d *demoRun) work(ctx context.Context) error {
	groups, err := d.DeadLetterGroups(ctx, deadletter.Filter{State: deadletter.Open})
	if err != nil {
		return err
	}
	d.result.Groups = len(groups)
	if err := d.placeLate(ctx); err != nil {
		return err
	}
	// By their ids, since the desk may find the one that is paid by itself.
	var these deadletter.Selection
	for _, l := range d.letters {
		these.IDs = append(these.IDs, l.ID)
	}
	forecast, err := d.DryRun(ctx, these, false)
	if err != nil {
		return err
	}
	var come []string
	for _, answer := range answers(forecast) {
		come = append(come, fmt.Sprintf("%d %s", forecast.Answers[answer], answer))
	}
	fmt.Fprintf(d.to.Err, "Dead letters: %d in %d groups. The orders of two timers have been placed, and one is paid. Dry run: %s.\n",
		len(d.letters), len(groups), strings.Join(come, ", "))
	d.job, err = d.StartReplay(ctx, deadletter.Request{
		Selection: these, By: deadletter.By{Who: "demo", Why: "their orders are there now"}, Rate: deadletter.DefaultRate,
	})
	if err != nil {
		return err
	}
	if err := d.awaitReplay(ctx); err != nil {
		return fmt.Errorf("the replay, its letters that die again, or the order that was placed late: %w", err)
	}
	fmt.Fprintf(d.to.Err, "Replayed %d, %d of them died again. %s was closed by its deadline.\n", d.job.Published, len(d.returned), placedLate)
	return nil
}

// placeLate places the orders of both timers that are dead letters, and pays one.
func (d *demoRun) placeLate(ctx context.Context) error {
	if _, err := d.SetStock(ctx, lateArticle, demoStock); err != nil {
		return err
	}
	for _, id := range []string{paidLate, placedLate} {
		o, err := d.Place(ctx, order.Draft{
			ID: id, Customer: "demo", Window: lateWindow,
			Lines: []order.Line{{SKU: lateArticle, Quantity: 1, Price: order.Money{Amount: 9900, Currency: "EUR"}}},
		})
		if err != nil {
			return err
		}
		if id == paidLate {
			if err := pay(ctx, d, o); err != nil {
				return err
			}
		}
	}
	return nil
}

// awaitReplay waits until the replay has ended, what is malformed is back on the desk, and the order is closed.
func (d *demoRun) awaitReplay(ctx context.Context) error {
	for {
		var err error
		if d.job, err = d.Replay(ctx, d.job.ID); err != nil {
			return err
		}
		if d.returned, _, _, err = d.DeadLetters(ctx, deadletter.Filter{State: deadletter.Open}, deadletter.Page{}); err != nil {
			return err
		}
		late, err := d.Get(ctx, placedLate)
		if err != nil {
			return err
		}
		back := 0
		for _, l := range d.returned {
			if l.Replays == 1 && l.ReplayedBy == d.job.ID {
				back++
			}
		}
		if d.job.State.Ended() && back >= malformed && late.Status != order.Pending {
			return nil
		}
		if err := rest(ctx, 200*time.Millisecond); err != nil {
			return err
		}
	}
}

// judgeDesk holds what the desk says against what was planned.
func (d *demoRun) judgeDesk(ctx context.Context) error {
	r := &d.result
	if r.DeadLetters = len(r.Letters); r.DeadLetters != len(bad) {
		r.problem("%d dead letters, but %d messages were bad", r.DeadLetters, len(bad))
	}
	if r.Groups < 2 || r.Groups > r.DeadLetters {
		r.problem("%d groups of %d dead letters", r.Groups, r.DeadLetters)
	}
	r.Replayed = int(d.job.Published)
	if r.Replayed != malformed+1 || d.job.Failed != 0 || d.job.Left() != 0 {
		r.problem("the replay is %s: %d replayed, %d failed, %d left", d.job.State, d.job.Published, d.job.Failed, d.job.Left())
	}
	settled, _, _, err := d.DeadLetters(ctx, deadletter.Filter{State: deadletter.Settled}, deadletter.Page{})
	if err != nil {
		return err
	}
	if r.SettledByGuard = len(settled); r.SettledByGuard != 1 || settled[0].Subject != paidLate {
		r.problem("%d dead letters were settled by the guard, but one order is paid", r.SettledByGuard)
	}
	for _, l := range d.returned {
		if l.Replays != 1 || l.ReplayedBy != d.job.ID || l.Reason != deadletter.Hopeless {
			r.problem("letter %d is open: replayed %d times, by %q, %s", l.ID, l.Replays, l.ReplayedBy, l.Reason)
		}
	}
	if r.Returned = len(d.returned); r.Returned != malformed {
		r.problem("%d dead letters came back, but %d are malformed", r.Returned, malformed)
	}
	return d.judgeLate(ctx)
}

// judgeLate is about the orders that were placed late.
func (d *demoRun) judgeLate(ctx context.Context) error {
	r := &d.result
	late, err := d.Get(ctx, placedLate)
	if err != nil {
		return err
	}
	if after := late.ClosedAt.Sub(late.Deadline); late.Status != order.Expired || after < 0 || after > lateWindow {
		r.problem("%s is %s, %s after its deadline", late.ID, late.Status, after)
	}
	paid, err := d.Get(ctx, paidLate)
	if err != nil {
		return err
	}
	if paid.Status != order.Paid {
		r.problem("%s is %s, but was paid", paid.ID, paid.Status)
	}
	stock, err := d.Stock(ctx, lateArticle)
	if err != nil {
		return err
	}
	if len(stock) != 1 || stock[0].Available != demoStock-1 || stock[0].Reserved != 0 || stock[0].Sold != 1 {
		r.StockConserved = false
		r.problem("stock of %s: %+v", lateArticle, stock)
	}
	return nil
}
