package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/jedib0t/go-pretty/v6/progress"

	"github.com/lapse-go/lapse/amqp/database"
	"github.com/lapse-go/lapse/amqp/deadletter"
)

const (
	lookEvery = 250 * time.Millisecond // at a replay
	sayEvery  = 5 * time.Second        // how it gets on, where there is no terminal
	takenIn   = 3 * time.Second        // by a process, or else there may be none
)

// watch shows on standard error how a replay gets on until it has ended. When ctx ends it calls interrupted, and goes on
// until the replay has ended, unless that fails.
func watch(ctx context.Context, to console, desk *deadletter.Desk, job deadletter.Replay, interrupted func(context.Context) error) (deadletter.Replay, error) {
	m := newMeter(to.Err, job)
	defer m.end()
	asking := context.WithoutCancel(ctx)
	begin, end, alone, away := time.Now(), ctx.Done(), false, false
	for {
		now, err := desk.Replay(asking, job.ID)
		switch {
		case err != nil && !database.IsOutage(err):
			return job, err
		case err != nil && !away:
			m.say(fmt.Sprintf("The database does not tell at present how far it is: %v", err))
		case err == nil:
			job = now
			m.show(job)
		}
		away = err != nil
		if job.State.Ended() {
			return job, nil
		}
		if !alone && job.Owner == "" && time.Since(begin) > takenIn {
			alone = true
			m.say("No desk is running: start `lapse serve --role=desk`; the replay waits for it.")
		}
		select {
		case <-time.After(lookEvery):
		case <-end:
			end = nil
			if err := interrupted(asking); err != nil {
				return job, err
			}
			m.say("It stops; interrupt again to leave at once.")
		}
	}
}

// meter shows a replay that is on its way.
type meter interface {
	show(deadletter.Replay)
	say(string)
	end()
}

func newMeter(w io.Writer, job deadletter.Replay) meter {
	if isTerminal(w) {
		return newBar(w, job)
	}
	return &lines{w: w}
}

// bar is for a terminal.
type bar struct {
	progress.Writer
	tracker *progress.Tracker
	pace    pace
	ended   chan struct{}
}

func newBar(w io.Writer, job deadletter.Replay) *bar {
	b := &bar{Writer: progress.NewWriter(), tracker: &progress.Tracker{Total: job.Total, AutoStopDisabled: true}, ended: make(chan struct{})}
	b.SetOutputWriter(w)
	b.SetTrackerPosition(progress.PositionLeft)
	b.SetTrackerLength(16) // with the text beside it, 80 columns
	b.SetUpdateFrequency(lookEvery)
	b.SetStyle(progress.StyleDefault)
	b.Style().Options.Separator, b.Style().Options.DoneString, b.Style().Options.ErrorString = " ", "", ""
	b.Style().Options.PercentFormat = "%3.0f%%"
	b.Style().Visibility = progress.StyleVisibility{Tracker: true, Percentage: true}
	b.AppendTracker(b.tracker)
	go func() {
		defer close(b.ended)
		b.Render()
	}()
	return b
}

func (b *bar) show(job deadletter.Replay) {
	b.tracker.SetValue(job.Total - job.Left())
	b.tracker.UpdateMessage(b.pace.describe(job))
	switch {
	case job.State == deadletter.Cancelled:
		b.tracker.MarkAsErrored()
	case job.State.Ended():
		b.tracker.MarkAsDone()
	}
}

func (b *bar) say(text string) { b.Log("%s", printable(text)) }

func (b *bar) end() {
	for {
		b.Stop() // which does nothing before rendering has begun
		select {
		case <-b.ended:
			return
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// lines are for what is no terminal: one every few seconds.
type lines struct {
	w    io.Writer
	pace pace
	last time.Time
}

func (l *lines) show(job deadletter.Replay) {
	text := l.pace.describe(job)
	if job.State.Ended() || time.Since(l.last) >= sayEvery {
		l.last = time.Now()
		l.say(text)
	}
}

func (l *lines) say(text string) { fmt.Fprintln(l.w, printable(text)) }

func (l *lines) end() {}

// pace is how fast a replay is at present.
type pace struct{ seen []sample }

type sample struct {
	at   time.Time
	done int64
}

// describe is a replay in one line.
func (p *pace) describe(job deadletter.Replay) string {
	text := fmt.Sprintf("%d of %d, %.0f/s: %d replayed, %d skipped, %d failed",
		job.Total-job.Left(), job.Total, p.of(job.Total-job.Left()), job.Published, job.Settled, job.Failed)
	switch {
	case job.State == deadletter.Cancelling:
		text += "; stopping"
	case job.State == deadletter.Cancelled:
		text += "; cancelled"
	case !job.State.Ended() && job.Trouble != "":
		text += "; it waits: " + job.Trouble
	}
	return text
}

// of is over the last few seconds.
func (p *pace) of(done int64) float64 {
	now := time.Now()
	p.seen = append(p.seen, sample{now, done})
	for len(p.seen) > 2 && now.Sub(p.seen[0].at) > sayEvery {
		p.seen = p.seen[1:]
	}
	first := p.seen[0]
	if took := now.Sub(first.at).Seconds(); took > 0 {
		return float64(done-first.done) / took
	}
	return 0
}
