package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/lapse-go/lapse/amqp/deadletter"
	"github.com/lapse-go/lapse/order/web"
)

type replays struct {
	List   replaysList   `cmd:"" help:"List the jobs, the newest first."`
	Show   replaysShow   `cmd:"" help:"Show a job, and what became of each of its letters."`
	Watch  replaysWatch  `cmd:"" help:"Show how a job gets on until it has ended. Interrupting this leaves the job alone."`
	Cancel replaysCancel `cmd:"" help:"Have a job stop within a second."`
}

type replaysList struct {
	placeFlags
	listFlag
	pageFlags
}

var replayHeader = table.Row{"id", "state", "letters", "replayed", "settled", "failed", "left", "rate", "who", "why", "created"}

func replayRow(r deadletter.Replay) table.Row {
	return table.Row{r.ID, r.State, r.Total, r.Published, r.Settled, r.Failed, r.Left(), r.Rate, r.By.Who, r.By.Why, instant(r.CreatedAt)}
}

func (c *replaysList) Run(ctx context.Context, to console) error {
	page, err := c.page()
	if err != nil {
		return err
	}
	return c.desk(to, func(desk *deadletter.Desk, _ kept) error {
		jobs, next, err := desk.Replays(ctx, page)
		if err != nil {
			return err
		}
		if err := c.print(to, web.Replays{Replays: each(jobs, web.ReplayOf), Next: next}, replayHeader, each(jobs, replayRow)...); err != nil || next == "" {
			return err
		}
		_, err = fmt.Fprintf(to.Err, "There are more: %s\n", commandLine(append([]string{"lapse", "replays", "list"}, c.args(next)...)...))
		return err
	})
}

type replaysShow struct {
	placeFlags
	outputFlag
	ID     string `arg:"" name:"id" help:"The job."`
	Result string `env:"-" enum:"published,settled,failed,all" default:"all" help:"Only the letters of which this became: published, settled, failed or all."`
	Limit  int    `env:"-" default:"50" help:"Most letters, 1 to 1000."`
	After  string `env:"-" help:"Where the page before ended. It prints the command for the next one."`
}

func (c *replaysShow) Run(ctx context.Context, to console) error {
	result := c.Result
	if result == "all" {
		result = ""
	}
	if err := number("limit", c.Limit, 1, 1000); err != nil {
		return err
	}
	return c.desk(to, func(desk *deadletter.Desk, _ kept) error {
		job, err := desk.Replay(ctx, c.ID)
		if err != nil {
			return err
		}
		results, next, err := desk.Results(ctx, c.ID, result, deadletter.Page{After: c.After, Limit: c.Limit})
		if err != nil {
			return err
		}
		if c.Output == "json" {
			return c.print(to, replayJSON{web.ReplayOf(job), web.ReplayResults{Results: each(results, web.ReplayResultOf), Next: next}}, nil)
		}
		if err := c.printReplay(to, job); err != nil {
			return err
		}
		rows := each(results, func(r deadletter.Result) table.Row {
			return table.Row{r.Letter, r.Result, r.Detail, instant(r.At)}
		})
		if err := c.print(to, nil, table.Row{"letter", "result", "detail", "when"}, rows...); err != nil || next == "" {
			return err
		}
		_, err = fmt.Fprintf(to.Err, "There are more: %s\n",
			commandLine("lapse", "replays", "show", c.ID, "--result="+c.Result, "--limit="+strconv.Itoa(c.Limit), "--after="+next))
		return err
	})
}

// replayJSON is what the API says of a job, and of its results.
type replayJSON struct {
	web.Replay
	web.ReplayResults
}

// printReplay prints a job as it is now.
func (f outputFlag) printReplay(to console, r deadletter.Replay) error {
	if f.Output == "json" {
		return f.print(to, web.ReplayOf(r), nil)
	}
	rows := []table.Row{{"replay", r.ID}, {"state", r.State}, {"which letters", commandLine(selectionArgs(r.Selection)...)}}
	if r.To != nil {
		rows = append(rows, table.Row{"to", fmt.Sprintf("exchange %q, key %q", r.To.Exchange, r.To.RoutingKey)})
	}
	rows = append(rows, table.Row{"letters", r.Total}, table.Row{"replayed", r.Published}, table.Row{"settled", r.Settled},
		table.Row{"failed", r.Failed}, table.Row{"left", r.Left()}, table.Row{"rate", rateOf(r)}, table.Row{"who", r.By.Who}, table.Row{"why", r.By.Why})
	for _, more := range []struct{ name, text string }{
		{"waits for", r.Trouble}, {"run by", r.Owner}, {"created", instant(r.CreatedAt)}, {"started", instant(r.StartedAt)}, {"ended", instant(r.EndedAt)},
	} {
		if more.text != "" {
			rows = append(rows, table.Row{more.name, more.text})
		}
	}
	return f.print(to, nil, nil, rows...)
}

func rateOf(r deadletter.Replay) string {
	if r.Rate == 0 {
		return "as fast as they are confirmed"
	}
	return fmt.Sprintf("%d/s", r.Rate)
}

type replaysWatch struct {
	placeFlags
	outputFlag
	ID string `arg:"" name:"id" help:"The job."`
}

func (c *replaysWatch) Run(ctx context.Context, to console) error {
	return c.desk(to, func(desk *deadletter.Desk, _ kept) error {
		job, err := desk.Replay(ctx, c.ID)
		if err != nil {
			return err
		}
		job, err = watch(ctx, to, desk, job, func(context.Context) error {
			return fmt.Errorf("not watched any more: the replay goes on; `lapse replays cancel %s` stops it", c.ID)
		})
		if err != nil {
			return err
		}
		return errors.Join(c.printReplay(to, job), outcome(job))
	})
}

type replaysCancel struct {
	placeFlags
	outputFlag
	deskBy
	ID string `arg:"" name:"id" help:"The job."`
}

func (c *replaysCancel) Run(ctx context.Context, to console) error {
	return c.desk(to, func(desk *deadletter.Desk, _ kept) error {
		if err := desk.Cancel(ctx, c.ID, c.by()); err != nil {
			return err
		}
		job, err := desk.Replay(ctx, c.ID)
		if err != nil {
			return err
		}
		return c.printReplay(to, job)
	})
}
