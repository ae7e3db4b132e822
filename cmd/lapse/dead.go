package main

import (
	"fmt"
	"log/slog"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/lapse-go/lapse/amqp/deadletter"
	"github.com/lapse-go/lapse/order/checkout"
)

type dead struct {
	List    deadList    `cmd:"" help:"List dead letters, the newest first."`
	Groups  deadGroups  `cmd:"" help:"Group them by what went wrong, those with the most letters first."`
	Show    deadShow    `cmd:"" help:"Show a letter, all that happened to its message, and the state of its order."`
	Replay  deadReplay  `cmd:"" help:"Publish the messages of open letters again, once their orders have been asked."`
	Discard deadDiscard `cmd:"" help:"Take open letters off the desk: they are worth nothing. They can be restored for as long as they are kept."`
	Restore deadRestore `cmd:"" help:"Have letters that were replayed, settled or discarded be open again."`
	Export  deadExport  `cmd:"" help:"Write letters, whole, as NDJSON or CSV, the oldest first."`
}

// desk opens the desk for one thing to do, wherever the orders are. How a replay ends the command says itself, so only warnings
// are logged.
func (f placeFlags) desk(to console, do func(*deadletter.Desk, kept) error) error {
	return f.wherever(checkout.Config{Logger: newLogger(to.Err, slog.LevelWarn)}, func(k kept) error { return do(k.Desk(), k) })
}

// No variable may narrow or widen what is done with letters, so the flags that select them have none.

// filterFlags say which letters.
type filterFlags struct {
	Kind      string `env:"-" help:"Only messages of this kind, such as order.payment_timeout."`
	Reason    reason `env:"-" help:"Only those that died for this reason: hopeless, out-of-tries, delivery-limit, expired, rejected, unroutable or unknown."`
	Group     string `env:"-" help:"Only those of this group, see lapse dead groups."`
	Order     string `env:"-" help:"Only those about this order."`
	MessageID string `env:"-" help:"Only those of this message."`
	Since     moment `env:"-" help:"Only those that died at this time or later: 2030-01-31T12:30:00Z, or how long ago, such as 2h."`
	Until     moment `env:"-" help:"Only those that died before this time."`
	Text      string `env:"-" help:"Only those with this text in body, headers or error. It needs --since."`
}

func (f filterFlags) filter(state deadletter.State) (deadletter.Filter, error) {
	if f.Text != "" && f.Since.time().IsZero() {
		return deadletter.Filter{}, fmt.Errorf("%w: --text looks into every letter: give --since, such as --since=24h", errUsage)
	}
	return deadletter.Filter{
		State: state, Kind: f.Kind, Reason: deadletter.Reason(f.Reason), Group: f.Group, Subject: f.Order, MessageID: f.MessageID,
		From: f.Since.time(), To: f.Until.time(), Text: f.Text,
	}, nil
}

// stateFlag is for those that look.
type stateFlag struct {
	State string `env:"-" enum:"open,replayed,settled,discarded,all" default:"open" help:"open, replayed, settled, discarded or all."`
}

func (f stateFlag) state() deadletter.State {
	if f.State == "all" {
		return ""
	}
	return deadletter.State(f.State)
}

// pageFlags say which part of a list.
type pageFlags struct {
	Oldest bool   `env:"-" help:"The oldest first."`
	Limit  int    `env:"-" default:"50" help:"Most of them, 1 to 1000."`
	After  string `env:"-" help:"Where the page before ended. It prints the command for the next one."`
}

func (f pageFlags) page() (deadletter.Page, error) {
	return deadletter.Page{After: f.After, Limit: f.Limit, Oldest: f.Oldest}, number("limit", f.Limit, 1, 1000)
}

// args is the page after next as flags.
func (f pageFlags) args(next string) []string {
	var args []string
	if f.Oldest {
		args = append(args, "--oldest")
	}
	if f.Limit != 50 {
		args = append(args, "--limit="+strconv.Itoa(f.Limit))
	}
	return append(args, "--after="+next)
}

// selectionFlags say with which letters something is to be done.
type selectionFlags struct {
	filterFlags
	IDs []int64 `arg:"" optional:"" name:"id" help:"Letters. Or give a filter, or --all."`
	All bool    `env:"-" help:"All of them."`
}

// selection wants exactly one of ids, a filter and --all, and of the letters those in a state; "" is any.
func (f selectionFlags) selection(state deadletter.State) (deadletter.Selection, error) {
	filter, err := f.filter("")
	if err != nil {
		return deadletter.Selection{}, err
	}
	ways := 0
	for _, given := range []bool{len(f.IDs) > 0, filter != deadletter.Filter{}, f.All} {
		if given {
			ways++
		}
	}
	if ways != 1 {
		return deadletter.Selection{}, fmt.Errorf("%w: which letters? Give either their ids, or a filter such as --group, or --all", errUsage)
	}
	filter.State = state
	switch {
	case len(f.IDs) > 0:
		named := deadletter.Selection{IDs: f.IDs}
		return named, named.Validate()
	case f.All && (state == "" || state == deadletter.Open): // as whoever takes all understands it
		return deadletter.Selection{All: true}, nil
	}
	return deadletter.Selection{Filter: &filter}, nil
}

// deskBy say who changes letters, and why.
type deskBy struct {
	Who string `default:"${user}" help:"Who does it."`
	Why string `required:"" help:"Why it is done, for the audit."`
}

func (f deskBy) by() deadletter.By { return deadletter.By{Who: f.Who, Why: f.Why} }

// filterArgs are the flags of a filter, with times that stay the same.
func filterArgs(f deadletter.Filter) []string {
	var args []string
	for _, flag := range []struct{ name, value string }{
		{"kind", f.Kind}, {"reason", string(f.Reason)}, {"group", f.Group}, {"order", f.Subject}, {"message-id", f.MessageID},
		{"since", timestamp(f.From)}, {"until", timestamp(f.To)}, {"text", f.Text},
	} {
		if flag.value != "" {
			args = append(args, "--"+flag.name+"="+flag.value)
		}
	}
	return args
}

func selectionArgs(s deadletter.Selection) []string {
	switch {
	case s.All:
		return []string{"--all"}
	case s.Filter != nil:
		return filterArgs(*s.Filter)
	}
	args := make([]string, len(s.IDs))
	for i, id := range s.IDs {
		args[i] = strconv.FormatInt(id, 10)
	}
	return args
}

func timestamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339Nano)
}

// plainWord is one that a shell leaves as it is.
var plainWord = regexp.MustCompile(`^[-_=.:/,+@%0-9a-zA-Z]+$`)

// commandLine is a command as a shell takes it.
func commandLine(words ...string) string {
	quoted := make([]string, len(words))
	for i, word := range words {
		if !plainWord.MatchString(word) {
			word = "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
		}
		quoted[i] = word
	}
	return printable(strings.Join(quoted, " "))
}
