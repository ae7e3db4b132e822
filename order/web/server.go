package web

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/lapse-go/lapse/amqp/deadletter"
	"github.com/lapse-go/lapse/order"
	"github.com/lapse-go/lapse/order/checkout"
)

// Config says what a [Server] serves, and to whom.
type Config struct {
	// Orders are those in Lapse's tables. When nil, they are in a table of the shop's own, and Switch is needed: only
	// pause, resume and sweep are served.
	Orders *order.Service
	// Switch pauses expiry. That of Orders when empty.
	Switch order.Switch
	// Submit, needed with Orders, returns once the broker has taken the draft, which is then placed by whoever
	// consumes it. Any error counts as [order.ErrNotAccepted].
	Submit func(ctx context.Context, d order.Draft) error
	// Sweep does one round of the sweep.
	Sweep func(ctx context.Context) (order.Summary, error)
	// Check says why the service cannot do its work, or nil.
	Check func(ctx context.Context) error
	// Overview says how the service is. When nil, the page does not say, and it is not served.
	Overview func(ctx context.Context) checkout.Overview
	// Desk is where dead letters are worked on. When nil, they are not served.
	Desk *deadletter.Desk
	// Tokens are those whom the server lets in. When nil everybody is the operator "local", and only
	// requests for localhost, 127.0.0.1 and [::1] are answered: the listener should be on one of them.
	Tokens *Tokens
	// Namespace begins the names of exchanges in the description of the messages. "lapse" when empty.
	Namespace string
	// Version is the program's, for the OpenAPI document.
	Version string
	// Registerer takes the metrics of requests. None when nil.
	Registerer prometheus.Registerer
	// Logger is slog.Default when nil.
	Logger *slog.Logger
}

// Server is the API and the page as an [http.Handler]. Safe for concurrent use.
type Server struct {
	cfg         Config
	router      router
	operations  map[string]*operation // by the pattern of their route
	crossOrigin *http.CrossOriginProtection
	tries       *tries // to sign in
	metrics     metrics
	database    outage
	broker      outage

	changes, looks, long, searches chan struct{} // places of calls of the database
}

// How long things may take.
const (
	headerTimeout = 5 * time.Second
	bodyTimeout   = 5 * time.Second
	idleTimeout   = time.Minute
	// writeTimeout is for all of it, from the end of the header to the end of the answer, unless that is a stream. See
	// also callTimeout.
	writeTimeout = bodyTimeout + longTimeout + 10*time.Second
)

// How large things may be, in bytes.
const (
	maxHeader    = 32 << 10
	maxOrderBody = 1 << 20
	maxBody      = 16 << 10
	// maxSelectionBody has place for as many ids of letters as a selection may have.
	maxSelectionBody = 256 << 10
)

func init() {
	huma.ValidateStrictCasing = true // encoding/json takes dry_Run for dry_run
}

// New makes the API of a shop.
func New(cfg Config) (*Server, error) {
	if cfg.Switch.PauseSwitch == nil && cfg.Orders != nil {
		cfg.Switch.PauseSwitch = cfg.Orders.Repository
	}
	if cfg.Switch.PauseSwitch == nil || cfg.Sweep == nil || cfg.Check == nil || (cfg.Orders == nil) != (cfg.Submit == nil) {
		return nil, errors.New("no orders, or nothing to submit to, sweep or check with: give all four, or, without orders, what pauses, sweeps and checks")
	}
	cfg.Namespace = cmp.Or(cfg.Namespace, "lapse")
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	s := &Server{
		cfg: cfg, operations: make(map[string]*operation),
		crossOrigin: http.NewCrossOriginProtection(), tries: newTries(), metrics: newMetrics(cfg.Registerer),
		changes: make(chan struct{}, maxChanges), looks: make(chan struct{}, maxLooks), long: make(chan struct{}, maxLong), searches: make(chan struct{}, maxSearches),
		database: outage{server: "database", logger: cfg.Logger},
		broker:   outage{server: "broker", logger: cfg.Logger},
	}
	api := humago.New(&s.router, s.describe())
	if cfg.Orders != nil {
		s.registerOrders(api)
		s.registerStock(api)
	}
	s.registerPause(api)
	if cfg.Overview != nil {
		s.registerOverview(api)
	}
	if cfg.Desk != nil {
		s.registerDesk(api)
	}
	s.registerHealth(api.OpenAPI())
	if err := s.registerMessages(api.OpenAPI()); err != nil {
		return nil, err
	}
	s.registerPage()
	if err := s.registerDocument(api.OpenAPI()); err != nil {
		return nil, err
	}
	return s, nil
}

// describe is the API without its operations. Of huma's own pages and links there are none.
func (s *Server) describe() huma.Config {
	json := huma.Format{Marshal: huma.DefaultJSONFormat.Marshal, Unmarshal: unmarshal}
	return huma.Config{
		OpenAPI: &huma.OpenAPI{
			OpenAPI: "3.1.0",
			Info: &huma.Info{
				Title: "Lapse", Version: s.cfg.Version,
				Description: "Holds orders to their payment deadlines. Every refusal is a problem (RFC 9457) whose type does not change.",
			},
			Components: &huma.Components{
				Schemas:         huma.NewMapRegistry("#/components/schemas/", schemaName),
				SecuritySchemes: map[string]*huma.SecurityScheme{bearer: {Type: "http", Scheme: "bearer"}},
			},
		},
		Formats:                      map[string]huma.Format{"application/json": json, "json": json},
		DefaultFormat:                "application/json",
		RejectUnknownQueryParameters: true,
		Transformers:                 []huma.Transformer{ownProblems},
	}
}

// registerDocument serves the OpenAPI document, which is complete by now.
func (s *Server) registerDocument(api *huma.OpenAPI) error {
	// huma registers its own problem, which is never answered.
	schemas := api.Components.Schemas.Map()
	delete(schemas, "ErrorModel")
	delete(schemas, "ErrorDetail")
	document, err := json.Marshal(api)
	if err != nil {
		return fmt.Errorf("the OpenAPI document: %w", err)
	}
	s.handle(&operation{id: "openapi", method: http.MethodGet, path: "/openapi.json", public: true},
		func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/openapi+json")
			_, _ = w.Write(document)
		})
	return nil
}

// handle serves an operation that huma has nothing to do with.
func (s *Server) handle(op *operation, handler http.HandlerFunc) {
	s.router.HandleFunc(op.pattern(), handler)
	s.operations[op.pattern()] = op
}

// Serve answers requests on the listener until ctx ends, and then those that are under way, for at most so
// long as shutdown says; what still runs then is cut, with a warning in the log. It closes the listener. The
// error says why it cannot serve. Headers, bodies and the time that a client takes are bounded. A listener
// with TLS, whose configuration offers no protocols (NextProtos), has clients speak HTTP/1.1.
func Serve(ctx context.Context, l net.Listener, handler http.Handler, shutdown time.Duration, logger *slog.Logger) error {
	// Requests outlive ctx; they end with this one.
	requests, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	server := &http.Server{
		Handler:                      handler,
		ReadHeaderTimeout:            headerTimeout,
		ReadTimeout:                  headerTimeout + bodyTimeout,
		WriteTimeout:                 writeTimeout,
		IdleTimeout:                  idleTimeout,
		MaxHeaderBytes:               maxHeader,
		DisableGeneralOptionsHandler: true,
		BaseContext:                  func(net.Listener) context.Context { return requests },
		ErrorLog:                     slog.NewLogLogger(logger.Handler(), slog.LevelDebug), // of clients that went away, and the like
	}
	failed := make(chan error, 1)
	var serving sync.WaitGroup
	serving.Go(func() { failed <- server.Serve(l) })
	select {
	case err := <-failed:
		return fmt.Errorf("serving HTTP: %w", err)
	case <-ctx.Done():
	}
	ending, stop := context.WithTimeout(context.WithoutCancel(ctx), shutdown)
	defer stop()
	err := server.Shutdown(ending)
	serving.Wait()
	if err != nil {
		cancel()
		server.Close()
		logger.Warn("HTTP requests did not end in time and were cut", "shutdown", shutdown)
	}
	return nil
}
