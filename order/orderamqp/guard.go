package orderamqp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/amqp/deadletter"
	"github.com/lapse-go/lapse/order"
)

// Guard tells the desk what replaying a message would come to, from the state of its order. Whether expiry is paused
// makes no difference: a timer then waits.
type Guard struct {
	Store order.Store // nil if there are no orders; nothing is known of any message then
}

var _ deadletter.Guard = Guard{}

// Answers of the guard. A message that is not settled is published, whatever the answer.
const (
	answerExpire    = "would be expired"
	answerNotDue    = "not due yet"
	answerPaid      = "already paid"
	answerCancelled = "already cancelled"
	answerExpired   = "already expired"
	answerNotFound  = "not found"
	answerNotRead   = "not found, or cannot be read" // the store has orders that make no sense, and this may be one
	answerPlace     = "would be placed"
	answerRefuse    = "would be refused"
	answerExists    = "an order of that id exists" // maybe this one, maybe another
	answerMalformed = "malformed"
	answerUnknown   = "not checked"
)

// Subject is the id of the order that the message is about: of a timer, of an order to place, or of anything else
// that has an order_id where timers or events have it.
func (g Guard) Subject(m amqp.Message) string {
	if g.Store == nil {
		return ""
	}
	var about struct {
		ID      string `json:"id"`
		OrderID string `json:"order_id"`
		Data    struct {
			OrderID string `json:"order_id"`
		} `json:"data"`
	}
	_ = json.Unmarshal(m.Body, &about) // what cannot be read has no id, and the rest is no matter
	id := about.OrderID
	switch {
	case m.Kind == KindPlace:
		id = about.ID
	case id == "" && m.Kind != KindPaymentTimeout:
		id = about.Data.OrderID
	}
	if order.ValidateID("order id", id) != nil {
		return ""
	}
	return id
}

// Ask looks the orders up, all at once. The error is that of the store, and wraps [order.ErrUnavailable] when that is away.
func (g Guard) Ask(ctx context.Context, now time.Time, batch []amqp.Message) ([]deadletter.Verdict, error) {
	verdicts := make([]deadletter.Verdict, len(batch))
	about := make([]string, len(batch)) // the order to look up, "" if the verdict needs none
	var ids []string
	for i, m := range batch {
		if about[i], verdicts[i].Answer = g.read(m); about[i] != "" {
			ids = append(ids, about[i])
		}
	}
	if len(ids) == 0 {
		return verdicts, nil
	}
	found, err := g.Store.Find(ctx, ids)
	if err != nil && (found == nil || errors.Is(err, order.ErrUnavailable)) {
		return nil, fmt.Errorf("looking up %d orders: %w", len(ids), err)
	}
	for i, id := range about {
		if id == "" {
			continue
		}
		head, ok := found[id]
		switch {
		case batch[i].Kind == KindPlace && ok:
			verdicts[i].Answer = answerExists
		case batch[i].Kind == KindPlace:
			verdicts[i].Answer = answerPlace
		case ok:
			verdicts[i] = verdict(head, now)
		case err != nil:
			verdicts[i].Answer = answerNotRead
		default:
			verdicts[i].Answer = answerNotFound
		}
	}
	return verdicts, nil
}

// read finds the order that a message is about, or the answer that needs no order.
func (g Guard) read(m amqp.Message) (id, answer string) {
	_, places := g.Store.(order.Repository)
	switch {
	case g.Store == nil:
	case m.Kind == KindPaymentTimeout:
		timer, err := DecodeTimer(m)
		if err != nil {
			return "", answerMalformed
		}
		return timer.OrderID, ""
	case m.Kind == KindPlace && places: // a shop that keeps its orders itself has them placed in its own way
		draft, err := DecodePlace(m)
		if err == nil {
			err = draft.Validate()
		}
		switch {
		case errors.Is(err, order.ErrInvalid):
			return "", answerRefuse
		case err != nil:
			return "", answerMalformed
		}
		return draft.ID, ""
	}
	return "", answerUnknown
}

// verdict is that about an order's timer.
func verdict(o order.Head, now time.Time) deadletter.Verdict {
	switch o.Status {
	case order.Pending:
		if o.Deadline.After(now) {
			return deadletter.Verdict{Answer: answerNotDue}
		}
		return deadletter.Verdict{Answer: answerExpire}
	case order.Paid:
		return deadletter.Verdict{Answer: answerPaid, Settled: true}
	case order.Cancelled:
		return deadletter.Verdict{Answer: answerCancelled, Settled: true}
	case order.Expired:
		return deadletter.Verdict{Answer: answerExpired, Settled: true}
	}
	return deadletter.Verdict{Answer: answerUnknown}
}
