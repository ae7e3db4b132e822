package main

import (
	"context"
	"fmt"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/lapse-go/lapse/amqp/deadletter"
	"github.com/lapse-go/lapse/order/web"
)

type deadList struct {
	placeFlags
	listFlag
	stateFlag
	filterFlags
	pageFlags
}

func (c *deadList) Run(ctx context.Context, to console) error {
	filter, err := c.filter(c.state())
	if err != nil {
		return err
	}
	page, err := c.page()
	if err != nil {
		return err
	}
	return c.desk(to, func(desk *deadletter.Desk, _ kept) error {
		letters, next, err := desk.List(ctx, filter, page)
		if err != nil {
			return err
		}
		count, err := desk.Count(ctx, filter)
		if err != nil {
			return err
		}
		rows := each(letters, c.row)
		header := table.Row{"id", "died", "kind", "order", "reason", "attempts", "replays", "state", "error"}
		if err := c.print(to, web.DeadLetters{DeadLetters: each(letters, web.DeadLetterOf), Next: next, Count: count}, header, rows...); err != nil || next == "" {
			return err
		}
		args := append([]string{"lapse", "dead", "list"}, filterArgs(filter)...)
		if c.State != "open" {
			args = append(args, "--state="+c.State)
		}
		_, err = fmt.Fprintf(to.Err, "%s in all. There are more: %s\n", lettersOf(count), commandLine(append(args, c.args(next)...)...))
		return err
	})
}

func (c *deadList) row(l deadletter.Letter) table.Row {
	text := l.Error
	if c.Output == "table" {
		text = shorten(text, 72)
	}
	return table.Row{l.ID, instant(l.DiedAt), l.Kind, l.Subject, l.Reason, l.Attempts, l.Replays, l.State, text}
}

type deadGroups struct {
	placeFlags
	listFlag
	stateFlag
	filterFlags
}

func (c *deadGroups) Run(ctx context.Context, to console) error {
	filter, err := c.filter(c.state())
	if err != nil {
		return err
	}
	return c.desk(to, func(desk *deadletter.Desk, _ kept) error {
		groups, err := desk.Groups(ctx, filter)
		if err != nil {
			return err
		}
		rows := each(groups, func(g deadletter.Group) table.Row {
			return table.Row{g.ID, g.Count, g.Kind, g.Reason, instant(g.FirstSeen), instant(g.LastSeen), g.Example, g.Pattern}
		})
		return c.print(to, web.DeadLetterGroups{Groups: each(groups, web.DeadLetterGroupOf)}, table.Row{"group", "letters", "kind", "reason", "first", "last", "example", "error"}, rows...)
	})
}
