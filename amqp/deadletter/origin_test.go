package deadletter

import (
	"context"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/lapse-go/lapse/amqp"
)

var lapse = amqp.Topology{Kinds: []string{"timer"}}

func deaths(queue, reason string) []any {
	return []any{
		amqp091.Table{"queue": queue, "reason": reason, "exchange": "shop", "routing-keys": []any{"order.expired"}, "time": time.Unix(1_700_000_000, 0), "count": int64(1)},
		amqp091.Table{"queue": "lapse.delay.30m", "reason": "expired"},
	}
}

func TestOrigins(t *testing.T) {
	at := time.Unix(1_700_000_000, 0).UTC()
	due := Route{"lapse.due", "timer"}
	arrival := Route{} // of messages that nobody delivered
	cases := map[string]struct {
		queue   string
		headers map[string]any
		want    origin
	}{
		"nothing said": {"lapse.dead", nil, origin{reason: Unknown, route: arrival}},
		"buried": {
			"lapse.dead", map[string]any{amqp.HeaderReason: "hopeless", amqp.HeaderLetter: "a", amqp.HeaderDiedAt: "2023-11-14T22:13:20.000Z"},
			origin{buried: true, reason: Hopeless, diedAt: at, route: Route{"lapse.due", ""}},
		},
		"buried for no reason that is known": {
			"lapse.dead", map[string]any{amqp.HeaderReason: "boredom", amqp.HeaderLetter: "a", amqp.HeaderDiedAt: "yesterday"},
			origin{buried: true, reason: Unknown, route: Route{"lapse.due", ""}},
		},
		"buried after a replay": {
			"lapse.dead", map[string]any{amqp.HeaderReason: "hopeless", amqp.HeaderFirstExchange: "x", amqp.HeaderFirstKey: "k"},
			origin{buried: true, reason: Hopeless, route: Route{"x", "k"}},
		},
		"by the delivery limit": {
			"lapse.dead", map[string]any{"x-death": deaths("lapse.due.timer", "delivery_limit")},
			origin{kind: "timer", reason: DeliveryLimit, diedAt: at, route: due},
		},
		"rejected, with a former death": {
			"lapse.dead", map[string]any{"x-death": deaths("lapse.due.timer", "rejected"), amqp.HeaderReason: "hopeless", amqp.HeaderLetter: "a"},
			origin{kind: "timer", reason: Rejected, diedAt: at, route: due},
		},
		"of a subscription, replayed before": {
			"lapse.dead", map[string]any{"x-death": deaths("lapse.due.timer", "expired"), amqp.HeaderFirstExchange: "x", amqp.HeaderFirstKey: "k"},
			origin{kind: "timer", reason: Expired, diedAt: at, route: Route{"x", "k"}},
		},
		"for a reason that nobody knows": {
			"lapse.dead", map[string]any{"x-death": deaths("lapse.due.timer", "maxlen")},
			origin{kind: "timer", reason: Unknown, diedAt: at, route: due},
		},
		"from somebody else's queue": {
			"lapse.dead", map[string]any{"x-death": deaths("shop.due.timer", "rejected")},
			origin{reason: Unknown, diedAt: at, route: Route{"shop", "order.expired"}},
		},
		"unrouted, from a rung": {
			"lapse.unrouted", map[string]any{"x-death": deaths("lapse.delay.1s", "expired"), amqp.HeaderReason: "hopeless", amqp.HeaderLetter: "a"},
			origin{reason: Unroutable, diedAt: at, route: arrival},
		},
		"no list":       {"lapse.dead", map[string]any{"x-death": "forged"}, origin{reason: Unknown, route: arrival}},
		"an empty list": {"lapse.dead", map[string]any{"x-death": []any{}}, origin{reason: Unknown, route: arrival}},
		"no tables":     {"lapse.dead", map[string]any{"x-death": []any{"forged", int64(5)}}, origin{reason: Unknown, route: arrival}},
		"other types": {
			"lapse.dead", map[string]any{"x-death": []any{amqp091.Table{"queue": int32(5), "reason": []any{}, "time": "soon", "routing-keys": "k", "exchange": true}}},
			origin{reason: Unknown, route: arrival},
		},
		"names that are too long": {
			"lapse.dead", map[string]any{"x-death": []any{amqp091.Table{"queue": "lapse.due." + strings.Repeat("k", 256), "exchange": strings.Repeat("x", 256)}}},
			origin{reason: Unknown, route: arrival},
		},
	}
	for name, c := range cases {
		got := originOf(lapse, c.queue, amqp.Message{Headers: c.headers})
		if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(origin{})); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestIdentities(t *testing.T) {
	id := func(change func(*amqp.Message)) string {
		m := amqp.Message{ID: "1", Body: []byte("body"), Timestamp: time.Unix(5, 0), Headers: map[string]any{"a": int32(1), "x-death": deaths("q", "r"), "x-delivery-count": int64(1)}}
		change(&m)
		got, err := identify("lapse.dead", m, originOf(lapse, "lapse.dead", m))
		if err != nil {
			t.Fatal(err)
		}
		if len(got.another().text) > 80 {
			t.Errorf("%q does not fit its column", got.another().text)
		}
		return got.text
	}
	first := id(func(*amqp.Message) {})
	if id(func(m *amqp.Message) { m.Headers["x-delivery-count"] = int64(2) }) != first {
		t.Error("delivered again it is another letter")
	}
	for name, change := range map[string]func(*amqp.Message){
		"id": func(m *amqp.Message) { m.ID = "2" }, "body": func(m *amqp.Message) { m.Body = nil }, "timestamp": func(m *amqp.Message) { m.Timestamp = time.Time{} },
		"header": func(m *amqp.Message) { m.Headers["a"] = int64(1) }, "death": func(m *amqp.Message) { m.Headers["x-death"] = deaths("q", "s") },
	} {
		if id(change) == first {
			t.Errorf("another %s is the same letter", name)
		}
	}
	stamped := func(letter string) string {
		return id(func(m *amqp.Message) { delete(m.Headers, "x-death"); m.Headers[amqp.HeaderLetter] = letter })
	}
	if got := stamped("letter-1"); got != "letter-1" {
		t.Errorf("stamped %q", got)
	}
	for _, odd := range []string{"with space", "\xff", strings.Repeat("x", 65)} {
		if got := stamped(odd); got != hash([]byte(odd)) {
			t.Errorf("%q is %q", odd, got)
		}
	}
}

// FuzzArrivals has messages of any kind come: there is always a letter, and it fits into its row.
func FuzzArrivals(f *testing.F) {
	f.Add([]byte{12, 13, 4}, amqp.HeaderError, "\xff", "2026-01-01T00:00:00Z", true)
	f.Add([]byte{15, 16, 17}, "x-death", "lapse.due.timer", "a", false)
	f.Add([]byte{14}, amqp.HeaderDiedAt, "", "9999-12-31T23:59:59Z", true)
	f.Fuzz(func(t *testing.T, program []byte, name, text, said string, dead bool) {
		desk, queue := New(Config{Topology: lapse, Guard: longwinded{}}), lapse.Unrouted()
		if dead {
			queue = lapse.Dead()
		}
		built := build(program, name, text)
		headers := map[string]any{name: said, "x-death": []any{amqp091.Table(built)}}
		for _, header := range []string{
			amqp.HeaderError, amqp.HeaderFirstError, amqp.HeaderFirstErrorAt, amqp.HeaderLetter, amqp.HeaderReason, amqp.HeaderDiedAt,
			amqp.HeaderReplay, amqp.HeaderFirstExchange, amqp.HeaderFirstKey, amqp.HeaderParked, amqp.HeaderDeath, amqp.HeaderAttempt,
		} {
			for _, value := range built {
				headers[header] = value
			}
		}
		for name, value := range built {
			headers[name] = value
		}
		a, err := desk.arrive(queue, 0, amqp.Message{ID: text[:min(len(text), 255)], Body: []byte(said), Headers: headers})
		if err != nil {
			t.Fatal(err)
		}
		a.prepare(time.Unix(1_800_000_000, 0))
		r := a.row
		for name, value := range map[string][]byte{"kind": r.Kind, "subject": r.Subject, "exchange": r.Exchange, "key": r.RoutingKey} {
			if len(value) > 255 {
				t.Errorf("a %s of %d bytes", name, len(value))
			}
		}
		for name, value := range map[string][]byte{"error": r.Error, "first error": r.FirstError} {
			if len(value) > maxError || !utf8.Valid(value) {
				t.Errorf("%s: %q", name, value)
			}
		}
		for name, value := range map[string]string{"identity": r.Identity, "replayed by": r.ReplayedBy} {
			if value != "" && !printable(value, 64) {
				t.Errorf("%s: %q", name, value)
			}
		}
		if died := time.Time(r.DiedAt); died.Year() < 1970 || died.After(time.Unix(1_800_000_000, 0)) {
			t.Errorf("died at %s", died)
		}
		if r.Attempts < 1 || r.Replays != 0 {
			t.Errorf("%d attempts", r.Attempts)
		}
		if l, err := r.letter(); err != nil || l.State != Open {
			t.Errorf("%+v: %v", l, err)
		}
	})
}

// longwinded knows subjects that are too long.
type longwinded struct{}

func (longwinded) Subject(m amqp.Message) string { return strings.Repeat(m.Kind+m.ID, 10) }

func (longwinded) Ask(context.Context, time.Time, []amqp.Message) ([]Verdict, error) {
	panic("not asked here")
}
