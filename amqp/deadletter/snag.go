package deadletter

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v4"
)

// snag is what one step of a replay waits for. While it does, that shows in the replay.
type snag struct {
	*runner
	pause backoff.BackOff
	text  *string
}

func (r *runner) snag() *snag {
	return &snag{runner: r, pause: backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(100*time.Millisecond), backoff.WithMaxInterval(2*time.Second), backoff.WithMaxElapsedTime(0))}
}

// wait is false if ctx ended first.
func (s *snag) wait(ctx context.Context, err error) bool {
	text := fmt.Sprintf("%.1000s", err)
	s.text = &text
	if s.trouble.Swap(s.text) == nil {
		s.logger.Warn("a replay waits", "error", err)
	}
	select {
	case <-ctx.Done():
		return false
	case <-time.After(s.pause.NextBackOff()):
		return true
	}
}

// over says that nothing is waited for any more, unless another step waits.
func (s *snag) over() {
	if s.text != nil && s.trouble.CompareAndSwap(s.text, nil) {
		s.logger.Info("the replay goes on")
	}
	s.text = nil
	s.pause.Reset()
}

// persist does something until it succeeds, or ctx ends, or another process has the replay.
func (r *runner) persist(ctx context.Context, do func() error) error {
	s := r.snag()
	for {
		err := do()
		if err == nil {
			s.over()
			return nil
		}
		if ctx.Err() != nil || errors.Is(err, errTaken) || !s.wait(ctx, err) {
			return err
		}
	}
}

// longer returns a context that ends a while after ctx does.
func longer(ctx context.Context, by time.Duration) (context.Context, context.CancelFunc) {
	late, cancel := context.WithCancel(context.WithoutCancel(ctx))
	forget := context.AfterFunc(ctx, func() { time.AfterFunc(by, cancel) })
	return late, func() { forget(); cancel() }
}
