package web_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lapse-go/lapse/amqp/amqptest"
	"github.com/lapse-go/lapse/order"
	"github.com/lapse-go/lapse/order/checkout"
	"github.com/lapse-go/lapse/order/web"
)

// slow answers Get when it is told to, or its context ends.
type slow struct {
	order.Repository
	asked, proceed chan struct{}
}

func (s slow) Get(ctx context.Context, id string) (order.Order, error) {
	s.asked <- struct{}{}
	select {
	case <-s.proceed:
		return order.Order{ID: id}, nil
	case <-ctx.Done():
		return order.Order{}, ctx.Err()
	}
}

func (slow) Timeline(context.Context, string) ([]order.Entry, error) { return nil, nil }

// What is under way when the server is told to end is answered, within the limit, and then cut.
func TestEnding(t *testing.T) {
	db := amqptest.Database(t)
	for _, limit := range []time.Duration{10 * time.Second, 100 * time.Millisecond} {
		shop, err := checkout.New(db, checkout.Config{Namespace: amqptest.Namespace()})
		if err != nil {
			t.Fatal(err)
		}
		slow := slow{shop.Service.Repository, make(chan struct{}), make(chan struct{})}
		var log bytes.Buffer
		logger := slog.New(slog.NewJSONHandler(&log, nil))
		cfg := config(shop)
		cfg.Orders, cfg.Logger = &order.Service{Repository: slow}, logger
		server, err := web.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
		ended := make(chan error, 1)
		go func() { ended <- web.Serve(ctx, listener, server, limit, logger) }()
		transport := &http.Transport{}
		client, err := web.NewClient("http://"+listener.Addr().String(), "", &http.Client{Transport: transport})
		if err != nil {
			t.Fatal(err)
		}
		var asking sync.WaitGroup
		var answer error
		asking.Go(func() { _, answer = client.Timeline(t.Context(), "A-1") })
		<-slow.asked
		stop()
		if limit > time.Second { // more than the request takes
			// No new connection is taken, and the request goes on.
			await(t, 5*time.Second, "the listener is closed", func() bool {
				conn, err := net.Dial("tcp", listener.Addr().String())
				if err == nil {
					conn.Close()
				}
				return err != nil
			})
			close(slow.proceed)
			if err := <-ended; err != nil {
				t.Errorf("Serve ended with %v", err)
			}
			asking.Wait()
			if answer != nil {
				t.Errorf("the request that was under way: %v", answer)
			}
		} else {
			if err := <-ended; err != nil || !strings.Contains(log.String(), "were cut") {
				t.Errorf("Serve ended with %v, and said: %s", err, &log)
			}
			asking.Wait()
			if answer == nil {
				t.Error("a request outlived the server")
			}
		}
		transport.CloseIdleConnections()
	}
}

func TestHealth(t *testing.T) {
	asked, release := make(chan struct{}, 10), make(chan struct{})
	defer close(release)
	answers := map[string]func(context.Context) error{
		"well":    func(context.Context) error { return nil },
		"not":     func(context.Context) error { return errors.New("the broker is away") },
		"hanging": func(context.Context) error { <-release; return nil },
	}
	for name, check := range answers {
		handler := web.Health(func(ctx context.Context) error { asked <- struct{}{}; return check(ctx) })
		get := func(path string) (int, web.Problem) {
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", path, nil))
			answer := w.Result()
			defer answer.Body.Close()
			return answer.StatusCode, problemIn(t, answer)
		}
		if status, _ := get("/healthz"); status != 200 || len(asked) > 0 {
			t.Errorf("%s: /healthz: %d, asked %d", name, status, len(asked))
		}
		begin := time.Now()
		status, p := get("/readyz")
		<-asked
		if (status == 200) != (name == "well") || name == "not" && p.Detail != "the broker is away" {
			t.Errorf("%s: /readyz: %d %v", name, status, &p)
		}
		if took := time.Since(begin); took > 2*time.Second {
			t.Errorf("%s: /readyz took %s", name, took)
		}
	}
}

func TestNew(t *testing.T) {
	if _, err := web.New(web.Config{}); err == nil {
		t.Error("a server without anything to serve")
	}
}
