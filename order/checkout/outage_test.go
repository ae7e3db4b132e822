package checkout_test

import (
	"bytes"
	"log/slog"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

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

// The broker goes down before the deadlines and comes back long after them, while no process is there to look at a
// rung, as in github.com/rabbitmq/rabbitmq-server/issues/37 and github.com/rabbitmq/rabbitmq-server/issues/10692: every
// timer comes all the same, as soon as somebody looks, and it is told how late.
func TestTheBrokerIsDownPastTheDeadlines(t *testing.T) {
	const due = 500
	node := amqptest.NewNode(t)
	s := newShop(t, place{url: node.URL()}, checkout.Config{SweepEvery: noSweep, SweepGrace: 500 * time.Millisecond, Logger: quiet(t)})
	relay := s.startHere(s.url, checkout.Relay)
	relay.awaitReady()
	// On rungs, and between them.
	s.orders("rung", due/2, 5*time.Second)
	s.orders("between", due/2, 5600*time.Millisecond)
	await(t, 5*time.Second, "all timers are on their way", func() bool {
		return s.sql("SELECT COUNT(*) FROM lapse_outbox WHERE due_at IS NOT NULL") == 0
	})
	relay.end()
	node.Stop()

	// Without a broker the process tells that orders are overdue; its sweep is told to leave them alone here.
	r := s.start(s.url, checkout.Timer, checkout.Sweep)
	await(t, rounds, "the overdue orders are seen", func() bool { return r.metric("lapse_overdue_orders") == due })
	if late := r.metric("lapse_overdue_oldest_seconds"); late < 0.5 {
		t.Errorf("the oldest is overdue by %v seconds", late)
	}
	if r.Ready() == nil {
		t.Error("ready without a broker")
	}
	r.end()
	node.Start() // and for a while nobody consumes
	await(t, 20*time.Second, "the timers of rungs are back in their queue", func() bool {
		return s.queued(s.Topology().DueQueue("order.payment_timeout")) >= due/2
	})

	r = s.start(s.url, checkout.Relay, checkout.Timer)
	v := s.judge(30 * time.Second)
	if v.Expired != due || r.metric("lapse_timers_total", "outcome", "expired") != due {
		t.Errorf("%d orders expired, %v of them by timers", v.Expired, r.metric("lapse_timers_total", "outcome", "expired"))
	}
	lateness := v.Lateness(nil)
	t.Logf("lateness %s", lateness)
	if n := r.metric("lapse_lateness_seconds"); n != due {
		t.Errorf("the lateness of %v orders was measured", n)
	}
	for _, outcome := range []string{"retried", "dead"} {
		if n := r.metric("lapse_messages_total", "outcome", outcome); n != 0 {
			t.Errorf("%v messages were %s, although the outage was not their fault", n, outcome)
		}
	}
}

// The database becomes read-only under a live pool, whose login has no special rights, and all connections are cut,
// as in github.com/go-sql-driver/mysql/issues/871: the process recovers unaided, and nothing is lost or counted as a
// failure of a message.
func TestTheDatabaseIsReadOnlyForAWhile(t *testing.T) {
	const due = 300
	server := amqptest.NewMySQL(t)
	admin := server.Database(t)
	s := newShop(t, place{db: admin}, checkout.Config{SweepEvery: noSweep, Logger: quiet(t)})
	s.exec("SET GLOBAL wait_timeout = 2")
	s.exec("CREATE USER shop IDENTIFIED BY 'shop'")
	s.exec("GRANT SELECT, INSERT, UPDATE, DELETE ON *.* TO shop")
	s.login = "shop"
	relay := s.start(s.url, checkout.Relay)
	r := s.start(s.url, checkout.Timer)
	r.awaitReady()
	s.orders("o", due, 5*time.Second)
	await(t, 5*time.Second, "all timers are on their way", func() bool {
		return s.sql("SELECT COUNT(*) FROM lapse_outbox WHERE due_at IS NOT NULL") == 0
	})
	s.exec("SET GLOBAL read_only = 1")
	await(t, 10*time.Second, "it is noticed", func() bool { return r.metric("lapse_handler_outages_total") > 0 && r.Ready() != nil })
	var ids []int
	if err := admin.Raw("SELECT id FROM information_schema.processlist WHERE user = 'shop'").Scan(&ids).Error; err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		admin.Exec("KILL ?", id) // some have ended by themselves
	}
	if n := s.sql("SELECT COUNT(*) FROM lapse_orders WHERE status = 'pending'"); n != due {
		t.Errorf("%d orders are pending on a database that is read-only", n)
	}
	s.exec("SET GLOBAL read_only = 0")
	if v := s.judge(30 * time.Second); v.Expired != due {
		t.Errorf("%d orders expired", v.Expired)
	}
	relay.awaitReady()
	r.awaitReady()
	for _, outcome := range []string{"retried", "dead"} {
		if n := r.metric("lapse_messages_total", "outcome", outcome); n != 0 {
			t.Errorf("%v messages were %s, although the outage was not their fault", n, outcome)
		}
	}
}

// A kind that nothing is bound for is confirmed by the broker, since it has the message, as in
// github.com/amqp-node/amqplib/issues/184. So it is counted, and there is an alert on that count.
func TestAMistypedKindIsSeen(t *testing.T) {
	s := openShop(t, place{}, checkout.Config{})
	r := s.start(s.url, checkout.Relay)
	r.awaitReady()
	s.publishTo(s.Topology().Due(), "order.payment_timout", amqp091.Publishing{Body: []byte(`{"order_id": "A-1"}`), DeliveryMode: amqp091.Persistent})
	await(t, rounds, "it is counted", func() bool { return r.metric("lapse_queue_messages", "role", "unrouted") == 1 })
	rules, err := os.ReadFile("../../deploy/prometheus/rules.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(rules, []byte(`lapse_queue_messages{role=~"dead|unrouted"}`)) {
		t.Error("no alert looks at it while no desk collects it")
	}
	desk := s.start(s.url, checkout.Desk)
	await(t, rounds, "it is on the desk", func() bool { return desk.metric("lapse_desk_open_letters", "reason", "unroutable") == 1 })
	if !bytes.Contains(rules, []byte(`lapse_desk_open_letters{reason="unroutable"}`)) {
		t.Error("no alert looks at it on the desk")
	}
}
