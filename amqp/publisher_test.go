package amqp_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/amqp/amqptest"
)

func publisher(t *testing.T, conn *amqp.Conn, cfg amqp.PublisherConfig) *amqp.Publisher {
	t.Helper()
	if cfg.Logger == nil {
		cfg.Logger = amqptest.Logger(t)
	}
	p := amqp.NewPublisher(conn, cfg)
	t.Cleanup(func() { p.Close() })
	return p
}

// to is n messages with ids of their own.
func to(exchange, kind string, n int) []amqp.Publishing {
	messages := make([]amqp.Publishing, n)
	for i := range messages {
		messages[i] = amqp.Publishing{Exchange: exchange, Message: amqp.Message{ID: fmt.Sprint(kind, "-", i), Kind: kind, Body: []byte("{}")}}
	}
	return messages
}

// wantAll checks that every message has been answered with want, nil for confirmed.
func wantAll(t *testing.T, errs []error, want error) {
	t.Helper()
	for i, err := range errs {
		if !errors.Is(err, want) {
			t.Fatalf("message %d of %d: got %v, want %v", i, len(errs), err, want)
		}
	}
}

// take waits for n messages of a queue.
func take(t *testing.T, conn *amqp.Conn, queue string, n int) []amqp091.Delivery {
	t.Helper()
	ctx := within(t, 30*time.Second)
	channel, err := conn.Channel(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer channel.Close()
	deliveries, err := channel.Consume(queue, "", true, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	var taken []amqp091.Delivery
	for len(taken) < n {
		select {
		case d, ok := <-deliveries:
			if !ok {
				t.Fatalf("%s: the channel was closed after %d of %d messages", queue, len(taken), n)
			}
			taken = append(taken, d)
		case <-ctx.Done():
			t.Fatalf("%s: %d of %d messages came", queue, len(taken), n)
		}
	}
	return taken
}

// declare makes a queue that is reachable by its name through an exchange of its own.
func declare(t *testing.T, conn *amqp.Conn, arguments amqp091.Table) (exchange, kind string) {
	t.Helper()
	name := amqptest.Namespace()
	channel, err := conn.Channel(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer channel.Close()
	_, err1 := channel.QueueDeclare(name, true, false, false, false, arguments)
	err2 := channel.ExchangeDeclare(name, "direct", true, false, false, false, nil)
	err3 := channel.QueueBind(name, "bound", name, false, nil)
	if err := errors.Join(err1, err2, err3); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		channel, err := conn.Channel(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		defer channel.Close()
		_, err1 := channel.QueueDelete(name, false, false, false)
		err2 := channel.ExchangeDelete(name, false, false)
		if err := errors.Join(err1, err2); err != nil {
			t.Error(err)
		}
	})
	return name, "bound"
}

func TestPublishedAsDescribed(t *testing.T) {
	conn := amqptest.Conn(t)
	exchange, kind := declare(t, conn, amqp091.Table{"x-queue-type": "quorum"})
	p := publisher(t, conn, amqp.PublisherConfig{})
	at := time.Unix(1_700_000_000, 0)
	full := amqp.Publishing{
		Exchange:   exchange,
		Expiration: 20*time.Second + time.Nanosecond,
		Message: amqp.Message{
			ID: "id", Kind: kind, Body: []byte("body"), ContentType: "text/plain", Timestamp: at, AppID: "shop",
			Headers: map[string]any{"n": int64(1) << 40, "list": []any{"a", amqp091.Table{"b": nil}}},
		},
	}
	messages := []amqp.Publishing{full, {Exchange: exchange, Message: amqp.Message{Kind: kind}}}
	wantAll(t, p.Publish(within(t, 10*time.Second), messages...), nil)
	if messages[1].ID == "" {
		t.Error("the caller does not learn the id that its message was given")
	}
	got := take(t, conn, exchange, 2)
	if d := got[0]; d.MessageId != "id" || d.RoutingKey != kind || string(d.Body) != "body" || d.ContentType != "text/plain" ||
		!d.Timestamp.Equal(at) || d.AppId != "shop" || d.Expiration != "20001" || d.DeliveryMode != amqp091.Persistent || d.UserId != "" {
		t.Errorf("got %+v", d)
	}
	if diff := cmp.Diff(amqp091.Table(full.Headers), got[0].Headers); diff != "" {
		t.Error(diff)
	}
	if d := got[1]; d.MessageId != messages[1].ID || d.ContentType != "application/json" || time.Since(d.Timestamp).Abs() > time.Minute || d.Expiration != "" {
		t.Errorf("defaults: got %+v", d)
	}
}

// https://github.com/amqp-node/amqplib/issues/184: nothing that reached no queue counts as sent.
func TestWhatReachesNoQueueIsNotSent(t *testing.T) {
	conn := amqptest.Conn(t)
	exchange, kind := declare(t, conn, amqp091.Table{"x-queue-type": "quorum"})
	metrics := amqp.NewMetrics(nil)
	p := publisher(t, conn, amqp.PublisherConfig{Metrics: metrics})

	// One in three is bound, one has a key without a binding, one an exchange that does not exist.
	// Some of them are alike in everything, ids too.
	var messages []amqp.Publishing
	want := map[string]int{}
	for i := range 3000 {
		m := amqp.Publishing{Exchange: exchange, Message: amqp.Message{ID: fmt.Sprint(i / 30), Kind: kind}}
		switch i % 3 {
		case 1:
			m.Kind = "unbound"
		case 2:
			m.Exchange = exchange + ".missing"
		}
		messages = append(messages, m)
	}
	for i, err := range p.Publish(within(t, 20*time.Second), messages...) {
		want[fmt.Sprint(i%3, err == nil, errors.Is(err, amqp.ErrUnroutable))]++
	}
	if diff := cmp.Diff(map[string]int{"0 true false": 1000, "1 false true": 1000, "2 false true": 1000}, want); diff != "" {
		t.Error(diff)
	}
	take(t, conn, exchange, 1000)
	for result, n := range map[string]float64{"confirmed": 1000, "unroutable": 2000} {
		if got := testutil.ToFloat64(metrics.Published.WithLabelValues(result)); got != n {
			t.Errorf("%v counted as %s", got, result)
		}
	}
}

func TestOneMissingExchangeHarmsOnlyItsOwnMessage(t *testing.T) {
	conn := amqptest.Conn(t)
	exchange, kind := declare(t, conn, amqp091.Table{"x-queue-type": "quorum"})
	p := publisher(t, conn, amqp.PublisherConfig{})
	messages := to(exchange, kind, 1001)
	late := amqptest.Namespace()
	messages[500].Exchange = late
	ctx := within(t, 20*time.Second)
	errs := p.Publish(ctx, messages...)
	wantAll(t, errs[500:501], amqp.ErrUnroutable)
	wantAll(t, slices.Delete(errs, 500, 501), nil)
	take(t, conn, exchange, 1000)

	// It is looked for again, and found once it is there.
	channel, err := conn.Channel(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer channel.Close()
	if err := channel.ExchangeDeclare(late, "direct", true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	if err := channel.QueueBind(exchange, kind, late, false, nil); err != nil {
		t.Fatal(err)
	}
	wantAll(t, p.Publish(ctx, messages[500]), nil)

	// It goes away behind the publisher's back. The message was alone, so there is no doubt about it.
	if err := channel.ExchangeDelete(late, false, false); err != nil {
		t.Fatal(err)
	}
	wantAll(t, p.Publish(ctx, messages[500]), amqp.ErrUnroutable)
	wantAll(t, p.Publish(ctx, messages[0]), nil)
}

func TestAMistypedKindReachesTheUnroutedQueue(t *testing.T) {
	topology := amqptest.Topology(t, amqp.Ladder{time.Second}, "right")
	conn := amqptest.Conn(t)
	p := publisher(t, conn, amqp.PublisherConfig{})
	wantAll(t, p.Publish(within(t, 10*time.Second), to(topology.Due(), "rihgt", 1)...), nil)
	// Through a rung too, which it does not jam.
	wantAll(t, p.Publish(within(t, 10*time.Second), append(to(topology.Delay(time.Second), "rihgt", 1), to(topology.Delay(time.Second), "right", 1)...)...), nil)
	for _, d := range take(t, conn, topology.Unrouted(), 2) {
		if d.RoutingKey != "rihgt" {
			t.Errorf("unrouted: %s", d.RoutingKey)
		}
	}
	take(t, conn, topology.DueQueue("right"), 1)
}

func TestAFullQueueRefuses(t *testing.T) {
	conn := amqptest.Conn(t)
	exchange, kind := declare(t, conn, amqp091.Table{"x-max-length": int64(10), "x-overflow": "reject-publish"})
	p := publisher(t, conn, amqp.PublisherConfig{})
	ctx := within(t, 10*time.Second)
	for _, m := range to(exchange, kind, 10) {
		wantAll(t, p.Publish(ctx, m), nil)
	}
	wantAll(t, p.Publish(ctx, to(exchange, kind, 50)...), amqp.ErrRefused)
	take(t, conn, exchange, 10)
	wantAll(t, p.Publish(ctx, to(exchange, kind, 1)...), nil)
}

// Refusals come out of turn among the confirms of other queues, and cumulative acks after them.
func TestARefusalIsNotTakenForAConfirm(t *testing.T) {
	conn := amqptest.Conn(t)
	full, kind := declare(t, conn, amqp091.Table{"x-max-length": int64(1), "x-overflow": "reject-publish"})
	good, _ := declare(t, conn, amqp091.Table{"x-queue-type": "quorum"})
	p := publisher(t, conn, amqp.PublisherConfig{})
	wantAll(t, p.Publish(within(t, 10*time.Second), to(full, kind, 1)...), nil)
	messages := make([]amqp.Publishing, 0, 1000)
	for range cap(messages) / 2 {
		messages = append(messages, to(good, kind, 1)[0], to(full, kind, 1)[0])
	}
	for i, err := range p.Publish(within(t, 20*time.Second), messages...) {
		var want error
		if messages[i].Exchange == full {
			want = amqp.ErrRefused
		}
		if !errors.Is(err, want) {
			t.Fatalf("message %d: got %v, want %v", i, err, want)
		}
	}
}

func TestWhatCannotBePublishedHurtsNobodyElse(t *testing.T) {
	conn := amqptest.Conn(t)
	exchange, kind := declare(t, conn, amqp091.Table{"x-queue-type": "quorum"})
	p := publisher(t, conn, amqp.PublisherConfig{MaxBytes: 1 << 20})
	lost := conn.Changed()
	long := strings.Repeat("x", 256)
	self := amqp091.Table{}
	self["self"] = self
	deep := []any{}
	for range 100 {
		deep = []any{deep}
	}
	bad := map[string]func(*amqp.Publishing){
		"body":           func(m *amqp.Publishing) { m.Body = make([]byte, 1<<20+1) },
		"exchange":       func(m *amqp.Publishing) { m.Exchange = long },
		"kind":           func(m *amqp.Publishing) { m.Kind = long },
		"id":             func(m *amqp.Publishing) { m.ID = long },
		"content type":   func(m *amqp.Publishing) { m.ContentType = long },
		"app id":         func(m *amqp.Publishing) { m.AppID = long },
		"expired before": func(m *amqp.Publishing) { m.Expiration = -1 },
		"for ever":       func(m *amqp.Publishing) { m.Expiration = amqp.MaxDelay + time.Millisecond },
	}
	for name, value := range map[string]any{
		"struct": struct{}{}, "map": map[string]any{}, "uint64": uint64(1), "big int": math.MaxInt32 + 1, "nested": []any{amqp091.Table{"a": &bad}},
		"nan": math.NaN(), "inf": []any{float32(math.Inf(-1))}, "key": amqp091.Table{long: 1}, "itself": self, "deep": deep, "huge": long[:1] + strings.Repeat("y", 131_072-100), "huge list": slices.Repeat([]any{int64(1)}, 20_000),
	} {
		bad[name] = func(m *amqp.Publishing) { m.Headers = map[string]any{"h": value} }
	}
	bad["long name"] = func(m *amqp.Publishing) { m.Headers = map[string]any{long: 1} }
	bad["x-death"] = func(m *amqp.Publishing) { m.Headers = map[string]any{"x-death": []any{"a"}} }
	bad["CC"] = func(m *amqp.Publishing) { m.Headers = map[string]any{"CC": "somewhere"} }
	bad["BCC"] = func(m *amqp.Publishing) { m.Headers = map[string]any{"BCC": []any{"somewhere"}} }

	// Strange, but AMQP carries it.
	strange := map[string]any{
		"nil": nil, "": "no name", "\xff\xfe": "\xff\xfe", "f64": math.MaxFloat64, "zero": "\x00", "bytes": []byte{0, 255},
		"time": time.Unix(-5, 0), "decimal": amqp091.Decimal{Scale: 255, Value: -1}, "u16": uint16(65535), "u32": uint32(math.MaxUint32), "i8": int8(-128), "byte": byte(200),
		"empty": amqp091.Table{}, "emptylist": []any{}, "emoji": "💥", "i16": int16(-5), "f32": float32(1.5), "yes": true, "int": -1,
		strings.Repeat("n", 255): strings.Repeat("v", 100_000), "x-delay": int64(-1),
	}
	names := slices.Sorted(maps.Keys(bad))
	var messages []amqp.Publishing
	for _, name := range names {
		m := to(exchange, kind, 2)
		m[0].Headers = strange
		bad[name](&m[1])
		messages = append(messages, m...)
	}
	errs := p.Publish(within(t, 20*time.Second), messages...)
	for i, name := range names {
		if err := errs[2*i]; err != nil {
			t.Errorf("the neighbour of %q: %v", name, err)
		}
		if err := errs[2*i+1]; !errors.Is(err, amqp.ErrInvalid) {
			t.Errorf("%q: %v", name, err)
		}
	}
	take(t, conn, exchange, len(names))
	select {
	case <-lost:
		t.Error("the connection was lost")
	default:
	}
}

// What the headers and properties may hold at most is found by trying: whatever check lets pass,
// the broker takes.
func TestTheLargestHeadersArePublished(t *testing.T) {
	conn := amqptest.Conn(t)
	exchange, kind := declare(t, conn, amqp091.Table{"x-queue-type": "quorum"})
	p := publisher(t, conn, amqp.PublisherConfig{})
	lost := conn.Changed()
	m := to(exchange, kind, 1)[0]
	m.ContentType, m.AppID, m.Expiration = strings.Repeat("c", 255), strings.Repeat("a", 255), amqp.MaxDelay
	invalid, sent := 0, 0
	for n := 131_072 - 9500; n < 131_072-8500; n += 10 {
		m.Headers = map[string]any{"h": string(bytes.Repeat([]byte{'x'}, n))}
		switch err := p.Publish(within(t, 10*time.Second), m)[0]; {
		case err == nil:
			sent++
		case errors.Is(err, amqp.ErrInvalid):
			invalid++
		default:
			t.Fatalf("%d bytes: %v", n, err)
		}
	}
	if sent == 0 || invalid == 0 {
		t.Errorf("%d sent, %d invalid", sent, invalid)
	}
	select {
	case <-lost:
		t.Error("the connection was lost")
	default:
	}
}

func TestManyPublish(t *testing.T) {
	conn := amqptest.Conn(t)
	exchange, kind := declare(t, conn, amqp091.Table{"x-queue-type": "quorum"})
	p := publisher(t, conn, amqp.PublisherConfig{Window: 16})
	const callers, calls = 20, 50
	var wait sync.WaitGroup
	for c := range callers {
		wait.Go(func() {
			for i := range calls {
				messages := to(exchange, kind, 1+i%3)
				if i%5 == 0 {
					messages[0].Kind = "unbound"
				}
				for n, err := range p.Publish(within(t, 30*time.Second), messages...) {
					if want := i%5 == 0 && n == 0; errors.Is(err, amqp.ErrUnroutable) != want || err != nil && !want {
						t.Errorf("caller %d, call %d, message %d: %v", c, i, n, err)
					}
				}
			}
		})
	}
	// And some who give up at once, in between.
	for range 5 {
		wait.Go(func() {
			for i := range calls {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*20*time.Microsecond)
				for _, err := range p.Publish(ctx, to(exchange, "unbound", 20)...) {
					if !errors.Is(err, amqp.ErrUnroutable) && !errors.Is(err, amqp.ErrUnconfirmed) {
						t.Error(err)
					}
				}
				cancel()
			}
		})
	}
	wait.Wait()
	sent := 0
	for i := range calls {
		sent += 1 + i%3
		if i%5 == 0 {
			sent--
		}
	}
	take(t, conn, exchange, callers*sent)
}

// https://github.com/pika/pika/issues/708: packets are dropped without a reset.
func TestASilentNetworkIsFoundByMissingConfirms(t *testing.T) {
	shared := amqptest.Conn(t)
	exchange, kind := declare(t, shared, amqp091.Table{"x-queue-type": "quorum"})
	proxy, uri := amqptest.NewBrokerProxy(t, amqptest.URL(t))
	var log logbook
	conn := open(t, amqp.Config{URIs: []string{uri}, Heartbeat: time.Minute, MinBackoff: 10 * time.Millisecond, Logger: log.logger()})
	p := publisher(t, conn, amqp.PublisherConfig{ConfirmTimeout: time.Second})
	wantAll(t, p.Publish(within(t, 10*time.Second), to(exchange, kind, 10)...), nil)

	proxy.Stall()
	// More than the socket's buffers hold, so that the writer gets stuck as well.
	large := to(exchange, kind, 300)
	for i := range large {
		large[i].Body = make([]byte, 100_000)
	}
	started := time.Now()
	short := p.Publish(within(t, 200*time.Millisecond), large...)
	if took := time.Since(started); took > time.Second {
		t.Errorf("a caller with 200ms was held for %s", took)
	}
	wantAll(t, short, amqp.ErrUnconfirmed)
	until(t, conn, "found dead", func() bool { return conn.Ready() != nil })
	if took := time.Since(started); took > 2500*time.Millisecond {
		t.Errorf("found dead after %s", took)
	}
	if log.count("confirmed nothing for 1s") != 1 {
		t.Errorf("the log does not say why:\n%s", log.text.String())
	}
	// It goes on by itself, for a caller who has waited all the time.
	waiting := make(chan []error, 1)
	go func() { waiting <- p.Publish(within(t, 30*time.Second), to(exchange, kind, 10)...) }()
	proxy.Restore()
	wantAll(t, <-waiting, nil)
}

func TestLosingTheConnectionLeavesWhatIsUnderWayUnconfirmed(t *testing.T) {
	shared := amqptest.Conn(t)
	exchange, kind := declare(t, shared, amqp091.Table{"x-queue-type": "quorum"})
	proxy, uri := amqptest.NewBrokerProxy(t, amqptest.URL(t))
	conn := open(t, amqp.Config{URIs: []string{uri}, MinBackoff: 10 * time.Millisecond, Logger: amqptest.Logger(t)})
	p := publisher(t, conn, amqp.PublisherConfig{})
	wantAll(t, p.Publish(within(t, 10*time.Second), to(exchange, kind, 1)...), nil)
	proxy.Stall()
	answers := make(chan []error, 1)
	go func() { answers <- p.Publish(within(t, 20*time.Second), to(exchange, kind, 5000)...) }()
	time.Sleep(100 * time.Millisecond) // nothing tells when the window is on its way into nowhere
	proxy.Reset()
	proxy.Restore()
	errs := <-answers
	if n := 5000 - len(slices.DeleteFunc(slices.Clone(errs), func(err error) bool { return errors.Is(err, amqp.ErrUnconfirmed) })); n == 0 || n > 2048 {
		t.Errorf("%d of 5000 are unconfirmed; the window is 2048", n)
	}
	for i, err := range errs {
		if err != nil && !errors.Is(err, amqp.ErrUnconfirmed) {
			t.Fatalf("message %d: %v", i, err)
		}
	}
	wantAll(t, errs[2048:], nil)
}

func TestAClosedPublisherAnswers(t *testing.T) {
	proxy, uri := amqptest.NewBrokerProxy(t, amqptest.URL(t))
	exchange, kind := declare(t, amqptest.Conn(t), amqp091.Table{"x-queue-type": "quorum"})
	conn := open(t, amqp.Config{URIs: []string{uri}, Logger: amqptest.Logger(t)})
	p := publisher(t, conn, amqp.PublisherConfig{})
	wantAll(t, p.Publish(within(t, 10*time.Second), to(exchange, kind, 1)...), nil)
	proxy.Stall()
	answers := make(chan []error, 2)
	for range 2 {
		go func() { answers <- p.Publish(t.Context(), to(exchange, kind, 5000)...) }()
	}
	time.Sleep(50 * time.Millisecond)
	started := time.Now()
	p.Close()
	if took := time.Since(started); took > 4*time.Second {
		t.Errorf("Close took %s", took)
	}
	for range 2 {
		wantAll(t, <-answers, amqp.ErrUnconfirmed)
	}
	wantAll(t, p.Publish(t.Context(), to(exchange, kind, 1)...), amqp.ErrClosed)
}

// https://github.com/rabbitmq/rabbitmq-server/issues/2007, in tenths: what is due soon does not wait
// behind what is due late.
func TestTimersOfDifferentLengthsAreOnTime(t *testing.T) {
	const short, long = 500 * time.Millisecond, 6 * time.Second
	topology := amqptest.Topology(t, amqp.Ladder{short, long}, "timer")
	conn := amqptest.Conn(t)
	p := publisher(t, conn, amqp.PublisherConfig{})
	published := time.Now()
	for id, delay := range map[string]time.Duration{"long": long, "short": short} {
		step := topology.Ladder.Step(delay, delay)
		m := amqp.Publishing{Exchange: topology.Delay(step.Rung), Expiration: step.Expiration, Message: amqp.Message{ID: id, Kind: "timer"}}
		wantAll(t, p.Publish(within(t, 10*time.Second), m), nil)
	}
	for _, want := range []struct {
		id    string
		delay time.Duration
	}{{"short", short}, {"long", long}} {
		d := take(t, conn, topology.DueQueue("timer"), 1)[0]
		late := time.Since(published) - want.delay
		if d.MessageId != want.id || late < -time.Millisecond || late > 400*time.Millisecond {
			t.Errorf("%s came %s after its time; %s was expected", d.MessageId, late, want.id)
		}
	}
}
