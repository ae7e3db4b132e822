package main

import (
	"context"
	"fmt"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/lapse-go/lapse/amqp/deadletter"
	"github.com/lapse-go/lapse/order/web"
)

type audit struct {
	placeFlags
	listFlag
	pageFlags
	Actor   string `env:"-" help:"Only what this one did."`
	Action  string `env:"-" help:"Only this action, such as replay, discard or pause."`
	Subject string `env:"-" help:"Only what was done to this order or replay."`
	Since   moment `env:"-" help:"Only what was done at this time or later: 2030-01-31T12:30:00Z, or how long ago, such as 2h."`
	Until   moment `env:"-" help:"Only what was done before this time."`
}

func (c *audit) Run(ctx context.Context, to console) error {
	page, err := c.page()
	if err != nil {
		return err
	}
	filter := deadletter.AuditFilter{Actor: c.Actor, Action: c.Action, Subject: c.Subject, From: c.Since.time(), To: c.Until.time()}
	return c.desk(to, func(desk *deadletter.Desk, _ kept) error {
		entries, next, err := desk.Audit(ctx, filter, page)
		if err != nil {
			return err
		}
		rows := each(entries, func(e deadletter.Entry) table.Row {
			return table.Row{e.ID, instant(e.At), e.Actor, e.Action, e.Subject, e.Selection, e.Count, e.Reason, e.Result}
		})
		header := table.Row{"id", "when", "who", "action", "subject", "selection", "count", "why", "result"}
		if err := c.print(to, web.Audit{Entries: each(entries, web.AuditEntryOf), Next: next}, header, rows...); err != nil || next == "" {
			return err
		}
		args := []string{"lapse", "audit"}
		for _, flag := range []struct{ name, value string }{
			{"actor", c.Actor}, {"action", c.Action}, {"subject", c.Subject}, {"since", timestamp(filter.From)}, {"until", timestamp(filter.To)},
		} {
			if flag.value != "" {
				args = append(args, "--"+flag.name+"="+flag.value)
			}
		}
		_, err = fmt.Fprintf(to.Err, "There are more: %s\n", commandLine(append(args, c.args(next)...)...))
		return err
	})
}
