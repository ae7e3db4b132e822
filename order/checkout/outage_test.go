package checkout_test

import (
	"bytes"
	"log/slog"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/lapse-go/lapse/amqp/amqptest"
	"github.com/lapse-go/lapse/order/checkout"
)

// TestDatabaseAwayWhileThousandsAreDue stops the database before the orders' deadline. In
// github.com/rabbitmq/rabbitmq-server/issues/1020 consumers that hand back what they cannot handle, and
// get it again at once, kept broker and machine busy all the time.
func TestDatabaseAwayWhileThousandsAreDue(t *testing.T) {
	due, away := 5000, 20*time.Second
	if testing.Short() {
		due, away = 1000, 5*time.Second
	}
	var log lines
	mysql := amqptest.NewMySQL(t)
	s := newShop(t, place{db: mysql.Database(t)}, checkout.Config{
		SweepEvery: noSweep, Logger: slog.New(slog.NewTextHandler(&log, nil)),
	})
	relay := s.startHere(s.url, checkout.Relay)
	r := s.start(s.url, checkout.Timer, checkout.Sweep)
	r.awaitReady()
	const window = 5 * time.Second
	for i := range due / 200 {
		s.orders(string(rune('a'+i)), 200, window)
	}
	relay.Wake()
	await(t, window, "all timers are on their way", func() bool {
		return s.sql("SELECT COUNT(*) FROM lapse_outbox WHERE due_at IS NOT NULL") == 0
	})
	if n := s.sql("SELECT COUNT(*) FROM lapse_orders WHERE status <> 'pending'"); n > 0 {
		t.Fatalf("%d orders are closed already: this machine is too slow", n)
	}
	relay.end()
	mysql.Stop()
	s.dueEventually(due)
	await(t, 10*time.Second, "the replica is not ready", func() bool { return r.Ready() != nil })

	before, cpu := log.count(), cpuTime(t)
	time.Sleep(away)
	cores := (cpuTime(t) - cpu).Seconds() / away.Seconds()
	written := log.count() - before
	t.Logf("while waiting: %.3f cores, %d log lines", cores, written)
	if cores > 0.25 {
		t.Errorf("waiting took %.2f cores", cores)
	}
	if written > 20 {
		t.Errorf("waiting wrote %d log lines:\n%s", written, log.text())
	}
	if r.Ready() == nil {
		t.Error("ready without a database")
	}
	mysql.Start()
	begin := time.Now()
	s.start(s.url, checkout.Relay)
	v := s.judge(time.Minute)
	t.Logf("all was closed %s after the database was back", time.Since(begin).Round(time.Millisecond))
	if v.Expired != due {
		t.Errorf("%d orders expired", v.Expired)
	}
	for _, outcome := range []string{"retried", "dead"} {
		if n := r.metric("lapse_messages_total", "outcome", outcome); n != 0 {
			t.Errorf("%v messages were %s, although the outage was not their fault", n, outcome)
		}
	}
	await(t, 10*time.Second, "the replica is ready", func() bool { return r.Ready() == nil })
	if r.metric("lapse_handler_outages_total") == 0 {
		t.Error("no outage was counted")
	}
}

// dueEventually waits until n timers are due, those included that a consumer has taken.
func (s *shop) dueEventually(n int) {
	s.t.Helper()
	const held = 2 * 400 // two workers with twice a batch
	await(s.t, 20*time.Second, "all timers are due", func() bool {
		return s.queued(s.Topology().DueQueue("order.payment_timeout")) >= n-held
	})
}

func cpuTime(t *testing.T) time.Duration {
	t.Helper()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		t.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// lines is a log that is counted.
type lines struct {
	mu     sync.Mutex
	buffer bytes.Buffer
}

func (l *lines) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buffer.Write(line)
}

func (l *lines) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buffer.String()
}

func (l *lines) count() int { return bytes.Count([]byte(l.text()), []byte("\n")) }
