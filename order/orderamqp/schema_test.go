package orderamqp

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/order"
)

// schema is one of the schemas, to validate with.
func schema(t testing.TB, name string) *jsonschema.Schema {
	t.Helper()
	text, err := Schema(name)
	if err != nil {
		t.Fatal(err)
	}
	return compile(t, text)
}

func compile(t testing.TB, text []byte) *jsonschema.Schema {
	t.Helper()
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	compiler := jsonschema.NewCompiler()
	compiler.AssertFormat()
	if err := compiler.AddResource("schema.json", document); err != nil {
		t.Fatal(err)
	}
	compiled, err := compiler.Compile("schema.json")
	if err != nil {
		t.Fatal(err)
	}
	return compiled
}

func valid(t testing.TB, s *jsonschema.Schema, body string) error {
	t.Helper()
	value, err := jsonschema.UnmarshalJSON(strings.NewReader(body))
	if err != nil {
		return err
	}
	return s.Validate(value)
}

// What a schema says of an order is what is read of it.
func TestTheSchemaOfAnOrder(t *testing.T) {
	s := schema(t, KindPlace)
	const good = `{"id": "A-1", "customer": "c", "region": "eu", "tags": ["a"], "lines": [{"sku": "kettle", "quantity": 2, "price": {"amount": 1999, "currency": "EUR"}}], "window": "30m"}`
	m, err := EncodePlace(order.Draft{ID: "A-1", Window: 90 * time.Second, Lines: []order.Line{{SKU: "kettle", Quantity: 1, Price: order.Money{Amount: 0, Currency: "JPY"}}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := valid(t, s, string(m.Body)); err != nil {
		t.Errorf("%s: %v", m.Body, err)
	}
	for _, change := range [][2]string{
		{"", ""},
		{`"window": "30m"`, `"window": "1h30m"`}, {`"window": "30m"`, `"window": "1.5h"`}, {`, "window": "30m"`, ``},
		{`"window": "30m"`, `"window": "30"`}, {`"window": "30m"`, `"window": ""`}, {`"window": "30m"`, `"window": 30`},
		{`"A-1"`, `""`}, {`"A-1"`, `"a b"`}, {`"A-1"`, `"` + strings.Repeat("x", 65) + `"`}, {`"A-1"`, `7`}, {`"id": "A-1", `, ``},
		{`"customer"`, `"costumer"`}, {`"customer": "c", `, ``}, {`"c"`, `"` + strings.Repeat("x", 256) + `"`},
		{`["a"]`, `["a b"]`}, {`["a"]`, `[]`}, {`["a"]`, `[` + strings.Repeat(`"a",`, 20) + `"a"]`},
		{`2, "price"`, `0, "price"`}, {`2, "price"`, `1000001, "price"`}, {`2, "price"`, `1.5, "price"`}, {`2, "price"`, `"2", "price"`},
		{`"quantity": 2, `, ``}, {`1999`, `-1`}, {`1999`, `0`}, {`"amount": 1999, `, ``}, {`EUR`, `euro`}, {`EUR`, `eur`}, {`, "currency": "EUR"`, ``},
		{`"kettle"`, `""`}, {`"sku": "kettle", `, ``}, {`1999`, `9223372036854775808`}, {`1999`, `1e3`},
		{good[strings.Index(good, `[{`) : strings.Index(good, `}]`)+2], `[]`},
	} {
		body := strings.Replace(good, change[0], change[1], 1)
		d, err := ReadDraft([]byte(body))
		if err == nil {
			err = d.Validate()
		}
		// JSON Schema takes a number without a fraction for an integer however it is written.
		if says := valid(t, s, body); (says == nil) != (err == nil) && !strings.Contains(body, "1e3") {
			t.Errorf("%s\nthe schema says %v, but reading it %v", body, says, err)
		}
	}
}

func TestTheSchemaOfATimer(t *testing.T) {
	s := schema(t, KindPaymentTimeout)
	m, err := EncodeTimer(order.Timer{OrderID: "A-1", Deadline: time.Now()})
	if err != nil {
		t.Fatal(err)
	}
	for _, body := range []string{
		string(m.Body), `{"order_id": "7", "deadline": "2030-01-31T12:00:00Z", "more": 1}`, `{"order_id": "A-1", "deadline": "2030-01-31T12:00:00.123456+08:00"}`,
		`{}`, `[]`, `7`, `{"order_id": 7, "deadline": "2030-01-31T12:00:00Z"}`, `{"order_id": "", "deadline": "2030-01-31T12:00:00Z"}`, `{"order_id": "A-1"}`,
		`{"order_id": "A-1", "deadline": "soon"}`, `{"order_id": "A-1", "deadline": 7}`, `{"order_id": "a b", "deadline": "2030-01-31T12:00:00Z"}`,
	} {
		_, err := DecodeTimer(amqp.Message{Body: []byte(body)})
		if says := valid(t, s, body); (says == nil) != (err == nil) {
			t.Errorf("%s: the schema says %v, but reading it %v", body, says, err)
		}
	}
}

// The names in the schemas are those of the structs.
func TestTheSchemasHaveEveryField(t *testing.T) {
	for name, wire := range map[string]any{KindPlace: Draft{}, KindPaymentTimeout: timerBody{}, "event": Event{}} {
		text, err := Schema(name)
		if err != nil {
			t.Fatal(err)
		}
		var document map[string]any
		if err := json.Unmarshal(text, &document); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(fields(reflect.TypeOf(wire)), properties(document, document)); diff != "" {
			t.Errorf("%s: fields (-structs +schema):\n%s", name, diff)
		}
	}
}

// fields are the names of a struct and of what is in it: data.payment.reference.
func fields(of reflect.Type) (names []string) {
	for of.Kind() == reflect.Slice || of.Kind() == reflect.Pointer {
		of = of.Elem()
	}
	if of.Kind() != reflect.Struct || of == reflect.TypeFor[time.Time]() {
		return nil
	}
	for i := range of.NumField() {
		name, _, _ := strings.Cut(of.Field(i).Tag.Get("json"), ",")
		names = append(names, name)
		for _, inner := range fields(of.Field(i).Type) {
			names = append(names, name+"."+inner)
		}
	}
	slices.Sort(names)
	return names
}

// properties are the names in a schema.
func properties(document, schema map[string]any) (names []string) {
	if ref, ok := schema["$ref"].(string); ok {
		schema = document["$defs"].(map[string]any)[strings.TrimPrefix(ref, "#/$defs/")].(map[string]any)
	}
	if items, ok := schema["items"].(map[string]any); ok {
		schema = items
	}
	inside, _ := schema["properties"].(map[string]any)
	for name, property := range inside {
		names = append(names, name)
		for _, inner := range properties(document, property.(map[string]any)) {
			names = append(names, name+"."+inner)
		}
	}
	slices.Sort(names)
	return names
}

// The description is one of AsyncAPI, of exchanges that there are, and of every type of event.
func TestTheDescriptionOfTheMessages(t *testing.T) {
	official, err := os.ReadFile("../../deploy/dev/npm/node_modules/@asyncapi/specs/schemas/3.0.0.json")
	if err != nil {
		t.Fatalf("this test needs the schema of AsyncAPI: `deploy/dev/up --tests` installs it with npm: %v", err)
	}
	text := AsyncAPI("shop")
	if err := valid(t, compile(t, official), string(text)); err != nil {
		t.Errorf("%#v", err)
	}
	var described struct {
		Channels map[string]struct {
			Parameters struct {
				Type struct{ Enum []string }
			}
			Bindings struct {
				AMQP struct {
					Exchange struct{ Name, Type string }
				}
			}
		}
		Components struct {
			Messages map[string]struct {
				Payload struct {
					Schema struct {
						Ref string `json:"$ref"`
					}
				}
			}
		}
	}
	if err := json.Unmarshal(text, &described); err != nil {
		t.Fatal(err)
	}
	exchanges := make(map[string]string)
	for _, e := range (amqp.Topology{Namespace: "shop"}).Objects().Exchanges {
		exchanges[e.Name] = e.Kind
	}
	for name, channel := range described.Channels {
		if e := channel.Bindings.AMQP.Exchange; exchanges[e.Name] != e.Type {
			t.Errorf("channel %s: exchange %s is said to be %s, but is %q", name, e.Name, e.Type, exchanges[e.Name])
		}
	}
	types := []string{
		string(order.EventPlaced), string(order.EventPaid), string(order.EventCancelled), string(order.EventExpired),
		string(order.EventExtended), string(order.EventLatePayment), string(order.EventRefused),
	}
	if diff := cmp.Diff(types, described.Channels["events"].Parameters.Type.Enum); diff != "" {
		t.Errorf("types of events (-want +got):\n%s", diff)
	}
	var refs []string
	for _, m := range described.Components.Messages {
		refs = append(refs, m.Payload.Schema.Ref)
	}
	for _, name := range Schemas {
		if !slices.Contains(refs, "/schemas/"+name+".json") {
			t.Errorf("no message has the schema %s: %v", name, slices.Collect(maps.Keys(described.Components.Messages)))
		}
	}
}
