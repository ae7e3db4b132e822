package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"runtime"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/lapse-go/lapse/order/checkout"
	"github.com/lapse-go/lapse/order/web"
)

// apiFlags say where the API is, and who may use it.
type apiFlags struct {
	Listen     string `default:":8080" help:"Address of the API. Without tokens only its port counts, and the API is on loopback."`
	TokensFile string `help:"File of those who may use the API, a line each, from lapse token new."`
	TLSCert    string `name:"tls-cert" help:"File with the API's certificate chain, PEM."`
	TLSKey     string `name:"tls-key" help:"File with its private key, PEM."`
}

// opsFlags say where a process tells how it is.
type opsFlags struct {
	MetricsListen string `default:"127.0.0.1:9467" help:"Address of /metrics, /healthz and /readyz. None when empty."`
}

// server answers on an address until it is told to stop; the zero server answers nothing.
type server struct {
	listener net.Listener
	handler  http.Handler
	shutdown time.Duration // see web.Serve
	logger   *slog.Logger
}

func (s server) run(ctx context.Context) error {
	if s.listener == nil {
		<-ctx.Done()
		return nil
	}
	return web.Serve(ctx, s.listener, s.handler, s.shutdown, s.logger)
}

// close is for a server that never ran.
func (s server) close() {
	if s.listener != nil {
		s.listener.Close()
	}
}

// api is the server of the HTTP API, if that is one of the roles.
func (f apiFlags) api(does roles, orders kept, shutdown time.Duration, registry prometheus.Registerer, logger *slog.Logger) (server, error) {
	if !slices.Contains(does, checkout.API) {
		return server{}, nil
	}
	cfg := apiConfig(orders, logger)
	cfg.Registerer = registry
	address := f.Listen
	if f.TokensFile != "" {
		tokens, err := readTokens(f.TokensFile)
		if err != nil {
			return server{}, err
		}
		cfg.Tokens = tokens
	} else {
		_, port, err := net.SplitHostPort(f.Listen)
		if err != nil {
			return server{}, fmt.Errorf("%w: --listen=%s: give host:port, such as :8080", errUsage, f.Listen)
		}
		address = net.JoinHostPort("127.0.0.1", port)
		logger.Warn("the API is on loopback only, where everybody is an operator: give --tokens-file to let others in", "address", address)
	}
	if (f.TLSCert == "") != (f.TLSKey == "") {
		return server{}, fmt.Errorf("%w: --tls-cert and --tls-key: give both, or neither", errUsage)
	}
	handler, err := web.New(cfg)
	if err != nil {
		return server{}, err
	}
	l, err := listen("listen", address)
	if err != nil {
		return server{}, err
	}
	if f.TLSCert != "" {
		pair, err := tls.LoadX509KeyPair(f.TLSCert, f.TLSKey)
		if err != nil {
			l.Close()
			return server{}, fmt.Errorf("%w: --tls-cert, --tls-key: %w", errConfig, err)
		}
		l = tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12})
	}
	logger.Info("the API is up", "address", l.Addr().String(), "tls", f.TLSCert != "")
	return server{l, handler, shutdown, logger}, nil
}

// apiConfig lets everybody in, on loopback.
func apiConfig(orders kept, logger *slog.Logger) web.Config {
	cfg := web.Config{
		Namespace: orders.Topology().Namespace, Switch: orders.Switch, Sweep: orders.Sweeper().Once, Check: orders.Check, Desk: orders.Desk(), Overview: orders.Overview,
		Version: version, Logger: logger,
	}
	if orders.shop != nil {
		cfg.Orders, cfg.Submit = orders.shop.Service, orders.shop.Submit
	}
	return cfg
}

func readTokens(file string) (*web.Tokens, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("%w: --tokens-file: %w", errConfig, err)
	}
	defer f.Close()
	tokens, err := web.ReadTokens(f)
	if err != nil {
		return nil, fmt.Errorf("%w: --tokens-file %s: %w", errConfig, file, err)
	}
	return tokens, nil
}

// ops is the server of what monitoring asks for.
func (f opsFlags) ops(orders *checkout.Closer, registry *prometheus.Registry, logger *slog.Logger) (server, error) {
	if f.MetricsListen == "" {
		return server{}, nil
	}
	l, err := listen("metrics-listen", f.MetricsListen)
	if err != nil {
		return server{}, err
	}
	mux := http.NewServeMux()
	mux.Handle("/", web.Health(orders.Check))
	mux.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{Registry: registry}))
	return server{l, mux, time.Second, logger}, nil
}

// newRegistry has what every Go program tells, and which one this is.
func newRegistry() *prometheus.Registry {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	promauto.With(registry).NewGaugeVec(prometheus.GaugeOpts{
		Name: "lapse_build_info", Help: "1, with the version of the program.",
	}, []string{"version", "goversion"}).WithLabelValues(version, runtime.Version()).Set(1)
	return registry
}

func listen(flag, address string) (net.Listener, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("%w: --%s=%s: %w", errConfig, flag, address, err)
	}
	return l, nil
}
