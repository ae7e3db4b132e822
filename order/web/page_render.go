package web

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
)

// render answers with a page.
func (s *Server) render(w http.ResponseWriter, r *http.Request, v view) {
	v.Visitor, v.Static, v.Notice = visitor(r.Context()), staticPath, notice(r.URL.Query())
	v.Version = s.cfg.Version
	v.SignedIn = s.cfg.Tokens != nil && v.Visitor.name != ""
	if v.Visitor.name != "" {
		v.Sections = s.sections()
	}
	name := "layout.html"
	if v.Fragment != "" && r.Header.Get("HX-Request") == "true" {
		name = v.Fragment
		if v.Target != "" {
			w.Header().Set("HX-Retarget", v.Target)
		}
	}
	var page bytes.Buffer
	if err := templates[v.Template].ExecuteTemplate(&page, name, v); err != nil {
		panic(fmt.Errorf("page %s: %w", v.Template, err)) // a mistake in the template
	}
	pageHeaders(w.Header())
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(max(v.Status, http.StatusOK))
	_, _ = w.Write(page.Bytes())
}

// pageHeaders keep the page to itself: nothing from elsewhere runs in it, and nobody frames it. A referrer goes to
// the page itself because without one browsers send no origin with forms.
func pageHeaders(h http.Header) {
	h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "+
		"connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'")
	h.Set("Referrer-Policy", "same-origin")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("X-Frame-Options", "DENY")
}

// isPage is whether a refusal is for the reader of a page.
func isPage(r *http.Request, op *operation) bool {
	return op.page || op == unknown && !strings.HasPrefix(r.URL.Path, "/v1/") && strings.Contains(r.Header.Get("Accept"), "text/html")
}

// pageProblem answers with a page that tells of a problem, or with the way to sign in.
func (s *Server) pageProblem(a *answer, r *http.Request, p *Problem) {
	a.status = 0
	a.Header().Del("Content-Disposition") // of the file that it was to be
	for name, values := range p.header {
		if name != "Www-Authenticate" && name != "Location" { // browsers would ask for a password; the place is the API's
			a.Header()[name] = values
		}
	}
	if visitor(r.Context()).name == "" && p.Status != http.StatusUnauthorized { // it was refused before that was asked
		if who, refusal := s.who(a, r, &operation{page: true, role: Viewer}); refusal == nil {
			r = r.WithContext(context.WithValue(r.Context(), actorKey{}, who))
		}
	}
	signIn := "/sign-in"
	if r.Method == http.MethodGet {
		signIn += "?to=" + url.QueryEscape(r.URL.RequestURI())
	}
	if p.Status == http.StatusUnauthorized && r.URL.Path != "/sign-in" {
		switch {
		case r.Header.Get("HX-Request") == "true":
			a.Header().Set("HX-Refresh", "true") // asks for the whole page, and so for a sign-in
		case r.Method == http.MethodGet || r.Method == http.MethodHead:
			http.Redirect(a, r, signIn, http.StatusSeeOther)
			return
		}
	}
	s.render(a, r, view{Template: "problem", Title: p.Title, Status: p.Status, Data: problemView{p, says(p), signIn, p.Status == http.StatusServiceUnavailable && r.Method == http.MethodGet}})
}

// says is what a page says of a problem: not again what the title says, and nothing of headers.
func says(p *Problem) string {
	if p.Type == crossOrigin.uri() {
		return "A page of another site asked for this, so nothing was done. If it is what you want, open Lapse in this browser, and do it there."
	}
	before, rest, found := strings.Cut(p.Detail, strings.ToLower(p.Title)+": ")
	if !found || strings.Contains(before, `"`) { // or it is a text that was given
		return p.Detail
	}
	return rest
}

// complain has the page say what is wrong with what it was asked for, so that it can be corrected there. An error that is
// anything else is returned.
func (v *view) complain(complaint *string, err error) error {
	if err == nil {
		return nil
	}
	p := problemOf(err, "")
	if p.Status != http.StatusUnprocessableEntity {
		return err
	}
	v.Status, *complaint = p.Status, says(p)
	return nil
}

type problemView struct {
	*Problem
	Says   string // in place of its detail
	SignIn string
	Again  bool // the address may be asked for again
}

// visitor is who makes the request.
func visitor(ctx context.Context) holder {
	h, _ := ctx.Value(actorKey{}).(holder)
	return h
}
