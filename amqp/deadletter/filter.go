package deadletter

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Filter says which letters. What is zero does not restrict. Times are of the death.
type Filter struct {
	State     State     `json:"state,omitempty"` // all when empty
	Kind      string    `json:"kind,omitempty"`
	Reason    Reason    `json:"reason,omitempty"`
	Group     string    `json:"group,omitempty"`
	Subject   string    `json:"subject,omitempty"` // an order's id, for instance
	MessageID string    `json:"message_id,omitempty"`
	From      time.Time `json:"from,omitzero"` // included
	To        time.Time `json:"to,omitzero"`   // not included
	// Text is somewhere in the body, the headers or the error, byte by byte: at most 200 bytes. It needs
	// From, because every letter since then is read for it.
	Text string `json:"text,omitempty"`
}

const maxText = 200

// Validate says what is wrong with the filter, as an error that wraps [ErrInvalid], or nil.
func (f Filter) Validate() error {
	switch {
	case f.State != "" && !slices.Contains(States, f.State):
		return fmt.Errorf("%w: state %.80q: give %s", ErrInvalid, f.State, list(States))
	case f.Reason != "" && !slices.Contains(Reasons, f.Reason):
		return fmt.Errorf("%w: reason %.80q: give %s", ErrInvalid, f.Reason, list(Reasons))
	case f.Group != "" && !isFingerprint(f.Group):
		return fmt.Errorf("%w: group %.80q: give the 16 hexadecimal digits that the list of groups has", ErrInvalid, f.Group)
	case f.Text != "" && f.From.IsZero():
		return fmt.Errorf("%w: a text without a time: say from when on letters are searched for it", ErrInvalid)
	case len(f.Text) > maxText:
		return fmt.Errorf("%w: a text of %d bytes: give at most %d", ErrInvalid, len(f.Text), maxText)
	}
	return validSpan(f.From, f.To)
}

// validSpan says what is wrong with a time from and to, each of which may be zero.
func validSpan(from, to time.Time) error {
	if !from.IsZero() && !to.IsZero() && !from.Before(to) {
		return fmt.Errorf("%w: a time from %s to %s: give one that begins before it ends", ErrInvalid, from.Format(time.RFC3339), to.Format(time.RFC3339))
	}
	for _, at := range []time.Time{from, to} {
		if !at.IsZero() && (at.UTC().Year() < 1000 || at.UTC().Year() > 9999) {
			return fmt.Errorf("%w: a time in the year %d: give one that a database knows", ErrInvalid, at.UTC().Year())
		}
	}
	return nil
}

// list is words for people: a, b or c.
func list[T ~string](words []T) string {
	var b strings.Builder
	for i, word := range words {
		switch {
		case i == len(words)-1 && i > 0:
			b.WriteString(" or ")
		case i > 0:
			b.WriteString(", ")
		}
		b.WriteString(string(word))
	}
	return b.String()
}

// conditions are the filter in SQL, without its state, about the table of letters.
func (f Filter) conditions() (all []condition) {
	// As bytes, which no character set makes others of.
	equal := func(column, value string) {
		if value != "" {
			all = append(all, condition{column + " = ?", []any{blob(value)}})
		}
	}
	equal("kind", f.Kind)
	equal("reason", string(f.Reason))
	equal("fingerprint", f.Group)
	equal("subject", f.Subject)
	equal("message_id", f.MessageID)
	if !f.From.IsZero() {
		all = append(all, condition{"died_at >= ?", []any{upward(f.From)}})
	}
	if !f.To.IsZero() {
		all = append(all, condition{"died_at < ?", []any{upward(f.To)}})
	}
	if f.Text != "" {
		text := blob(f.Text)
		all = append(all, condition{"(INSTR(body, ?) > 0 OR INSTR(headers, ?) > 0 OR INSTR(headers, ?) > 0" +
			" OR INSTR(CAST(error AS BINARY), ?) > 0 OR INSTR(CAST(first_error AS BINARY), ?) > 0)",
			[]any{text, text, blob(inHeaders(f.Text)), text, text}})
	}
	return all
}

// upward is the first instant that a letter can have died at, which the database keeps in microseconds, not before t.
func upward(t time.Time) instant {
	return instant(t.Add(time.Microsecond - 1).Truncate(time.Microsecond))
}

// table is the letters, by the index that has those of one state that match together, in the order of their deaths. Left
// to themselves, servers that do not know how few are read go through the whole table and sort it (tried with MariaDB
// 10.11).
func (f Filter) table() string {
	index := "state"
	switch {
	case f.MessageID != "":
		index = "message"
	case f.Subject != "":
		index = "subject"
	case f.Group != "":
		index = "group"
	case f.Kind != "":
		index = "kind"
	}
	return "lapse_dead_letters FORCE INDEX (lapse_dead_letters_" + index + ")"
}

// condition is a part of a WHERE.
type condition struct {
	sql  string
	args []any
}

// where joins conditions; TRUE if there are none.
func where(all ...condition) (sql string, args []any) {
	parts := []string{"TRUE"}
	for _, c := range all {
		parts, args = append(parts, c.sql), append(args, c.args...)
	}
	return strings.Join(parts, " AND "), args
}
