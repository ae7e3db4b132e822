package orderamqp

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lapse-go/lapse/order"
)

func kettles(id string) order.Draft {
	return order.Draft{
		ID: id, Customer: "c9", Region: "eu", Tags: []string{"sale"}, Window: 90 * time.Second,
		Lines: []order.Line{{SKU: "kettle", Quantity: 2, Price: order.Money{Amount: 1999, Currency: "EUR"}}},
	}
}

// A draft is what checkouts in any language send.
func TestDraftIsJSON(t *testing.T) {
	body, err := json.Marshal(DraftOf(kettles("A-1")))
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"id":"A-1","customer":"c9","region":"eu","tags":["sale"],` +
		`"lines":[{"sku":"kettle","quantity":2,"price":{"amount":1999,"currency":"EUR"}}],"window":"1m30s"}`
	if string(body) != want {
		t.Errorf("draft\n%s\nwant\n%s", body, want)
	}
	var wire Draft
	if err := json.Unmarshal(body, &wire); err != nil {
		t.Fatal(err)
	}
	got, err := wire.Order()
	if diff := cmp.Diff(kettles("A-1"), got); err != nil || diff != "" {
		t.Errorf("%v, read back (-want +got):\n%s", err, diff)
	}
}

func TestDraftWindows(t *testing.T) {
	for window, want := range map[string]time.Duration{
		"": 0, "30m": 30 * time.Minute, "1h30m": 90 * time.Minute, "1ms": time.Millisecond,
		// Duration enough; whether it is a sensible one the draft's validation says.
		"-5m": -5 * time.Minute, "1ns": 1, "20000h": 20000 * time.Hour,
	} {
		if d, err := (Draft{ID: "A-1", Window: window}).Order(); err != nil || d.Window != want {
			t.Errorf("%q is %s, %v", window, d.Window, err)
		}
	}
	for _, window := range []string{"0", "0s", "30", "soon", "30 m", " ", "1e18", "9999999999999h", strings.Repeat("9", 10_000)} {
		d, err := Draft{ID: "A-1", Window: window}.Order()
		if !errors.Is(err, order.ErrInvalid) || !strings.Contains(err.Error(), "such as 90s") || len(err.Error()) > 300 {
			t.Errorf("%.80q: %v", window, err)
		}
		if d.ID != "A-1" {
			t.Errorf("%.80q: whose window it is, is lost", window)
		}
	}
}

// The bounds that the API's schema tells are those that hold.
func TestDraftSchemaTellsTheBounds(t *testing.T) {
	for _, test := range []struct {
		of         any
		field, tag string
		want       any
	}{
		{Draft{}, "ID", "maxLength", order.MaxIDBytes},
		{Draft{}, "Customer", "maxLength", order.MaxTextBytes},
		{Draft{}, "Region", "maxLength", order.MaxTextBytes},
		{Draft{}, "Tags", "maxItems", order.MaxTags},
		{Draft{}, "Lines", "maxItems", order.MaxLines},
		{Draft{}, "Lines", "minItems", 1},
		{Line{}, "SKU", "maxLength", order.MaxIDBytes},
		{Line{}, "Quantity", "maximum", order.MaxQuantity},
		{Line{}, "Quantity", "minimum", 1},
		{Money{}, "Amount", "minimum", 0},
	} {
		field, _ := reflect.TypeOf(test.of).FieldByName(test.field)
		if got := field.Tag.Get(test.tag); got != fmt.Sprint(test.want) {
			t.Errorf("%T.%s has %s %q, but %v holds", test.of, test.field, test.tag, got, test.want)
		}
	}
	window, _ := reflect.TypeFor[Draft]().FieldByName("Window")
	if doc := window.Tag.Get("doc"); !strings.Contains(doc, fmt.Sprintf("from %s to %gh", order.MinWindow, order.MaxWindow.Hours())) {
		t.Errorf("the window is said to be %q", doc)
	}
	for _, of := range []reflect.Type{reflect.TypeFor[Draft](), reflect.TypeFor[Line](), reflect.TypeFor[Money]()} {
		for i := range of.NumField() {
			if of.Field(i).Tag.Get("doc") == "" {
				t.Errorf("%s.%s is not explained", of.Name(), of.Field(i).Name)
			}
		}
	}
}
