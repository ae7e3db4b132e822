package orderamqp

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/order"
)

// eventContentType says that the body is a whole CloudEvent
// (https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/formats/json-format.md).
const eventContentType = "application/cloudevents+json"

// Event is what subscribers get: a CloudEvent, version 1.0, in its JSON form. Its type, for instance
// order.expired, is also the routing key.
type Event struct {
	SpecVersion     string    `json:"specversion"`
	ID              string    `json:"id"`      // the same however often it is published
	Source          string    `json:"source"`  // the namespace of the service
	Type            string    `json:"type"`    // an order.EventType
	Subject         string    `json:"subject"` // the order's id
	Time            time.Time `json:"time"`    // by the database's clock
	DataContentType string    `json:"datacontenttype"`
	Data            EventData `json:"data"`
}

// EventData is the order as it was after the event, and what only this type of event has to say.
type EventData struct {
	OrderID  string `json:"order_id"`
	Version  int64  `json:"version"` // 1 for the order's first event, without gaps; 0 where no versions are kept
	Status   string `json:"status"`  // an order.Status, or "refused"
	Customer string `json:"customer,omitempty"`
	Region   string `json:"region,omitempty"`

	Tags     []string  `json:"tags,omitempty"`
	Lines    []Line    `json:"lines,omitempty"` // these two not of orders in a table of the shop's own
	Total    Money     `json:"total,omitzero"`
	PlacedAt time.Time `json:"placed_at,omitzero"` // nor this one, nor of order.refused
	Deadline time.Time `json:"deadline,omitzero"`  // of all but order.refused
	ClosedAt time.Time `json:"closed_at,omitzero"`

	Who         string    `json:"who,omitempty"` // order.cancelled, order.extended
	Why         string    `json:"why,omitempty"`
	OldDeadline time.Time `json:"old_deadline,omitzero"`  // order.extended
	Payment     *Payment  `json:"payment,omitempty"`      // order.paid, order.payment_late
	Reason      Reason    `json:"reason,omitempty"`       // order.refused
	Error       string    `json:"error,omitempty"`        // order.refused: the reason in words
	OutOfStock  []string  `json:"out_of_stock,omitempty"` // order.refused
	UnknownSKUs []string  `json:"unknown_skus,omitempty"` // order.refused
}

// Reason is why an order was refused.
type Reason string

const (
	ReasonOutOfStock Reason = "out_of_stock"
	ReasonUnknownSKU Reason = "unknown_sku"
	ReasonConflict   Reason = "conflict" // the id is another order's, which goes on as it was
	ReasonInvalid    Reason = "invalid"
)

func reason(cause error) Reason {
	switch {
	case errors.Is(cause, order.ErrUnknownSKU):
		return ReasonUnknownSKU
	case errors.Is(cause, order.ErrOutOfStock):
		return ReasonOutOfStock
	case errors.Is(cause, order.ErrConflict):
		return ReasonConflict
	}
	return ReasonInvalid
}

// Payment is money that came.
type Payment struct {
	Reference string `json:"reference"`
	Amount    Money  `json:"amount"`
}

// EncodeEvent makes the message that tells subscribers of the event.
func EncodeEvent(source string, e order.Event) (amqp.Message, error) {
	body, err := json.Marshal(Event{
		SpecVersion: "1.0", ID: e.ID, Source: source, Type: string(e.Type), Subject: e.Order.ID,
		Time: e.At.UTC(), DataContentType: "application/json", Data: eventData(e),
	})
	if err != nil {
		return amqp.Message{}, fmt.Errorf("encode event %s: %w", e.ID, err)
	}
	return amqp.Message{ID: e.ID, Kind: string(e.Type), Body: body, ContentType: eventContentType, Timestamp: e.At}, nil
}

// DecodeEvent reads an event that Lapse published.
func DecodeEvent(m amqp.Message) (Event, error) {
	var e Event
	if err := json.Unmarshal(m.Body, &e); err != nil {
		return e, fmt.Errorf("not an event, which is a CloudEvent in JSON: %w", err)
	}
	if e.SpecVersion != "1.0" || e.ID == "" || e.Type == "" || e.Data.OrderID == "" {
		return e, fmt.Errorf("not an event of an order: specversion %q, id %q, type %q, order_id %q", e.SpecVersion, e.ID, e.Type, e.Data.OrderID)
	}
	return e, nil
}

// EventTime is when an event happened, by the database's clock, and zero for what is no event. It is for
// [amqp.History].
func EventTime(m amqp.Message) time.Time {
	var e struct{ Time time.Time }
	_ = json.Unmarshal(m.Body, &e) // what is no event has no time
	return e.Time
}

func eventData(e order.Event) EventData {
	o := e.Order
	d := EventData{
		OrderID: o.ID, Version: o.Version, Status: string(o.Status), Customer: o.Customer, Region: o.Region,
		Tags: o.Tags, Lines: linesOf(o.Lines), Total: Money(o.Total),
		PlacedAt: o.PlacedAt.UTC(), Deadline: o.Deadline.UTC(), ClosedAt: o.ClosedAt.UTC(),
		Who: e.By.Who, Why: e.By.Why, OldDeadline: e.OldDeadline.UTC(),
	}
	if e.Payment.Reference != "" {
		d.Payment = &Payment{e.Payment.Reference, Money(e.Payment.Amount)}
	}
	if e.Type == order.EventRefused {
		// It is no order, so nobody is to take it for a pending one.
		d.Status, d.PlacedAt, d.Deadline = "refused", time.Time{}, time.Time{}
		d.Reason, d.Error = reason(e.Cause), e.Cause.Error()
		if shortage, ok := errors.AsType[*order.ShortageError](e.Cause); ok {
			d.OutOfStock, d.UnknownSKUs = shortage.Short, shortage.Unknown
		}
	}
	return d
}
