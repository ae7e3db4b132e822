package web

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"golang.org/x/sync/singleflight"
)

const readyTimeout = 1800 * time.Millisecond

const healthy = `{"status":"ok"}` + "\n"

// Health answers /healthz, for which nobody is asked, and /readyz, for which check is: 503 and why, if it
// fails or takes two seconds. The reasons name servers and users, so it is not for everybody.
func Health(check func(context.Context) error) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", healthz)
	mux.HandleFunc("GET /readyz", readyz(check, func(why error) string { return why.Error() }))
	return mux
}

func healthz(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write([]byte(healthy))
}

// readyz has those who ask while a check runs share its answer, so that they cost one check, however many
// they are, and one goroutine, however long it hangs.
func readyz(check func(context.Context) error, tell func(why error) string) http.HandlerFunc {
	var checks singleflight.Group
	return func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), readyTimeout)
		defer cancel()
		checked := checks.DoChan("", func() (any, error) {
			// It is not only for the client that was first.
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readyTimeout)
			defer cancel()
			return nil, safely(func() error { return check(ctx) })
		})
		var err error
		select {
		case answer := <-checked:
			err = answer.Err
		case <-ctx.Done():
			err = fmt.Errorf("no answer within %s from what the service needs", readyTimeout)
		}
		if err != nil {
			problem(notReady, "%s", tell(err)).write(w)
			return
		}
		healthz(w, r)
	}
}

// registerHealth serves both, and documents them.
func (s *Server) registerHealth(api *huma.OpenAPI) {
	ready := readyz(s.cfg.Check, func(error) string {
		return "the service cannot do its work at present: /readyz of its metrics listener tells why"
	})
	for _, one := range []struct {
		op      operation
		handler http.HandlerFunc
		types   []*problemType
	}{
		{operation{id: "health", path: "/healthz", summary: "Whether the process lives", doc: "Asks nobody."}, healthz, nil},
		{operation{id: "ready", path: "/readyz", summary: "Whether the service can do its work", doc: "Asks the broker, the consumers and the database."},
			ready, []*problemType{notReady}},
	} {
		one.op.method, one.op.public = http.MethodGet, true
		s.handle(&one.op, one.handler)
		responses := problemResponses(api, append(one.types, wrongHost))
		responses["200"] = &huma.Response{Description: "It is.", Content: map[string]*huma.MediaType{"application/json": {}}}
		api.AddOperation(&huma.Operation{
			OperationID: one.op.id, Method: one.op.method, Path: one.op.path, Summary: one.op.summary, Description: one.op.doc, Responses: responses,
			Security: []map[string][]string{}, // none
		})
	}
}
