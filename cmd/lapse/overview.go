package main

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/amqp/database"
	"github.com/lapse-go/lapse/amqp/outbox"
	"github.com/lapse-go/lapse/order"
	"github.com/lapse-go/lapse/order/checkout"
	"github.com/lapse-go/lapse/order/orderdb"
	"github.com/lapse-go/lapse/order/web"
)

type overview struct {
	databaseFlags
	tableFlag
	brokerFlags
	topologyFlags
	grace
	outputFlag
}

// Run fails if not all is known, once it has printed the rest.
func (c *overview) Run(ctx context.Context, to console) error {
	if err := c.grace.validate(); err != nil {
		return err
	}
	quiet := slog.New(slog.DiscardHandler) // what it would log is printed
	broker, err := c.brokerFlags.config("lapse-overview", quiet)
	if err != nil {
		return err
	}
	db, closing, err := c.open(database.Options{Logger: quiet})
	if err != nil {
		return err
	}
	defer closing()
	cfg := c.topologyFlags.checkout()
	cfg.SweepGrace, cfg.Logger = c.SweepGrace.time(), quiet
	k, err := c.keep(db, cfg)
	if err != nil {
		return err
	}
	o := k.Look(ctx, broker)
	rows, missing := overviewRows(o)
	if err := c.print(to, web.OverviewOf(o), nil, rows...); err != nil {
		return err
	}
	if missing != nil {
		return fmt.Errorf("not all is known: %w", missing)
	}
	return nil
}

// overviewRows are the lines of the table, and why the first part is missing that is not known.
func overviewRows(o checkout.Overview) (rows []table.Row, missing error) {
	trouble := "none"
	if o.Trouble != "" {
		trouble = o.Trouble
	}
	rows = append(rows, table.Row{"as of", instant(o.At)}, table.Row{"trouble", trouble})
	add := func(name string, err error, text func() string) {
		if err == nil {
			rows = append(rows, table.Row{name, text()})
			return
		}
		rows = append(rows, table.Row{name, fmt.Sprintf("not known: %s", err)})
		if missing == nil {
			missing = err
		}
	}
	part(add, "expiry", o.Pause, expiryLine)
	part(add, "orders", o.Orders, ordersLine)
	part(add, "overdue", o.Overdue, func(v checkout.Overdue) string {
		return over(v.Orders, checkout.MostOverdue) + since(v.Oldest, ", the oldest by ")
	})
	part(add, "closing", o.Closing, closingLine)
	part(add, "outbox", o.Outbox, func(b outbox.Backlog) string {
		return fmt.Sprintf("%s, %d set aside%s", over(b.Rows, checkout.MostCounted), b.SetAside, since(b.Oldest, ", the oldest for "))
	})
	part(add, "open dead letters", o.Letters, func(n int64) string { return over(int(n), checkout.MostCounted) })
	if o.Queues.Err != nil {
		add("queues", o.Queues.Err, nil)
		return rows, missing
	}
	waiting := int64(0)
	for _, d := range o.Queues.Value.Depths {
		if d.Role == "rung" {
			waiting += d.Messages
		}
	}
	rows = append(rows, table.Row{"waiting timers", waiting})
	for _, d := range o.Queues.Value.Depths {
		if d.Role != "rung" || d.Messages > 0 || d.Missing {
			rows = append(rows, table.Row{"queue " + d.Queue, depthLine(d)})
		}
	}
	return rows, missing
}

// part adds a part, unless there is no such thing.
func part[T any](add func(string, error, func() string), name string, known *checkout.Known[T], line func(T) string) {
	if known != nil {
		add(name, known.Err, func() string { return line(known.Value) })
	}
}

func expiryLine(p order.Pause) string {
	if !p.Paused {
		return "goes on"
	}
	line := "paused since " + instant(p.Since) + " by " + p.By.Who
	if p.By.Why != "" {
		line += ": " + p.By.Why
	}
	return line
}

func ordersLine(counts map[order.Status]int) string {
	var all []string
	for _, status := range []order.Status{order.Pending, order.Paid, order.Cancelled, order.Expired} {
		all = append(all, over(counts[status], checkout.MostCounted)+" "+string(status))
	}
	return strings.Join(all, ", ")
}

func closingLine(c orderdb.Closing) string {
	if c.Orders == 0 {
		return "none was due in the last " + duration(c.Since).String()
	}
	return fmt.Sprintf("%d were due in the last %s, %.1f/s; half of them %s late or less, 99 %% %s",
		c.Orders, c.Since.Round(time.Millisecond), c.Rate, c.P50.Round(time.Millisecond), c.P99.Round(time.Millisecond))
}

func depthLine(d amqp.Depth) string {
	if d.Missing {
		return "missing: `lapse topology apply` makes it"
	}
	return fmt.Sprint(d.Messages)
}

// over is a number that is counted up to a limit.
func over(n, most int) string {
	if n >= most {
		return fmt.Sprintf("over %d", most)
	}
	return fmt.Sprint(n)
}

// since is for how long, if at all.
func since(d time.Duration, what string) string {
	if d == 0 {
		return ""
	}
	return what + d.Round(time.Millisecond).String()
}
