package deadletter

import (
	"context"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"gorm.io/gorm"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/amqp/amqptest"
)

// desk is one over a database of the test's own.
func desk(t testing.TB, guard Guard) *Desk {
	t.Helper()
	return New(Config{
		DB: amqptest.Database(t), Topology: amqp.Topology{Namespace: amqptest.Namespace()}, Guard: guard,
		Registerer: prometheus.NewRegistry(), Logger: amqptest.Logger(t),
	})
}

// put makes n letters, of the messages m-0, m-1 and so on about order-0, order-1 and so on, which died a second after each
// other, the last one now, in groups of the same error, six kinds, and the reasons in turn. All are open. They came from route.
func put(t testing.TB, d *Desk, n int, route Route) {
	t.Helper()
	run(t, d.cfg.DB, `INSERT INTO lapse_dead_letter_groups
		SELECT LPAD(LOWER(HEX(g.n)), 16, '0'), CONCAT('kind-', g.n MOD 6), ELT(1 + g.n MOD 5, 'hopeless', 'out-of-tries', 'delivery-limit', 'unroutable', 'rejected'),
			CONCAT('error ', g.n, ' of order <id>') FROM (SELECT a.d + 10 * b.d AS n FROM `+digits+` a, `+digits+` b) g WHERE g.n < 30`)
	for from := 0; from < n; from += 10_000 {
		run(t, d.cfg.DB, `INSERT INTO lapse_dead_letters (identity, message_id, kind, subject, queue, exchange, routing_key, reason, attempts, error, first_error,
				fingerprint, properties, headers, body, size, died_at, collected_at, replays, replayed_by, state)
			SELECT CONCAT('letter-', s.n), CONCAT('m-', s.n), CONCAT('kind-', s.n MOD 6), CONCAT('order-', s.n), 'lapse.dead', ?, ?,
				ELT(1 + s.n MOD 5, 'hopeless', 'out-of-tries', 'delivery-limit', 'unroutable', 'rejected'), 8,
				CONCAT('error ', s.n MOD 30, ' of order order-', s.n), CONCAT('first error of order-', s.n),
				LPAD(LOWER(HEX(s.n MOD 30)), 16, '0'), '{}', CONCAT('{"lapse-error":"error of order-', s.n, '","tenant":"t-', s.n MOD 7, '"}'),
				CONCAT('{"order_id":"order-', s.n, '","deadline":"2026-01-01T00:00:00Z"}'), 60,
				UTC_TIMESTAMP(6) - INTERVAL (? - s.n) SECOND, UTC_TIMESTAMP(6), 0, '', 'open'
			FROM (SELECT ? + a.d + 10 * b.d + 100 * c.d + 1000 * e.d AS n FROM `+digits+` a, `+digits+` b, `+digits+` c, `+digits+` e) s WHERE s.n < ? ORDER BY s.n`,
			route.Exchange, route.RoutingKey, n-1, from, n)
	}
}

func run(t testing.TB, db *gorm.DB, sql string, args ...any) {
	t.Helper()
	if err := db.Exec(sql, args...).Error; err != nil {
		t.Fatal(err)
	}
}

// number is the answer to a question for one.
func number(t testing.TB, db *gorm.DB, sql string, args ...any) (n int64) {
	t.Helper()
	if err := db.Raw(sql, args...).Row().Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// queue declares a queue that ends with the test, and returns what consumes nothing from it but counts it.
func queue(t testing.TB) (conn *amqp.Conn, name string) {
	t.Helper()
	conn = amqptest.Conn(t)
	channel, err := conn.Channel(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer channel.Close()
	name = amqptest.Namespace() + ".queue"
	if _, err := channel.QueueDeclare(name, true, false, false, false, map[string]any{"x-queue-type": "quorum"}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		channel, err := conn.Channel(context.WithoutCancel(t.Context()))
		if err != nil {
			t.Error(err)
			return
		}
		defer channel.Close()
		if _, err := channel.QueueDelete(name, false, false, false); err != nil {
			t.Error(err)
		}
	})
	return conn, name
}

// running has the desk run until the test ends, or the returned function is called.
func running(t testing.TB, d *Desk, conn *amqp.Conn) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	publisher := amqp.NewPublisher(conn, amqp.PublisherConfig{})
	over := make(chan struct{})
	go func() {
		defer close(over)
		_ = d.Run(ctx, publisher)
	}()
	stop = func() {
		cancel()
		<-over
		publisher.Close()
	}
	t.Cleanup(stop)
	return stop
}

// ended waits for the end of a replay.
func ended(t testing.TB, d *Desk, id string, patience time.Duration) Replay {
	t.Helper()
	for over := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		r, err := d.Replay(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		if r.State.Ended() {
			return r
		}
		if time.Now().After(over) {
			t.Fatalf("the replay has not ended after %s: %+v", patience, r)
		}
	}
}

// config is the desk's configuration for another process.
func (d *Desk) config() Config {
	cfg := d.cfg
	cfg.Registerer = nil
	return cfg
}
