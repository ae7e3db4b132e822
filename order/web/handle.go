package web

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// ServeHTTP answers one request. Whoever is refused is so before the body is read.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	begin := time.Now()
	a := &answer{w: w, request: rand.Text()}
	route, op, refusal := s.route(r)
	if isPage(r, op) {
		a.tell = func(p *Problem) { s.pageProblem(a, r, p) }
	}
	if refusal == nil {
		r, refusal = s.admit(a, r, op)
	}
	if refusal != nil {
		a.problem(refusal)
	} else {
		s.serve(a, r, route.handler)
	}
	s.metrics.observe(op, s.report(r, op, a), time.Since(begin))
	a.send()
}

// unknown stands for what is no operation.
var unknown = &operation{id: "none"}

// route finds the operation, or says why there is none.
func (s *Server) route(r *http.Request) (*route, *operation, *Problem) {
	found, allow := s.router.find(r)
	switch {
	case found != nil:
		return found, s.operations[found.pattern], nil
	case len(allow) > 0:
		slices.Sort(allow)
		methods := strings.Join(slices.Compact(allow), ", ")
		p := problem(notAllowed, "%.200q is not for %s: use %s", r.URL.Path, r.Method, methods)
		p.header = http.Header{"Allow": {methods}}
		return nil, unknown, p
	}
	if s.cfg.Orders == nil {
		return nil, unknown, problem(noSuchPath, "there is nothing at %.200q: the orders are in the shop's own table, so placing, paying and the like are its business; /openapi.json lists what there is", r.URL.Path)
	}
	return nil, unknown, problem(noSuchPath, "there is nothing at %.200q: /openapi.json lists what there is", r.URL.Path)
}

// admit lets a request in, with its actor and its whole body, or says why not.
func (s *Server) admit(a *answer, r *http.Request, op *operation) (*http.Request, *Problem) {
	if s.cfg.Tokens == nil && !isLoopback(r.Host) {
		return r, problem(wrongHost, "without tokens only requests for localhost are answered, not for %.200q: ask for localhost, or give the service tokens", r.Host)
	}
	if err := s.crossOrigin.Check(r); err != nil {
		return r, problem(crossOrigin, "a page of another site asked for this in a browser: %v", err)
	}
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return r, problem(malformed, "the query cannot be decoded: %v", err)
	}
	for name, values := range query {
		if len(values) > 1 && !op.page {
			return r, problem(invalid, "the query has %.80q %d times: give it once", name, len(values))
		}
	}
	who, refusal := s.who(a, r, op)
	r = r.WithContext(context.WithValue(r.Context(), actorKey{}, who))
	if refusal != nil {
		return r, refusal
	}
	return r, readBody(a, r, op.maxBody)
}

// who makes the request: the holder of a token or, on the page, of a session; nobody where that does not matter.
func (s *Server) who(a *answer, r *http.Request, op *operation) (holder, *Problem) {
	switch {
	case s.cfg.Tokens == nil:
		return holder{name: local, role: Operator}, nil
	case op.public:
		return holder{}, nil
	case op.page:
		return s.cfg.Tokens.admitPage(a, r, op)
	}
	return s.cfg.Tokens.admit(r, op)
}

// readBody reads the body within its time. What follows is not bound by that: with a deadline over it, the
// connection, and with it the request, would end in the middle of a long operation.
func readBody(a *answer, r *http.Request, most int64) *Problem {
	control := http.NewResponseController(a.w)
	_ = control.SetReadDeadline(time.Now().Add(bodyTimeout)) // not all writers can; the server's own does
	if r.ContentLength > most {
		a.Header().Set("Connection", "close")
		return tooLarge(most)
	}
	body, err := io.ReadAll(http.MaxBytesReader(a.w, r.Body, most))
	if _, large := errors.AsType[*http.MaxBytesError](err); large {
		return tooLarge(most)
	}
	if err != nil {
		a.Header().Set("Connection", "close")
		return problem(bodyLate, "the body did not come, or not within %s", bodyTimeout)
	}
	_ = control.SetReadDeadline(time.Time{})
	r.Body = io.NopCloser(bytes.NewReader(body))
	return nil
}

func tooLarge(most int64) *Problem {
	if most == 0 {
		return problem(bodyTooLarge, "this operation takes no body")
	}
	return problem(bodyTooLarge, "the body has more than %d bytes, which is the most", most)
}

// serve has the operation answered. A panic is an answer, too.
func (s *Server) serve(a *answer, r *http.Request, handler http.HandlerFunc) {
	err := safely(func() error {
		handler(a, r.WithContext(context.WithValue(r.Context(), answerKey{}, a)))
		return nil
	})
	if err != nil {
		a.fail(err)
	}
}

// report logs what the service is to blame for, and returns the status for the metrics. What servers are to
// blame for is logged by their [outage], and of whether the service is ready whoever asks reads the answer.
func (s *Server) report(r *http.Request, op *operation, a *answer) int {
	if !a.lost && a.status >= http.StatusInternalServerError && a.status != http.StatusServiceUnavailable {
		s.cfg.Logger.WarnContext(r.Context(), "request failed", "operation", op.id, "status", a.status, "request", a.request, "error", a.cause)
	}
	if a.lost || a.status >= http.StatusInternalServerError && r.Context().Err() != nil {
		return statusGone
	}
	return a.status
}

// statusGone is what the metrics say of clients that did not wait for the answer, as nginx does.
const statusGone = 499

// actor is who makes the request.
func actor(ctx context.Context) string {
	who, _ := ctx.Value(actorKey{}).(holder)
	return who.name
}

type actorKey struct{}
type answerKey struct{}

// segment is an id as part of a path. A dot alone would be a place in the path, also when a browser finds
// it escaped; other clients leave it as it is.
func segment(id string) string {
	if id == "." || id == ".." {
		return strings.ReplaceAll(id, ".", "%2E")
	}
	return url.PathEscape(id)
}
