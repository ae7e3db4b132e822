package web

import (
	"bytes"
	"net/http"
	"strconv"
)

// answer keeps what an operation answers until it is complete, so that one that fails on the way is a
// problem and not half an answer.
type answer struct {
	w       http.ResponseWriter
	request string // an id for the log
	status  int
	body    bytes.Buffer
	cause   error // why, if the service is to blame
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

// problem replaces whatever the answer was.
func (a *answer) problem(p *Problem) {
	a.body.Reset()
	a.status = p.Status
	p.write(a)
}

func (a *answer) send() {
	a.WriteHeader(http.StatusOK) // unless it has another status
	header := a.Header()
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Cache-Control", "no-store")
	if a.status != http.StatusNoContent {
		header.Set("Content-Length", strconv.Itoa(a.body.Len()))
	}
	a.w.WriteHeader(a.status)
	_, _ = a.w.Write(a.body.Bytes()) // of no use to a client that is gone
}
