package amqp

import (
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestThreeTriesOneSecondFactorTwo(t *testing.T) {
	p := RetryPolicy{Tries: 3, Initial: time.Second, Factor: 2, Jitter: NoJitter}
	for attempt, want := range []time.Duration{1: time.Second, 2: 2 * time.Second} {
		if attempt == 0 {
			continue
		}
		if delay, ok := p.Delay(attempt); !ok || delay != want {
			t.Errorf("attempt %d: %s, %v; want %s", attempt, delay, ok, want)
		}
	}
	for _, attempt := range []int{3, 4, 1000} {
		if delay, ok := p.Delay(attempt); ok {
			t.Errorf("attempt %d is tried again after %s", attempt, delay)
		}
	}
}

// https://github.com/cenkalti/backoff/issues/120: a retry budget always ends.
func TestRetriesEndAndStayInBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		initial := rapid.Int64Range(int64(time.Millisecond), int64(time.Hour)).Draw(t, "initial")
		p := RetryPolicy{
			Tries:   rapid.IntRange(1, 50).Draw(t, "tries"),
			Initial: time.Duration(initial),
			Factor:  rapid.Float64Range(1, 100).Draw(t, "factor"),
			Max:     time.Duration(rapid.Int64Range(initial, int64(MaxDelay)).Draw(t, "max")),
			Jitter:  rapid.Float64Range(0.001, 0.999).Draw(t, "jitter"),
		}
		if err := p.Validate(); err != nil {
			t.Fatal(err)
		}
		tries := 1
		for attempt := 1; ; attempt++ {
			delay, ok := p.Delay(attempt)
			if !ok {
				break
			}
			if delay < 0 || delay > p.Max {
				t.Fatalf("attempt %d: %s", attempt, delay)
			}
			tries++
		}
		if tries != p.Tries {
			t.Fatalf("%d tries", tries)
		}
	})
}

// https://github.com/cenkalti/backoff/issues/65: one policy serves many goroutines. The race
// detector watches.
func TestAPolicyIsSharedByGoroutines(t *testing.T) {
	var p RetryPolicy
	var wait sync.WaitGroup
	for range 8 {
		wait.Go(func() {
			for attempt := range 100 {
				if delay, _ := p.Delay(attempt); delay > 5*time.Minute {
					t.Errorf("attempt %d: %s", attempt, delay)
				}
			}
		})
	}
	wait.Wait()
}
