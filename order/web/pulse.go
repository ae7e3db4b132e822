package web

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/lapse-go/lapse/order"
)

// A database that refuses connections says so at once. One that does not answer at all would be waited for
// until the call is over, which may rightly take seconds when others have an order locked, and a commit
// that hangs is not even bound by its context. So calls are given up when for some time the database
// answered nobody: no call, and no small question that is asked meanwhile.
const (
	pulseEvery    = 300 * time.Millisecond
	pulsePatience = 1200 * time.Millisecond // with pulseEvery, an answer within 1.5 s
)

// pulse is when the database last answered.
type pulse struct {
	question func(context.Context) error

	mu     sync.Mutex
	last   time.Time
	asking bool
}

func newPulse(question func(context.Context) error) *pulse { return &pulse{question: question} }

// answered notes the answer that a call brought from the database. What is invalid may have been so without it.
func (p *pulse) answered(err error) {
	if errors.Is(err, order.ErrUnavailable) || errors.Is(err, order.ErrInvalid) || errors.Is(err, context.Canceled) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last = time.Now()
}

// silent is how long the database has answered nobody, counted from since on at the earliest.
func (p *pulse) silent(since time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.last.After(since) {
		since = p.last
	}
	return time.Since(since)
}

// ask asks the question, unless it is being asked.
func (p *pulse) ask() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.asking {
		return
	}
	p.asking = true
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), pulsePatience)
		defer cancel()
		err := p.question(ctx)
		p.answered(err)
		p.mu.Lock()
		defer p.mu.Unlock()
		p.asking = false
	}()
}

// panicked carries a panic from the goroutine of a call to that of its request.
type panicked struct {
	value any
	stack []byte
}

// call calls the database, and returns when it has answered, ctx ended, or the database is silent. What
// was called then goes on by itself, with its context ended.
func call[T any](ctx context.Context, p *pulse, do func(context.Context) (T, error)) (T, error) {
	type result struct {
		value    T
		err      error
		panicked *panicked
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan result, 1)
	go func() {
		var r result
		defer func() {
			if value := recover(); value != nil {
				r.panicked = &panicked{value: value, stack: debug.Stack()}
			}
			done <- r
		}()
		r.value, r.err = do(ctx)
	}()
	begin := time.Now()
	ticker := time.NewTicker(pulseEvery)
	defer ticker.Stop()
	var none T
	for {
		select {
		case r := <-done:
			if r.panicked != nil {
				panic(r.panicked)
			}
			p.answered(r.err)
			return r.value, r.err
		case <-ctx.Done():
			return none, fmt.Errorf("%w: %w", order.ErrUnavailable, ctx.Err())
		case <-ticker.C:
			if silent := p.silent(begin); silent >= pulsePatience {
				return none, fmt.Errorf("%w: it has not answered anybody for %s", order.ErrUnavailable, silent.Round(time.Millisecond))
			}
			p.ask()
		}
	}
}

// run is call without a value.
func run(ctx context.Context, p *pulse, do func(context.Context) error) error {
	_, err := call(ctx, p, func(ctx context.Context) (struct{}, error) { return struct{}{}, do(ctx) })
	return err
}
