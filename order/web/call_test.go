package web_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lapse-go/lapse/order"
	"github.com/lapse-go/lapse/order/web"
)

// questions has the test answer what is asked of the database, so that time can be the test's, too.
type questions struct {
	order.Repository
	answer func(context.Context) error
}

func (q questions) Get(ctx context.Context, id string) (order.Order, error) {
	return order.Order{ID: id}, q.answer(ctx)
}
func (q questions) Timeline(context.Context, string) ([]order.Entry, error) { return nil, nil }
func (q questions) Pause(ctx context.Context) (order.Pause, error) {
	return order.Pause{}, q.answer(ctx)
}
func (q questions) SetPause(ctx context.Context, _ order.Pause) error { return q.answer(ctx) }
func (q questions) ExtendSome(ctx context.Context, _ order.ExtendRequest) (order.ExtendProgress, error) {
	return order.ExtendProgress{Done: true}, q.answer(ctx)
}

// bench is a server without a network.
type bench struct {
	t      *testing.T
	server *web.Server
	mu     sync.Mutex
	log    bytes.Buffer
}

func newBench(t *testing.T, answer func(context.Context) error, options ...option) *bench {
	t.Helper()
	b := &bench{t: t}
	cfg := web.Config{
		Orders: &order.Service{Repository: questions{answer: answer}},
		Submit: func(context.Context, order.Draft) error { return nil },
		Sweep:  func(ctx context.Context) (order.Summary, error) { return order.Summary{}, answer(ctx) },
		Check:  func(context.Context) error { return nil },
		Logger: slog.New(slog.NewJSONHandler(locked{&b.mu, &b.log}, nil)),
	}
	for _, change := range options {
		change(&cfg)
	}
	server, err := web.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	b.server = server
	return b
}

func (b *bench) ask(ctx context.Context, method, path, body string) (int, web.Problem) {
	b.t.Helper()
	w, r := httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, method, path, strings.NewReader(body))
	r.Host = "localhost"
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Idempotency-Key", "k")
	r.Header.Set("Prefer", "respond-async")
	b.server.ServeHTTP(w, r)
	answer := w.Result()
	defer answer.Body.Close()
	return answer.StatusCode, problemIn(b.t, answer)
}

const small = `{"id":"A-1","lines":[{"sku":"kettle","quantity":1,"price":{"amount":1,"currency":"EUR"}}]}`

// lines are those of the log since it was asked last.
func (b *bench) lines() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	lines := strings.Split(strings.TrimSuffix(b.log.String(), "\n"), "\n")
	b.log.Reset()
	if lines[0] == "" {
		return nil
	}
	return lines
}

// What hangs keeps its place until it has ended, and others are refused in time all the same.
func TestCallsThatHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int32
		release := make(chan struct{})
		b := newBench(t, func(context.Context) error { calls.Add(1); <-release; return nil })
		var asking sync.WaitGroup
		for i := range 50 {
			asking.Go(func() {
				// Some come when all places are taken by calls that nobody waits for any more.
				time.Sleep(time.Duration(i) * 100 * time.Millisecond)
				begin := time.Now()
				var status int
				var p web.Problem
				switch i % 4 {
				case 0:
					status, p = b.ask(t.Context(), "GET", "/v1/orders/A-1", "")
				case 1:
					status, p = b.ask(t.Context(), "POST", "/v1/sweep", "")
				case 2:
					status, p = b.ask(t.Context(), "POST", "/v1/orders:extend", `{"by":"20m"}`)
				case 3:
					status, p = b.ask(t.Context(), "POST", "/v1/pause", "")
				}
				if status != 503 || !strings.Contains(p.Detail, "may or may not have been done") || time.Since(begin) != 1800*time.Millisecond {
					t.Errorf("after %s: %d %v", time.Since(begin), status, &p)
				}
			})
		}
		asking.Wait()
		if n := calls.Load(); n != 4+8 {
			t.Errorf("%d calls at once, and not four that look and eight that change", n)
		}
		close(release)
		synctest.Wait()
		for range 20 {
			if status, p := b.ask(t.Context(), "GET", "/v1/orders/A-1", ""); status != 200 {
				t.Errorf("%d %v", status, &p)
			}
		}
	})
}

// Whoever finds all places taken waits for one as long as its own time allows.
func TestWaitingForAPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, func(context.Context) error { time.Sleep(800 * time.Millisecond); return nil })
		begin := time.Now()
		var answered, refused atomic.Int32
		var asking sync.WaitGroup
		for range 20 {
			asking.Go(func() {
				if status, _ := b.ask(t.Context(), "POST", "/v1/pause", ""); status == 204 {
					answered.Add(1)
				} else {
					refused.Add(1)
				}
			})
		}
		asking.Wait()
		// Eight, eight more after 0.8 s, and of the rest the time is over soon after another 0.8 s.
		if answered.Load() != 16 || refused.Load() != 4 || time.Since(begin) != 1800*time.Millisecond {
			t.Errorf("after %s: %d were answered and %d refused", time.Since(begin), answered.Load(), refused.Load())
		}
		time.Sleep(time.Second) // for the calls of the last
	})
}

// Changes that wait for a lock take no place from those who only look, nor do those that take long.
func TestLookingBesideChangesThatHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, func(ctx context.Context) error {
			if ctx.Value(hang{}) != nil {
				<-ctx.Done()
				return fmt.Errorf("%w: %w", order.ErrUnavailable, ctx.Err())
			}
			return nil
		})
		var asking sync.WaitGroup
		for range 40 {
			asking.Go(func() { b.ask(context.WithValue(t.Context(), hang{}, true), "POST", "/v1/pause", "") })
		}
		synctest.Wait()
		for path, method := range map[string]string{"/v1/orders/A-1": "GET", "/v1/sweep": "POST"} {
			if status, p := b.ask(t.Context(), method, path, ""); status != 200 {
				t.Errorf("%s: %d %v", path, status, &p)
			}
		}
		asking.Wait()
	})
}

// hang marks the context of a call that hangs.
type hang struct{}

// Long operations have a minute once the database has answered.
func TestLongCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int32
		b := newBench(t, func(ctx context.Context) error {
			if calls.Add(1)%2 == 1 {
				return nil // the small question
			}
			<-ctx.Done()
			return fmt.Errorf("%w: %w", order.ErrUnavailable, ctx.Err())
		})
		begin := time.Now()
		if status, p := b.ask(t.Context(), "POST", "/v1/sweep", ""); status != 503 || time.Since(begin) != time.Minute {
			t.Errorf("after %s: %d %v", time.Since(begin), status, &p)
		}
	})
}

// A panic is logged once, whoever still waits for the call.
func TestPanicsAreLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, func(context.Context) error { time.Sleep(5 * time.Second); panic("late") })
		if status, _ := b.ask(t.Context(), "GET", "/v1/orders/A-1", ""); status != 503 {
			t.Errorf("status %d", status)
		}
		b.lines()
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if lines := b.lines(); len(lines) != 1 || !strings.Contains(lines[0], "panic: late") {
			t.Errorf("a call that was given up: %q", lines)
		}

		// A client that is gone: before the call of the database ends, and before the answer.
		var leave context.CancelFunc
		alone := func(context.Context) error { leave(); panic("alone") }
		b = newBench(t, alone, func(cfg *web.Config) {
			cfg.Submit = func(ctx context.Context, _ order.Draft) error { return alone(ctx) }
		})
		for _, ask := range []func(context.Context){
			func(ctx context.Context) { b.ask(ctx, "GET", "/v1/orders/A-1", "") },
			func(ctx context.Context) { b.ask(ctx, "POST", "/v1/orders", small) },
		} {
			var ctx context.Context
			ctx, leave = context.WithCancel(t.Context())
			defer leave()
			ask(ctx)
			synctest.Wait()
			if lines := b.lines(); len(lines) != 1 || !strings.Contains(lines[0], "panic: alone") {
				t.Errorf("a client that is gone: %q", lines)
			}
		}
	})
}

// An outage is two lines in the log, for each server that is away.
func TestOutagesInTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var away atomic.Bool
		server := func(name string) error {
			if away.Load() {
				return fmt.Errorf("%w: %s is away", order.ErrUnavailable, name)
			}
			return nil
		}
		b := newBench(t, func(context.Context) error { return server("MySQL") }, func(cfg *web.Config) {
			cfg.Submit = func(context.Context, order.Draft) error { return server("RabbitMQ") }
		})
		ask := func(times int) {
			for range times {
				b.ask(t.Context(), "GET", "/v1/orders/A-1", "")
				b.ask(t.Context(), "POST", "/v1/orders", small)
				time.Sleep(10 * time.Millisecond)
			}
		}
		gone, leave := context.WithCancel(t.Context())
		leave()
		for range 20 {
			b.ask(gone, "GET", "/v1/orders/A-1", "") // is no outage
		}
		ask(10)
		if lines := b.lines(); len(lines) > 0 {
			t.Errorf("before the outage: %q", lines)
		}
		for range 2 {
			for range 10 { // some are answered in between
				away.Store(true)
				ask(100)
				away.Store(false)
				ask(10)
			}
			if lines := b.lines(); len(lines) != 2 || !strings.Contains(lines[0], "MySQL is away") || !strings.Contains(lines[1], "RabbitMQ is away") {
				t.Errorf("in the outage: %q", lines)
			}
			time.Sleep(5 * time.Second)
			ask(10)
			lines := b.lines()
			for i, server := range []string{"database", "broker"} {
				var line struct {
					Msg, Server string
					Failed      int
				}
				if len(lines) != 2 || json.Unmarshal([]byte(lines[i]), &line) != nil || !strings.Contains(line.Msg, "again") || line.Server != server || line.Failed != 1000 {
					t.Errorf("after the outage: %q", lines)
				}
			}
		}
	})
}

// Anybody may ask whether the service is ready, as often as he likes, and learns nothing else.
func TestReadinessForEverybody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		why := errors.New("no connection to amqp://lapse@10.0.0.7:5672")
		var checks atomic.Int32
		check := func(context.Context) error {
			checks.Add(1)
			time.Sleep(10 * time.Second) // not bound by its context
			return why
		}
		b := newBench(t, nil, func(cfg *web.Config) { cfg.Check = check })
		ready := func() web.Problem {
			status, p := b.ask(t.Context(), "GET", "/readyz", "")
			if status != http.StatusServiceUnavailable || p.Type != "urn:lapse:problem:not-ready" {
				t.Errorf("%d %v", status, &p)
			}
			if strings.Contains(p.Error(), "10.0.0.7") || !strings.Contains(p.Detail, "metrics listener") {
				t.Errorf("it says %s", &p)
			}
			return p
		}
		begin := time.Now()
		var asking sync.WaitGroup
		for range 100 {
			asking.Go(func() { ready() })
		}
		asking.Wait()
		if n, took := checks.Load(), time.Since(begin); n != 1 || took != 1800*time.Millisecond {
			t.Errorf("%d checks, answered after %s", n, took)
		}
		time.Sleep(7 * time.Second)
		ready() // with the answer of the check that hung
		if n := checks.Load(); n != 1 {
			t.Errorf("%d checks", n)
		}
		if lines := b.lines(); len(lines) > 0 {
			t.Errorf("log: %q", lines)
		}

		panics := web.Health(func(context.Context) error { panic("the check") })
		w := httptest.NewRecorder()
		panics.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", "/readyz", nil))
		if w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), "panic: the check") {
			t.Errorf("%d %s", w.Code, w.Body)
		}
	})
}
