package web_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"gorm.io/gorm"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/amqp/amqptest"
	"github.com/lapse-go/lapse/order"
	"github.com/lapse-go/lapse/order/checkout"
	"github.com/lapse-go/lapse/order/web"
)

// service is the API of a Checkout on real servers, with a client for it.
type service struct {
	*web.Client
	t        testing.TB
	db       *gorm.DB
	shop     *checkout.Checkout
	server   *web.Server
	url      string
	http     *http.Client
	requests *prometheus.Registry
}

type option func(*web.Config)

// start serves on a database, a fresh one on the shared server if db is nil. It ends with the test.
func start(t testing.TB, db *gorm.DB, options ...option) *service {
	t.Helper()
	if db == nil {
		db = amqptest.Database(t)
	}
	shop, err := checkout.New(db, checkout.Config{Namespace: amqptest.Namespace(), Logger: amqptest.Logger(t)})
	if err != nil {
		t.Fatal(err)
	}
	s := &service{t: t, db: db, shop: shop, requests: prometheus.NewRegistry()}
	cfg := config(shop)
	cfg.Version, cfg.Registerer, cfg.Logger = "test", s.requests, amqptest.Logger(t)
	for _, change := range options {
		change(&cfg)
	}
	server, err := web.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	s.server = server
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	var over sync.WaitGroup
	over.Go(func() {
		if err := web.Serve(ctx, listener, server, 5*time.Second, cfg.Logger); err != nil {
			t.Errorf("Serve ended with %v", err)
		}
	})
	transport := &http.Transport{MaxIdleConnsPerHost: 100}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		stop()
		over.Wait()
	})
	s.url, s.http = "http://"+listener.Addr().String(), &http.Client{Transport: transport}
	s.Client = s.client("")
	return s
}

func config(shop *checkout.Checkout) web.Config {
	return web.Config{Orders: shop.Service, Submit: shop.Submit, Sweep: shop.Sweeper().Once, Check: shop.Check, Desk: shop.Desk(), Overview: shop.Overview}
}

func (s *service) client(token string) *web.Client {
	s.t.Helper()
	c, err := web.NewClient(s.url, token, s.http)
	if err != nil {
		s.t.Fatal(err)
	}
	return c
}

// withTokens has the service ask for tokens, one for each role.
func withTokens(t testing.TB, given map[web.Role]string) option {
	t.Helper()
	var lines []string
	for _, role := range web.Roles {
		token, line, err := web.NewToken(string(role)+"-1", role)
		if err != nil {
			t.Fatal(err)
		}
		given[role] = token
		lines = append(lines, line)
	}
	tokens, err := web.ReadTokens(strings.NewReader(strings.Join(lines, "\n")))
	if err != nil {
		t.Fatal(err)
	}
	return func(cfg *web.Config) { cfg.Tokens = tokens }
}

// stocked makes pieces of the article available.
func (s *service) stocked(sku string, pieces int64) {
	s.t.Helper()
	if _, err := s.shop.SetStock(s.t.Context(), sku, pieces); err != nil {
		s.t.Fatal(err)
	}
}

func draft(id string) order.Draft {
	return order.Draft{
		ID: id, Customer: "customer-1", Region: "eu", Tags: []string{"sale"}, Window: time.Hour,
		Lines: []order.Line{
			{SKU: "kettle", Quantity: 2, Price: order.Money{Amount: 1999, Currency: "EUR"}},
			{SKU: "filter", Quantity: 1, Price: order.Money{Amount: 250, Currency: "EUR"}},
		},
	}
}

func (s *service) placed(id string) order.Order {
	s.t.Helper()
	o, err := s.Place(s.t.Context(), draft(id))
	if err != nil {
		s.t.Fatal(err)
	}
	return o
}

// serveShop runs loops of the Checkout until the test ends.
func (s *service) serveShop(roles ...checkout.Role) {
	s.t.Helper()
	amqptest.Declare(s.t, amqptest.Conn(s.t), s.shop.Topology())
	ctx, stop := context.WithCancel(context.WithoutCancel(s.t.Context()))
	var over sync.WaitGroup
	over.Go(func() {
		if err := s.shop.Serve(ctx, amqp.Config{URIs: []string{amqptest.URL(s.t)}, MaxBackoff: time.Second}, roles...); err != nil {
			s.t.Errorf("the shop ended with %v", err)
		}
	})
	s.t.Cleanup(func() {
		stop()
		over.Wait()
	})
}

// await polls, since a database does not tell when something has become so.
func await(t testing.TB, patience time.Duration, what string, so func() bool) {
	t.Helper()
	for over := time.Now().Add(patience); !so(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(over) {
			t.Fatalf("waited %s in vain: %s", patience, what)
		}
	}
}

func wantProblem(t testing.TB, err error, name string, status int, is error) {
	t.Helper()
	_ = asProblem(t, err, name, status, is)
}

// asProblem wants an error of the kind, and returns it.
func asProblem(t testing.TB, err error, name string, status int, is error) *web.Problem {
	t.Helper()
	p, ok := errors.AsType[*web.Problem](err)
	if !ok {
		t.Fatalf("got %v, want a problem %s", err, name)
	}
	if p.Type != "urn:lapse:problem:"+name || p.Status != status || p.Title == "" || p.Detail == "" {
		t.Errorf("got %d %s %q %q, want %d %s", p.Status, p.Type, p.Title, p.Detail, status, name)
	}
	if is != nil && !errors.Is(err, is) {
		t.Errorf("%v is not %v", err, is)
	}
	return p
}
