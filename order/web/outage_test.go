package web_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"path"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"gorm.io/gorm"

	"github.com/lapse-go/lapse/amqp/amqptest"
	"github.com/lapse-go/lapse/amqp/database"
	"github.com/lapse-go/lapse/amqp/deadletter"
	"github.com/lapse-go/lapse/order"
	"github.com/lapse-go/lapse/order/checkout"
	"github.com/lapse-go/lapse/order/web"
)

// promptly is how soon a request has to be refused while there is no database.
const promptly = 2 * time.Second

func TestWithoutADatabase(t *testing.T) {
	server := amqptest.NewMySQL(t)
	db := server.Database(t)
	t.Run("that is stopped", func(t *testing.T) {
		s := start(t, db)
		s.serveShop(checkout.API, checkout.Place, checkout.Relay)
		s.stocked("kettle", 100)
		s.stocked("filter", 100)
		s.placed("A-1")
		await(t, 20*time.Second, "the service is ready", func() bool { return s.Check(t.Context()) == nil })
		server.Stop()
		s.wantUnavailable()
		server.Start()
		s.wantBack()
	})
	t.Run("that does not answer", func(t *testing.T) {
		proxy, through := proxied(t, db)
		s := start(t, through)
		s.serveShop(checkout.API, checkout.Place, checkout.Relay)
		s.stocked("kettle", 1000)
		s.stocked("filter", 1000)
		s.placed("A-2")
		await(t, 20*time.Second, "the service is ready", func() bool { return s.Check(t.Context()) == nil })
		proxy.Stall()
		s.wantUnavailable()
		proxy.Restore()
		s.wantBack()

		// In the middle of everything, also of a commit.
		var placing sync.WaitGroup
		stalled := make(chan struct{})
		for range 8 {
			placing.Go(func() {
				for {
					begin := time.Now()
					_, err := s.Place(t.Context(), draft(""))
					if took := time.Since(begin); err != nil {
						select {
						case <-stalled:
						default:
							t.Errorf("before the outage: %v", err)
						}
						wantProblem(t, err, "unavailable", http.StatusServiceUnavailable, order.ErrUnavailable)
						if took > promptly {
							t.Errorf("refused after %s", took)
						}
						return
					}
				}
			})
		}
		time.Sleep(200 * time.Millisecond)
		close(stalled)
		proxy.Stall()
		placing.Wait()
		proxy.Restore()
		s.wantBack()
	})
}

// proxied is a pool that reaches the database through a proxy.
func proxied(t *testing.T, db *gorm.DB) (*amqptest.Proxy, *gorm.DB) {
	t.Helper()
	dsn, err := mysql.ParseDSN(amqptest.DSN(t, db))
	if err != nil {
		t.Fatal(err)
	}
	proxy := amqptest.NewProxy(t, dsn.Addr)
	dsn.Addr = proxy.Addr()
	through, err := database.Open(dsn.FormatDSN(), database.Options{Logger: amqptest.Logger(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if pool, err := through.DB(); err == nil {
			pool.Close()
		}
	})
	return proxy, through
}

// wantUnavailable asks for everything that needs the database, at once and twice, and for what does not.
func (s *service) wantUnavailable() {
	s.t.Helper()
	ctx, t := s.t.Context(), s.t
	all, job := deadletter.Selection{All: true}, "0190a0a0-0000-7000-8000-000000000000"
	for range 2 {
		var asking sync.WaitGroup
		for name, ask := range map[string]func() error{
			"place":      func() error { _, err := s.Place(ctx, draft("B-1")); return err },
			"get":        func() error { _, err := s.Get(ctx, "A-1"); return err },
			"timeline":   func() error { _, err := s.Timeline(ctx, "A-1"); return err },
			"pay":        func() error { _, err := s.Pay(ctx, "A-1", order.Payment{Reference: "P-1"}); return err },
			"cancel":     func() error { _, err := s.Cancel(ctx, "A-1", order.By{}); return err },
			"extend":     func() error { _, err := s.Extend(ctx, "A-1", time.Now().Add(time.Hour), order.By{}); return err },
			"extend all": func() error { _, err := s.ExtendAll(ctx, order.ExtendRequest{Key: "k", More: time.Minute}); return err },
			"set stock":  func() error { _, err := s.SetStock(ctx, "kettle", 1000); return err }, // it may yet be done
			"stock":      func() error { _, err := s.Stock(ctx, "kettle"); return err },
			"pause":      func() error { return s.Pause(ctx, order.By{}) },
			"resume":     func() error { return s.Resume(ctx, order.By{}) },
			"paused":     func() error { _, err := s.Paused(ctx); return err },
			"sweep":      func() error { _, err := s.Sweep(ctx); return err },
			"check":      func() error { return s.Check(ctx) },
			"letters":    func() error { return fourth(s.DeadLetters(ctx, deadletter.Filter{}, deadletter.Page{})) },
			"search": func() error {
				return fourth(s.DeadLetters(ctx, deadletter.Filter{From: died, Text: "x"}, deadletter.Page{}))
			},
			"letter":  func() error { return third(s.DeadLetter(ctx, 1)) },
			"groups":  func() error { return second(s.DeadLetterGroups(ctx, deadletter.Filter{})) },
			"export":  func() error { return s.ExportDeadLetters(ctx, deadletter.Filter{}, web.CSV, io.Discard) },
			"discard": func() error { return second(s.Discard(ctx, all, deadletter.By{Why: "why"})) },
			"restore": func() error { return second(s.Restore(ctx, all, deadletter.By{Why: "why"})) },
			"dry run": func() error { return second(s.DryRun(ctx, all, false)) },
			"replay": func() error {
				return second(s.StartReplay(ctx, deadletter.Request{Selection: all, By: deadletter.By{Why: "why"}}))
			},
			"progress": func() error { return second(s.Replay(ctx, job)) },
			"replays":  func() error { return third(s.Replays(ctx, deadletter.Page{})) },
			"results":  func() error { return third(s.ReplayResults(ctx, job, "", deadletter.Page{})) },
			"stop":     func() error { return second(s.CancelReplay(ctx, job, deadletter.By{Why: "why"})) },
			"audit":    func() error { return third(s.Audit(ctx, deadletter.AuditFilter{}, deadletter.Page{})) },
		} {
			asking.Go(func() {
				begin := time.Now()
				err := ask()
				if took := time.Since(begin); took > promptly {
					t.Errorf("%s was refused after %s", name, took)
				}
				if name == "check" {
					wantProblem(t, err, "not-ready", http.StatusServiceUnavailable, nil)
				} else if p, ok := errors.AsType[*web.Problem](err); !ok || p.Type != "urn:lapse:problem:unavailable" || !errors.Is(err, order.ErrUnavailable) {
					t.Errorf("%s: %v", name, err)
				}
			})
		}
		asking.Wait()
	}
	if status, header, _ := s.send("GET", "/v1/pause", ""); status != 503 || header.Get("Retry-After") == "" {
		t.Errorf("%d, %v", status, header)
	}
	if status, _, _ := s.send("GET", "/healthz", ""); status != 200 {
		t.Errorf("/healthz: %d", status)
	}
	begin := time.Now()
	if id, err := s.PlaceAsync(ctx, draft(s.orderName())); err != nil || id == "" || time.Since(begin) > promptly {
		t.Errorf("after %s: %q, %v", time.Since(begin), id, err)
	}
}

// wantBack waits until the service is ready again, and for the order that was taken in meanwhile.
func (s *service) wantBack() {
	s.t.Helper()
	await(s.t, 30*time.Second, "the service is ready again", func() bool { return s.Check(s.t.Context()) == nil })
	await(s.t, 30*time.Second, "the order is placed", func() bool {
		_, err := s.Get(s.t.Context(), s.orderName())
		return err == nil
	})
}

// Who has to wait for a lock is not refused, but for one that is kept for long.
func TestWaitingForALock(t *testing.T) {
	db := amqptest.Database(t)
	s := start(t, db)
	s.stocked("kettle", 100)
	s.stocked("filter", 100)
	s.placed("A-1")
	tx := db.WithContext(context.WithoutCancel(t.Context())).Begin()
	if err := tx.Exec("SELECT id FROM lapse_orders WHERE id = 'A-1' FOR UPDATE").Error; err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	_, err := s.Cancel(t.Context(), "A-1", order.By{})
	wantProblem(t, err, "unavailable", http.StatusServiceUnavailable, order.ErrUnavailable)
	if took := time.Since(begin); took > promptly {
		t.Errorf("refused after %s", took)
	}
	begin = time.Now()
	time.AfterFunc(time.Second, func() { tx.Rollback() })
	o, err := s.Pay(t.Context(), "A-1", order.Payment{Reference: "P-1"})
	if err != nil || o.Status != order.Paid || time.Since(begin) < time.Second {
		t.Errorf("after %s: %v, %v", time.Since(begin), o.Status, err)
	}
}

// However many requests wait for one row, the loops that close orders find a connection.
func TestRequestsLeaveConnectionsToTheLoops(t *testing.T) {
	db := amqptest.Database(t)
	pool, err := db.DB()
	if err != nil {
		t.Fatal(err)
	}
	pool.SetMaxOpenConns(16)
	s := start(t, db)
	s.stocked("kettle", 100)
	s.stocked("filter", 100)
	tx := db.WithContext(context.WithoutCancel(t.Context())).Begin()
	defer tx.Rollback()
	if err := tx.Exec("SELECT sku FROM lapse_stock WHERE sku = 'kettle' FOR UPDATE").Error; err != nil {
		t.Fatal(err)
	}
	var placing sync.WaitGroup
	for range 24 {
		placing.Go(func() {
			begin := time.Now()
			_, err := s.Place(t.Context(), draft(""))
			wantProblem(t, err, "unavailable", http.StatusServiceUnavailable, order.ErrUnavailable)
			if took := time.Since(begin); took > promptly {
				t.Errorf("refused after %s", took)
			}
		})
	}
	const half = 8 + 1 // and the transaction above
	await(t, promptly, "requests wait", func() bool { return pool.Stats().InUse >= half })
	begin := time.Now()
	if _, err := s.shop.Paused(t.Context()); err != nil || time.Since(begin) > 500*time.Millisecond {
		t.Errorf("a loop had to wait for %s: %v", time.Since(begin), err)
	}
	placing.Wait()
	if n := pool.Stats().WaitCount; n > 0 {
		t.Errorf("a connection had to be waited for %d times", n)
	}
}

// orderName is the id of the order that is taken in during the outage.
func (s *service) orderName() string { return path.Base(s.t.Name()) }
