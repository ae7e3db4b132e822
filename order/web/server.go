package web

import (
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

	"github.com/lapse-go/lapse/order"
)

// Shop is what the API offers over HTTP; a [checkout.Checkout] is one.
//
// [checkout.Checkout]: https://pkg.go.dev/github.com/lapse-go/lapse/order/checkout#Checkout
type Shop interface {
	Place(ctx context.Context, d order.Draft) (order.Order, error)
	// Submit returns once the broker has taken the draft, which is then placed by whoever consumes it.
	Submit(ctx context.Context, d order.Draft) error
	Prepare(d order.Draft) order.Draft
	Pay(ctx context.Context, id string, p order.Payment) (order.Order, error)
	Cancel(ctx context.Context, id string, by order.By) (order.Order, error)
	Extend(ctx context.Context, id string, to time.Time, by order.By) (order.Order, error)
	ExtendAll(ctx context.Context, r order.ExtendRequest) (order.ExtendProgress, error)
	Get(ctx context.Context, id string) (order.Order, error)
	Timeline(ctx context.Context, id string) ([]order.Entry, error)
	SetStock(ctx context.Context, sku string, available int64) (order.Stock, error)
	Stock(ctx context.Context, skus ...string) ([]order.Stock, error)
	Pause(ctx context.Context, by order.By) error
	Resume(ctx context.Context, by order.By) error
	Paused(ctx context.Context) (order.Pause, error)
	// Check says why the service cannot do its work, or nil.
	Check(ctx context.Context) error
}

// Config says what a [Server] serves, and to whom.
type Config struct {
	Shop Shop
	// Sweep does one round of the sweep.
	Sweep func(ctx context.Context) (order.Summary, error)
	// Tokens are those whom the server lets in. When nil everybody is the operator "local", and only
	// requests for localhost, 127.0.0.1 and [::1] are answered: the listener should be on one of them.
	Tokens *Tokens
	// Version is the program's, for the OpenAPI document.
	Version string
	// Registerer takes the metrics of requests. None when nil.
	Registerer prometheus.Registerer
	// Logger is slog.Default when nil.
	Logger *slog.Logger
}

// Server is the API as an [http.Handler]. Safe for concurrent use.
type Server struct {
	cfg         Config
	router      router
	operations  map[string]*operation // by the pattern of their route
	crossOrigin *http.CrossOriginProtection
	pulse       *pulse
	metrics     metrics
	outages     limiter
}

// How long things may take.
const (
	headerTimeout = 5 * time.Second
	bodyTimeout   = 5 * time.Second
	idleTimeout   = time.Minute
	// callTimeout is for what an operation does, but those that go through all orders may take longTimeout.
	callTimeout = 10 * time.Second
	longTimeout = time.Minute
	// writeTimeout is for all of it, from the end of the header to the end of the answer.
	writeTimeout = bodyTimeout + longTimeout + 10*time.Second
)

// How large things may be, in bytes.
const (
	maxHeader    = 32 << 10
	maxOrderBody = 1 << 20
	maxBody      = 16 << 10
)

// New makes the API of a shop.
func New(cfg Config) (*Server, error) {
	if cfg.Shop == nil || cfg.Sweep == nil {
		return nil, errors.New("no shop or no sweep: give both")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	s := &Server{
		cfg: cfg, operations: make(map[string]*operation),
		crossOrigin: http.NewCrossOriginProtection(), metrics: newMetrics(cfg.Registerer),
		pulse: newPulse(func(ctx context.Context) error {
			_, err := cfg.Shop.Paused(ctx) // reads one row, which nobody keeps locked for readers
			return err
		}),
	}
	api := humago.New(&s.router, s.describe())
	s.registerOrders(api)
	s.registerStock(api)
	s.registerPause(api)
	s.registerHealth(api.OpenAPI())
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

// Serve is [Serve] for the API.
func (s *Server) Serve(ctx context.Context, l net.Listener, shutdown time.Duration) error {
	return Serve(ctx, l, s, shutdown, s.cfg.Logger)
}

// Serve answers requests on the listener until ctx ends, and then those that are under way, for at most so
// long as shutdown says; what still runs then is cancelled, and the error says so. It closes the listener.
// Headers, bodies and the time that a client takes are bounded.
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
		return errors.Join(fmt.Errorf("HTTP requests did not end within %s and were cut: %w", shutdown, err), server.Close())
	}
	return nil
}
