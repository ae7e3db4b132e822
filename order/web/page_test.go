package web_test

import (
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/lapse-go/lapse/order/web"
)

// reader reads the page as a browser without JavaScript does.
type reader struct {
	*service
	http *http.Client
}

func (s *service) reader() *reader {
	s.t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		s.t.Fatal(err)
	}
	return &reader{s, &http.Client{Transport: s.http.Transport, Jar: jar}}
}

// sight is what a reader has got to see.
type sight struct {
	status int
	at     string // where the way ended
	header http.Header
	text   string
}

func (r *reader) do(method, path string, form url.Values, header ...string) sight {
	r.t.Helper()
	request, err := http.NewRequestWithContext(r.t.Context(), method, r.url+path, strings.NewReader(form.Encode()))
	if err != nil {
		r.t.Fatal(err)
	}
	if method == http.MethodPost {
		request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		request.Header.Set("Origin", r.url)
	}
	for i := 0; i < len(header); i += 2 {
		request.Header.Set(header[i], header[i+1])
	}
	answer, err := r.http.Do(request)
	if err != nil {
		r.t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return sight{answer.StatusCode, answer.Request.URL.RequestURI(), answer.Header, string(text)}
}

func (r *reader) read(path string) sight { r.t.Helper(); return r.do(http.MethodGet, path, nil) }
func (r *reader) send(path string, form url.Values) sight {
	r.t.Helper()
	return r.do(http.MethodPost, path, form)
}

// want fails unless the status is that, and all the parts are there, or, with a ! before them, are not.
func (r *reader) want(what string, got sight, status int, parts ...string) sight {
	r.t.Helper()
	if got.status != status {
		r.t.Fatalf("%s: status %d at %s, want %d:\n%.1500s", what, got.status, got.at, status, got.text)
	}
	for _, part := range parts {
		if rest, not := strings.CutPrefix(part, "!"); strings.Contains(got.text, rest) == not {
			r.t.Errorf("%s: %q in the page %s is not as it should be:\n%.4000s", what, part, got.at, got.text)
		}
	}
	return got
}

var hidden = regexp.MustCompile(`<input type="hidden" name="([^"]+)" value="([^"]*)">`)

// fields are the hidden ones of the form with the id.
func (g sight) fields(form string) url.Values {
	_, rest, _ := strings.Cut(g.text, `<form id="`+form+`"`)
	rest, _, _ = strings.Cut(rest, "</form>")
	fields := url.Values{}
	for _, field := range hidden.FindAllStringSubmatch(rest, -1) {
		fields.Add(field[1], strings.NewReplacer("&amp;", "&", "&#34;", `"`, "&#39;", "'", "&#43;", "+").Replace(field[2]))
	}
	return fields
}

func with(fields url.Values, pairs ...string) url.Values {
	for i := 0; i < len(pairs); i += 2 {
		fields.Set(pairs[i], pairs[i+1])
	}
	return fields
}

func TestSigningIn(t *testing.T) {
	tokens := make(map[web.Role]string)
	s := start(t, nil, withTokens(t, tokens))
	r := s.reader()
	r.want("without a session", r.read("/letters?state=all"), 200, `id="sign-in"`, `value="/letters?state=all"`, `!id="nav"`)
	r.want("a wrong token", r.send("/sign-in", url.Values{"token": {"lapse_X"}, "to": {"/letters?state=all"}}), 401, "not one that the service knows", `value="/letters?state=all"`, "!lapse_X")
	got := r.want("a token", r.send("/sign-in", url.Values{"token": {" " + tokens[web.Viewer] + "\n"}, "to": {"/letters?state=all"}}), 200, `id="nav"`, "viewer-1", "Sign out")
	if got.at != "/letters?state=all" {
		t.Errorf("signing in leads to %s", got.at)
	}
	for _, path := range []string{"/", "/letters", "/replays", "/orders", "/audit"} {
		r.want("a viewer", r.read(path), 200, "viewer-1", `!name="why"`, `!formaction`)
	}
	r.want("a viewer who acts all the same", r.send("/pause", url.Values{"why": {"x"}}), 403, "viewer-1", "needs operator")
	r.want("the API with a session", r.do("GET", "/v1/pause", nil), 401)
	r.want("a fragment without a session", s.reader().do("GET", "/", nil, "HX-Request", "true"), 401)
	r.want("an action without a session", s.reader().send("/pause", url.Values{"why": {"x"}}), 401, `href="/sign-in"`)
	r.want("signing out", r.send("/sign-out", nil), 200, "You are signed out.")
	r.want("signed out", r.read("/letters"), 200, `id="sign-in"`)

	for range 10 {
		got = r.send("/sign-in", url.Values{"token": {"lapse_X"}})
	}
	r.want("too many tries", r.send("/sign-in", url.Values{"token": {tokens[web.Operator]}}), 429, "too many tries")
	if p, err := s.client(tokens[web.Viewer]).Paused(t.Context()); err != nil || p.Paused {
		t.Errorf("%+v, %v", p, err)
	}
}

// Nothing runs in the page that is not its own, and nothing of it is kept by a browser or a proxy but what never changes.
func TestHeadersOfThePage(t *testing.T) {
	s := start(t, nil)
	r := s.reader()
	s.letter(1, nil)
	for _, path := range []string{"/", "/letters", "/letters/1", "/letters/1/body", "/letters/99", "/replays", "/orders", "/audit", "/nothing"} {
		got := r.do("GET", path, nil, "Accept", "text/html")
		policy := got.header.Get("Content-Security-Policy")
		for _, part := range []string{"default-src 'none'", "script-src 'self'", "style-src 'self'", "form-action 'self'", "frame-ancestors 'none'", "base-uri 'none'"} {
			if !strings.Contains(policy, part) {
				t.Errorf("%s: the policy %q lacks %s", path, policy, part)
			}
		}
		if strings.Contains(policy, "unsafe") || got.header.Get("X-Content-Type-Options") != "nosniff" || got.header.Get("Cache-Control") != "no-store" || got.header.Get("Referrer-Policy") != "same-origin" {
			t.Errorf("%s: %v", path, got.header)
		}
	}
	for _, file := range regexp.MustCompile(`(?:src|href)="(/static/[^"]+)"`).FindAllStringSubmatch(r.read("/").text, -1) {
		got := r.want(file[1], r.read(file[1]), 200)
		if !strings.Contains(got.header.Get("Cache-Control"), "immutable") || got.header.Get("X-Content-Type-Options") != "nosniff" || got.header.Get("Content-Type") == "" {
			t.Errorf("%s: %v", file[1], got.header)
		}
	}
	if got := r.want("another version", r.read("/static/0/app.css"), 200); got.header.Get("Cache-Control") != "no-store" {
		t.Errorf("another version: %v", got.header)
	}
	r.want("no such file", r.read("/static/0/page.go"), 404)
	r.want("no such page", r.do("GET", "/nothing", nil, "Accept", "text/html,*/*"), 404, `id="nav"`, "there is nothing at")
	r.want("no such page, for a program", r.do("GET", "/nothing", nil, "Accept", "*/*"), 404, `"type":"urn:lapse:problem:no-such-path"`)
	r.want("no such operation", r.do("GET", "/v1/nothing", nil, "Accept", "text/html"), 404, `"type":"urn:lapse:problem:no-such-path"`)
	r.want("JSON for a form", r.do("POST", "/pause", nil, "Content-Type", "application/json"), 415)
}
