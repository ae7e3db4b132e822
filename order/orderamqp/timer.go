package orderamqp

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/order"
)

// KindPaymentTimeout is the kind of a payment deadline's timer.
const KindPaymentTimeout = "order.payment_timeout"

// timerBody is the contract with checkouts in other languages; fields that are not known here are
// kept on every way that the message takes.
type timerBody struct {
	OrderID  string    `json:"order_id"`
	Deadline time.Time `json:"deadline"`
}

// EncodeTimer makes the message that asks to look at the order when its deadline has come.
func EncodeTimer(t order.Timer) (amqp.Message, error) {
	body, err := json.Marshal(timerBody{t.OrderID, t.Deadline.UTC()})
	if err != nil {
		return amqp.Message{}, fmt.Errorf("encode the timer of order %s: %w", t.OrderID, err)
	}
	return amqp.Message{Kind: KindPaymentTimeout, Body: body}, nil
}

// DecodeTimer reads a timer that anybody may have sent. An error says what has to be mended in it.
func DecodeTimer(m amqp.Message) (order.Timer, error) {
	var body timerBody
	if err := json.Unmarshal(m.Body, &body); err != nil {
		return order.Timer{}, fmt.Errorf(`not a timer: %w; one looks like {"order_id": "A-1", "deadline": "2030-01-31T12:00:00Z"}`, err)
	}
	if err := order.ValidateID("order_id", body.OrderID); err != nil {
		return order.Timer{}, err
	}
	if body.Deadline.IsZero() {
		return order.Timer{}, fmt.Errorf("the timer of order %s has no deadline: give one in RFC 3339, UTC", body.OrderID)
	}
	return order.Timer{OrderID: body.OrderID, Deadline: body.Deadline.UTC()}, nil
}
