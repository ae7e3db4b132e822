package checkout_test

import (
	"bytes"
	"errors"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/lapse-go/lapse/amqp"
	owntable "github.com/lapse-go/lapse/deploy/examples/own-table"
	"github.com/lapse-go/lapse/order"
	"github.com/lapse-go/lapse/order/checkout"
	"github.com/lapse-go/lapse/order/orderamqp"
)

// validator has the schemas that the service serves.
func validator(t testing.TB, name string) *jsonschema.Schema {
	t.Helper()
	text, err := orderamqp.Schema(name)
	if err != nil {
		t.Fatal(err)
	}
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	compiler := jsonschema.NewCompiler()
	compiler.AssertFormat()
	if err := compiler.AddResource(name, document); err != nil {
		t.Fatal(err)
	}
	return compiler.MustCompile(name)
}

func wantValid(t testing.TB, s *jsonschema.Schema, body []byte) {
	t.Helper()
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(body))
	if err == nil {
		err = s.Validate(value)
	}
	if err != nil {
		t.Errorf("%s\n%v", body, err)
	}
}

// Whatever is sent is as its schema says: events of every type and for every reason, orders to place, and timers.
func TestMessagesAreAsDescribed(t *testing.T) {
	s := newShop(t, place{}, checkout.Config{SweepEvery: noSweep, Logger: quiet(t)})
	events, asked, timers := s.tap("#"), s.tapOn(s.Topology().Due(), "order.place"), s.tapOn(s.Topology().Delay(time.Second), "")
	s.startHere(s.url).awaitReady()

	// Placed, paid, paid late, cancelled, extended, expired.
	s.order("expires", time.Second)
	s.order("extended", time.Second)
	s.order("paid", time.Hour)
	s.order("cancelled", time.Hour)
	if _, err := s.extend(t.Context(), "extended", time.Now().Add(s.clock()+2*time.Second)); err != nil {
		t.Error(err)
	}
	if _, err := s.pay(t.Context(), "paid", "pay-1"); err != nil {
		t.Error(err)
	}
	if _, err := s.pay(t.Context(), "paid", "pay-2"); !errors.Is(err, order.ErrAlreadyPaid) {
		t.Error(err)
	}
	if _, err := s.cancel(t.Context(), "cancelled"); err != nil {
		t.Error(err)
	}
	if _, err := s.pay(t.Context(), "cancelled", "pay-3"); !errors.Is(err, order.ErrLatePayment) {
		t.Error(err)
	}

	// Refused for each reason, by message.
	d := draft("short", 0, time.Hour)
	d.Lines[0].Quantity = order.MaxQuantity
	d.Lines[1] = d.Lines[0]
	unknown := draft("unknown", 0, time.Hour)
	unknown.Lines[0].SKU = "nothing"
	conflict := draft("paid", 1, time.Hour)
	conflict.Tags = []string{"vip"}
	for _, d := range []order.Draft{d, unknown, conflict, draft("fine", 0, time.Hour)} {
		if err := s.Submit(t.Context(), d); err != nil {
			t.Error(err)
		}
	}
	s.publish(amqp091.Publishing{DeliveryMode: amqp091.Persistent, Body: []byte(`{"id": "invalid", "lines": []}`)})

	want := map[string]int{
		"order.placed": 5, "order.paid": 1, "order.payment_late": 2, "order.cancelled": 1, "order.extended": 1, "order.expired": 2,
		"out_of_stock": 1, "unknown_sku": 1, "conflict": 1, "invalid": 1,
	}
	left := 0
	for _, n := range want {
		left += n
	}
	schema := validator(t, "event")
	for over := time.After(20 * time.Second); left > 0; {
		select {
		case body := <-events:
			wantValid(t, schema, body)
			e := decode(t, body)
			what := e.Type
			if e.Data.Reason != "" {
				what = string(e.Data.Reason)
			}
			want[what]--
			left--
		case <-over:
			t.Fatalf("these events did not come: %v", want)
		}
	}
	for what, n := range want {
		if n != 0 {
			t.Errorf("%s: %d too few", what, n)
		}
	}
	for range 4 {
		wantValid(t, validator(t, orderamqp.KindPlace), <-asked)
	}
	for range 2 {
		wantValid(t, validator(t, orderamqp.KindPaymentTimeout), <-timers)
	}
}

// An event is no event if it says what only another type has to say, or not what its own has.
func TestEventsThatAreNone(t *testing.T) {
	s := newShop(t, place{}, checkout.Config{SweepEvery: noSweep, Logger: quiet(t)})
	events := s.tap("#")
	s.startHere(s.url).awaitReady()
	s.order("o", 250*time.Millisecond)
	schema := validator(t, "event")
	for range 2 {
		body := <-events
		wantValid(t, schema, body)
		for _, change := range [][2]string{
			{`"specversion":"1.0"`, `"specversion":"2.0"`}, {`"type":"order.`, `"type":"orders.`}, {`"status":"`, `"status":"un`},
			{`"lines":`, `"items":`}, {`"total":`, `"sum":`}, {`"subject":"o"`, `"subject":""`}, {`"time":"`, `"time":"on `}, {`"currency":"`, `"currency":7,"x":"`},
			{`"order.placed"`, `"order.paid"`}, {`"order.expired"`, `"order.placed"`},
		} {
			changed := bytes.Replace(body, []byte(change[0]), []byte(change[1]), 1)
			if bytes.Equal(changed, body) {
				continue
			}
			value, err := jsonschema.UnmarshalJSON(bytes.NewReader(changed))
			if err != nil {
				t.Fatal(err)
			}
			if schema.Validate(value) == nil {
				t.Errorf("it is taken for an event: %s", changed)
			}
		}
	}
}

// What is told of an order in a table of the shop's own is described, too.
func TestTheEventOfAnOwnTableIsAsDescribed(t *testing.T) {
	s := openOwnShop(t, "snowflake")
	events := s.tap("order.expired")
	s.start(s.url).awaitReady()
	if err := s.Place(t.Context(), owntable.Order{ID: s.ID("o"), Due: 250 * time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	body := <-events
	wantValid(t, validator(t, "event"), body)
	if e := decode(t, body); e.Data.Version != 0 || e.Data.Lines != nil || bytes.Contains(body, []byte("total")) {
		t.Errorf("it says more than is known: %s", body)
	}
}

func decode(t testing.TB, body []byte) orderamqp.Event {
	t.Helper()
	e, err := orderamqp.DecodeEvent(amqp.Message{Body: body})
	if err != nil {
		t.Fatal(err)
	}
	return e
}
