package main

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/lapse-go/lapse/amqp/deadletter"
	"github.com/lapse-go/lapse/order"
	"github.com/lapse-go/lapse/order/web"
)

type deadShow struct {
	placeFlags
	outputFlag
	ID int64 `arg:"" name:"id" help:"The letter."`
}

func (c *deadShow) Run(ctx context.Context, to console) error {
	return c.desk(to, func(desk *deadletter.Desk, k kept) error {
		letter, err := desk.Get(ctx, c.ID)
		if err != nil {
			return err
		}
		history, err := desk.History(ctx, c.ID)
		if err != nil {
			return err
		}
		about, err := k.about(ctx, letter.Subject)
		if err != nil {
			return err
		}
		if c.Output == "json" {
			return c.print(to, letterJSON{web.WholeDeadLetterOf(letter, history...), about}, nil)
		}
		return c.printLetter(to, letter, history, about)
	})
}

// letterJSON is what the API says, and the order.
type letterJSON struct {
	web.DeadLetter
	Order *head `json:"order,omitempty"`
}

// about is the order that a letter is about, nil if there is none.
func (k kept) about(ctx context.Context, id string) (*head, error) {
	if order.ValidateID("order id", id) != nil {
		return nil, nil
	}
	if k.table != nil {
		found, err := k.table.Find(ctx, []string{id})
		if o, ok := found[id]; ok {
			return &head{o.ID, string(o.Status), o.Deadline}, err
		}
		return nil, err
	}
	o, err := k.shop.Get(ctx, id)
	if errors.Is(err, order.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &head{o.ID, string(o.Status), o.Deadline}, nil
}

func (c *deadShow) printLetter(to console, l deadletter.Letter, history []deadletter.Event, about *head) error {
	rows := []table.Row{
		{"letter", l.ID},
		{"state", l.State},
	}
	more := func(name string, value any) {
		if text := fmt.Sprint(value); text != "" && text != "0" {
			rows = append(rows, table.Row{name, text})
		}
	}
	if l.State != deadletter.Open {
		more("since", instant(l.ResolvedAt))
		more("by", l.ResolvedBy)
		more("why", l.Resolution)
	}
	more("last replay", l.Replay)
	more("kind", l.Kind)
	more("message id", l.MessageID)
	more("order", l.Subject)
	switch {
	case about != nil:
		more("its state", about.Status+", deadline "+instant(about.Deadline))
	case l.Subject != "":
		more("its state", "there is no such order")
	}
	more("died", instant(l.DiedAt))
	more("collected", instant(l.CollectedAt))
	more("from queue", l.Queue)
	rows = append(rows, table.Row{"first route", fmt.Sprintf("exchange %q, key %q", l.Exchange, l.RoutingKey)})
	more("reason", l.Reason)
	more("attempts", l.Attempts)
	more("error", l.Error)
	if l.FirstError != l.Error {
		more("first error", l.FirstError)
	}
	more("first error at", instant(l.FirstErrorAt))
	more("group", l.Group)
	more("replays before", l.Replays)
	more("last by", l.ReplayedBy)
	p := l.Properties
	for _, property := range []struct{ name, value string }{
		{"content type", p.ContentType}, {"content encoding", p.ContentEncoding}, {"correlation id", p.CorrelationID}, {"reply to", p.ReplyTo},
		{"type", p.Type}, {"app id", p.AppID}, {"timestamp", instant(p.Timestamp)},
	} {
		more(property.name, property.value)
	}
	more("priority", p.Priority)
	if err := printTable(to.Out, nil, rows); err != nil {
		return err
	}
	events := each(history, func(e deadletter.Event) table.Row {
		return table.Row{instant(e.At), e.Letter, e.What, e.Who, e.Detail, e.Replay}
	})
	if err := printTable(to.Out, table.Row{"when", "letter", "what", "who", "detail", "replay"}, events); err != nil {
		return err
	}
	if len(l.Headers) > 0 {
		headers, err := web.Headers(l.Headers).MarshalJSON()
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(to.Out, "headers:\n%s\n", strings.TrimRight(readable(headers), "\n")); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(to.Out, "body, %d bytes:\n%s\n", len(l.Body), strings.TrimRight(readable(l.Body), "\n"))
	return err
}

const (
	mostShown  = 64 << 10 // bytes of a body; export has all of it
	mostDumped = 4 << 10
	mostNested = 64 // levels of JSON that are indented
)

// readable is a body as a person reads it: JSON indented, its numbers as they are; other text; or a dump.
func readable(body []byte) string {
	switch {
	case len(body) == 0:
		return ""
	case !utf8.Valid(body):
		return cut(body, mostDumped, hex.Dump)
	case len(body) <= mostShown && nesting(body) <= mostNested:
		var indented bytes.Buffer
		if json.Indent(&indented, body, "", "  ") == nil {
			return printableLines(indented.String())
		}
	}
	return cut(body, mostShown, func(part []byte) string { return printableLines(string(part)) })
}

func cut(body []byte, most int, show func([]byte) string) string {
	if len(body) <= most {
		return show(body)
	}
	return fmt.Sprintf("%s\n… and %d bytes more, which `lapse dead export` has", strings.TrimRight(show(body[:most]), "\n"), len(body)-most)
}

// nesting is how deep JSON is, at most: indenting what is deep is a lot of spaces.
func nesting(body []byte) (deepest int) {
	depth := 0
	for _, b := range body {
		switch b {
		case '{', '[':
			depth++
			deepest = max(deepest, depth)
		case '}', ']':
			depth--
		}
	}
	return deepest
}
