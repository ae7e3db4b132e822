package deadletter

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"gorm.io/gorm"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/amqp/amqptest"
)

const kind = "timer"

// collection is a desk that collects, and the broker that it collects from.
type collection struct {
	t         *testing.T
	url       string // of the broker
	db        *gorm.DB
	topology  amqp.Topology
	registry  *prometheus.Registry
	desk      *Desk
	publisher *amqp.Publisher
	metrics   *amqp.Metrics // of the consumers
}

func newCollection(t *testing.T, db *gorm.DB) *collection {
	t.Helper()
	ladder, err := amqp.NewLadder(250*time.Millisecond, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	return newCollectionAt(t, db, amqptest.URL(t), amqptest.Topology(t, ladder, kind))
}

func newCollectionAt(t *testing.T, db *gorm.DB, url string, topology amqp.Topology) *collection {
	t.Helper()
	c := &collection{t: t, url: url, db: db, topology: topology, registry: prometheus.NewRegistry(), metrics: amqp.NewMetrics(nil)}
	c.desk = New(Config{
		DB: db, Topology: topology, Guard: subjects{}, Registerer: c.registry, Logger: amqptest.Logger(t),
	})
	c.publisher = c.newPublisher()
	return c
}

// subjects knows the subject of a message by its body.
type subjects struct{}

func (subjects) Subject(m amqp.Message) string {
	subject, _ := strings.CutPrefix(string(m.Body), "about ")
	return subject[:min(len(subject), 10)]
}

func (subjects) Ask(context.Context, time.Time, []amqp.Message) ([]Verdict, error) {
	panic("not asked here")
}

func (c *collection) newPublisher() *amqp.Publisher {
	c.t.Helper()
	p := amqp.NewPublisher(amqptest.Dial(c.t, c.url), amqp.PublisherConfig{MaxBytes: 512 << 20, Logger: amqptest.Logger(c.t)})
	c.t.Cleanup(func() { p.Close() })
	return p
}

// publish publishes to an exchange, and waits for the confirms.
func (c *collection) publish(exchange string, messages ...amqp.Message) {
	c.t.Helper()
	publishings := make([]amqp.Publishing, len(messages))
	for i, m := range messages {
		publishings[i] = amqp.Publishing{Message: m, Exchange: exchange}
	}
	for i, err := range c.publisher.Publish(c.t.Context(), publishings...) {
		if err != nil {
			c.t.Fatalf("message %d: %v", i, err)
		}
	}
}

// raw publishes just as it is told, with nothing that Lapse adds.
func (c *collection) raw(exchange, key string, messages ...amqp091.Publishing) {
	c.t.Helper()
	ch := c.channel()
	defer ch.Close()
	if err := ch.Confirm(false); err != nil {
		c.t.Fatal(err)
	}
	for _, m := range messages {
		confirm, err := ch.PublishWithDeferredConfirm(exchange, key, true, false, m)
		if err != nil {
			c.t.Fatal(err)
		}
		if !confirm.Wait() {
			c.t.Fatal("not confirmed")
		}
	}
}

func (c *collection) channel() *amqp091.Channel {
	c.t.Helper()
	ch, err := amqptest.Dial(c.t, c.url).Channel(c.t.Context())
	if err != nil {
		c.t.Fatal(err)
	}
	return ch
}

// consume handles what comes to a queue until the function that it returns is called, or the test ends.
func (c *collection) consume(cfg amqp.ConsumerConfig) (stop func()) {
	c.t.Helper()
	cfg.Conn, cfg.Publisher, cfg.Topology = amqptest.Dial(c.t, c.url), c.publisher, c.topology
	cfg.Metrics, cfg.Logger = c.metrics, amqptest.Logger(c.t)
	consumer, err := amqp.NewConsumer(cfg)
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := consumer.Run(ctx); err != nil {
			c.t.Error(err)
		}
	}()
	stop = func() {
		cancel()
		<-done
	}
	c.t.Cleanup(stop)
	return stop
}

func (c *collection) collect(queues ...string) (stop func()) {
	c.t.Helper()
	var stops []func()
	for _, queue := range queues {
		stops = append(stops, c.consume(amqp.ConsumerConfig{
			Kind: "desk", Queue: queue, Handler: c.desk.Handler(queue), Probe: c.desk.Probe, Workers: 1, Batch: 100, Prefetch: 100,
		}))
	}
	return func() {
		for _, stop := range stops {
			stop()
		}
	}
}

func (c *collection) bury(reasons func(amqp.Message) amqp.Outcome) (stop func()) {
	c.t.Helper()
	return c.consume(amqp.ConsumerConfig{Kind: kind, Handler: amqp.HandlerFunc(func(_ context.Context, batch []amqp.Message) ([]amqp.Outcome, error) {
		outcomes := make([]amqp.Outcome, len(batch))
		for i, m := range batch {
			outcomes[i] = reasons(m)
		}
		return outcomes, nil
	})})
}

func (c *collection) number(query string, args ...any) (n int) {
	c.t.Helper()
	if err := c.db.Raw(query, args...).Row().Scan(&n); err != nil {
		c.t.Fatalf("%s: %v", query, err)
	}
	return n
}

func (c *collection) letters() int { return c.number("SELECT COUNT(*) FROM lapse_dead_letters") }

func (c *collection) exec(statement string, args ...any) {
	c.t.Helper()
	if err := c.db.Exec(statement, args...).Error; err != nil {
		c.t.Fatalf("%s: %v", statement, err)
	}
}

// depth is how many messages are ready in a queue.
func (c *collection) depth(queue string) int {
	c.t.Helper()
	ch := c.channel()
	defer ch.Close()
	q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	return q.Messages
}

func (c *collection) await(letters int) {
	c.t.Helper()
	eventually(c.t, fmt.Sprintf("%d letters", letters), func() bool { return c.letters() >= letters })
	if got := c.letters(); got != letters {
		c.t.Fatalf("%d letters, want %d", got, letters)
	}
}

func eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	for end := time.Now().Add(60 * time.Second); !condition(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within a minute: %s", what)
		}
	}
}
