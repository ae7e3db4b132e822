package outbox

import (
	"context"
	"database/sql"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"go.uber.org/goleak"
	"gorm.io/gorm"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/amqp/amqptest"
	"github.com/lapse-go/lapse/amqp/database"
)

func TestMain(m *testing.M) {
	// What gorm starts for a pool with prepared statements, it never ends.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("gorm.io/gorm/internal/lru.NewLRU[...].func1"))
}

// world is an outbox and the broker that it is relayed to.
type world struct {
	t        testing.TB
	db       *gorm.DB
	conn     *amqp.Conn
	topology amqp.Topology
	metrics  *Metrics
}

func newWorld(t testing.TB) *world {
	t.Helper()
	ladder, err := amqp.NewLadder(time.Second, 2*time.Second, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	return &world{
		t:        t,
		db:       amqptest.Database(t),
		conn:     amqptest.Conn(t),
		topology: amqptest.Topology(t, ladder, "timer"),
		metrics:  NewMetrics(nil),
	}
}

func (w *world) publisher(conn *amqp.Conn) *amqp.Publisher {
	w.t.Helper()
	p := amqp.NewPublisher(conn, amqp.PublisherConfig{Logger: amqptest.Logger(w.t)})
	w.t.Cleanup(func() { p.Close() })
	return p
}

func (w *world) relay(pub Publisher, change ...func(*RelayConfig)) *Relay {
	cfg := RelayConfig{Topology: w.topology, Metrics: w.metrics, Logger: amqptest.Logger(w.t)}
	for _, c := range change {
		c(&cfg)
	}
	return NewRelay(w.db, pub, cfg)
}

// run runs a relay until the function that it returns is called, or the test ends.
func run(t testing.TB, r *Relay) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := r.Run(ctx); err != nil {
			t.Error(err)
		}
	}()
	stop = func() {
		cancel()
		<-done
	}
	t.Cleanup(stop)
	return stop
}

func (w *world) add(messages ...Message) {
	w.t.Helper()
	err := database.Transact(context.Background(), w.db, func(tx *gorm.DB) error { return Add(tx, messages...) })
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) event(body string) Message {
	return Message{Message: amqp.Message{Kind: "event", Body: []byte(body)}, Exchange: w.topology.Events()}
}

func (w *world) exec(statement string, args ...any) {
	w.t.Helper()
	if err := w.db.Exec(statement, args...).Error; err != nil {
		w.t.Fatalf("%s: %v", statement, err)
	}
}

func (w *world) number(query string, args ...any) (n int) {
	w.t.Helper()
	if err := w.db.Raw(query, args...).Row().Scan(&n); err != nil {
		w.t.Fatalf("%s: %v", query, err)
	}
	return n
}

func (w *world) rows() int { return w.number("SELECT COUNT(*) FROM lapse_outbox") }

// eventually waits until the condition holds.
func eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !condition(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within 30 s: %s", what)
		}
	}
}

// listen declares a queue for what the events exchange gets, and returns what comes to it.
func (w *world) listen() <-chan amqp091.Delivery {
	w.t.Helper()
	ch := w.channel()
	queue, err := ch.QueueDeclare("", false, true, true, false, nil)
	if err == nil {
		err = ch.QueueBind(queue.Name, "#", w.topology.Events(), false, nil)
	}
	if err != nil {
		w.t.Fatal(err)
	}
	return w.consume(ch, queue.Name)
}

func (w *world) consume(ch *amqp091.Channel, queue string) <-chan amqp091.Delivery {
	w.t.Helper()
	deliveries, err := ch.Consume(queue, "", true, false, false, false, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	return deliveries
}

func (w *world) channel() *amqp091.Channel {
	w.t.Helper()
	ch, err := w.conn.Channel(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { ch.Close() })
	return ch
}

// receive waits for the next delivery.
func receive(t testing.TB, deliveries <-chan amqp091.Delivery) amqp091.Delivery {
	t.Helper()
	select {
	case d, ok := <-deliveries:
		if !ok {
			t.Fatal("the consumer has ended")
		}
		return d
	case <-time.After(30 * time.Second):
		t.Fatal("nothing was delivered within 30 s")
	}
	return amqp091.Delivery{}
}

// sqlInt is an id, or none if it is zero.
func sqlInt(id int64) sql.NullInt64 { return sql.NullInt64{Int64: id, Valid: id != 0} }
