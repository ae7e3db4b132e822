package amqp_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

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
