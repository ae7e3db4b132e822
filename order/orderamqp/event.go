package orderamqp

import (
	"encoding/json"
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
	Version  int64  `json:"version"` // 1 for the order's first event, without gaps; 0 for order.refused
	Status   string `json:"status"`
	Customer string `json:"customer,omitempty"`
	Region   string `json:"region,omitempty"`

	Tags     []string   `json:"tags,omitempty"`
	Lines    []Line     `json:"lines"`
	Total    Money      `json:"total"`
	PlacedAt time.Time  `json:"placed_at"`
	Deadline time.Time  `json:"deadline"`
	ClosedAt *time.Time `json:"closed_at,omitempty"`

	Who         string     `json:"who,omitempty"` // order.cancelled, order.extended
	Why         string     `json:"why,omitempty"`
	OldDeadline *time.Time `json:"old_deadline,omitempty"` // order.extended
	Payment     *Payment   `json:"payment,omitempty"`      // order.paid, order.payment_late
	OutOfStock  []string   `json:"out_of_stock,omitempty"` // order.refused
	UnknownSKUs []string   `json:"unknown_skus,omitempty"` // order.refused
}

// Line is one article of an order.
type Line struct {
	SKU      string `json:"sku"`
	Quantity int64  `json:"quantity"`
	Price    Money  `json:"price"` // of one piece
}

// Money is an amount in minor units (cents) and its currency (ISO 4217).
type Money struct {
	Amount   int64  `json:"amount"`
	Currency string `json:"currency"`
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

func eventData(e order.Event) EventData {
	o := e.Order
	d := EventData{
		OrderID: o.ID, Version: o.Version, Status: string(o.Status), Customer: o.Customer, Region: o.Region,
		Tags: o.Tags, Lines: make([]Line, len(o.Lines)), Total: Money(o.Total),
		PlacedAt: o.PlacedAt.UTC(), Deadline: o.Deadline.UTC(), ClosedAt: instant(o.ClosedAt),
		Who: e.By.Who, Why: e.By.Why, OldDeadline: instant(e.OldDeadline),
	}
	for i, line := range o.Lines {
		d.Lines[i] = Line{line.SKU, line.Quantity, Money(line.Price)}
	}
	if e.Payment.Reference != "" {
		d.Payment = &Payment{e.Payment.Reference, Money(e.Payment.Amount)}
	}
	if e.Shortage != nil {
		d.OutOfStock, d.UnknownSKUs = e.Shortage.Short, e.Shortage.Unknown
	}
	return d
}

func instant(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}
