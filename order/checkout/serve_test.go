package checkout_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/amqp/amqptest"
	"github.com/lapse-go/lapse/amqp/database"
	"github.com/lapse-go/lapse/migrations"
	"github.com/lapse-go/lapse/order/checkout"
)

// One process after another is told to end while it has its hands full, each within its limit. None
// loses anything.
func TestServeEndsUnderLoad(t *testing.T) {
	s := newShop(t, place{}, checkout.Config{SweepEvery: noSweep, Shutdown: 5 * time.Second, Logger: quiet(t)})
	r := s.start(s.url)
	r.awaitReady()
	for i := range 8 {
		s.orders(fmt.Sprint("round", i, "-"), 250, time.Duration(i%4+1)*200*time.Millisecond)
		time.Sleep(rand.N(300 * time.Millisecond))
		begin := time.Now()
		r.end()
		if took := time.Since(begin); took > 6*time.Second {
			t.Errorf("ending took %s", took)
		}
		if r.Ready() == nil {
			t.Error("ready after the end")
		}
		r = s.start(s.url)
		r.awaitReady()
	}
	if v := s.judge(20 * time.Second); v.Expired != 2000 {
		t.Errorf("%d orders expired", v.Expired)
	}
}

// As in github.com/spring-projects/spring-amqp/issues/1999, where a queue that was declared with other
// arguments made an endless loop of reconnections.
func TestServeOnAQueueWithOtherArguments(t *testing.T) {
	var log lines
	s := newShop(t, place{}, checkout.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	rung := s.Topology().Delay(time.Second)
	channel, err := s.broker.Channel(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := channel.QueueDelete(rung, false, false, false); err != nil {
		t.Fatal(err)
	}
	if _, err := channel.QueueDeclare(rung, true, false, false, false, amqp091.Table{
		"x-queue-type": "quorum", "x-message-ttl": int64(1234), "x-dead-letter-exchange": s.Topology().Due(),
		"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish",
	}); err != nil {
		t.Fatal(err)
	}
	channel.Close()

	begin := time.Now()
	err = serveUntil(t, s.Checkout, s.url, 20*time.Second)
	mismatch, ok := errors.AsType[*amqp.MismatchError](err)
	if !ok || !strings.Contains(mismatch.Object, rung) || mismatch.Argument != "x-message-ttl" || mismatch.Wanted != "1000" || mismatch.Found != "1234" {
		t.Errorf("Serve ended with %v", err)
	}
	if took := time.Since(begin); took > 3*time.Second {
		t.Errorf("it took %s", took)
	}
	if n := strings.Count(log.text(), "connected to the broker"); n > 3 {
		t.Errorf("it connected %d times:\n%s", n, log.text())
	}
}

func TestServeOnADatabaseWithoutTables(t *testing.T) {
	s := newShop(t, place{}, checkout.Config{})
	var tables []string
	if err := s.db.Raw("SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE()").Scan(&tables).Error; err != nil {
		t.Fatal(err)
	}
	s.exec("DROP TABLE " + strings.Join(tables, ", "))
	begin := time.Now()
	err := serveUntil(t, s.Checkout, s.url, 20*time.Second)
	if !errors.Is(err, migrations.ErrPending) || !strings.Contains(err.Error(), "lapse migrate") || time.Since(begin) > 3*time.Second {
		t.Errorf("after %s Serve ended with %v", time.Since(begin), err)
	}
}

// serveUntil serves until it ends by itself, or for at most so long.
func serveUntil(t *testing.T, c *checkout.Checkout, url string, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	err := c.Serve(ctx, amqp.Config{URIs: []string{url}, MaxBackoff: time.Second})
	if ctx.Err() != nil {
		t.Errorf("Serve did not end within %s", limit)
	}
	return err
}

func TestServeWaitsForABrokerThatIsAway(t *testing.T) {
	s := newShop(t, place{}, checkout.Config{SweepEvery: noSweep})
	proxy, url := amqptest.NewBrokerProxy(t, s.url)
	proxy.Refuse()
	r := s.start(url)
	ids := s.orders("o", 20, time.Second)
	time.Sleep(1500 * time.Millisecond)
	if r.Ready() == nil {
		t.Error("ready without a broker")
	}
	if n := s.sql("SELECT COUNT(*) FROM lapse_orders WHERE status = 'pending'"); int(n) != len(ids) {
		t.Errorf("%d orders are pending", n)
	}
	proxy.Restore()
	r.awaitReady()
	if v := s.judge(20 * time.Second); v.Expired != len(ids) {
		t.Errorf("%d orders expired", v.Expired)
	}
}

// Orders are closed while there is no broker, also in a process that was started then.
func TestTheSweepNeedsNoBroker(t *testing.T) {
	s := newShop(t, place{}, checkout.Config{SweepEvery: 100 * time.Millisecond, SweepGrace: 100 * time.Millisecond})
	ids := s.orders("o", 20, time.Second)
	s.start("amqp://guest:guest@127.0.0.1:1/")
	await(t, 10*time.Second, "the orders are closed", func() bool {
		return s.sql("SELECT COUNT(*) FROM lapse_orders WHERE status = 'expired'") == int64(len(ids))
	})
}

// To wait for a database that does not exist, or that refuses the login, would be to wait for ever.
func TestServeOnADatabaseThatRefusesIt(t *testing.T) {
	s := newShop(t, place{}, checkout.Config{})
	dsn, err := mysql.ParseDSN(amqptest.DSN(t, s.db))
	if err != nil {
		t.Fatal(err)
	}
	unknown, stranger := dsn.Clone(), dsn.Clone()
	unknown.DBName = "lapse_test_never_created"
	stranger.User, stranger.Passwd = "lapse-stranger", "no"
	for _, dsn := range []*mysql.Config{unknown, stranger} {
		db, err := database.Open(dsn.FormatDSN(), database.Options{})
		if err != nil {
			t.Fatal(err)
		}
		c, err := checkout.New(db, s.cfg)
		if err != nil {
			t.Fatal(err)
		}
		if err := serveUntil(t, c, s.url, 5*time.Second); err == nil || !strings.Contains(err.Error(), "lapse migrate") {
			t.Errorf("Serve on %s as %s ended with %v", dsn.DBName, dsn.User, err)
		}
		if pool, err := db.DB(); err == nil {
			pool.Close()
		}
	}
}

// Who is told to end while waiting for a server ends well, and soon.
func TestServeEndsWhileItWaits(t *testing.T) {
	s := newShop(t, place{}, checkout.Config{})
	nowhere, err := database.Open("nobody@tcp(127.0.0.1:1)/nothing", database.Options{})
	if err != nil {
		t.Fatal(err)
	}
	pool, err := nowhere.DB()
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	lost, err := checkout.New(nowhere, s.cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name string
		*checkout.Checkout
		url string
	}{
		{"for the broker", s.Checkout, "amqp://guest:guest@127.0.0.1:1/"},
		{"for the database", lost, s.url},
	} {
		t.Run(test.name, func(t *testing.T) {
			ctx, stop := context.WithTimeout(t.Context(), 500*time.Millisecond)
			defer stop()
			begin := time.Now()
			if err := test.Serve(ctx, amqp.Config{URIs: []string{test.url}}); err != nil {
				t.Errorf("Serve ended with %v", err)
			}
			if took := time.Since(begin); took > 3*time.Second {
				t.Errorf("it took %s", took)
			}
		})
	}
}

// What New does not find wrong, Serve does not trip over when half of its loops run.
func TestNewRefusesWhatServeCannotUse(t *testing.T) {
	db := amqptest.Database(t)
	for _, cfg := range []checkout.Config{
		{Namespace: "no spaces"}, {Window: -1}, {Retry: amqp.RetryPolicy{Tries: -1}},
		{Workers: -1}, {Batch: -1}, {Hold: -1}, {Shutdown: -1}, {Batch: 70_000},
	} {
		if _, err := checkout.New(db, cfg); err == nil {
			t.Errorf("New took %+v", cfg)
		}
	}
}
