package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/lapse-go/lapse/amqp/deadletter"
	"github.com/lapse-go/lapse/order/web"
)

type deadReplay struct {
	placeFlags
	outputFlag
	selectionFlags
	yesFlag
	Who        string  `default:"${user}" help:"Who does it."`
	Why        string  `help:"Why it is done, for the audit. Required, but for --dry-run."`
	Rate       int     `env:"-" default:"50" help:"Messages a second, to 100000; 0 is as fast as the broker confirms."`
	ToExchange *string `env:"-" help:"Publish to this exchange instead of where each message was published first. With --to-key."`
	ToKey      *string `env:"-" help:"Publish with this routing key; without --to-exchange it is the name of a queue."`
	DryRun     bool    `env:"-" help:"Only say what would come of it."`
	ShowIDs    bool    `env:"-" name:"ids" help:"With --dry-run: name the letters, too."`
	Detach     bool    `env:"-" help:"Start it, print its id, and do not wait for its end."`
}

func (c *deadReplay) Run(ctx context.Context, to console) error {
	selection, err := c.selection(deadletter.Open)
	if err != nil {
		return err
	}
	return c.desk(to, func(desk *deadletter.Desk, _ kept) error {
		if !c.DryRun && strings.TrimSpace(c.Why) == "" {
			return fmt.Errorf("%w: give --why: the audit keeps the reason", errUsage)
		}
		if _, err := leaveOut(ctx, to, desk, selection.IDs, deadletter.Open); err != nil {
			return err
		}
		if c.DryRun {
			return c.dryRun(ctx, to, desk, selection)
		}
		if selection, err = desk.Freeze(ctx, selection); err != nil {
			return err
		}
		if err := c.ask(ctx, to, desk, selection); err != nil {
			return err
		}
		return c.start(ctx, to, desk, selection)
	})
}

func (c *deadReplay) dryRun(ctx context.Context, to console, desk *deadletter.Desk, s deadletter.Selection) error {
	forecast, err := desk.DryRun(ctx, s, c.ShowIDs)
	if err != nil {
		return err
	}
	header, rows := forecastHeader, forecastRows(forecast)
	if c.ShowIDs {
		header = append(slices.Clone(header), "ids")
		for i, answer := range answers(forecast) {
			rows[i] = append(rows[i], idList(forecast.IDs[answer], forecast.Answers[answer]))
		}
	}
	return c.print(to, web.ForecastOf(forecast), header, rows...)
}

// ask shows what would come of it, and asks.
func (c *deadReplay) ask(ctx context.Context, to console, desk *deadletter.Desk, s deadletter.Selection) error {
	if err := c.mayAsk(to); c.Yes || err != nil {
		return err
	}
	forecast, err := desk.DryRun(ctx, s, false)
	if err != nil {
		return err
	}
	if forecast.Total == 0 {
		return nil // which starting it says
	}
	if err := printTable(to.Err, forecastHeader, forecastRows(forecast)); err != nil {
		return err
	}
	return c.confirm(ctx, to, "Replay "+lettersOf(forecast.Total)+"?")
}

func (c *deadReplay) start(ctx context.Context, to console, desk *deadletter.Desk, s deadletter.Selection) error {
	job, err := desk.Start(ctx, deadletter.Request{Selection: s, By: deadletter.By{Who: c.Who, Why: c.Why}, Rate: c.Rate, To: c.route()})
	if busy, ok := errors.AsType[*deadletter.BusyError](err); ok {
		return fmt.Errorf("%w\n`lapse replays watch %s` shows how far it is", err, busy.Replay)
	}
	if err != nil {
		return err
	}
	switch {
	case c.Detach && c.Output == "json":
		return c.printReplay(to, job)
	case c.Detach:
		_, err := fmt.Fprintln(to.Out, job.ID)
		return err
	}
	fmt.Fprintf(to.Err, "Replay %s: %s.\n", job.ID, lettersOf(job.Total))
	job, err = watch(ctx, to, desk, job, func(ctx context.Context) error {
		err := desk.Cancel(ctx, job.ID, deadletter.By{Who: c.Who, Why: "interrupted"})
		if err == nil || errors.Is(err, deadletter.ErrEnded) {
			return nil
		}
		return fmt.Errorf("it could not be stopped, so it goes on: %w\n`lapse replays cancel %s` stops it", err, job.ID)
	})
	if err != nil {
		return fmt.Errorf("%w\n`lapse replays watch %s` shows how it goes on", err, job.ID)
	}
	return errors.Join(c.printReplay(to, job), outcome(job))
}

func (c *deadReplay) route() *deadletter.Route {
	if c.ToExchange == nil && c.ToKey == nil {
		return nil
	}
	var r deadletter.Route
	if c.ToExchange != nil {
		r.Exchange = *c.ToExchange
	}
	if c.ToKey != nil {
		r.RoutingKey = *c.ToKey
	}
	return &r
}

// outcome is the error of a replay that has ended, if not all was done.
func outcome(job deadletter.Replay) error {
	var undone []string
	if job.Failed > 0 {
		undone = append(undone, fmt.Sprintf("%s could not be published and are open still: `lapse replays show %s --result=failed` says why", lettersOf(job.Failed), job.ID))
	}
	if job.Left() > 0 {
		undone = append(undone, fmt.Sprintf("it was cancelled before %s, which are open still", lettersOf(job.Left())))
	}
	if undone == nil {
		return nil
	}
	undone = append(undone, "To go on: "+goOn(job))
	err := errors.New(strings.Join(undone, "\n"))
	if job.Published+job.Settled > 0 {
		return fmt.Errorf("%w: %w", errPartly, err)
	}
	return err
}

// goOn is the command for what a replay left undone: letters that are not open any more are left out.
func goOn(job deadletter.Replay) string {
	args := append([]string{"lapse", "dead", "replay"}, selectionArgs(job.Selection)...)
	if job.Rate != deadletter.DefaultRate {
		args = append(args, "--rate="+strconv.Itoa(job.Rate))
	}
	if job.To != nil {
		args = append(args, "--to-exchange="+job.To.Exchange, "--to-key="+job.To.RoutingKey)
	}
	return commandLine(append(args, "--why="+job.By.Why)...)
}

// answers are those of a forecast, the most frequent first.
func answers(f deadletter.Forecast) []string {
	return slices.SortedFunc(maps.Keys(f.Answers), func(a, b string) int {
		if d := f.Answers[b] - f.Answers[a]; d != 0 {
			return int(d)
		}
		return strings.Compare(a, b)
	})
}

var forecastHeader = table.Row{"what would come of it", "letters", "messages"}

func forecastRows(f deadletter.Forecast) []table.Row {
	var rows []table.Row
	for _, answer := range answers(f) {
		messages := "published"
		switch settled := f.SettledBy[answer]; {
		case settled == f.Answers[answer]:
			messages = "not published"
		case settled > 0:
			messages = fmt.Sprintf("%d not published", settled)
		}
		rows = append(rows, table.Row{answer, f.Answers[answer], messages})
	}
	return rows
}

func idList(ids []int64, of int64) string {
	words := make([]string, len(ids))
	for i, id := range ids {
		words[i] = strconv.FormatInt(id, 10)
	}
	text := strings.Join(words, " ")
	if more := of - int64(len(ids)); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
