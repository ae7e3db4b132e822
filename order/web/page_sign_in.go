package web

import (
	"net/http"
	"strings"
	"time"
)

func (s *Server) registerSignIn() {
	public := func(method, path, id string, do func(http.ResponseWriter, *http.Request) (view, error)) {
		op := &operation{id: id, method: method, path: path, public: true, page: true}
		if method == http.MethodPost {
			op.maxBody = maxBody
		}
		s.handle(op, func(w http.ResponseWriter, r *http.Request) {
			s.pageHandler(func(r *http.Request) (view, error) { return do(w, r) })(w, r)
		})
	}
	public("GET", "/sign-in", "page-sign-in", s.signInPage)
	public("POST", "/sign-in", "sign-in", s.signIn)
	public("POST", "/sign-out", "sign-out", func(w http.ResponseWriter, r *http.Request) (view, error) {
		keepSession(w, r, "")
		return view{To: done("/sign-in", "signed-out")}, nil
	})
}

type signInView struct {
	To    string
	Wrong bool
}

func (s *Server) signInPage(_ http.ResponseWriter, r *http.Request) (view, error) {
	if s.cfg.Tokens == nil {
		return view{To: "/"}, nil
	}
	return view{Template: "sign-in", Title: "Sign in", Data: signInView{To: inside(r.URL.Query().Get("to"))}}, nil
}

func (s *Server) signIn(w http.ResponseWriter, r *http.Request) (view, error) {
	to := inside(r.PostForm.Get("to"))
	if s.cfg.Tokens == nil {
		return view{To: to}, nil
	}
	now := time.Now()
	good, ok := s.tries.begin(r.RemoteAddr, now)
	if !ok {
		p := problem(tooManyTries, "there were too many tries to sign in: wait for %s, and try again", triesEvery)
		p.header = http.Header{"Retry-After": {"6"}}
		return view{}, p
	}
	token := strings.TrimSpace(r.PostForm.Get("token"))
	h, ok := s.cfg.Tokens.find(token)
	if !ok {
		return view{Template: "sign-in", Title: "Sign in", Status: http.StatusUnauthorized, Data: signInView{To: to, Wrong: true}}, nil
	}
	good()
	value, err := session{h, token, now, now}.seal()
	if err != nil {
		return view{}, err
	}
	keepSession(w, r, value)
	return view{To: to}, nil
}

// inside is a path of this server, / if it is anything else.
func inside(to string) string {
	if !strings.HasPrefix(to, "/") || strings.HasPrefix(to, "//") || strings.ContainsAny(to, "\\\r\n\t") || strings.HasPrefix(to, "/sign-") {
		return "/"
	}
	return to
}
