package web

import (
	"embed"
	"html/template"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"strings"
)

// The operators' page, at /. It is made of templates, works without JavaScript, and asks no other address than its
// own for anything. What its tests hold on to are the ids of its elements, which are like what they are for:
//
//	sign-in (token), sign-out, notice, problem, nav
//	overview, pause (why), resume (why), sweep (why)
//	groups, filter (state, kind, reason, group, subject, message_id, from, to, text, oldest), letters (scope, id, filter)
//	select-all, replay, discard, restore, next
//	dry-run, replay-confirm (why, rate, exchange, routing_key), discard-confirm (why), restore-confirm (why)
//	letter, letter-error, letter-body, letter-download, letter-headers, letter-history, letter-order, letter-forecast
//	replays, replay-progress, replay-state, replay-cancel (why), results, running-replay (of a problem)
//	order-find (id), order, order-timeline, order-extend (deadline, why), order-cancel (why), extend-all (by, tag, why)
//	audit-filter (actor, action, subject, from, to), audit
//
// Rows of tables have the id of what they are about as data-id.

//go:embed page/templates/*.html page/static/*
var pageFiles embed.FS

var (
	templates = parseTemplates()
	static    = readStatic()
	// staticPath begins the addresses of the static files. It changes with them, so they may be kept for good.
	staticPath = "/static/" + static.version
)

// parseTemplates has the layout go with each page.
func parseTemplates() map[string]*template.Template {
	layout := template.Must(template.New("layout.html").Funcs(pageFuncs).ParseFS(pageFiles, "page/templates/layout.html"))
	files, err := fs.Glob(pageFiles, "page/templates/*.html")
	if err != nil {
		panic(err)
	}
	pages := make(map[string]*template.Template)
	for _, file := range files {
		name := strings.TrimSuffix(path.Base(file), ".html")
		pages[name] = template.Must(template.Must(layout.Clone()).ParseFS(pageFiles, file))
	}
	return pages
}

// view is a page, or a way to another.
type view struct {
	Template string // that of its file
	Title    string
	Section  string // which of the navigation it is in
	Data     any
	// Fragment is the part of the page that goes by itself to whoever asks for no more.
	Fragment string
	Refresh  int    // seconds until a browser without JavaScript asks again; 0 is never
	Target   string // of the fragment, if that is not what asked for it
	Status   int    // 200 when zero

	To string // where to go instead, after something was done

	// The rest is filled in.
	Visitor  holder
	SignedIn bool // with a token, so that signing out makes sense
	Sections []section
	Notice   string
	Static   string
	Version  string // of the program
}

// section is one of the navigation.
type section struct{ Name, Path string }

// May is whether the visitor has the role.
func (v view) May(role Role) bool { return v.Visitor.role.includes(role) }

// Who is the visitor's name.
func (v view) Who() string { return v.Visitor.name }

// Role is the visitor's.
func (v view) Role() Role { return v.Visitor.role }

// maxForm is the most bytes of a form, which may have a thousand ids in it.
const maxForm = 256 << 10

// page serves a part of the page.
func (s *Server) page(pattern, id string, role Role, do func(*http.Request) (view, error)) {
	method, path, _ := strings.Cut(pattern, " ")
	op := &operation{id: id, method: method, path: path, role: role, page: true}
	if method == http.MethodPost {
		op.maxBody = maxForm
	}
	s.handle(op, s.pageHandler(do))
}

func (s *Server) pageHandler(do func(*http.Request) (view, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		v, err := view{}, readForm(r)
		if err == nil {
			v, err = do(r)
		}
		if err != nil {
			r.Context().Value(answerKey{}).(*answer).fail(err)
			return
		}
		if v.To != "" {
			http.Redirect(w, r, v.To, http.StatusSeeOther)
			return
		}
		s.render(w, r, v)
	}
}

// readForm reads a form that was posted.
func readForm(r *http.Request) error {
	if r.Method != http.MethodPost {
		return nil
	}
	if media, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); media != "application/x-www-form-urlencoded" {
		return problem(mediaType, "this is for the forms of the page: programs have the API, see /openapi.json")
	}
	if err := r.ParseForm(); err != nil {
		return problem(malformed, "the form cannot be decoded: %v", err)
	}
	return nil
}

// registerPage serves all of it.
func (s *Server) registerPage() {
	s.page("GET /", "page-overview", Viewer, s.overviewPage)
	s.registerOverviewActions()
	s.registerLetterPages()
	s.registerOrderPages()
	s.registerSignIn()
	s.handle(&operation{id: "page-static", method: http.MethodGet, path: "/static/{version}/{name}", public: true, page: true}, s.static)
}

// sections are those of the navigation.
func (s *Server) sections() []section {
	all := []section{{"Overview", "/"}}
	if s.cfg.Desk != nil {
		all = append(all, section{"Dead letters", "/letters"}, section{"Replays", "/replays"})
	}
	if s.cfg.Orders != nil {
		all = append(all, section{"Orders", "/orders"})
	}
	if s.cfg.Desk != nil {
		all = append(all, section{"Audit", "/audit"})
	}
	return all
}
