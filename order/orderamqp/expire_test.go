package orderamqp

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/order"
)

// answers is a store whose answers are known beforehand; what a real one answers is shown elsewhere.
type answers struct {
	order.Store
	expiries map[string]order.Expiry
	err      error
	now      time.Time
	asked    [][]string
}

func (a *answers) Expire(_ context.Context, ids []string) (order.Expiries, error) {
	a.asked = append(a.asked, ids)
	if a.err != nil {
		return order.Expiries{}, a.err
	}
	e := order.Expiries{Now: a.now}
	for _, id := range ids {
		e.Orders = append(e.Orders, a.expiries[id])
	}
	return e, nil
}

func TestExpirerAnswersForEachTimer(t *testing.T) {
	now := time.Date(2030, 1, 31, 12, 0, 0, 0, time.UTC)
	broken := errors.New("broken row")
	store := &answers{now: now, expiries: map[string]order.Expiry{
		"expired":   {Outcome: order.OutcomeExpired, Deadline: now.Add(-time.Second)},
		"paid":      {Outcome: order.OutcomeAlreadyPaid},
		"cancelled": {Outcome: order.OutcomeAlreadyCancelled},
		"again":     {Outcome: order.OutcomeAlreadyExpired},
		"early":     {Outcome: order.OutcomeNotDue, Remaining: 90 * time.Second},
		"missing":   {Outcome: order.OutcomeNotFound},
		"locked":    {Outcome: order.OutcomeFailed, Err: fmt.Errorf("%w: lock wait", order.ErrUnavailable)},
		"failed":    {Outcome: order.OutcomeFailed, Err: broken},
	}}
	timer := func(id string, deadline time.Time) amqp.Message {
		m, err := EncodeTimer(order.Timer{OrderID: id, Deadline: deadline})
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	for _, test := range []struct {
		message amqp.Message
		want    string // what the outcome begins with
	}{
		{timer("expired", now), "done"},
		{timer("paid", now), "done"},
		{timer("cancelled", now), "done"},
		{amqp.Message{Body: []byte("not JSON")}, "dead: not a timer"},
		{timer("again", now), "done"},
		{timer("early", now), "deferred by 1m30s"},
		{timer("missing", now.Add(time.Minute)), "deferred by 1m0s"}, // its transaction may be about to commit
		{timer("missing", now), "retried: order missing: no such order"},
		{timer("missing", now.AddDate(20, 0, 0)), "dead: order missing: no such order"},
		{timer("locked", now), "deferred by 1s"},
		{timer("failed", now), "retried: order failed: broken row"},
	} {
		x := &Expirer{Store: store}
		outcomes, err := x.Handle(t.Context(), []amqp.Message{timer("paid", now), test.message, timer("expired", now)})
		if err != nil || len(outcomes) != 3 || outcomes[0] != amqp.Done() || outcomes[2] != amqp.Done() {
			t.Fatalf("%s: %v, %v", test.message.Body, outcomes, err)
		}
		if got := outcomes[1].String(); !strings.HasPrefix(got, test.want) {
			t.Errorf("%s: %s, want %s", test.message.Body, got, test.want)
		}
	}
}

// Messages that make no sense do not trouble the store.
func TestExpirerAsksTheStoreOnlyWhatMakesSense(t *testing.T) {
	store := &answers{err: order.ErrUnavailable}
	outcomes, err := (&Expirer{Store: store}).Handle(t.Context(), []amqp.Message{{Body: []byte("x")}})
	if err != nil || len(outcomes) != 1 || len(store.asked) != 0 {
		t.Errorf("%v, %v, asked %v", outcomes, err, store.asked)
	}
}

// Only a pause and an outage stop a whole batch.
func TestExpirerPassesOutagesOn(t *testing.T) {
	batch := []amqp.Message{{Body: []byte(`{"order_id":"A-1","deadline":"2030-01-31T12:00:00Z"}`)}}
	_, err := (&Expirer{Store: &answers{err: fmt.Errorf("%w: gone", order.ErrUnavailable)}}).Handle(t.Context(), batch)
	if !errors.Is(err, order.ErrUnavailable) || errors.Is(err, amqp.ErrPaused) {
		t.Errorf("an outage is passed on as %v", err)
	}
	_, err = (&Expirer{Store: &answers{err: order.ErrPaused}}).Handle(t.Context(), batch)
	if !errors.Is(err, amqp.ErrPaused) {
		t.Errorf("a pause is passed on as %v", err)
	}
}
