package web

import (
	"bytes"
	"io"
	"net/http"
	"strconv"
	"time"
)

// answer keeps what an operation answers until it is complete, so that one that fails on the way is a
// problem and not half an answer. Only one that is a stream goes out before, once it is long.
type answer struct {
	w       http.ResponseWriter
	request string // an id for the log
	status  int
	body    bytes.Buffer
	cause   error // why, if the service is to blame
	// tell answers with a problem, if it is not to be JSON.
	tell func(*Problem)

	begun bool // its beginning is out
	cut   bool // and its end will never be
	lost  bool // the client does not take it
}

func (a *answer) Header() http.Header { return a.w.Header() }

func (a *answer) WriteHeader(status int) {
	if a.status == 0 {
		a.status = status
	}
}

func (a *answer) Write(text []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	return a.body.Write(text)
}

// fail answers that the operation failed.
func (a *answer) fail(err error) {
	a.cause = err
	a.problem(problemOf(err, a.request))
}

// problem replaces whatever the answer was.
func (a *answer) problem(p *Problem) {
	a.body.Reset()
	a.status = p.Status
	if a.begun {
		a.cut = true
		return
	}
	a.Header().Del("Content-Disposition") // it is not what was to be saved
	if a.tell != nil {
		a.tell(p)
		return
	}
	p.write(a)
}

// streamed is how much of a stream is kept before it goes out.
const streamed = 64 << 10

// stream is for an answer of any length. It has to take less than longTimeout to write on.
func (a *answer) stream() io.Writer { return stream{a} }

type stream struct{ *answer }

func (s stream) Write(text []byte) (int, error) {
	n, err := s.answer.Write(text)
	if err == nil && s.body.Len() >= streamed {
		err = s.flush()
	}
	return n, err
}

// flush has what there is of a stream go out.
func (a *answer) flush() error {
	if !a.begun {
		a.begun = true
		a.secure()
		a.w.WriteHeader(a.status)
	}
	_ = http.NewResponseController(a.w).SetWriteDeadline(time.Now().Add(longTimeout)) // not all writers can; the server's own does
	_, err := a.w.Write(a.body.Bytes())
	a.body.Reset()
	a.lost = err != nil
	return err
}

// send sends what has not gone out yet. A stream that failed is cut, so that it is not taken for a whole one.
func (a *answer) send() {
	switch {
	case a.cut:
		panic(http.ErrAbortHandler)
	case a.begun:
		_ = a.flush() // of no use to a client that is gone
		return
	}
	a.WriteHeader(http.StatusOK) // unless it has another status
	a.secure()
	if a.status != http.StatusNoContent {
		a.Header().Set("Content-Length", strconv.Itoa(a.body.Len()))
	}
	a.w.WriteHeader(a.status)
	_, _ = a.w.Write(a.body.Bytes()) // of no use to a client that is gone
}

func (a *answer) secure() {
	a.Header().Set("X-Content-Type-Options", "nosniff")
	if a.Header().Get("Cache-Control") == "" {
		a.Header().Set("Cache-Control", "no-store")
	}
}
