package amqp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/cenkalti/backoff/v4"
	amqp091 "github.com/rabbitmq/amqp091-go"
)

// History reads the events log, which keeps what was published to the events exchange (see [Topology].History) and
// can be read any number of times, by anybody. Fields without a default are required.
//
// A new subscriber that wants what came before it binds its own queue first, reads the history a second or two later,
// since an event may reach the log a moment after the queue, and then begins to consume. What comes both ways has
// the same id.
type History struct {
	Conn *Conn
	// Topology the log belongs to.
	Topology Topology

	// Since leaves out what happened before; everything is read when zero.
	Since time.Time
	// When tells the time of a message, which Since is compared with. Its Timestamp when nil, which is in whole
	// seconds, so that Since is taken in whole seconds, too.
	When func(Message) time.Time
	// Margin is by how much earlier than Since reading begins. The broker finds the place by its own clock, and in
	// whole chunks of the log (https://www.rabbitmq.com/docs/streams#consuming), so Margin has to be at least by how
	// much that clock is behind the one that When tells. 5 min when zero.
	Margin time.Duration
	// After is the offset of the last message that was handled before: reading goes on after it. Set it to continue
	// where another call has stopped; Since then only leaves out. A log that has not come so far, since it was deleted
	// and made anew, is read as if After were not set, which is logged.
	After *int64
	// Idle has [History.Read] return when nothing has come for so long and all is read. Never when zero.
	Idle time.Duration

	// Prefetch is how many messages come ahead. 1000 when zero.
	Prefetch int
	Logger   *slog.Logger
}

// Logged is a message of the log.
type Logged struct {
	Message
	// Offset is its place in the log: that of a later one is higher.
	Offset int64
}

// ErrStop is what a handler returns that wants no more.
var ErrStop = errors.New("stop reading")

// Read has the messages handled one after the other, in the order of the log: each at least once, and again only if
// the handler is called by another Read. It waits for new ones, and goes through lost connections, until ctx
// ends; then it returns the context's error. It returns nil when the handler has returned an error that is
// [ErrStop], or, if Idle is set, when all is read; any other error of the handler it returns. Retention may remove
// messages before they are read, which is logged.
func (h History) Read(ctx context.Context, handle func(context.Context, Logged) error) error {
	if h.Conn == nil {
		return errors.New("reading the history needs a connection")
	}
	if h.Margin < 0 || h.Idle < 0 || h.Prefetch < 0 || h.Prefetch > 65535 {
		return errors.New("margin, idle time and prefetch of a history cannot be negative, and the prefetch at most 65535; zero means the default")
	}
	h.Margin, h.Prefetch = cmp.Or(h.Margin, 5*time.Minute), cmp.Or(h.Prefetch, 1000)
	h.Logger = cmp.Or(h.Logger, slog.Default()).With("queue", h.Topology.EventsLog())
	if h.When == nil {
		h.When, h.Since = func(m Message) time.Time { return m.Timestamp }, h.Since.Truncate(time.Second)
	}
	r := &historyReader{History: h, handle: handle}
	pause := backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(100*time.Millisecond), backoff.WithMaxInterval(5*time.Second), backoff.WithMaxElapsedTime(0))
	for {
		before := r.After
		err := r.read(ctx)
		stop, over := errors.AsType[*stopReading](err)
		switch {
		case over && errors.Is(stop.err, ErrStop):
			return nil
		case over:
			return stop.err
		case ctx.Err() != nil:
			return ctx.Err()
		case permanent(err), errors.Is(err, ErrClosed):
			return fmt.Errorf("reading the history: %w", err)
		}
		if r.After != before {
			pause.Reset()
			r.complained = false
		}
		if !r.complained {
			r.complained = true
			h.Logger.Warn("the history cannot be read at present, and is tried again", "error", err)
		}
		if !sleep(ctx, pause.NextBackOff()) {
			return ctx.Err()
		}
	}
}

// historyReader is one call of Read. Its After moves on.
type historyReader struct {
	History
	handle     func(context.Context, Logged) error
	complained bool
	attached   bool // nothing was delivered since the broker was told where to begin
}

// stopReading is an error after which nothing is tried again.
type stopReading struct{ err error }

func (s *stopReading) Error() string { return s.err.Error() }

// from is where the broker is to begin.
func (r *historyReader) from() any {
	switch {
	case r.After != nil:
		return *r.After + 1
	case r.Since.Unix() > int64(r.Margin/time.Second):
		return r.Since.Add(-r.Margin)
	}
	return "first" // also of an instant before 1970, which AMQP does not know
}

// read reads on one channel, until that is lost.
func (r *historyReader) read(ctx context.Context) error {
	channel, err := r.Conn.Channel(ctx)
	if err != nil {
		return err
	}
	defer r.close(channel)
	lost := channel.NotifyClose(make(chan *amqp091.Error, 1))
	if err := r.recognise(ctx); err != nil {
		return err
	}
	deliveries, err := r.consume(ctx, channel, "", r.from(), r.Prefetch)
	if err != nil {
		return err
	}
	r.attached = true
	idle := time.NewTimer(cmp.Or(r.Idle, time.Hour))
	defer idle.Stop()
	for n := 1; ; n++ {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-idle.C:
			if r.Idle == 0 {
				break
			}
			if all, err := r.allRead(ctx); err != nil {
				return err
			} else if all {
				return &stopReading{ErrStop}
			}
		case d, open := <-deliveries:
			if !open {
				if refusal := <-lost; refusal != nil {
					return refusal
				}
				return errLost
			}
			if err := r.take(ctx, d); err != nil {
				return err
			}
			if n%max(1, r.Prefetch/4) == 0 {
				if err := d.Ack(true); err != nil {
					return err
				}
			}
		}
		idle.Reset(cmp.Or(r.Idle, time.Hour))
	}
}

// take has a message handled, unless it is too old or was handled before.
func (r *historyReader) take(ctx context.Context, d amqp091.Delivery) error {
	offset, ok := d.Headers["x-stream-offset"].(int64)
	if !ok {
		return &stopReading{fmt.Errorf("a message of %s has no offset: is it a stream?", r.Topology.EventsLog())}
	}
	if r.After != nil {
		if offset <= *r.After {
			return nil // of the same chunk
		}
		if r.attached && offset > *r.After+1 {
			r.miss(ctx, *r.After+1)
		}
	}
	r.attached = false
	m := Logged{received(d), offset}
	if r.Since.IsZero() || !r.When(m.Message).Before(r.Since) {
		if err := r.handle(ctx, m); err != nil {
			return &stopReading{err}
		}
	}
	r.After = &offset
	return nil
}
