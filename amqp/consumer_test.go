package amqp_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/amqp/amqptest"
)

const kind = "test.kind"

// bench is a topology of its own with what a consumer needs around it.
type bench struct {
	t         *testing.T
	topology  amqp.Topology
	conn      *amqp.Conn
	publisher *amqp.Publisher
	metrics   *amqp.Metrics
}

func newBench(t *testing.T) *bench {
	t.Helper()
	ladder, err := amqp.NewLadder(250*time.Millisecond, 500*time.Millisecond, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	topology := amqptest.Topology(t, ladder, kind)
	conn := amqptest.Conn(t)
	publisher := amqp.NewPublisher(amqptest.Conn(t), amqp.PublisherConfig{})
	t.Cleanup(func() { _ = publisher.Close() })
	return &bench{t, topology, conn, publisher, amqp.NewMetrics(nil)}
}

// publish sends messages straight to the due exchange and waits for their confirms.
func (b *bench) publish(messages ...amqp.Message) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), 20*time.Second)
	defer cancel()
	publishings := make([]amqp.Publishing, len(messages))
	for i, m := range messages {
		if m.Kind == "" {
			m.Kind = kind
		}
		publishings[i] = amqp.Publishing{Message: m, Exchange: b.topology.Due()}
	}
	for _, err := range b.publisher.Publish(ctx, publishings...) {
		if err != nil {
			b.t.Fatal(err)
		}
	}
}

func numbered(n int) []amqp.Message {
	messages := make([]amqp.Message, n)
	for i := range messages {
		messages[i] = amqp.Message{ID: fmt.Sprintf("m%d", i), Body: []byte(`{}`)}
	}
	return messages
}

func (b *bench) config(h amqp.HandlerFunc) amqp.ConsumerConfig {
	return amqp.ConsumerConfig{
		Conn: b.conn, Publisher: b.publisher, Topology: b.topology, Kind: kind, Handler: h,
		Retry:   amqp.RetryPolicy{Tries: 3, Initial: 200 * time.Millisecond},
		Metrics: b.metrics, Logger: slog.New(slog.NewTextHandler(b.t.Output(), nil)),
	}
}

// run starts a consumer and returns it with a function that stops it and waits until it has ended.
func (b *bench) run(cfg amqp.ConsumerConfig) (*amqp.Consumer, func()) {
	b.t.Helper()
	consumer, err := amqp.NewConsumer(cfg)
	if err != nil {
		b.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- consumer.Run(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				b.t.Errorf("Run: %v", err)
			}
		case <-time.After(20 * time.Second):
			b.t.Error("the consumer did not end")
		}
	})
	b.t.Cleanup(stop)
	return consumer, stop
}

// dead waits for n dead letters and takes them.
func (b *bench) dead(n int) []amqp091.Delivery {
	b.t.Helper()
	return b.take(b.topology.Dead(), n)
}

func (b *bench) take(queue string, n int) []amqp091.Delivery {
	b.t.Helper()
	channel, err := b.conn.Channel(b.t.Context())
	if err != nil {
		b.t.Fatal(err)
	}
	defer channel.Close()
	deliveries, err := channel.Consume(queue, "", true, false, false, false, nil)
	if err != nil {
		b.t.Fatal(err)
	}
	var taken []amqp091.Delivery
	timeout := time.After(20 * time.Second)
	for len(taken) < n {
		select {
		case d := <-deliveries:
			taken = append(taken, d)
		case <-timeout:
			b.t.Fatalf("%d of %d messages came to %s", len(taken), n, queue)
		}
	}
	return taken
}

// depth is how many messages are ready in a queue.
func (b *bench) depth(queue string) int {
	b.t.Helper()
	channel, err := b.conn.Channel(b.t.Context())
	if err != nil {
		b.t.Fatal(err)
	}
	defer channel.Close()
	q, err := channel.QueueDeclarePassive(queue, true, false, false, false, nil)
	if err != nil {
		b.t.Fatal(err)
	}
	return q.Messages
}

// eventually polls what can only be asked for.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within 20 s: %s", what)
		}
	}
}

func done(batch []amqp.Message) []amqp.Outcome {
	return slices.Repeat([]amqp.Outcome{amqp.Done()}, len(batch))
}

func each(outcome func(amqp.Message) amqp.Outcome) amqp.HandlerFunc {
	return func(_ context.Context, batch []amqp.Message) ([]amqp.Outcome, error) {
		outcomes := make([]amqp.Outcome, len(batch))
		for i, m := range batch {
			outcomes[i] = outcome(m)
		}
		return outcomes, nil
	}
}

func TestConsumerTakesFullBatches(t *testing.T) {
	b := newBench(t)
	const n = 2000
	b.publish(numbered(n)...)

	var batches, handled atomic.Int64
	all := make(chan struct{})
	_, stop := b.run(b.config(func(_ context.Context, batch []amqp.Message) ([]amqp.Outcome, error) {
		batches.Add(1)
		if len(batch) > 200 {
			t.Errorf("a batch of %d", len(batch))
		}
		time.Sleep(20 * time.Millisecond) // what a transaction of 200 orders takes
		if handled.Add(int64(len(batch))) == n {
			close(all)
		}
		return done(batch), nil
	}))
	wait(t, all)
	stop()
	mean := float64(handled.Load()) / float64(batches.Load())
	t.Logf("%d messages in %d batches: %.0f each", handled.Load(), batches.Load(), mean)
	if mean < 100 {
		t.Errorf("mean batch of %.0f, want at least 100", mean)
	}
	if left := b.depth(b.topology.DueQueue(kind)); left != 0 {
		t.Errorf("%d messages were not acknowledged", left)
	}
}

func wait(t *testing.T, signal <-chan struct{}) {
	t.Helper()
	select {
	case <-signal:
	case <-time.After(30 * time.Second):
		t.Fatal("not within 30 s")
	}
}

func TestConsumerBoundsBatchesInBytes(t *testing.T) {
	b := newBench(t)
	messages := numbered(20)
	for i := range messages {
		messages[i].Body = []byte(strings.Repeat("x", 1000))
	}
	b.publish(messages...)
	var handled atomic.Int64
	cfg := b.config(func(_ context.Context, batch []amqp.Message) ([]amqp.Outcome, error) {
		if len(batch) > 3 {
			t.Errorf("a batch of %d kB", len(batch))
		}
		handled.Add(int64(len(batch)))
		return done(batch), nil
	})
	cfg.BatchBytes = 2500
	b.run(cfg)
	eventually(t, "20 handled", func() bool { return handled.Load() == 20 })
}

// A message that fails is tried three times and then buried with what its first and last failure said.
func TestConsumerRetriesThenBuries(t *testing.T) {
	b := newBench(t)
	var mu sync.Mutex
	var attempts []int
	b.run(b.config(each(func(m amqp.Message) amqp.Outcome {
		mu.Lock()
		defer mu.Unlock()
		attempts = append(attempts, m.Attempt())
		return amqp.Retry(fmt.Errorf("failure %d", m.Attempt()))
	})))
	channel, err := b.conn.Channel(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer channel.Close()
	err = channel.PublishWithContext(t.Context(), b.topology.Due(), kind, true, false, amqp091.Publishing{
		MessageId: "m", Body: []byte(`{"kept":"as it is"}`), UserId: "guest", Expiration: "60000", AppId: "shop",
		ContentEncoding: "identity", CorrelationId: "c1", ReplyTo: "r1", Type: "t1", Priority: 3,
		Headers: amqp091.Table{"trace": "t1", "x-mine": "dropped", "CC": []any{"other.kind"}},
	})
	if err != nil {
		t.Fatal(err)
	}

	letter := b.dead(1)[0]
	mu.Lock()
	defer mu.Unlock()
	if !slices.Equal(attempts, []int{1, 2, 3}) {
		t.Errorf("attempts %v, want 1 2 3", attempts)
	}
	if letter.MessageId != "m" || letter.RoutingKey != kind || string(letter.Body) != `{"kept":"as it is"}` || letter.DeliveryMode != amqp091.Persistent {
		t.Errorf("the letter is not the message: %+v", letter)
	}
	if letter.AppId != "shop" || letter.ContentEncoding != "identity" || letter.CorrelationId != "c1" || letter.ReplyTo != "r1" ||
		letter.Type != "t1" || letter.Priority != 3 || letter.UserId != "" || letter.Expiration != "" {
		t.Errorf("the letter's properties are not the message's: %+v", letter)
	}
	want := map[string]any{
		amqp.HeaderFirstError: "failure 1", amqp.HeaderError: "failure 3", amqp.HeaderAttempt: int64(3),
		amqp.HeaderReason: string(amqp.ReasonOutOfTries), "trace": "t1",
		"x-mine": nil, "CC": nil,
	}
	for key, value := range want {
		if letter.Headers[key] != value {
			t.Errorf("header %s is %v, want %v", key, letter.Headers[key], value)
		}
	}
	if letter.Headers[amqp.HeaderLetter] == nil || letter.Headers[amqp.HeaderFirstErrorAt] == nil {
		t.Errorf("headers miss the letter's id or the first error's time: %v", letter.Headers)
	}
	if got := testutil.ToFloat64(b.metrics.Handled.WithLabelValues(kind, "retried")); got != 2 {
		t.Errorf("%v retries counted, want 2", got)
	}
}

func TestConsumerBuriesTheHopelessAtOnce(t *testing.T) {
	b := newBench(t)
	b.run(b.config(each(func(m amqp.Message) amqp.Outcome { return amqp.Dead(errors.New("makes no sense")) })))
	b.publish(amqp.Message{Body: []byte("\xff"), ContentType: "text/plain"})
	letter := b.dead(1)[0]
	if letter.Headers[amqp.HeaderReason] != string(amqp.ReasonHopeless) || letter.Headers[amqp.HeaderAttempt] != int64(1) {
		t.Errorf("headers %v", letter.Headers)
	}
	if letter.MessageId == "" || letter.ContentType != "text/plain" || string(letter.Body) != "\xff" {
		t.Errorf("the letter is not the message: %+v", letter)
	}
}

// A deferred message hops: it comes again when it is due, as a fresh message, its attempt not counted,
// however often that happens.
func TestConsumerDefers(t *testing.T) {
	b := newBench(t)
	start := time.Now()
	due := start.Add(1900 * time.Millisecond)
	var hops atomic.Int64
	arrived := make(chan amqp.Message, 1)
	b.run(b.config(each(func(m amqp.Message) amqp.Outcome {
		if remaining := time.Until(due); remaining > 0 {
			hops.Add(1)
			return amqp.Defer(remaining)
		}
		arrived <- m
		return amqp.Done()
	})))
	b.publish(amqp.Message{ID: "m"})
	select {
	case m := <-arrived:
		late := time.Since(due)
		t.Logf("%d hops, %s late", hops.Load(), late)
		if m.ID != "m" || m.Attempt() != 1 {
			t.Errorf("came back as %+v", m)
		}
		if late > 750*time.Millisecond || hops.Load() > 4 {
			t.Errorf("%s late after %d hops", late, hops.Load())
		}
	case <-time.After(10 * time.Second):
		t.Fatal("it never came back")
	}
}

// A message that somebody published straight to the queue, by the default exchange, comes back as any other.
func TestConsumerDefersWhatCameByTheQueuesName(t *testing.T) {
	b := newBench(t)
	arrived := make(chan amqp.Message, 1)
	deferred := false
	cfg := b.config(each(func(m amqp.Message) amqp.Outcome {
		if !deferred {
			deferred = true
			return amqp.Defer(300 * time.Millisecond)
		}
		arrived <- m
		return amqp.Done()
	}))
	cfg.Workers = 1
	b.run(cfg)
	publisher := amqp.NewPublisher(b.conn, amqp.PublisherConfig{})
	defer publisher.Close()
	m := amqp.Publishing{Message: amqp.Message{ID: "m", Kind: b.topology.DueQueue(kind), Body: []byte("{}")}}
	if err := publisher.Publish(t.Context(), m)[0]; err != nil {
		t.Fatal(err)
	}
	select {
	case m := <-arrived:
		if m.ID != "m" || m.Kind != kind {
			t.Errorf("came back as %+v", m)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("it never came back")
	}
}

// One message that makes the handler panic does not harm those that share its batch.
func TestConsumerFindsTheMessageThatPanics(t *testing.T) {
	b := newBench(t)
	var mu sync.Mutex
	handled := map[string]int{}
	messages := numbered(50)
	messages[17].ID = "poison"
	b.publish(messages...)
	b.run(b.config(func(_ context.Context, batch []amqp.Message) ([]amqp.Outcome, error) {
		for _, m := range batch {
			if m.ID == "poison" {
				panic("I cannot stand it")
			}
		}
		mu.Lock()
		defer mu.Unlock()
		for _, m := range batch {
			handled[m.ID]++
		}
		return done(batch), nil
	}))
	letter := b.dead(1)[0]
	if text, _ := letter.Headers[amqp.HeaderError].(string); letter.MessageId != "poison" || !strings.Contains(text, "I cannot stand it") {
		t.Errorf("buried: %s, %v", letter.MessageId, letter.Headers)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(handled) != 49 {
		t.Errorf("%d other messages were handled, want 49", len(handled))
	}
	if got := testutil.ToFloat64(b.metrics.Panics.WithLabelValues(kind)); got != 3 {
		t.Errorf("%v panics counted, want one each try", got)
	}
}

// While the handler's server is away nothing is lost, no attempt is counted, readiness says so, and the
// log does not grow with time.
func TestConsumerHoldsMessagesThroughAnOutage(t *testing.T) {
	b := newBench(t)
	away := errors.New("no database")
	var down atomic.Bool
	down.Store(true)
	var probes, handled atomic.Int64
	var lines countingWriter
	cfg := b.config(func(_ context.Context, batch []amqp.Message) ([]amqp.Outcome, error) {
		if down.Load() {
			return nil, away
		}
		for _, m := range batch {
			if m.Attempt() != 1 {
				t.Errorf("attempt %d", m.Attempt())
			}
		}
		handled.Add(int64(len(batch)))
		return done(batch), nil
	})
	cfg.Probe = func(context.Context) error {
		probes.Add(1)
		if down.Load() {
			return away
		}
		return nil
	}
	cfg.Logger = slog.New(slog.NewTextHandler(&lines, nil))
	consumer, stop := b.run(cfg)
	eventually(t, "ready", func() bool { return consumer.Ready() == nil })
	b.publish(numbered(500)...)
	eventually(t, "probed a few times", func() bool { return probes.Load() >= 4 })
	if err := consumer.Ready(); !errors.Is(err, away) {
		t.Errorf("Ready() = %v, want the outage", err)
	}
	down.Store(false)
	eventually(t, "all handled", func() bool { return handled.Load() >= 500 })
	eventually(t, "ready again", func() bool { return consumer.Ready() == nil })
	stop()
	if handled.Load() != 500 {
		t.Errorf("%d handled, want each of 500 once", handled.Load())
	}
	if lines.n.Load() != 2 {
		t.Errorf("%d log lines, want one when it went and one when it was back", lines.n.Load())
	}
}

type countingWriter struct{ n atomic.Int64 }

func (w *countingWriter) Write(p []byte) (int, error) { w.n.Add(1); return io.Discard.Write(p) }

// An outage that lasts longer than messages may be held has them handed back, and nothing is taken
// until the server is there again.
func TestConsumerHandsBackWhatItHeldTooLong(t *testing.T) {
	b := newBench(t)
	var down atomic.Bool
	down.Store(true)
	var handled atomic.Int64
	away := errors.New("no database")
	cfg := b.config(func(_ context.Context, batch []amqp.Message) ([]amqp.Outcome, error) {
		if down.Load() {
			return nil, away
		}
		handled.Add(int64(len(batch)))
		return done(batch), nil
	})
	cfg.Probe = func(context.Context) error {
		if down.Load() {
			return away
		}
		return nil
	}
	cfg.Hold = 300 * time.Millisecond
	b.run(cfg)
	b.publish(numbered(10)...)
	eventually(t, "handed back", func() bool {
		return testutil.ToFloat64(b.metrics.Returned.WithLabelValues(kind)) > 0 && b.depth(b.topology.DueQueue(kind)) == 10
	})
	down.Store(false)
	eventually(t, "handled", func() bool { return handled.Load() == 10 })
}

func TestConsumerPauses(t *testing.T) {
	b := newBench(t)
	var paused atomic.Bool
	paused.Store(true)
	var handled atomic.Int64
	cfg := b.config(func(_ context.Context, batch []amqp.Message) ([]amqp.Outcome, error) {
		if paused.Load() {
			return nil, fmt.Errorf("%w by an operator", amqp.ErrPaused)
		}
		handled.Add(int64(len(batch)))
		return done(batch), nil
	})
	cfg.Probe = func(context.Context) error {
		if paused.Load() {
			return fmt.Errorf("%w by an operator", amqp.ErrPaused)
		}
		return nil
	}
	consumer, _ := b.run(cfg)
	b.publish(numbered(10)...)
	eventually(t, "handed back at once", func() bool {
		return errors.Is(consumer.Ready(), amqp.ErrPaused) && b.depth(b.topology.DueQueue(kind)) == 10
	})
	paused.Store(false)
	resumed := time.Now()
	eventually(t, "handled", func() bool { return handled.Load() == 10 })
	if took := time.Since(resumed); took > 2*time.Second {
		t.Errorf("went on %s after the pause, want about a second at most", took)
	}
}

// The queue is deleted under two consumers at once (https://github.com/streadway/amqp/issues/235): both
// notice, it is declared again, and both are served.
func TestConsumerSurvivesItsQueueBeingDeleted(t *testing.T) {
	b := newBench(t)
	var handled [2]atomic.Int64
	var consumers [2]*amqp.Consumer
	for i := range consumers {
		consumers[i], _ = b.run(b.config(func(_ context.Context, batch []amqp.Message) ([]amqp.Outcome, error) {
			handled[i].Add(int64(len(batch)))
			return done(batch), nil
		}))
	}
	ready := func() bool { return consumers[0].Ready() == nil && consumers[1].Ready() == nil }
	eventually(t, "ready", ready)
	channel, err := b.conn.Channel(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := channel.QueueDelete(b.topology.DueQueue(kind), false, false, false); err != nil {
		t.Fatal(err)
	}
	eventually(t, "noticed", func() bool { return consumers[0].Ready() != nil && consumers[1].Ready() != nil })
	eventually(t, "mended", ready)
	b.publish(numbered(2000)...)
	eventually(t, "all handled", func() bool { return handled[0].Load()+handled[1].Load() >= 2000 })
	if handled[0].Load() == 0 || handled[1].Load() == 0 {
		t.Errorf("handled %d and %d: one of them is a zombie", handled[0].Load(), handled[1].Load())
	}
	if got := testutil.ToFloat64(b.metrics.Repairs.WithLabelValues(kind, "cancelled")); got < 4 {
		t.Errorf("%v repairs counted, want one a worker", got)
	}
}

// A rung that was deleted while a message needs it holds that message, not those behind it.
func TestConsumerMendsALostRung(t *testing.T) {
	b := newBench(t)
	var handled atomic.Int64
	b.run(b.config(each(func(m amqp.Message) amqp.Outcome {
		if m.ID == "early" && handled.Load() < 100 {
			return amqp.Defer(400 * time.Millisecond)
		}
		handled.Add(1)
		return amqp.Done()
	})))
	channel, err := b.conn.Channel(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := channel.ExchangeDelete(b.topology.Delay(500*time.Millisecond), false, false); err != nil {
		t.Fatal(err)
	}
	b.publish(amqp.Message{ID: "early"})
	b.publish(numbered(100)...)
	eventually(t, "all handled", func() bool { return handled.Load() == 101 })
}

// The connection for publishing is away, the one for consuming is not: what needs no publishing goes on.
func TestConsumerWithoutAConnectionToPublish(t *testing.T) {
	b := newBench(t)
	proxy, url := amqptest.NewBrokerProxy(t, amqptest.URL(t))
	conn := open(t, amqp.Config{URIs: []string{url}, Name: "publish", Logger: amqptest.Logger(t), MaxBackoff: time.Second})
	eventually(t, "connected", func() bool { return conn.Ready() == nil })
	proxy.Refuse()
	eventually(t, "away", func() bool { return conn.Ready() != nil })
	var handled atomic.Int64
	var back atomic.Bool
	cfg := b.config(each(func(m amqp.Message) amqp.Outcome {
		if m.ID == "m0" && m.Attempt() == 1 {
			return amqp.Retry(errors.New("not now"))
		}
		back.Store(back.Load() || m.ID == "m0")
		handled.Add(1)
		return amqp.Done()
	}))
	cfg.Workers, cfg.Publisher = 1, publisher(t, conn, amqp.PublisherConfig{})
	b.run(cfg)
	b.publish(numbered(3000)...)
	start := time.Now()
	eventually(t, "what needs no publishing is handled", func() bool { return handled.Load() >= 2999 })
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("that took %s", took)
	}
	proxy.Restore()
	eventually(t, "the retry is published", back.Load)
}

// One queue whose process does not answer: messages for it wait, and nobody else does.
func TestAQueueThatDoesNotAnswer(t *testing.T) {
	node := amqptest.NewNode(t)
	b := benchOn(t, node.URL())
	stuck, healthy := b.topology.Delay(5*time.Second), b.topology.Delay(500*time.Millisecond)
	control := func(do string) {
		node.Ctl("eval", fmt.Sprintf(`sys:%s(whereis(list_to_atom("%%2F_%s"))).`, do, stuck))
	}
	p := publisher(t, open(t, amqp.Config{URIs: []string{node.URL()}, Name: "publish", Logger: amqptest.Logger(t)}), amqp.PublisherConfig{ConfirmTimeout: 4 * time.Second})
	wantAll(t, p.Publish(within(t, 10*time.Second), to(stuck, kind, 1)...), nil)
	control("suspend")
	errs := p.Publish(within(t, 3*time.Second), append(to(stuck, kind, 1), to(healthy, kind, 20)...)...)
	if !errors.Is(errs[0], amqp.ErrUnconfirmed) {
		t.Errorf("the message for the stuck queue: %v", errs[0])
	}
	wantAll(t, errs[1:], nil)

	var handled sync.Map
	cfg := b.config(each(func(m amqp.Message) amqp.Outcome {
		if _, before := handled.LoadOrStore(m.ID, true); m.ID == "slow" && !before {
			return amqp.Defer(5 * time.Second)
		}
		return amqp.Done()
	}))
	cfg.Workers, cfg.Publisher = 1, p
	b.run(cfg)
	b.publish(amqp.Message{ID: "slow"})
	b.publish(numbered(1000)...)
	start := time.Now()
	done := b.metrics.Handled.WithLabelValues(kind, "done")
	eventually(t, "the others are handled", func() bool { return testutil.ToFloat64(done) >= 1000 })
	t.Logf("the others took %s", time.Since(start))

	control("resume")
	eventually(t, "the hop is published", func() bool {
		return testutil.ToFloat64(b.metrics.Handled.WithLabelValues(kind, "deferred")) >= 1
	})
}

// On shutdown what was taken is finished and acknowledged, and what was only prefetched goes back.
func TestConsumerShutsDown(t *testing.T) {
	b := newBench(t)
	began, finish := make(chan struct{}), make(chan struct{})
	var handled atomic.Int64
	cfg := b.config(func(_ context.Context, batch []amqp.Message) ([]amqp.Outcome, error) {
		close(began)
		<-finish
		handled.Add(int64(len(batch)))
		return done(batch), nil
	})
	cfg.Workers, cfg.Batch, cfg.Prefetch = 1, 1, 100
	_, stop := b.run(cfg)
	b.publish(numbered(100)...)
	wait(t, began)
	time.AfterFunc(300*time.Millisecond, func() { close(finish) })
	stop()
	if handled.Load() != 1 {
		t.Errorf("%d handled, want the one that was in hand", handled.Load())
	}
	eventually(t, "99 are back", func() bool { return b.depth(b.topology.DueQueue(kind)) == 99 })
}

// A handler that does not end is left behind when the limit is over, and its message goes back.
func TestConsumerShutdownIsBounded(t *testing.T) {
	b := newBench(t)
	began := make(chan struct{})
	cfg := b.config(func(ctx context.Context, batch []amqp.Message) ([]amqp.Outcome, error) {
		close(began)
		<-ctx.Done()
		return nil, ctx.Err()
	})
	cfg.Workers, cfg.Shutdown = 1, 300*time.Millisecond
	_, stop := b.run(cfg)
	b.publish(numbered(1)...)
	wait(t, began)
	start := time.Now()
	stop()
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("shutdown took %s", took)
	}
	eventually(t, "the message is back", func() bool { return b.depth(b.topology.DueQueue(kind)) == 1 })
}

func TestConsumerReopensAnIdleChannel(t *testing.T) {
	b := newBench(t)
	var handled atomic.Int64
	cfg := b.config(func(_ context.Context, batch []amqp.Message) ([]amqp.Outcome, error) {
		handled.Add(int64(len(batch)))
		return done(batch), nil
	})
	cfg.Idle = 100 * time.Millisecond
	b.run(cfg)
	idle := b.metrics.Repairs.WithLabelValues(kind, "idle")
	eventually(t, "reopened", func() bool { return testutil.ToFloat64(idle) >= 4 })
	b.publish(numbered(10)...)
	eventually(t, "handled", func() bool { return handled.Load() == 10 })
}

// A message whose headers leave no room for what has to be added is buried by the broker, as it came.
func TestConsumerBuriesWhatCannotBePublishedAgain(t *testing.T) {
	b := newBench(t)
	b.run(b.config(each(func(m amqp.Message) amqp.Outcome {
		if m.ID == "huge" {
			return amqp.Dead(errors.New(strings.Repeat("e", 5000)))
		}
		return amqp.Done()
	})))
	channel, err := b.conn.Channel(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	filler := strings.Repeat("h", 130_000)
	err = channel.PublishWithContext(t.Context(), b.topology.Due(), kind, true, false, amqp091.Publishing{
		MessageId: "huge", DeliveryMode: amqp091.Persistent, Headers: amqp091.Table{"filler": filler}, Body: []byte("body"),
	})
	if err != nil {
		t.Fatal(err)
	}
	letter := b.dead(1)[0]
	if letter.MessageId != "huge" || letter.Headers["filler"] != filler || string(letter.Body) != "body" {
		t.Errorf("the letter is not the message: %s, %d headers", letter.MessageId, len(letter.Headers))
	}
	if got := testutil.ToFloat64(b.metrics.DeadLetters.WithLabelValues(kind, "rejected")); got != 1 {
		t.Errorf("%v rejected letters counted", got)
	}
	b.publish(numbered(10)...)
	eventually(t, "the queue is empty", func() bool { return b.depth(b.topology.DueQueue(kind)) == 0 })
}

// While the broker blocks publishing, what needs no publishing is settled, and the rest is held.
func TestConsumerUnderAMemoryAlarm(t *testing.T) {
	node := amqptest.NewNode(t)
	b := benchOn(t, node.URL())
	messages := numbered(20)
	for i := range 10 {
		messages[2*i].Headers = map[string]any{"early": "yes"}
	}
	b.publish(messages...)
	node.Ctl("set_vm_memory_high_watermark", "absolute", "1")
	eventually(t, "blocked", func() bool {
		// The broker tells a connection only when it publishes.
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		b.publisher.Publish(ctx, amqp.Publishing{Message: amqp.Message{ID: "poke", Kind: "nobody"}, Exchange: b.topology.Due()})
		return b.publisher.Ready() != nil
	})

	var mu sync.Mutex
	early, handled := map[string]bool{}, map[string]bool{}
	count := func(ids map[string]bool) int { mu.Lock(); defer mu.Unlock(); return len(ids) }
	consumer, _ := b.run(b.config(each(func(m amqp.Message) amqp.Outcome {
		mu.Lock()
		defer mu.Unlock()
		if m.Headers["early"] != nil && len(early) < 10 {
			early[m.ID] = true
			return amqp.Defer(300 * time.Millisecond)
		}
		handled[m.ID] = true
		return amqp.Done()
	})))
	eventually(t, "all are seen", func() bool { return count(handled) == 10 && count(early) == 10 })
	eventually(t, "what is done is acknowledged", func() bool {
		return testutil.ToFloat64(b.metrics.Handled.WithLabelValues(kind, "done")) == 10
	})
	if got := testutil.ToFloat64(b.metrics.Handled.WithLabelValues(kind, "deferred")); got != 0 {
		t.Errorf("%v hops were published under the alarm", got)
	}
	node.Ctl("set_vm_memory_high_watermark", "0.6")
	eventually(t, "the rest is handled", func() bool { return count(handled) == 20 })
	eventually(t, "ready", func() bool { return consumer.Ready() == nil })
}

// The broker is restarted under load: every message is handled, none is blamed.
func TestConsumerSurvivesARestart(t *testing.T) {
	node := amqptest.NewNode(t)
	b := benchOn(t, node.URL())
	var mu sync.Mutex
	handled := map[string]int{}
	consumer, _ := b.run(b.config(func(_ context.Context, batch []amqp.Message) ([]amqp.Outcome, error) {
		time.Sleep(20 * time.Millisecond)
		mu.Lock()
		defer mu.Unlock()
		for _, m := range batch {
			if m.Attempt() != 1 {
				t.Errorf("attempt %d", m.Attempt())
			}
			handled[m.ID]++
		}
		return done(batch), nil
	}))
	b.publish(numbered(3000)...)
	node.Kill()
	eventually(t, "noticed", func() bool { return consumer.Ready() != nil })
	node.Start()
	eventually(t, "all handled", func() bool { mu.Lock(); defer mu.Unlock(); return len(handled) == 3000 })
	eventually(t, "ready", func() bool { return consumer.Ready() == nil })
}

// benchOn is a bench on a broker of its own.
func benchOn(t *testing.T, url string) *bench {
	t.Helper()
	open := func(name string) *amqp.Conn {
		conn, err := amqp.Open(t.Context(), amqp.Config{URIs: []string{url}, Name: name, MaxBackoff: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	ladder, err := amqp.NewLadder(500*time.Millisecond, time.Second, 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	topology := amqp.Topology{Namespace: "lapse-test", Ladder: ladder, Kinds: []string{kind}}
	conn := open("consume")
	if err := topology.Declare(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	publisher := amqp.NewPublisher(open("publish"), amqp.PublisherConfig{})
	t.Cleanup(func() { _ = publisher.Close() })
	return &bench{t, topology, conn, publisher, amqp.NewMetrics(prometheus.NewRegistry())}
}
