package outbox

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	amqp091 "github.com/rabbitmq/amqp091-go"
	gormmysql "gorm.io/driver/mysql"
	"gorm.io/gorm"
	"pgregory.net/rapid"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/amqp/amqptest"
	"github.com/lapse-go/lapse/amqp/database"
)

func TestMessagesAreThereIfAndOnlyIfTheirTransactionCommitted(t *testing.T) {
	w := newWorld(t)
	soldOut := errors.New("sold out")
	err := database.Transact(t.Context(), w.db, func(tx *gorm.DB) error {
		return errors.Join(Add(tx, w.event("rolled back")), soldOut)
	})
	if !errors.Is(err, soldOut) {
		t.Error(err)
	}
	if n := w.rows(); n != 0 {
		t.Errorf("%d rows of a transaction that was rolled back", n)
	}
	if err := Add(w.db, w.event("no transaction")); err == nil {
		t.Error("Add took a pool, in which nothing ties the message to anything")
	}
	messages := []Message{w.event("1"), w.event("2")}
	w.add(messages...)
	if n := w.rows(); n != 2 {
		t.Errorf("%d rows of a transaction that committed, want 2", n)
	}
	if messages[0].ID == "" || messages[0].ID == messages[1].ID {
		t.Errorf("ids %q and %q", messages[0].ID, messages[1].ID)
	}
}

// The caller's pool may have any settings: what comes out is what was put in.
func TestAMessageComesOutAsItWentIn(t *testing.T) {
	w := newWorld(t)
	dsn := amqptest.DSN(t, w.db)
	pools := map[string]string{
		"driver's defaults":  "",
		"another time zone":  "loc=Asia%2FTokyo&time_zone=%27-08%3A00%27&parseTime=true&interpolateParams=true",
		"another charset":    "charset=latin1&sql_mode=%27%27",
		"escapes off":        "interpolateParams=true&sql_mode=%27NO_BACKSLASH_ESCAPES,ANSI_QUOTES%27",
		"serializable, slow": "transaction_isolation=%27SERIALIZABLE%27&clientFoundRows=true",
	}
	if w.number("SELECT VERSION() LIKE '%MariaDB%'") == 1 {
		pools["serializable, slow"] = strings.Replace(pools["serializable, slow"], "transaction_isolation", "tx_isolation", 1)
	}
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	deliveries := w.listen()
	due := w.consume(w.channel(), w.topology.DueQueue("timer"))
	run(t, w.relay(w.publisher(w.conn), func(c *RelayConfig) { c.Poll = 20 * time.Millisecond }))
	for name, params := range pools {
		for _, prepare := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, prepared %v", name, prepare), func(t *testing.T) {
				db, err := gorm.Open(gormmysql.Open(dsn+"?"+params), &gorm.Config{PrepareStmt: prepare})
				if err != nil {
					t.Fatal(err)
				}
				pool, _ := db.DB()
				defer pool.Close()
				now := time.Unix(int64(w.number("SELECT TIMESTAMPDIFF(SECOND, '1970-01-01', UTC_TIMESTAMP())")), 0)
				event := Message{Exchange: w.topology.Events(), Message: amqp.Message{
					ID: "id-!~'\"\\", Kind: "event.'\"\\?@x", Body: every, ContentType: "application/octet-stream", AppID: "checkout \\ 'x'",
					Timestamp: time.Date(2026, 10, 25, 1, 30, 5, 0, time.UTC),
					Headers: map[string]any{
						"lapse-attempt": int64(1<<62 + 1), "text": "Grüße 😀 \\ ' \" ? @x\x00", "float": 2.0, "small": 5e-324, "yes": true, "none": nil,
						"list": []any{int64(1), "b", 0.5}, "table": amqp091.Table{"n": int64(-7)},
					},
				}}
				timer := Message{Deadline: now.Add(300 * time.Millisecond), Window: time.Second, Message: amqp.Message{Kind: "timer"}}
				if err := db.Transaction(func(tx *gorm.DB) error { return Add(tx, event, timer) }); err != nil {
					t.Fatal(err)
				}
				got := receive(t, deliveries)
				want := amqp091.Delivery{
					MessageId: event.ID, RoutingKey: event.Kind, Exchange: event.Exchange, Body: event.Body, ContentType: event.ContentType,
					AppId: event.AppID, Timestamp: event.Timestamp, Headers: maps.Clone(event.Headers), DeliveryMode: amqp091.Persistent,
				}
				got.Acknowledger, got.ConsumerTag, got.DeliveryTag, got.Timestamp = nil, "", 0, got.Timestamp.UTC()
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("delivery (-want +got):\n%s", diff)
				}
				d := receive(t, due)
				if len(d.Body) != 0 || d.ContentType != "application/json" || d.RoutingKey != "timer" || d.Timestamp.Sub(now).Abs() > 2*time.Second {
					t.Errorf("timer %+v", d)
				}
			})
		}
	}
}

func TestAddRefusesWhatCouldNeverBePublished(t *testing.T) {
	w := newWorld(t)
	for want, change := range map[string]func(*Message){
		"no kind":               func(m *Message) { m.Kind = "" },
		"its kind has":          func(m *Message) { m.Kind = strings.Repeat("k", 256) },
		"its kind is not":       func(m *Message) { m.Kind = "\xff" },
		"its id has":            func(m *Message) { m.ID = "a b" },
		"its app id is not":     func(m *Message) { m.AppID = "\x00" },
		"neither an exchange":   func(m *Message) { m.Exchange = "" },
		"both an exchange":      func(m *Message) { m.Deadline = time.Now() },
		"only timers":           func(m *Message) { m.Window = time.Second },
		"its window":            func(m *Message) { m.Exchange, m.Deadline, m.Window = "", time.Now(), 11*365*24*time.Hour },
		"its deadline":          func(m *Message) { m.Exchange, m.Deadline = "", time.Date(10001, 1, 1, 0, 0, 0, 0, time.UTC) },
		"its timestamp":         func(m *Message) { m.Timestamp = time.Date(1, 1, 2, 0, 0, 0, 0, time.UTC) },
		"its body":              func(m *Message) { m.Body = make([]byte, maxBody+1) },
		"to other queues":       func(m *Message) { m.Headers = map[string]any{"CC": "x"} },
		"the broker's own":      func(m *Message) { m.Headers = map[string]any{"x-death": []any{}} },
		"a struct {}":           func(m *Message) { m.Headers = map[string]any{"h": struct{}{}} },
		"a time.Time":           func(m *Message) { m.Headers = map[string]any{"h": time.Now()} },
		"NaN":                   func(m *Message) { m.Headers = map[string]any{"h": math.NaN()} },
		"not valid UTF-8":       func(m *Message) { m.Headers = map[string]any{"h": "\xff"} },
		"its headers take":      func(m *Message) { m.Headers = map[string]any{"h": strings.Repeat("h", maxHeaders)} },
		"nested more than":      func(m *Message) { loop := []any{nil}; loop[0] = loop; m.Headers = map[string]any{"h": loop} },
		"has to be valid UTF-8": func(m *Message) { m.Headers = map[string]any{strings.Repeat("h", 256): 1} },
	} {
		m := w.event("{}")
		change(&m)
		err := database.Transact(t.Context(), w.db, func(tx *gorm.DB) error { return Add(tx, w.event("fine"), m) })
		if err == nil || !strings.Contains(err.Error(), want) || database.IsOutage(err) {
			t.Errorf("want an error with %q, got %v", want, err)
		}
	}
	if n := w.rows(); n != 0 {
		t.Errorf("%d rows", n)
	}
}

// Statements are bounded: many small messages, and large ones.
func TestManyAndLargeMessages(t *testing.T) {
	w := newWorld(t)
	large := []Message{w.event(strings.Repeat("a", 5<<20)), w.event(strings.Repeat("b", 5<<20)), w.event("small")}
	many := make([]Message, 2*maxRows+1)
	for i := range many {
		many[i] = w.event("{}")
	}
	w.add(append(large, many...)...)
	if n := w.rows(); n != 2*maxRows+4 {
		t.Errorf("%d rows", n)
	}
	// A batch of the relay is bounded as well.
	r := w.relay(w.publisher(w.conn))
	b, err := r.claim(t.Context(), 0, math.MaxInt64, 500)
	if err != nil || len(b.ids) != 1 || !b.full {
		t.Errorf("claimed %d rows (full: %v), %v; want the first one alone", len(b.ids), b.full, err)
	}
}

func TestATimerThatIsDueAWindowFromNow(t *testing.T) {
	w := newWorld(t)
	w.add(Message{Message: amqp.Message{Kind: "timer"}, Window: 90 * time.Second})
	if n := w.number("SELECT TIMESTAMPDIFF(MICROSECOND, created_at, due_at) FROM lapse_outbox"); n != 90_000_000 {
		t.Errorf("it is due after %d µs", n)
	}
}

func TestHeadersKeepTheirTypes(t *testing.T) {
	leaf := rapid.OneOf(
		rapid.Int64().AsAny(), rapid.Float64().AsAny(), rapid.String().AsAny(), rapid.Bool().AsAny(), rapid.Just[any](nil),
	)
	rapid.Check(t, func(t *rapid.T) {
		headers := map[string]any{
			"list":  rapid.SliceOf(leaf).Draw(t, "list"),
			"table": amqp091.Table(rapid.MapOf(rapid.String(), leaf).Draw(t, "table")),
		}
		maps.Copy(headers, rapid.MapOf(rapid.StringMatching(`[a-z-]{1,9}`), leaf).Draw(t, "headers"))
		text, err := encodeHeaders(headers)
		if err != nil {
			t.Fatal(err)
		}
		got, err := decodeHeaders(text)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(headers, got); diff != "" {
			t.Fatalf("by way of %s (-want +got):\n%s", text, diff)
		}
	})
}
