package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/lapse-go/lapse/amqp/deadletter"
	"github.com/lapse-go/lapse/order/web"
)

type deadDiscard struct {
	resolveFlags
}

type deadRestore struct {
	resolveFlags
	State string `env:"-" enum:"replayed,settled,discarded,resolved" default:"resolved" help:"replayed, settled, discarded, or resolved in any of these ways."`
}

// resolveFlags are those of what changes letters and publishes nothing.
type resolveFlags struct {
	placeFlags
	outputFlag
	selectionFlags
	deskBy
	yesFlag
}

func (c *deadDiscard) Run(ctx context.Context, to console) error {
	return c.resolve(ctx, to, deadletter.Open, "discard", (*deadletter.Desk).Discard)
}

func (c *deadRestore) Run(ctx context.Context, to console) error {
	state := deadletter.State(c.State)
	if c.State == "resolved" {
		state = ""
	}
	return c.resolve(ctx, to, state, "restore", (*deadletter.Desk).Restore)
}

func (c *resolveFlags) resolve(ctx context.Context, to console, state deadletter.State, verb string,
	do func(*deadletter.Desk, context.Context, deadletter.Selection, deadletter.By) (int64, error),
) error {
	selection, err := c.selection(state)
	if err != nil {
		return err
	}
	return c.desk(to, func(desk *deadletter.Desk, _ kept) error {
		if err := c.mayAsk(to); err != nil {
			return err
		}
		if selection, err = desk.Freeze(ctx, selection); err != nil {
			return err
		}
		meant, err := count(ctx, to, desk, selection, state)
		if err != nil {
			return err
		}
		var n int64
		if meant > 0 || c.Yes {
			if err := c.confirm(ctx, to, fmt.Sprintf("%s %s?", strings.ToUpper(verb[:1])+verb[1:], lettersOf(meant))); err != nil {
				return err
			}
			n, err = do(desk, ctx, selection, c.by())
		}
		if busy, ok := errors.AsType[*deadletter.BusyError](err); ok {
			err = fmt.Errorf("%w\n`lapse replays watch %s` shows how far it is", err, busy.Replay)
		}
		if err != nil && n > 0 {
			err = fmt.Errorf("%w: %s, then: %w\nThe same command goes on from there", errPartly, lettersOf(n), err)
		}
		switch {
		case err != nil && n == 0:
			return err
		case n == 0 && verb == "discard":
			fmt.Fprintln(to.Err, "Nothing was discarded: none of them is open.")
		case n == 0:
			fmt.Fprintln(to.Err, "Nothing was restored: none of them is resolved.")
		}
		return errors.Join(c.print(to, web.Affected{Count: n}, table.Row{strings.TrimSuffix(verb, "e") + "ed"}, table.Row{n}), err)
	})
}

// count is how many letters are meant: those in that state, or resolved in any way when it is "". It says which of those
// that are named are not.
func count(ctx context.Context, to console, desk *deadletter.Desk, s deadletter.Selection, state deadletter.State) (int64, error) {
	if len(s.IDs) > 0 {
		return leaveOut(ctx, to, desk, s.IDs, state)
	}
	var filter deadletter.Filter
	if s.Filter != nil {
		filter = *s.Filter
	}
	filter.State = state
	n, err := desk.Count(ctx, filter)
	if err != nil || state != "" {
		return n, err
	}
	filter.State = deadletter.Open
	open, err := desk.Count(ctx, filter)
	return n - open, err
}
