package orderamqp

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/order"
)

func TestTimerRoundTrip(t *testing.T) {
	want := order.Timer{OrderID: "Order-A1", Deadline: time.Date(2030, 1, 31, 12, 0, 0, 123456000, time.UTC)}
	m, err := EncodeTimer(want)
	if err != nil {
		t.Fatal(err)
	}
	if m.Kind != "order.payment_timeout" || string(m.Body) != `{"order_id":"Order-A1","deadline":"2030-01-31T12:00:00.123456Z"}` {
		t.Errorf("%s %s", m.Kind, m.Body)
	}
	if got, err := DecodeTimer(m); err != nil || got != want {
		t.Errorf("decoded %+v, %v", got, err)
	}
}

// Whatever is wrong with a timer is said so that its sender can mend it.
func TestDecodeTimerSaysWhatIsWrong(t *testing.T) {
	for body, want := range map[string]string{
		``:                                    "not a timer",
		`not JSON`:                            "not a timer",
		`[]`:                                  "not a timer",
		`{"order_id":7}`:                      "order_id",
		`{"order_id":"A"} extra`:              "not a timer",
		`{"deadline":"2030-01-31T12:00:00Z"}`: "no order_id",
		`{"order_id":"a b","deadline":"2030-01-31T12:00:00Z"}`: `order_id "a b"`,
		`{"order_id":"` + strings.Repeat("x", 65) + `"}`:       "1 to 64",
		`{"order_id":"A-1"}`:                                      "A-1 has no deadline",
		`{"order_id":"A-1","deadline":"tomorrow"}`:                "tomorrow",
		`{"order_id":"A-1","deadline":"2030-01-31 12:00:00"}`:     "2030-01-31 12:00:00",
		`{"order_id":"\u00e9","deadline":"2030-01-31T12:00:00Z"}`: "printable ASCII",
	} {
		_, err := DecodeTimer(amqp.Message{Body: []byte(body)})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want one that mentions %q", body, err, want)
		}
	}
}

// Another time zone is the same instant, and fields that are not known here are no error.
func TestDecodeTimerIsLenient(t *testing.T) {
	got, err := DecodeTimer(amqp.Message{Body: []byte(`{"order_id":"A-1","deadline":"2030-01-31T13:00:00+01:00","shop":"north"}`)})
	want := order.Timer{OrderID: "A-1", Deadline: time.Date(2030, 1, 31, 12, 0, 0, 0, time.UTC)}
	if err != nil || got != want {
		t.Errorf("decoded %+v, %v", got, err)
	}
}

func FuzzDecodeTimer(f *testing.F) {
	f.Add([]byte(`{"order_id":"A-1","deadline":"2030-01-31T12:00:00Z"}`))
	f.Add([]byte(`{"order_id":"A-1","deadline":"9999-12-31T23:59:59.999999999-23:59"}`))
	f.Add([]byte(`{"order_id":null,"deadline":null}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		timer, err := DecodeTimer(amqp.Message{Body: body})
		if err != nil {
			return
		}
		if err := order.ValidateID("id", timer.OrderID); err != nil {
			t.Errorf("accepted an order that no database holds: %v", err)
		}
		m, err := EncodeTimer(timer)
		if err != nil {
			return // a year that RFC 3339 cannot write
		}
		if again, err := DecodeTimer(m); err != nil || again != timer {
			t.Errorf("%+v became %+v, %v", timer, again, err)
		}
	})
}

// The event is what subscribers in any language rely on.
func TestEventIsACloudEvent(t *testing.T) {
	placed := time.Date(2030, 1, 31, 12, 0, 0, 0, time.UTC)
	o, _, err := order.Place(order.Draft{
		ID: "A-1", Customer: "c9", Region: "eu", Tags: []string{"sale"}, Window: time.Minute,
		Lines: []order.Line{{SKU: "kettle", Quantity: 2, Price: order.Money{Amount: 1999, Currency: "EUR"}}},
	}, placed)
	if err != nil {
		t.Fatal(err)
	}
	_, event, err := order.Expire(o, placed.Add(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	m, err := EncodeEvent("lapse", event)
	if err != nil {
		t.Fatal(err)
	}
	if m.ID != event.ID || m.Kind != "order.expired" || m.ContentType != "application/cloudevents+json" {
		t.Errorf("message %+v", m)
	}
	var got map[string]any
	if err := json.Unmarshal(m.Body, &got); err != nil {
		t.Fatal(err)
	}
	const want = `{"specversion":"1.0","id":"A-1.2","source":"lapse","type":"order.expired","subject":"A-1","time":"2030-01-31T12:01:00Z",` +
		`"datacontenttype":"application/json","data":{"order_id":"A-1","version":2,"status":"expired","customer":"c9","region":"eu","tags":["sale"],` +
		`"lines":[{"sku":"kettle","quantity":2,"price":{"amount":1999,"currency":"EUR"}}],"total":{"amount":3998,"currency":"EUR"},` +
		`"placed_at":"2030-01-31T12:00:00Z","deadline":"2030-01-31T12:01:00Z","closed_at":"2030-01-31T12:01:00Z"}}`
	if string(m.Body) != want {
		t.Errorf("event\n%s\nwant\n%s", m.Body, want)
	}
}
