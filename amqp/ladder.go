package amqp

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

const (
	// MaxDelay is the longest TTL a queue may have: ten years
	// (https://www.rabbitmq.com/docs/ttl, checked by the broker since 3.8).
	MaxDelay = 10 * 365 * 24 * time.Hour
	// MinExpiration is the shortest expiration a timer is given. One that is due sooner, or overdue,
	// still passes through a rung.
	MinExpiration = 50 * time.Millisecond

	// maxShortest is the longest that a ladder's shortest rung may be. A timer with less time left than
	// that waits there, and may be late by as much.
	maxShortest = time.Second

	minSlack = 250 * time.Millisecond
	maxSlack = 5 * time.Second
)

// A Ladder is the delays, its rungs, for which there is a TTL queue each: ascending, without
// doubles. Make one with [NewLadder] or [ParseLadder].
type Ladder []time.Duration

// DefaultLadder serves delays from a quarter of a second to a day without a hop, and any other with
// few of them.
func DefaultLadder() Ladder {
	const s, m, h = time.Second, time.Minute, time.Hour
	return Ladder{
		s / 4, s / 2, s, 2 * s, 5 * s, 10 * s, 30 * s,
		m, 2 * m, 5 * m, 10 * m, 15 * m, 30 * m,
		h, 2 * h, 6 * h, 12 * h, 24 * h,
	}
}

// NewLadder returns the ladder with these rungs, in ascending order. Each is a whole number of
// milliseconds from 1 ms to [MaxDelay], none comes twice, and the shortest is at most a second. The
// further apart two rungs are, the more hops a delay between them takes.
func NewLadder(rungs ...time.Duration) (Ladder, error) {
	if len(rungs) == 0 {
		return nil, errors.New("a ladder needs rungs, for instance 500ms 1s 10s 1m 10m 30m")
	}
	ladder := Ladder(slices.Clone(rungs))
	slices.Sort(ladder)
	for i, rung := range ladder {
		switch {
		case rung < time.Millisecond || rung > MaxDelay:
			return nil, fmt.Errorf("rung %s is outside 1ms to %s (ten years)", RungName(rung), RungName(MaxDelay))
		case rung%time.Millisecond != 0:
			return nil, fmt.Errorf("rung %s is not a whole number of milliseconds, which is all that a queue's TTL can hold", rung)
		case i > 0 && rung == ladder[i-1]:
			return nil, fmt.Errorf("rung %s is there twice", RungName(rung))
		}
	}
	if ladder[0] > maxShortest {
		return nil, fmt.Errorf("the shortest rung is %s: add one of %s or less, on which a timer waits that has little time left", RungName(ladder[0]), RungName(maxShortest))
	}
	return ladder, nil
}

// ParseLadder reads rungs as Go durations, separated by spaces or commas: "1s 60s, 30m". Two ways
// to write the same rung (60s and 1m) are the same rung.
func ParseLadder(text string) (Ladder, error) {
	var rungs []time.Duration
	for _, word := range strings.FieldsFunc(text, func(r rune) bool { return r == ' ' || r == ',' }) {
		rung, err := time.ParseDuration(word)
		if err != nil {
			return nil, fmt.Errorf("rung %q is not a duration such as 500ms, 30m or 24h", word)
		}
		rungs = append(rungs, rung)
	}
	return NewLadder(rungs...)
}

// RungName is how a rung is written in the names of its exchange and queue: as a Go duration
// without parts that are zero, so 1m and not 60s or 1m0s.
func RungName(rung time.Duration) string {
	name := rung.String()
	if trimmed, ok := strings.CutSuffix(name, "m0s"); ok {
		name = trimmed + "m"
	}
	if trimmed, ok := strings.CutSuffix(name, "h0m"); ok {
		name = trimmed + "h"
	}
	return name
}

func (l Ladder) String() string {
	names := make([]string, len(l))
	for i, rung := range l {
		names[i] = RungName(rung)
	}
	return strings.Join(names, " ")
}

// Step is one way through a rung.
type Step struct {
	// Rung is the one to wait on.
	Rung time.Duration
	// Expiration is the message's own, or zero to wait as long as the rung says.
	Expiration time.Duration
}

// Step chooses the rung for a timer that is due after remaining and was made for a delay of window
// (zero when unknown).
//
// A timer whose window is a rung takes that rung and expires on it at its deadline, however late it
// is published: timers of one window are due in the order in which they were made, so it waits
// behind none that is due much later. Any other takes the longest rung that is not longer than what
// remains by more than the rung's slack, a hundredth of it but at least 250 ms and at most 5 s. If the
// rung is longer than what remains, the timer carries its own expiration and may be late by the slack,
// behind a neighbour that is due later; else it comes back early, and takes the next step.
func (l Ladder) Step(window, remaining time.Duration) Step {
	if _, isRung := slices.BinarySearch(l, window); isRung && remaining <= window {
		return Step{Rung: window, Expiration: expiration(remaining)}
	}
	step := Step{Rung: l[0], Expiration: expiration(remaining)}
	for _, rung := range l {
		if rung-slack(rung) > remaining {
			break
		}
		step = Step{Rung: rung}
		if remaining < rung {
			step.Expiration = expiration(remaining)
		}
	}
	return step
}

// Backoff is the shortest rung that is not shorter than delay, or the longest there is.
func (l Ladder) Backoff(delay time.Duration) time.Duration {
	i, _ := slices.BinarySearch(l, delay)
	return l[min(i, len(l)-1)]
}

func slack(rung time.Duration) time.Duration {
	return min(max(rung/100, minSlack), maxSlack)
}

// expiration rounds up to whole milliseconds: a timer that is a millisecond early only hops.
func expiration(remaining time.Duration) time.Duration {
	remaining = max(remaining, MinExpiration)
	return (remaining + time.Millisecond - 1).Truncate(time.Millisecond)
}
