package deadletter

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/lapse-go/lapse/amqp"
)

// everything has each type that a message can come with.
func everything() map[string]any {
	return map[string]any{
		"nil": nil, "true": true, "false": false,
		"int8": int8(-128), "int16": int16(-1), "int32": int32(math.MinInt32), "int64": int64(math.MaxInt64),
		"uint8": uint8(255), "uint16": uint16(65535), "uint32": uint32(math.MaxUint32),
		"float32": float32(0.1), "float64": 0.1, "nan": math.NaN(), "nan32": float32(math.NaN()), "inf": math.Inf(-1), "-0": math.Copysign(0, -1),
		"decimal": amqp091.Decimal{Scale: 255, Value: -7},
		"text":    "größer <than> \"5\" \\x00 \x00 \u2028 \U0001F600 \uFFFD", "broken": "caf\xe9 \"\\", "empty": "",
		"bytes": []byte("\x00\xff\"\\é"), "no bytes": []byte{}, "time": time.Unix(1_700_000_000, 0),
		"before": time.Unix(-62_135_596_801, 0), "after": time.Unix(math.MaxInt64, 0),
		"list": []any{int64(1), "a", []any{}, amqp091.Table{}, nil},
		"table": amqp091.Table{"inside": amqp091.Table{"$int32": "5"}, "also": amqp091.Table{"$int32": "5", "$x": int64(1)},
			"odd \xff": int32(1)},
		"$table": "no type", "": "no name",
	}
}

var sameTable = cmp.Options{cmpopts.EquateNaNs(), cmp.Comparer(func(a, b time.Time) bool { return a.Equal(b) })}

func roundTrip(t *testing.T, table map[string]any) []byte {
	t.Helper()
	text, err := encodeTable(table)
	if err != nil {
		t.Fatal(err)
	}
	if !json.Valid(text) {
		t.Fatalf("no JSON: %s", text)
	}
	back, err := decodeTable(text)
	if err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	if diff := cmp.Diff(table, back, sameTable, cmpopts.EquateEmpty()); diff != "" {
		t.Fatalf("%s\n%s", diff, text)
	}
	return text
}

func TestHeadersKeepTheirTypes(t *testing.T) {
	roundTrip(t, everything())
	roundTrip(t, nil)
	for name, value := range everything() {
		roundTrip(t, map[string]any{name: value})
	}
	if _, err := encodeTable(map[string]any{"a": 5}); err == nil {
		t.Error("an int, which no message comes with, became another type")
	}
}

func TestHeadersAreReadable(t *testing.T) {
	got := string(roundTrip(t, map[string]any{
		"attempt": int64(3), "error": "größer <5>", "small": int32(5), "broken": "caf\xe9", "rate": 1.5, "list": []any{"a", true, nil},
		"at": time.Unix(0, 0),
	}))
	want := `{"at":{"$time":"1970-01-01T00:00:00Z"},"attempt":3,"broken":{"$string":"caf\\xe9"},"error":"größer <5>","list":["a",true,null],` +
		`"rate":{"$float64":"1.5"},"small":{"$int32":5}}`
	if got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
}

func TestWhatIsNotHeadersIsAnError(t *testing.T) {
	for _, text := range []string{
		``, `[]`, `5`, `{"$int32":5}`, `{"a":1.5}`, `{"a":{"$int8":500}}`, `{"a":{"$what":5}}`, `{"a":{"$what":"5"}}`,
		`{"a":{"$decimal":[1]}}`, `{"a":{"$decimal":[{},1]}}`, `{"a":{"$table":[1]}}`, `{"a":{"$table":[[1,2]]}}`, `{"a":{"$string":"\""}}`,
		`{"a":{"$int32":null}}`, `{"a":{"$time":"yesterday"}}`,
	} {
		if table, err := decodeTable([]byte(text)); err == nil {
			t.Errorf("%s: %v", text, table)
		}
	}
}

func FuzzHeaders(f *testing.F) {
	f.Add([]byte("aT\x00\x00"), "name", "text")
	f.Add(bytes.Repeat([]byte{8, 9}, 40), "$int32", "\xff")
	f.Fuzz(func(t *testing.T, program []byte, name, text string) {
		roundTrip(t, build(program, name, text))
	})
}

// build makes a table of what the bytes say.
func build(program []byte, name, text string) map[string]any {
	var number [8]byte
	copy(number[:], program)
	n := binary.BigEndian.Uint64(number[:])
	top := amqp091.Table{}
	at := top
	for i, op := range program {
		key := name[:min(len(name), i)] + strings.Repeat("$", int(op)%3)
		var value any
		switch op % 20 {
		case 0:
			value = nil
		case 1:
			value = op > 100
		case 2:
			value = int8(n)
		case 3:
			value = int16(n)
		case 4:
			value = int32(n)
		case 5:
			value = int64(n)
		case 6:
			value = uint8(n)
		case 7:
			value = uint16(n)
		case 8:
			value = uint32(n)
		case 9:
			value = math.Float32frombits(uint32(n))
		case 10:
			value = math.Float64frombits(n)
		case 11:
			value = amqp091.Decimal{Scale: op, Value: int32(n)}
		case 12:
			value = text
		case 13:
			value = []byte(text)
		case 14:
			value = time.Unix(int64(n), 0)
		case 15:
			value = []any{text, int32(n), amqp091.Table{key: text}}
		default:
			inner := amqp091.Table{}
			at[key] = inner
			at = inner
			continue
		}
		at[key] = value
	}
	return top
}

func TestPropertiesAreKept(t *testing.T) {
	want := Letter{MessageID: "\xff", RoutingKey: "kind", Body: []byte("body"), Headers: everything(), Properties: Properties{
		ContentType: "text/\xff", ContentEncoding: "gzip", CorrelationID: "c", ReplyTo: "r", Type: "t", AppID: "a", Priority: 255,
		Timestamp: time.Unix(1_700_000_000, 0),
	}}
	for _, l := range []Letter{want, {RoutingKey: "kind"}} {
		m := l.message()
		text, err := encodeProperties(m)
		if err != nil {
			t.Fatal(err)
		}
		back, err := decodeProperties(text)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(l.Properties, back, sameTable); diff != "" {
			t.Error(diff)
		}
		wantMessage := amqp.Message{
			ID: l.MessageID, Kind: "kind", Body: l.Body, Headers: l.Headers, ContentType: back.ContentType, Timestamp: l.Properties.Timestamp,
			AppID: back.AppID, Properties: amqp.Properties{
				ContentEncoding: back.ContentEncoding, CorrelationID: back.CorrelationID, ReplyTo: back.ReplyTo, Type: back.Type, Priority: back.Priority,
			},
		}
		if diff := cmp.Diff(wantMessage, m, sameTable, cmpopts.IgnoreUnexported(amqp.Message{})); diff != "" {
			t.Error(diff)
		}
	}
}
