package amqp_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/amqp/amqptest"
)

// events are messages about moments, which their bodies tell.
type events struct {
	t        testing.TB
	topology amqp.Topology
	conn     *amqp.Conn
}

func newEvents(t testing.TB) *events {
	ladder, err := amqp.NewLadder(time.Second)
	if err != nil {
		t.Fatal(err)
	}
	return &events{t: t, conn: amqptest.Conn(t), topology: amqptest.Topology(t, ladder)}
}

// publish publishes n events that happened at those moments and a microsecond after each other.
func (e *events) publish(name string, n int, at time.Time) (names []string) {
	e.t.Helper()
	publisher := amqp.NewPublisher(e.conn, amqp.PublisherConfig{Logger: amqptest.Logger(e.t)})
	defer publisher.Close()
	batch := make([]amqp.Publishing, n)
	for i := range batch {
		names = append(names, fmt.Sprintf("%s-%03d", name, i))
		body := at.Add(time.Duration(i) * time.Microsecond).Format(time.RFC3339Nano)
		batch[i] = amqp.Publishing{
			Message:  amqp.Message{ID: names[i], Kind: "something.happened", Body: []byte(body), Timestamp: at},
			Exchange: e.topology.Events(),
		}
	}
	for _, err := range publisher.Publish(e.t.Context(), batch...) {
		if err != nil {
			e.t.Fatal(err)
		}
	}
	return names
}

func moment(m amqp.Message) time.Time {
	at, err := time.Parse(time.RFC3339Nano, string(m.Body))
	if err != nil {
		panic(err)
	}
	return at
}

// read reads all that there is.
func (e *events) read(h amqp.History) (names []string, last int64) {
	e.t.Helper()
	h.Conn, h.Topology, h.Logger, h.Idle = e.conn, e.topology, amqptest.Logger(e.t), 500*time.Millisecond
	err := h.Read(e.t.Context(), func(_ context.Context, m amqp.Logged) error {
		names, last = append(names, m.ID), m.Offset
		return nil
	})
	if err != nil {
		e.t.Error(err)
	}
	return names, last
}

// Two batches are one right after the other, and so in one chunk of the log or in two that begin in the same second,
// and what is read begins between them, at the microsecond.
func TestHistoryFromAnInstant(t *testing.T) {
	e := newEvents(t)
	now := time.Now().UTC().Truncate(time.Microsecond)
	first := e.publish("first", 100, now)
	between := now.Add(100 * time.Microsecond)
	second := e.publish("second", 100, between)

	all, last := e.read(amqp.History{})
	if diff := cmp.Diff(slices.Concat(first, second), all); diff != "" || last < 199 {
		t.Errorf("everything up to offset %d (-want +got):\n%s", last, diff)
	}
	got, _ := e.read(amqp.History{Since: between, When: moment})
	if diff := cmp.Diff(second, got); diff != "" {
		t.Errorf("from the instant between them (-want +got):\n%s", diff)
	}
	// The relay may be late: what it publishes long after it happened is read all the same, and not what happened
	// before, however late it comes.
	hour := e.publish("an-hour-ago", 3, now.Add(-time.Hour))
	late := e.publish("late", 3, between.Add(time.Millisecond))
	got, _ = e.read(amqp.History{Since: between, When: moment})
	if diff := cmp.Diff(slices.Concat(second, late), got); diff != "" {
		t.Errorf("with what came late (-want +got):\n%s", diff)
	}
	// By their timestamps, which have whole seconds.
	got, _ = e.read(amqp.History{Since: now})
	if diff := cmp.Diff(slices.Concat(first, second, late), got); diff != "" {
		t.Errorf("by timestamps (-want +got):\n%s", diff)
	}
	got, _ = e.read(amqp.History{Since: time.Unix(-1, 0), When: moment})
	if want := slices.Concat(first, second, hour, late); !cmp.Equal(want, got) {
		t.Errorf("%d of %d since before there was a log", len(got), len(want))
	}
	if got, _ = e.read(amqp.History{Since: now.Add(24 * time.Hour), When: moment}); len(got) > 0 {
		t.Errorf("the future has %d events", len(got))
	}
}

// The broker finds the place by chunks, and by its own clock: reading begins so much earlier.
func TestHistoryBeginsAtTheMargin(t *testing.T) {
	e := newEvents(t)
	begin := time.Now()
	long := e.publish("long-before", 1, begin)
	time.Sleep(3 * time.Second) // by the broker's clock, which says it in whole seconds
	since := time.Now()
	now := e.publish("now", 1, since)
	always := func(amqp.Message) time.Time { return since }
	for margin, want := range map[time.Duration][]string{time.Millisecond: now, time.Minute: slices.Concat(long, now)} {
		if got, _ := e.read(amqp.History{Since: since, When: always, Margin: margin}); !cmp.Equal(want, got) {
			t.Errorf("with a margin of %s: %v, want %v", margin, got, want)
		}
	}
}

// A reader that has stopped goes on where it was, also when what it read last was in the middle of a chunk.
func TestHistoryGoesOn(t *testing.T) {
	e := newEvents(t)
	all := e.publish("event", 50, time.Now())
	var seen []string
	var after *int64
	for len(seen) < len(all) {
		h := amqp.History{Conn: e.conn, Topology: e.topology, After: after, Idle: time.Second, Logger: amqptest.Logger(t)}
		n := 0
		err := h.Read(t.Context(), func(_ context.Context, m amqp.Logged) error {
			if n++; n > 7 {
				return fmt.Errorf("enough: %w", amqp.ErrStop)
			}
			seen, after = append(seen, m.ID), &m.Offset
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(all, seen); diff != "" {
		t.Errorf("in parts (-want +got):\n%s", diff)
	}
	broken := errors.New("no disk")
	h := amqp.History{Conn: e.conn, Topology: e.topology}
	if err := h.Read(t.Context(), func(context.Context, amqp.Logged) error { return broken }); !errors.Is(err, broken) {
		t.Errorf("the handler's error became %v", err)
	}
}

// The connection is cut again and again: nothing is missed, and nothing comes twice. It waits for what is to come.
func TestHistoryThroughLostConnections(t *testing.T) {
	const n = 2000
	e := newEvents(t)
	want := e.publish("before", n, time.Now())
	proxy, url := amqptest.NewBrokerProxy(t, amqptest.URL(t))
	h := amqp.History{Conn: amqptest.Dial(t, url), Topology: e.topology, Prefetch: 100, Logger: amqptest.Logger(t)}
	ctx, stop := context.WithTimeout(t.Context(), 30*time.Second)
	defer stop()
	var mu sync.Mutex
	var got []string
	half := make(chan struct{})
	ended := make(chan error, 1)
	go func() {
		ended <- h.Read(ctx, func(_ context.Context, m amqp.Logged) error {
			mu.Lock()
			defer mu.Unlock()
			if got = append(got, m.ID); len(got)%300 == 0 {
				proxy.Reset()
			}
			if len(got) == n {
				close(half)
			}
			if len(got) == n+10 {
				return amqp.ErrStop
			}
			return nil
		})
	}()
	select {
	case <-half:
	case <-ctx.Done():
		t.Fatalf("%d of %d came", len(got), n)
	}
	want = append(want, e.publish("after", 10, time.Now())...)
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("what was read (-want +got):\n%s", diff)
	}
}

func TestHistoryEndsWithItsContext(t *testing.T) {
	e := newEvents(t)
	e.publish("event", 1, time.Now())
	ctx, stop := context.WithCancel(t.Context())
	err := amqp.History{Conn: e.conn, Topology: e.topology}.Read(ctx, func(context.Context, amqp.Logged) error {
		stop()
		return nil
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("it ended with %v", err)
	}
	if err := (amqp.History{}).Read(t.Context(), nil); err == nil {
		t.Error("it reads without a connection")
	}
}

// logged has a History say what it logs.
func logged(h amqp.History) (amqp.History, *bytes.Buffer) {
	var said bytes.Buffer
	h.Logger = slog.New(slog.NewTextHandler(&said, &slog.HandlerOptions{Level: slog.LevelWarn}))
	return h, &said
}

// remake deletes the log, and declares it with these arguments beside its own.
func (e *events) remake(more amqp091.Table) {
	e.t.Helper()
	log := e.topology.EventsLog()
	err := e.conn.Do(e.t.Context(), func(ch *amqp091.Channel) error {
		if _, err := ch.QueueDelete(log, false, false, false); err != nil {
			return err
		}
		arguments := amqp091.Table{"x-queue-type": "stream"}
		maps.Copy(arguments, more)
		if _, err := ch.QueueDeclare(log, true, false, false, false, arguments); err != nil {
			return err
		}
		return ch.QueueBind(log, "#", e.topology.Events(), false, nil)
	})
	if err != nil {
		e.t.Fatal(err)
	}
}

// A reader that is only to read what there is does not stop before it has, however slow the broker is.
func TestHistoryIsReadToItsEnd(t *testing.T) {
	e := newEvents(t)
	want := e.publish("event", 500, time.Now())
	proxy, url := amqptest.NewBrokerProxy(t, amqptest.URL(t))
	h := amqp.History{Conn: amqptest.Dial(t, url), Topology: e.topology, Prefetch: 50, Idle: 100 * time.Millisecond, Logger: amqptest.Logger(t)}
	var got []string
	err := h.Read(t.Context(), func(_ context.Context, m amqp.Logged) error {
		if got = append(got, m.ID); len(got) == 120 {
			proxy.Stall()
			time.AfterFunc(4*h.Idle, proxy.Restore)
		}
		return nil
	})
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("read %d of %d, %v", len(got), len(want), err)
	}
}

// A log that was made anew has not come as far as the reader was. The broker would be silent about it.
func TestHistoryOfAnotherLog(t *testing.T) {
	e := newEvents(t)
	e.remake(nil)
	want := e.publish("event", 5, time.Now())
	after := int64(1000)
	h, said := logged(amqp.History{Conn: e.conn, Topology: e.topology, After: &after, Idle: 100 * time.Millisecond})
	var got []string
	if err := h.Read(t.Context(), func(_ context.Context, m amqp.Logged) error { got = append(got, m.ID); return nil }); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got, want) || !strings.Contains(said.String(), "another than before") {
		t.Errorf("read %q, and it says %s", got, said)
	}
}

// Retention has removed what was not read yet, which is told once; the broker's own offsets are no loss.
func TestHistoryThatIsGone(t *testing.T) {
	e := newEvents(t)
	// Whole segments are removed, so they have to be small.
	e.remake(amqp091.Table{"x-max-length-bytes": int64(20_000), "x-stream-max-segment-size-bytes": int64(5000)})
	after := int64(4)
	h, said := logged(amqp.History{Conn: e.conn, Topology: e.topology, After: &after, Idle: 50 * time.Millisecond})
	var offsets []int64
	var last string
	read := func() {
		t.Helper()
		offsets = nil
		if err := h.Read(t.Context(), func(_ context.Context, m amqp.Logged) error {
			offsets, last = append(offsets, m.Offset), m.ID
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	for round := 0; said.Len() == 0; round++ {
		if round == 100 {
			t.Fatal("retention removes nothing")
		}
		published := e.publish(fmt.Sprint("round-", round), 50, time.Now())
		if read(); last != published[49] {
			t.Fatalf("the last that was read is %s", last)
		}
	}
	if !strings.Contains(said.String(), "after=4 begins=") {
		t.Errorf("it says %s", said)
	}
	for _, after = range offsets[:len(offsets)-1] {
		h.Idle = 0
		err := h.Read(t.Context(), func(context.Context, amqp.Logged) error { return amqp.ErrStop })
		if err != nil {
			t.Fatal(err)
		}
	}
	if strings.Count(said.String(), "level=WARN") != 1 {
		t.Errorf("it says %s", said)
	}
}
