package amqp

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/prometheus/client_golang/prometheus"
)

// pausedPoll is how often a handler that is only paused is asked whether it may go on.
const pausedPoll = 500 * time.Millisecond

// outage is what a consumer's workers know together of the server behind their handler. However many
// of them see it go, there is one line in the log, and one when it is back.
type outage struct {
	logger *slog.Logger
	count  prometheus.Counter

	mu    sync.Mutex
	err   error         // nil while there is none
	over  chan struct{} // closed when it has ended
	since time.Time
}

func (o *outage) begin(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	known := o.err != nil
	o.err = err
	if known {
		return
	}
	o.over, o.since = make(chan struct{}), time.Now()
	if errors.Is(err, ErrPaused) {
		o.logger.Info("messages wait", "reason", err)
		return
	}
	o.count.Inc()
	o.logger.Warn("messages wait for the server behind their handler", "error", err)
}

func (o *outage) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err == nil {
		return
	}
	o.logger.Info("messages are handled again", "after", time.Since(o.since).Round(time.Millisecond))
	o.err = nil
	close(o.over)
}

// current is the outage that there is, if any, and what is closed when it has ended.
func (o *outage) current() (over <-chan struct{}, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.over, o.err
}

// await waits until there is no outage, or the probe finds that it may be over: true. It is false when ctx
// ended before that.
func (o *outage) await(ctx context.Context, pause backoff.BackOff, probe func(context.Context) error) bool {
	for {
		over, err := o.current()
		if err == nil {
			return true
		}
		wait := pausedPoll
		if !errors.Is(err, ErrPaused) {
			wait = pause.NextBackOff()
		}
		select {
		case <-ctx.Done():
			return false
		case <-over:
			return true
		case <-time.After(wait):
		}
		if probe == nil {
			return true
		}
		if err = bounded(ctx, probe); err == nil {
			return true
		}
		o.begin(err)
	}
}

// bounded gives a server 5 s for an answer.
func bounded(ctx context.Context, ask func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	return ask(ctx)
}
