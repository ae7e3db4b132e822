package web

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/amqp/database"
	"github.com/lapse-go/lapse/order"
	"github.com/lapse-go/lapse/order/checkout"
)

// pageFuncs are what templates say things with. Everything from outside is escaped by html/template, or by visible.
var pageFuncs = template.FuncMap{
	"when": when, "number": number, "visible": visible, "duration": duration, "size": size, "orderPage": orderPage,
	"rung": amqp.RungName, "why": why, "plural": plural,
	"replayPage": replayPage, "shortID": shortID, "hint": hint, "actions": func() []string { return actions },
	"letterPage": func(id int64) string { return fmt.Sprintf("/letters/%d", id) },
}

// shortID is the beginning of a replay's id, which tells replays apart: it is the millisecond in which they were asked for.
func shortID(id string) string {
	const most = len("01a23023-8d5e")
	if len(id) <= most {
		return id
	}
	return id[:most] + "…"
}

// when is a time in UTC, with how long ago or ahead that is.
func when(at time.Time) template.HTML {
	if at.IsZero() {
		return "–"
	}
	at = at.UTC()
	return template.HTML(fmt.Sprintf(`<time datetime="%s" title="%s">%s <span class="ago">%s</span></time>`,
		at.Format(time.RFC3339Nano), at.Format("2006-01-02 15:04:05.000000 MST"), at.Format("2006-01-02 15:04:05"), relative(time.Since(at))))
}

func relative(ago time.Duration) string {
	if ago < 0 {
		if text := roughly(-ago); text != "" {
			return "in " + text
		}
		return "now"
	}
	if text := roughly(ago); text != "" {
		return text + " ago"
	}
	return "now"
}

// roughly is a duration in its largest unit; "" if it is less than a second.
func roughly(d time.Duration) string {
	for _, unit := range []struct {
		name string
		is   time.Duration
	}{{"d", 24 * time.Hour}, {"h", time.Hour}, {"min", time.Minute}, {"s", time.Second}} {
		if n := d / unit.is; n >= 2 || n == 1 && unit.is <= time.Minute {
			return fmt.Sprintf("%d %s", n, unit.name)
		}
	}
	return ""
}

// duration is a duration as precise as people need it.
func duration(d time.Duration) string {
	switch {
	case d < 10*time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < time.Minute:
		return fmt.Sprintf("%d s", int(d.Seconds()))
	}
	return roughly(d)
}

// number is a whole number with its thousands apart.
func number(n any) string { return thousands(fmt.Sprint(n)) }

func thousands(digits string) string {
	for i := len(digits) - 3; i > 0 && digits[i-1] != '-'; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// plural is "1 letter" or "2 letters".
func plural(n any, one string) string {
	if fmt.Sprint(n) == "1" {
		return "1 " + one
	}
	return number(n) + " " + one + "s"
}

// size is a number of bytes.
func size(n int) string {
	switch {
	case n < 10<<10:
		return number(n) + " B"
	case n < 10<<20:
		return number(n>>10) + " KiB"
	}
	return number(n>>20) + " MiB"
}

// visible is text of any bytes, with those characters marked that one would not see, or that would move others about.
func visible(text any) template.HTML {
	var b strings.Builder
	for s := fmt.Sprint(text); s != ""; {
		r, n := utf8.DecodeRuneInString(s)
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `<mark class="char">\x%02x</mark>`, s[0])
		case r == '\n', r == '\t':
			b.WriteRune(r)
		case unicode.IsControl(r), unicode.Is(unicode.Cf, r), r == '\u2028', r == '\u2029':
			fmt.Fprintf(&b, `<mark class="char">U+%04X</mark>`, r)
		default:
			b.WriteString(template.HTMLEscapeString(s[:n]))
		}
		s = s[n:]
	}
	return template.HTML(b.String())
}

// why is why something is not known, without the addresses that errors of servers name.
func why(err error) string {
	if errors.Is(err, checkout.ErrBroker) {
		return checkout.ErrBroker.Error()
	}
	if errors.Is(err, order.ErrUnavailable) || database.IsOutage(err) {
		return "the database is busy or away"
	}
	if _, panicked := errors.AsType[*panicError](err); panicked {
		return "the service failed"
	}
	return err.Error()
}

// orderPage is where an order is on the page.
func orderPage(id string) string { return "/orders/" + segment(id) }

const (
	maxShown = 64 << 10 // bytes of a body
	maxHex   = 4 << 10  // of one that is shown as numbers
	maxDepth = 32       // of JSON that is indented
)

// body is a message's body for people to read.
type body struct {
	As   string // "JSON", "text", "bytes" or "nothing"
	Text string
	Cut  bool // there is more
}

// bodyOf shows JSON indented, with its numbers as they are, other text as it is, and anything else as a dump.
func bodyOf(raw []byte) body {
	switch {
	case len(raw) == 0:
		return body{As: "nothing"}
	case len(raw) <= maxShown && shallow(raw) && json.Valid(raw) && utf8.Valid(raw):
		var text bytes.Buffer
		if json.Indent(&text, raw, "", "  ") == nil {
			return body{As: "JSON", Text: text.String()}
		}
	}
	text := raw[:min(len(raw), maxShown)]
	for n := 0; n < utf8.UTFMax && len(text) < len(raw) && !utf8.Valid(text); n++ {
		text = text[:len(text)-1] // it was cut within a character
	}
	if utf8.Valid(text) {
		return body{As: "text", Text: string(text), Cut: len(text) < len(raw)}
	}
	part := raw[:min(len(raw), maxHex)]
	return body{As: "bytes", Text: hex.Dump(part), Cut: len(part) < len(raw)}
}

// shallow is whether nothing in the text is nested so deep that indenting it makes it large.
func shallow(text []byte) bool {
	depth := 0
	for _, c := range text {
		switch c {
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		}
		if depth > maxDepth {
			return false // or there are many brackets in a string
		}
	}
	return true
}

// parseTime reads a time as people and browsers write it, in UTC unless it says otherwise; zero if it is empty.
func parseTime(name, text string) (time.Time, error) {
	if text = strings.TrimSpace(text); text == "" {
		return time.Time{}, nil
	}
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04:05.999999", "2006-01-02T15:04", "2006-01-02 15:04:05.999999", "2006-01-02 15:04", "2006-01-02"} {
		if at, err := time.Parse(layout, text); err == nil {
			return at.UTC(), nil
		}
	}
	if ago, err := time.ParseDuration(text); err == nil && ago > 0 {
		return time.Now().UTC().Add(-ago), nil
	}
	return time.Time{}, problem(invalid, "%s: %.80q is no time: give how long ago, such as \"24h\", or a time in UTC, such as \"2026-05-01 13:30\"", name, text)
}

// forInput is a time as a browser's input wants it.
func forInput(at time.Time) string {
	if at.IsZero() {
		return ""
	}
	return at.UTC().Format("2006-01-02T15:04:05")
}

func parseID(text string) (int64, error) {
	id, err := strconv.ParseInt(text, 10, 64)
	if err != nil || id < 1 {
		return 0, problem(notFoundHere, "there is no letter %.80q", text)
	}
	return id, nil
}
