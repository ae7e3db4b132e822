package amqp

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

const year = 365 * 24 * time.Hour

// route follows a timer from its first rung until it is due, and returns how late it is then and
// after how many hops. On a rung a message waits for its own expiration, but at worst, behind a
// neighbour that came just before with a whole rung to go, as long as the rung.
func route(t *rapid.T, l Ladder, window, remaining time.Duration) (late time.Duration, hops int, last time.Duration) {
	for {
		step := l.Step(window, remaining)
		wait := step.Rung
		if step.Expiration > 0 && step.Expiration < step.Rung && rapid.Bool().Draw(t, "nobody ahead") {
			wait = step.Expiration
		}
		if step.Expiration > 0 && step.Expiration < remaining {
			t.Fatalf("a timer due in %s expires after %s", remaining, step.Expiration)
		}
		hops++
		remaining -= wait
		if remaining <= 0 {
			return -remaining, hops, step.Rung
		}
		window = 0 // what comes back early has no window of its own any more
	}
}

func TestAWindowThatIsARungTakesOneHop(t *testing.T) {
	l := DefaultLadder()
	rapid.Check(t, func(t *rapid.T) {
		window := rapid.SampledFrom(l).Draw(t, "window")
		lag := time.Duration(rapid.Int64Range(0, int64(2*window)).Draw(t, "lag"))
		late, hops, _ := route(t, l, window, window-lag)
		if hops != 1 || late > max(lag, MinExpiration) {
			t.Fatalf("%d hops, %s late", hops, late)
		}
	})
}

func TestAnyDelayEndsWithinASlack(t *testing.T) {
	l := DefaultLadder()
	worst, worstDay := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		delay := time.Duration(rapid.Int64Range(0, int64(rapid.SampledFrom([]time.Duration{time.Second, time.Minute, time.Hour, 24 * time.Hour, year}).Draw(t, "scale"))).Draw(t, "delay"))
		lag := time.Duration(rapid.Int64Range(0, int64(10*time.Minute)).Draw(t, "lag"))
		if rapid.Bool().Draw(t, "on time") {
			lag = 0
		}
		late, hops, last := route(t, l, delay, delay-lag)
		// A timer that is overdue when it is published still passes through the shortest rung.
		overdue := max(lag-delay, 0)
		if bound := max(slack(last), lag, overdue+l[0]); late > bound {
			t.Fatalf("%s late; %s are allowed", late, bound)
		}
		worst = max(worst, hops)
		if delay <= 24*time.Hour {
			worstDay = max(worstDay, hops)
		}
		if limit := int(delay/(24*time.Hour)) + 2*len(l); hops > limit {
			t.Fatalf("%d hops; %d are allowed", hops, limit)
		}
	})
	t.Logf("most hops: %d up to a day, %d up to a year", worstDay, worst)
}

func TestAnyLadderEnds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		shortest := rapid.Int64Range(1, 1000).Draw(t, "shortest")
		rungs := append(rapid.SliceOfNDistinct(rapid.Int64Range(1001, 3_600_000), 0, 8, rapid.ID[int64]).Draw(t, "rungs"), shortest)
		durations := make([]time.Duration, len(rungs))
		for i, ms := range rungs {
			durations[i] = time.Duration(ms) * time.Millisecond
		}
		l, err := NewLadder(durations...)
		if err != nil {
			t.Fatal(err)
		}
		remaining := time.Duration(rapid.Int64Range(0, 100*int64(l[len(l)-1])).Draw(t, "remaining"))
		if late, _, last := route(t, l, 0, remaining); late > max(slack(last), l[0], MinExpiration) {
			t.Fatalf("%s late", late)
		}
		delay := time.Duration(rapid.Int64Range(0, int64(l[len(l)-1])).Draw(t, "delay"))
		if rung := l.Backoff(delay); rung < delay {
			t.Fatalf("a retry after %s waits only %s", delay, rung)
		}
		if again, err := ParseLadder(l.String()); err != nil || again.String() != l.String() {
			t.Fatalf("%s is read as %s, %v", l, again, err)
		}
	})
}

func TestReadsLadders(t *testing.T) {
	if l, err := ParseLadder("30m, 60s 1s"); err != nil || l.String() != "1s 1m 30m" {
		t.Errorf("got %s, %v", l, err)
	}
	for _, text := range []string{"", "1m 60s", "soon", "0s", "-1s", "1500us", "87601h"} {
		if l, err := ParseLadder(text); err == nil {
			t.Errorf("%q is read as %s", text, l)
		}
	}
}
