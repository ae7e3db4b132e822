package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lapse-go/lapse/amqp/deadletter"
)

func TestBodiesAreReadable(t *testing.T) {
	deep := strings.Repeat("[", 5000) + strings.Repeat("]", 5000)
	for name, c := range map[string]struct{ body, want string }{
		"numbers stay exact":     {`{"id":9007199254740993,"x":1.10e400}`, "{\n  \"id\": 9007199254740993,\n  \"x\": 1.10e400\n}"},
		"nothing":                {"", ""},
		"text":                   {"hello\n\x1b[2Jworld", "hello\n\\x1b[2Jworld"},
		"escapes in JSON":        {"[\"\u202e\"]", "[\n  \"\\u202e\"\n]"},
		"what is deep stays so":  {deep, deep},
		"what is no UTF-8":       {"\xff\x00a", "00000000  ff 00 61                                          |..a|\n"},
		"what is long is cut":    {strings.Repeat("a", mostShown+7), strings.Repeat("a", mostShown) + "\n… and 7 bytes more, which `lapse dead export` has"},
		"JSON that is not valid": {`{"a":}`, `{"a":}`},
	} {
		if diff := cmp.Diff(c.want, readable([]byte(c.body))); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestMoments(t *testing.T) {
	for text, ago := range map[string]time.Duration{"2h": 2 * time.Hour, "90m ago": 90 * time.Minute} {
		var m moment
		if err := m.UnmarshalText([]byte(text)); err != nil || time.Since(m.time())-ago > time.Minute || time.Since(m.time()) < ago {
			t.Errorf("%s is %s, %v", text, m.time(), err)
		}
	}
	var m moment
	if err := m.UnmarshalText([]byte("2026-01-31T12:30:00+01:00")); err != nil || timestamp(m.time()) != "2026-01-31T11:30:00Z" {
		t.Errorf("%s, %v", m.time(), err)
	}
	for _, text := range []string{"", "yesterday", "-2h", "5"} {
		if err := m.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q is taken for %s", text, m.time())
		}
	}
}

// TestGoingOn: the command that goes on with a replay selects the same letters, whatever its words are.
func TestGoingOn(t *testing.T) {
	at := time.Date(2026, 1, 31, 12, 30, 0, 123456000, time.UTC)
	job := deadletter.Replay{
		ID: "r-1", By: deadletter.By{Who: "ada", Why: "it's mended; rm -rf /"}, Rate: 7, To: &deadletter.Route{Exchange: "", RoutingKey: "a b"},
		Selection: deadletter.Selection{Filter: &deadletter.Filter{
			State: deadletter.Open, Kind: "order.payment_timeout", Reason: deadletter.Hopeless, Group: "g", Subject: "A-1", MessageID: "$(m)", From: at, To: at, Text: "x",
		}},
	}
	line := goOn(job)
	want := `lapse dead replay --kind=order.payment_timeout --reason=hopeless --group=g --order=A-1 '--message-id=$(m)' ` +
		`--since=2026-01-31T12:30:00.123456Z --until=2026-01-31T12:30:00.123456Z --text=x --rate=7 --to-exchange= '--to-key=a b' '--why=it'\''s mended; rm -rf /'`
	if line != want {
		t.Errorf("%s\nand not\n%s", line, want)
	}
	parser := newParser(t.Context(), console{Out: io.Discard, Err: io.Discard})
	parsed, err := parser.Parse(append([]string{"dead", "replay"}, selectionArgs(job.Selection)...))
	if err != nil {
		t.Fatal(err)
	}
	c := parsed.Selected().Target.Addr().Interface().(*deadReplay)
	selection, err := c.selection(deadletter.Open)
	if diff := cmp.Diff(job.Selection, selection); diff != "" || err != nil {
		t.Error(err, diff)
	}
}

func TestOutcomes(t *testing.T) {
	job := deadletter.Replay{ID: "r-1", State: deadletter.Done, Total: 4, Published: 3, Settled: 1, Rate: 50, Selection: deadletter.Selection{IDs: []int64{1, 2, 3, 4}}}
	code := func(change func(*deadletter.Replay)) (int, string) {
		j := job
		change(&j)
		err := outcome(j)
		return exitCode(t.Context(), err), fmt.Sprint(err)
	}
	if code, text := code(func(*deadletter.Replay) {}); code != exitOK {
		t.Error(code, text)
	}
	if code, text := code(func(j *deadletter.Replay) { j.Published, j.Failed = 2, 1 }); code != exitPartly || !strings.Contains(text, "lapse replays show r-1 --result=failed") {
		t.Error(code, text)
	}
	if code, text := code(func(j *deadletter.Replay) { j.State, j.Published = deadletter.Cancelled, 1 }); code != exitPartly || !strings.Contains(text, "To go on: lapse dead replay 1 2 3 4 --why=") {
		t.Error(code, text)
	}
	if code, text := code(func(j *deadletter.Replay) { j.Published, j.Settled, j.Failed = 0, 0, 4 }); code != exitFailed {
		t.Error(code, text)
	}
}

func TestExitCodesOfTheDesk(t *testing.T) {
	interrupted, interrupt := context.WithCancel(t.Context())
	interrupt()
	for _, c := range []struct {
		ctx  context.Context
		err  error
		want int
	}{
		{t.Context(), fmt.Errorf("starting: %w", &deadletter.BusyError{Replay: "r-1"}), exitTryLater},
		{t.Context(), fmt.Errorf("a filter: %w", deadletter.ErrInvalid), exitUsage},
		{t.Context(), deadletter.ErrNotFound, exitFailed},
		{t.Context(), deadletter.ErrEnded, exitFailed},
		{t.Context(), errDeclined, exitFailed},
		{interrupted, errDeclined, exitInterrupted},
		{interrupted, outcome(deadletter.Replay{State: deadletter.Cancelled, Total: 2, Published: 1}), exitPartly}, // it was stopped, and says so
		{interrupted, fmt.Errorf("%w: %w", errPartly, context.Canceled), exitInterrupted},
	} {
		if got := exitCode(c.ctx, c.err); got != c.want {
			t.Errorf("%v: exit code %d, not %d", c.err, got, c.want)
		}
	}
}

func TestQuestions(t *testing.T) {
	for answer, yes := range map[string]bool{"y\n": true, "YES\n": true, "n\n": false, "\n": false, "": false, "yesterday\n": false} {
		var asked strings.Builder
		err := yesFlag{}.confirm(t.Context(), console{In: strings.NewReader(answer), Err: &asked}, "Replay 412 letters?")
		if (err == nil) != yes || asked.String() != "Replay 412 letters? [y/N] " {
			t.Errorf("%q: %v after %q", answer, err, &asked)
		}
	}
	waits, _ := io.Pipe()
	ctx, interrupt := context.WithCancel(t.Context())
	interrupt()
	if err := (yesFlag{}).confirm(ctx, console{In: waits, Err: io.Discard}, "?"); !errors.Is(err, context.Canceled) {
		t.Errorf("a question that is interrupted: %v", err)
	}
	if err := (yesFlag{}).mayAsk(console{In: strings.NewReader("y\n")}); exitCode(t.Context(), err) != exitUsage || !strings.Contains(err.Error(), "give --yes") {
		t.Errorf("off a terminal: %v", err)
	}
	if err := (yesFlag{Yes: true}).mayAsk(console{}); err != nil {
		t.Error(err)
	}
}

func TestProgressOffATerminal(t *testing.T) {
	var out strings.Builder
	m := newMeter(&out, deadletter.Replay{})
	m.show(deadletter.Replay{State: deadletter.Running, Total: 412})
	m.show(deadletter.Replay{State: deadletter.Running, Total: 412, Published: 1}) // too soon for a line
	m.show(deadletter.Replay{State: deadletter.Cancelled, Total: 412, Published: 100, Settled: 20, Failed: 3})
	m.end()
	got := strings.Split(out.String(), "\n")
	if len(got) != 3 || !strings.HasPrefix(got[0], "0 of 412, ") || !strings.HasPrefix(got[1], "123 of 412, ") ||
		!strings.HasSuffix(got[1], "/s: 100 replayed, 20 skipped, 3 failed; cancelled") {
		t.Errorf("%q", got)
	}
}

func TestProgressOnATerminal(t *testing.T) {
	var out strings.Builder
	b := newBar(&out, deadletter.Replay{Total: 412})
	b.show(deadletter.Replay{State: deadletter.Running, Total: 412, Published: 100, Settled: 3})
	b.say("No desk is running\x1b[2J")
	b.show(deadletter.Replay{State: deadletter.Done, Total: 412, Published: 409, Settled: 3})
	b.end()
	for _, want := range []string{"412 of 412", "409 replayed, 3 skipped, 0 failed", `No desk is running\x1b[2J`} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in %q", want, out.String())
		}
	}
}
