package web

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
)

const (
	readyID      = "ready"
	readyTimeout = 1800 * time.Millisecond
)

const healthy = `{"status":"ok"}` + "\n"

// Health answers /healthz, for which nobody is asked, and /readyz, for which check is: 503 and why, if it
// fails or takes two seconds.
func Health(check func(context.Context) error) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", healthz)
	mux.HandleFunc("GET /readyz", readyz(check))
	return mux
}

func healthz(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write([]byte(healthy))
}

func readyz(check func(context.Context) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), readyTimeout)
		defer cancel()
		failed := make(chan error, 1)
		go func() { failed <- check(ctx) }()
		select {
		case err := <-failed:
			if err != nil {
				problem(notReady, "%v", err).write(w)
				return
			}
			healthz(w, r)
		case <-ctx.Done():
			problem(notReady, "no answer within %s from what the service needs", readyTimeout).write(w)
		}
	}
}

// registerHealth serves both, and documents them.
func (s *Server) registerHealth(api *huma.OpenAPI) {
	for _, one := range []struct {
		op      operation
		handler http.HandlerFunc
		kinds   []*kind
	}{
		{operation{id: "health", path: "/healthz", summary: "Whether the process lives", doc: "Asks nobody."}, healthz, nil},
		{operation{id: readyID, path: "/readyz", summary: "Whether the service can do its work", doc: "Asks the broker, the consumers and the database."},
			readyz(s.cfg.Shop.Check), []*kind{notReady}},
	} {
		one.op.method, one.op.public = http.MethodGet, true
		s.handle(&one.op, one.handler)
		responses := problemResponses(api, append(one.kinds, wrongHost))
		responses["200"] = &huma.Response{Description: "It is.", Content: map[string]*huma.MediaType{"application/json": {}}}
		api.AddOperation(&huma.Operation{
			OperationID: one.op.id, Method: one.op.method, Path: one.op.path, Summary: one.op.summary, Description: one.op.doc, Responses: responses,
			Security: []map[string][]string{}, // none
		})
	}
}
