package web

import (
	"cmp"
	"context"
	"net/http"
	"net/url"

	"github.com/lapse-go/lapse/amqp/deadletter"
)

type lettersView struct {
	Filter         deadletter.Filter
	From, To       string // as they were given
	Oldest         bool
	States         []string
	Reasons        []deadletter.Reason
	Groups         []deadletter.Group
	InGroup        *deadletter.Group // the only one that is listed
	Letters        []deadletter.Letter
	Problem        string // with the filter; nothing is listed then
	Count          int64
	Query          string // the filter as an address
	Next, First    string
	Replay, Settle bool // what there is to do with letters in this state
}

func (s *Server) registerLetterPages() {
	if s.cfg.Desk == nil {
		return
	}
	s.page("GET /letters", "page-letters", Viewer, s.lettersPage)
	s.handle(&operation{id: "page-export", method: http.MethodGet, path: "/letters/export", role: Viewer, page: true}, s.exportPage)
	s.page("GET /letters/{id}", "page-letter", Viewer, s.letterPage)
	s.handle(&operation{id: "page-letter-body", method: http.MethodGet, path: "/letters/{id}/body", role: Viewer, page: true}, s.letterBody)
	s.page("POST /letters/replay", "page-dry-run", Operator, s.dryRunPage)
	s.page("POST /letters/discard", "page-discard", Operator, s.resolvePage("discard", "discarded", s.cfg.Desk.Discard))
	s.page("POST /letters/restore", "page-restore", Operator, s.resolvePage("restore", "restored", s.cfg.Desk.Restore))
	s.registerReplayPages()
	s.page("GET /audit", "page-audit", Viewer, s.auditPage)
}

func (s *Server) lettersPage(r *http.Request) (view, error) {
	q := r.URL.Query()
	f, wrong := filterOf(q)
	p, err := pageOf(q)
	l := lettersView{
		Filter: f, From: q.Get("from"), To: q.Get("to"), Oldest: p.Oldest, Reasons: deadletter.Reasons, States: []string{allStates},
		Query: filterQuery(f).Encode(), Replay: f.State == "" || f.State == deadletter.Open, Settle: f.State != deadletter.Open,
	}
	for _, state := range deadletter.States {
		l.States = append(l.States, string(state))
	}
	if p.After != "" {
		first := r.URL.Query()
		first.Del("after")
		l.First = "/letters?" + first.Encode()
	}
	if err = cmp.Or(wrong, err); err == nil {
		l, err = s.listLetters(r, l, p)
	}
	v := view{Template: "letters", Title: "Dead letters", Section: "/letters"}
	err = v.complain(&l.Problem, err)
	v.Data = l
	return v, err
}

// listLetters adds what matches the filter, if all goes well.
func (s *Server) listLetters(r *http.Request, asked lettersView, p deadletter.Page) (lettersView, error) {
	f := asked.Filter
	found, err := search(r.Context(), s, f, func(ctx context.Context) (lettersView, error) {
		l := asked
		var next string
		var err error
		if l.Letters, next, err = s.cfg.Desk.List(ctx, f, p); err != nil {
			return l, err
		}
		l.Next = nextPage(r, next)
		if l.Count, err = s.cfg.Desk.Count(ctx, f); err != nil {
			return l, err
		}
		if p.After != "" || f.Text != "" && f.Group == "" {
			return l, nil // groups come with the first page, and a text is looked for once
		}
		groups, err := s.cfg.Desk.Groups(ctx, f)
		if f.Group != "" && len(groups) > 0 {
			l.InGroup = &groups[0]
		} else {
			l.Groups = groups
		}
		return l, err
	})
	if err != nil {
		return asked, err
	}
	return found, nil
}

// With is the address of the list with another condition.
func (l lettersView) With(name, value string) string {
	q, _ := url.ParseQuery(l.Query)
	q.Set(name, value)
	if value == "" {
		q.Del(name)
	}
	return "/letters?" + q.Encode()
}

// Export is the address of all letters that match, as a file.
func (l lettersView) Export(format string) string {
	return "/letters/export?format=" + format + "&" + l.Query
}

// State is the state as the form says it.
func (l lettersView) State() string {
	if l.Filter.State == "" {
		return allStates
	}
	return string(l.Filter.State)
}

type resolveView struct {
	chosen
	Action string // discard or restore
	Count  int64
}

// resolvePage asks for a reason first, and then discards or restores.
func (s *Server) resolvePage(action, past string, do func(context.Context, deadletter.Selection, deadletter.By) (int64, error)) func(*http.Request) (view, error) {
	return func(r *http.Request) (view, error) {
		c, err := readChosen(r)
		if err != nil {
			return view{}, err
		}
		if r.PostForm.Has("why") {
			by, err := reason(r)
			if err != nil {
				return view{}, err
			}
			n, err := callLong(r.Context(), s, func(ctx context.Context) (int64, error) {
				return do(ctx, c.Selection, deadletter.By(by))
			})
			if err != nil && n > 0 {
				return view{}, problem(internal, "%s were %s, and then it went wrong: %s. Do it again for the others.", plural(n, "letter"), past, problemOf(err, "").Detail)
			}
			return view{To: done("/letters", past, n)}, err
		}
		if err := s.freeze(r.Context(), &c); err != nil {
			return view{}, err
		}
		v := resolveView{chosen: c, Action: action, Count: int64(len(c.IDs))}
		if f := c.Selection.Filter; f != nil {
			v.Count, err = search(r.Context(), s, *f, func(ctx context.Context) (int64, error) { return s.cfg.Desk.Count(ctx, *f) })
		}
		return view{Template: "resolve", Title: map[string]string{"discard": "Discard letters", "restore": "Restore letters"}[action], Section: "/letters", Data: v}, err
	}
}
