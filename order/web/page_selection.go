package web

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/lapse-go/lapse/amqp/deadletter"
)

// filterOf reads a filter from an address: the open letters, if it does not say a state.
func filterOf(q url.Values) (f deadletter.Filter, err error) {
	text := func(name string) string { return strings.TrimSpace(q.Get(name)) }
	f = FilterQuery{Filter{
		State: text("state"), Kind: text("kind"), Reason: deadletter.Reason(text("reason")), Group: text("group"),
		Subject: text("subject"), MessageID: text("message_id"), Text: q.Get("text"),
	}}.filter()
	if name := stranger(q); name != "" {
		return f, problem(invalid, "%.80q is nothing by which letters can be filtered", name)
	}
	if f.From, err = parseTime("from", q.Get("from")); err != nil {
		return f, err
	}
	if f.To, err = parseTime("to", q.Get("to")); err != nil {
		return f, err
	}
	return f, f.Validate()
}

// stranger is what in an address says nothing about letters, "" if all does: a condition that is misspelt must not be lost.
func stranger(q url.Values) string {
	known := []string{"state", "kind", "reason", "group", "subject", "message_id", "text", "from", "to", "oldest", "after", "limit", "format", "done", "n"}
	for name := range q {
		if !slices.Contains(known, name) {
			return name
		}
	}
	return ""
}

// chosen is the letters that a form is about: those with the ids, or all that match a filter.
type chosen struct {
	Selection deadletter.Selection
	IDs       []int64
	Filter    string // as in an address
	Scope     string // "ids" or "filter"
}

// readChosen reads it from a form. A filter is there as a whole, with its state, so that one that got lost on the way is an
// error.
func readChosen(r *http.Request) (c chosen, err error) {
	switch c.Scope = r.PostForm.Get("scope"); c.Scope {
	case "ids":
		for _, text := range r.PostForm["id"] {
			id, err := strconv.ParseInt(text, 10, 64)
			if err != nil {
				return c, problem(invalid, "%.80q is no id of a letter", text)
			}
			c.IDs = append(c.IDs, id)
		}
		if len(c.IDs) == 0 {
			return c, problem(invalid, "no letters are selected: tick some, or choose all that match")
		}
		c.Selection.IDs = c.IDs
	case "filter":
		q, err := url.ParseQuery(r.PostForm.Get("filter"))
		if err != nil || q.Get("state") == "" || stranger(q) != "" {
			return c, problem(invalid, "the form does not say which letters: go back to the list")
		}
		f, err := filterOf(q)
		if err != nil {
			return c, err
		}
		c.filter(f)
	default:
		return c, problem(invalid, "the form does not say which letters: go back to the list")
	}
	return c, c.Selection.Validate()
}

// filter has the letters be those that match.
func (c *chosen) filter(f deadletter.Filter) {
	c.Filter = filterQuery(f).Encode()
	c.Selection = deadletter.Selection{Filter: &f}
	if f == (deadletter.Filter{}) {
		c.Selection = deadletter.Selection{All: true} // the form says so: state=all
	}
}

// freeze keeps what dies while somebody makes up his mind out of what was chosen.
func (s *Server) freeze(ctx context.Context, c *chosen) error {
	var f deadletter.Filter
	if c.Selection.Filter != nil {
		f = *c.Selection.Filter
	}
	frozen, err := search(ctx, s, f, func(ctx context.Context) (deadletter.Selection, error) { return s.cfg.Desk.Freeze(ctx, c.Selection) })
	if err == nil && frozen.Filter != nil {
		c.filter(*frozen.Filter)
	}
	return err
}

// Says is the selection in words.
func (c chosen) Says() []string {
	return selectionWords(c.Selection)
}

// maxIDsSaid is how many ids are said in words.
const maxIDsSaid = 10

// selectionWords say what a selection is.
func selectionWords(s deadletter.Selection) []string {
	switch {
	case s.All:
		return []string{"all letters"}
	case s.Filter != nil:
		return filterWords(*s.Filter)
	case len(s.IDs) > maxIDsSaid:
		return []string{plural(len(s.IDs), "letter") + ", by their ids"}
	}
	words := make([]string, len(s.IDs))
	for i, id := range s.IDs {
		words[i] = "letter " + strconv.FormatInt(id, 10)
	}
	return words
}

// filterWords say what a filter is, a condition each.
func filterWords(f deadletter.Filter) (words []string) {
	say := func(name, value string) {
		if value != "" {
			words = append(words, name+" "+value)
		}
	}
	say("state", string(f.State))
	say("kind", f.Kind)
	say("reason", string(f.Reason))
	say("group", f.Group)
	say("about", f.Subject)
	say("message", f.MessageID)
	if !f.From.IsZero() {
		say("died from", f.From.Format("2006-01-02 15:04:05.999999 UTC"))
	}
	if !f.To.IsZero() {
		say("died before", f.To.Format("2006-01-02 15:04:05.999999 UTC"))
	}
	if f.Text != "" {
		say("text", strconv.Quote(f.Text))
	}
	return words
}

// pageOf is the part of a list that an address asks for.
func pageOf(q url.Values) (p deadletter.Page, err error) {
	p.After, p.Oldest = q.Get("after"), q.Get("oldest") != ""
	if text := q.Get("limit"); text != "" {
		if p.Limit, err = strconv.Atoi(text); err != nil || p.Limit < 1 {
			return p, problem(invalid, "limit %.80q: give 1 to 1000", text)
		}
	}
	return p, nil
}

// nextPage is the address of the page after this one; "" if there is none.
func nextPage(r *http.Request, next string) string {
	if next == "" {
		return ""
	}
	q := r.URL.Query()
	q.Del("done")
	q.Del("n")
	q.Set("after", next)
	return r.URL.EscapedPath() + "?" + q.Encode()
}
