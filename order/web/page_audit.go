package web

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	"github.com/lapse-go/lapse/amqp/deadletter"
)

// actions are what there is in the audit, for the filter to propose.
var actions = []string{"replay", "replay.cancel", "replay.end", "discard", "restore", "order.extend", "order.extend-all", "order.cancel", "pause", "resume", "sweep"}

type auditView struct {
	Filter   deadletter.AuditFilter
	From, To string // as they were given
	Entries  []auditRow
	Next     string
	Problem  string // with the filter; nothing is listed then
}

type auditRow struct {
	deadletter.Entry
	Link string   // to what it is about
	Says []string // what was selected
}

func (s *Server) auditPage(r *http.Request) (view, error) {
	q := r.URL.Query()
	text := func(name string) string { return strings.TrimSpace(q.Get(name)) }
	a := auditView{
		Filter: deadletter.AuditFilter{Actor: text("actor"), Action: text("action"), Subject: text("subject")},
		From:   q.Get("from"), To: q.Get("to"),
	}
	var from, to error
	a.Filter.From, from = parseTime("from", a.From)
	a.Filter.To, to = parseTime("before", a.To)
	p, err := pageOf(q)
	if err = cmp.Or(from, to, err); err == nil {
		a, err = s.listAudit(r, a, p)
	}
	v := view{Template: "audit", Title: "Audit", Section: "/audit"}
	err = v.complain(&a.Problem, err)
	v.Data = a
	return v, err
}

// listAudit adds what matches the filter, if all goes well.
func (s *Server) listAudit(r *http.Request, asked auditView, p deadletter.Page) (auditView, error) {
	found, err := look(r.Context(), s, func(ctx context.Context) (auditView, error) {
		a := asked
		entries, next, err := s.cfg.Desk.Audit(ctx, a.Filter, p)
		a.Next = nextPage(r, next)
		for _, e := range entries {
			a.Entries = append(a.Entries, auditRow{e, s.subjectPage(e), selectedIn(e)})
		}
		return a, err
	})
	if err != nil {
		return asked, err
	}
	return found, nil
}

// Counts is whether what was done is done to a number of things.
func (e auditRow) Counts() bool {
	return !slices.Contains([]string{"pause", "resume", "replay.cancel"}, e.Action)
}

// selectedIn is what was selected, in words; as it is kept, if it is nothing that has any.
func selectedIn(e deadletter.Entry) []string {
	if e.Selection == "" {
		return nil
	}
	if e.Action == "order.extend-all" {
		var more struct{ By, Tag string }
		if err := json.Unmarshal([]byte(e.Selection), &more); err == nil && more.By != "" {
			which := "all pending orders"
			if more.Tag != "" {
				which = "orders with the tag " + more.Tag
			}
			return []string{which, "by " + more.By}
		}
	}
	var chosen deadletter.Selection
	if err := json.Unmarshal([]byte(e.Selection), &chosen); err != nil || chosen.Validate() != nil {
		return []string{e.Selection}
	}
	return selectionWords(chosen)
}

// subjectPage is the page of what an entry is about; "" if there is none.
func (s *Server) subjectPage(e deadletter.Entry) string {
	switch {
	case e.Subject == "":
	case strings.HasPrefix(e.Action, "replay"):
		return replayPage(e.Subject)
	case (e.Action == "order.extend" || e.Action == "order.cancel") && s.cfg.Orders != nil:
		return orderPage(e.Subject)
	}
	return ""
}
