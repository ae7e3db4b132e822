package amqp

import (
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v4"
)

// RetryPolicy says how often and how far apart a message that failed is tried again. The zero value
// is the default policy.
type RetryPolicy struct {
	// Tries is how often a message is tried in all, the first delivery included. 8 when zero.
	Tries int
	// Initial is the delay before the second attempt. 1 s when zero.
	Initial time.Duration
	// Factor is how much longer each delay is than the one before. 2 when zero; at least 1.
	Factor float64
	// Max is the longest delay, jitter included. 5 min when zero. Any delay is waited for on the shortest
	// rung that is not shorter, so that the ladder may make it longer.
	Max time.Duration
	// Jitter spreads each delay evenly over ±Jitter of itself, so that what failed together does not
	// come back together. 0.2 when zero; NoJitter for none.
	Jitter float64
}

// NoJitter as RetryPolicy.Jitter makes every delay exact.
const NoJitter = -1

func (p RetryPolicy) withDefaults() RetryPolicy {
	if p.Tries == 0 {
		p.Tries = 8
	}
	if p.Initial == 0 {
		p.Initial = time.Second
	}
	if p.Factor == 0 {
		p.Factor = 2
	}
	if p.Max == 0 {
		p.Max = 5 * time.Minute
	}
	switch p.Jitter {
	case 0:
		p.Jitter = 0.2
	case NoJitter:
		p.Jitter = 0
	}
	return p
}

// Validate says what is wrong with the policy, or nil.
func (p RetryPolicy) Validate() error {
	p = p.withDefaults()
	switch {
	case p.Tries < 1 || p.Tries > 1000:
		return fmt.Errorf("%d tries: give 1 to 1000, the first delivery included", p.Tries)
	case p.Initial < time.Millisecond || p.Initial > MaxDelay:
		return fmt.Errorf("an initial retry delay of %s: give 1ms to ten years", p.Initial)
	case !(p.Factor >= 1 && p.Factor <= 100):
		return fmt.Errorf("a retry factor of %v: give 1 to 100", p.Factor)
	case p.Max < p.Initial || p.Max > MaxDelay:
		return fmt.Errorf("a longest retry delay of %s: give at least the initial delay, %s, and at most ten years", p.Max, p.Initial)
	case !(p.Jitter >= 0 && p.Jitter < 1):
		return errors.New("a retry jitter has to be from 0 to 1, for instance 0.2")
	}
	return nil
}

// Delay is how long a message waits after its attempt number attempt, counted from 1, has failed; ok
// is false when that was its last one.
func (p RetryPolicy) Delay(attempt int) (delay time.Duration, ok bool) {
	p = p.withDefaults()
	if attempt >= p.Tries {
		return 0, false
	}
	// A fresh instance each time: one is not safe for concurrent use, and its state is the attempt,
	// which travels with the message.
	b := backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(p.Initial),
		backoff.WithMultiplier(p.Factor),
		backoff.WithMaxInterval(p.Max),
		backoff.WithRandomizationFactor(p.Jitter),
		backoff.WithMaxElapsedTime(0),
	)
	for range max(attempt, 1) {
		delay = b.NextBackOff()
	}
	return min(delay, p.Max), true
}
