package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/lapse-go/lapse/order"
)

// demoResult is what the demonstration came to.
type demoResult struct {
	Placed         int      `json:"placed"`
	Paid           int      `json:"paid"`
	Cancelled      int      `json:"cancelled"`
	Expired        int      `json:"expired"`
	Pending        int      `json:"pending"`
	Extended       int      `json:"extended"`
	LatePayments   int      `json:"late_payments"`
	DeadLetters    int      `json:"dead_letters"`
	Letters        []letter `json:"letters"`
	Groups         int      `json:"groups"`           // of the dead letters
	Replayed       int      `json:"replayed"`         // dead letters whose messages were published again
	SettledByGuard int      `json:"settled_by_guard"` // dead letters whose orders were paid meanwhile
	Returned       int      `json:"returned"`         // replayed messages that died again
	Lateness       lateness `json:"lateness_ms"`
	StockConserved bool     `json:"stock_conserved"`
	Problems       []string `json:"problems"`
	OK             bool     `json:"ok"`
}

// letter is a dead letter as the demonstration shows it.
type letter struct {
	Reason string `json:"reason"`
	Error  string `json:"error"`
}

// lateness is from an order's deadline to its expiry, by the database's clock, in milliseconds.
type lateness struct {
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

// judge holds what the database says against what was planned.
func (d *demoRun) judge(ctx context.Context, plans []plan) error {
	r := &d.result
	r.Problems = []string{}
	var late []time.Duration
	sold := map[string]int64{}
	for _, p := range plans {
		o, err := d.Get(ctx, p.id)
		if err != nil {
			return err
		}
		r.Placed++
		switch o.Status {
		case order.Paid:
			r.Paid++
			for _, line := range o.Lines {
				sold[line.SKU] += line.Quantity
			}
		case order.Cancelled:
			r.Cancelled++
		case order.Expired:
			r.Expired++
			late = append(late, o.ClosedAt.Sub(o.Deadline))
			if o.ClosedAt.Before(o.Deadline) {
				r.problem("%s was expired before its deadline", o.ID)
			}
		case order.Pending:
			r.Pending++
		}
		if o.Deadline.Sub(o.PlacedAt) > o.Window {
			r.Extended++
		}
		lates := 0
		for _, payment := range o.Payments {
			if payment.Late {
				lates++
			}
		}
		r.LatePayments += lates
		if o.Status != p.ends || (lates == 1) != p.late {
			r.problem("%s is %s with %d late payments, but should be %s", o.ID, o.Status, lates, p.ends)
		}
	}
	for _, l := range d.letters {
		r.Letters = append(r.Letters, letter{string(l.Reason), l.Error})
	}
	if len(late) > 0 {
		slices.Sort(late)
		r.Lateness = lateness{millis(late[len(late)/2]), millis(late[len(late)*99/100]), millis(late[len(late)-1])}
	}
	stock, err := d.Stock(ctx, demoArticles...)
	if err != nil {
		return err
	}
	r.StockConserved = len(stock) == len(demoArticles)
	for _, s := range stock {
		if s.Reserved != 0 || s.Sold != sold[s.SKU] || s.Available+s.Sold != demoStock {
			r.StockConserved = false
			r.problem("stock of %s: %d available, %d reserved, %d sold", s.SKU, s.Available, s.Reserved, s.Sold)
		}
	}
	if err := d.judgeDesk(ctx); err != nil {
		return err
	}
	r.OK = r.StockConserved && len(r.Problems) == 0
	return nil
}

func (r *demoResult) problem(format string, args ...any) {
	r.Problems = append(r.Problems, fmt.Sprintf(format, args...))
}

func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// report writes the result to standard output.
func (d *demoRun) report(output outputFlag) error {
	r := d.result
	rows := []table.Row{
		{"orders placed", r.Placed},
		{"  paid in time", r.Paid},
		{"  cancelled", r.Cancelled},
		{"  expired", r.Expired},
		{"  still pending", r.Pending},
		{"given more time", r.Extended},
		{"paid too late, to be refunded", r.LatePayments},
		{"lateness of expiry, median", fmt.Sprintf("%.0f ms", r.Lateness.P50)},
		{"lateness, 99th percentile", fmt.Sprintf("%.0f ms", r.Lateness.P99)},
		{"stock conserved", yes(r.StockConserved)},
		{"dead letters", r.DeadLetters},
	}
	for _, l := range r.Letters {
		rows = append(rows, table.Row{"  " + l.Reason, shorten(l.Error, 72)})
	}
	rows = append(rows, table.Row{"  groups of them", r.Groups}, table.Row{"  replayed", r.Replayed},
		table.Row{"  settled: their orders were paid meanwhile", r.SettledByGuard}, table.Row{"  died again, and came back", r.Returned})
	for _, p := range r.Problems {
		rows = append(rows, table.Row{"PROBLEM", p})
	}
	return output.print(d.to, r, nil, append(rows, table.Row{"it all adds up", yes(r.OK)})...)
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "NO"
}

func shorten(text string, n int) string {
	runes := []rune(text)
	if len(runes) <= n {
		return text
	}
	return string(runes[:n-1]) + "…"
}
