package outbox

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"gorm.io/gorm"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/amqp/amqptest"
	"github.com/lapse-go/lapse/amqp/database"
)

// Four relays, 10,000 rows: everything arrives, once because nothing went wrong, timers not before
// their deadline, and the table is empty.
func TestRelaysPublishEverything(t *testing.T) {
	w := newWorld(t)
	const events, timers = 7000, 3000
	deliveries, due := w.listen(), w.consume(w.channel(), w.topology.DueQueue("timer"))
	start := time.Now()
	var ahead sync.WaitGroup
	for range 4 {
		r := w.relay(w.publisher(w.conn))
		run(t, r)
		ahead.Go(func() {
			for i := range (events + timers) / 4 / 50 {
				var messages []Message
				for j := range 50 {
					if j%10 < 7 {
						messages = append(messages, w.event("{}"))
					} else {
						messages = append(messages, Message{
							Message:  amqp.Message{Kind: "timer"},
							Deadline: start.Add(time.Duration(i*j) * time.Millisecond), Window: time.Duration(j%2) * time.Second,
						})
					}
				}
				w.add(messages...)
				r.Wake()
			}
		})
	}
	ids := map[string]bool{}
	for range events {
		ids[receive(t, deliveries).MessageId] = true
	}
	for range timers {
		ids[receive(t, due).MessageId] = true
	}
	ahead.Wait()
	if len(ids) != events+timers {
		t.Errorf("%d different messages, want %d", len(ids), events+timers)
	}
	eventually(t, "the outbox is empty", func() bool { return w.rows() == 0 })
	if n := testutil.ToFloat64(w.metrics.Relayed.WithLabelValues("confirmed")); n != events+timers {
		t.Errorf("%v rows relayed, want %d: some were sent twice", n, events+timers)
	}
	if len(deliveries)+len(due) > 0 {
		t.Error("more came than was sent")
	}
}

// A timer comes at its deadline by the database's clock, however late the relay is and whatever the
// window.
func TestTimersComeAtTheirDeadline(t *testing.T) {
	w := newWorld(t)
	now := w.databaseTime()
	deadlines := map[string]time.Time{}
	for i, window := range []time.Duration{2 * time.Second, 0, 1500 * time.Millisecond} {
		for j := range 10 {
			id := fmt.Sprintf("%d-%d", i, j)
			deadlines[id] = now.Add(1200*time.Millisecond + time.Duration(j)*20*time.Millisecond)
			w.add(Message{Message: amqp.Message{ID: id, Kind: "timer"}, Deadline: deadlines[id], Window: window})
		}
	}
	due := w.consume(w.channel(), w.topology.DueQueue("timer"))
	run(t, w.relay(w.publisher(w.conn)))
	for range len(deadlines) {
		d := receive(t, due)
		at := w.databaseTime()
		// One whose window is not a rung takes a rung that may be shorter than what remains, and hops.
		hops := !strings.HasPrefix(d.MessageId, "0-")
		if early := deadlines[d.MessageId].Sub(at); early > 0 && !hops {
			t.Errorf("timer %s came %s before its deadline", d.MessageId, early)
		}
		if late := at.Sub(deadlines[d.MessageId]); late > time.Second {
			t.Errorf("timer %s came %s after its deadline", d.MessageId, late)
		}
	}
}

func (w *world) databaseTime() time.Time {
	w.t.Helper()
	var at time.Time
	if err := w.db.Raw("SELECT UTC_TIMESTAMP(6)").Row().Scan(&at); err != nil {
		w.t.Fatal(err)
	}
	return at
}

// An outbox that is read by "greater than the last id" would skip these.
func TestRowsThatCommitLateAreNotSkipped(t *testing.T) {
	w := newWorld(t)
	deliveries := w.listen()
	run(t, w.relay(w.publisher(w.conn), func(c *RelayConfig) { c.Poll = 20 * time.Millisecond }))
	late := make([]*gorm.DB, 3)
	for i := range late {
		late[i] = w.db.Begin()
		if err := Add(late[i], w.event(fmt.Sprintf("late %d", i))); err != nil {
			t.Fatal(err)
		}
		w.add(w.event("in time"))
	}
	for range late {
		if d := receive(t, deliveries); string(d.Body) != "in time" {
			t.Errorf("%q came before its transaction committed", d.Body)
		}
	}
	for i := len(late) - 1; i >= 0; i-- {
		if err := late[i].Commit().Error; err != nil {
			t.Fatal(err)
		}
		if d := receive(t, deliveries); string(d.Body) != fmt.Sprintf("late %d", i) {
			t.Errorf("got %q after transaction %d committed", d.Body, i)
		}
	}
}

// The low-water id stays below whatever a claim may still have to find.
func TestTheLowWaterIDFollowsWithALag(t *testing.T) {
	var w lowWater
	start := time.Now()
	none, row := sqlInt(0), sqlInt
	at := func(s int) time.Time { return start.Add(time.Duration(s) * time.Second) }
	want := func(id int64) {
		t.Helper()
		if w.id != id {
			t.Errorf("at %d, want %d", w.id, id)
		}
	}
	w.seen = 100
	w.mark(at(0), none)
	w.mark(at(29), none)
	want(0)
	w.mark(at(30), none) // nothing below 101 was there half a minute ago
	want(101)
	w.seen = 500
	w.mark(at(40), row(200)) // claimed by a relay that has died
	w.mark(at(70), row(200))
	want(200)
	w.mark(at(71), none)
	w.mark(at(101), none)
	want(501)
	w.lower(7) // found by a full scan
	want(7)
	w.mark(at(102), row(7))
	w.mark(at(110), none)
	w.mark(at(132), none)
	want(7)
}

// What is below the low-water id all the same (a transaction that took minutes, a table that was
// emptied) is found by the full scan.
func TestAFullScanFindsTheRest(t *testing.T) {
	w := newWorld(t)
	w.add(w.event("late"), w.event("set aside"))
	w.exec("UPDATE lapse_outbox SET error = 'unroutable', attempts = 1 WHERE body = 'set aside'")
	r := w.relay(w.publisher(w.conn), func(c *RelayConfig) { c.Poll = 20 * time.Millisecond })
	r.low = lowWater{id: 1000, seen: 1000}
	deliveries := w.listen()
	stop := run(t, r)
	receive(t, deliveries)
	receive(t, deliveries)
	eventually(t, "the outbox is empty", func() bool { return w.rows() == 0 })
	w.exec("ALTER TABLE lapse_outbox AUTO_INCREMENT = 1") // as after TRUNCATE: from now on, ids are low
	w.add(w.event("next"))
	receive(t, deliveries)
	stop()
	if r.low.id >= 1000 {
		t.Errorf("the low-water id stayed at %d, so all rows will wait for a full scan", r.low.id)
	}
}

func TestWhatWasSetAsideIsTriedAgainBelowTheLowWaterID(t *testing.T) {
	w := newWorld(t)
	w.add(w.event("set aside"))
	w.exec("UPDATE lapse_outbox SET error = 'unroutable', attempts = 1")
	r := w.relay(w.publisher(w.conn))
	r.low = lowWater{id: 1000, seen: 1000}
	deliveries := w.listen()
	run(t, r)
	receive(t, deliveries)
}

func TestWhatCannotBeRoutedIsSetAsideAndHoldsUpNobody(t *testing.T) {
	w := newWorld(t)
	deliveries := w.listen()
	missing := w.topology.Namespace + ".orders"
	lost := func() Message {
		return Message{Message: amqp.Message{Kind: "event"}, Exchange: missing}
	}
	spoilt := w.event("headers that somebody has edited")
	w.add(lost(), w.event("1"), spoilt, lost(), w.event("2"))
	w.exec("UPDATE lapse_outbox SET headers = '{\"emoji\": ' WHERE body LIKE 'headers%'")
	r := w.relay(w.publisher(w.conn), func(c *RelayConfig) { c.Poll = 20 * time.Millisecond })
	run(t, r)
	for _, want := range []string{"1", "2"} {
		if got := string(receive(t, deliveries).Body); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	eventually(t, "three rows are set aside", func() bool {
		return w.number("SELECT COUNT(*) FROM lapse_outbox WHERE error IS NOT NULL AND attempts = 1") == 3 && w.rows() == 3
	})
	if n := w.number("SELECT COUNT(*) FROM lapse_outbox WHERE error LIKE CONCAT('%no exchange%', ?, '%')", missing); n != 2 {
		t.Errorf("%d rows say which exchange is missing, want 2", n)
	}
	if n := w.number("SELECT COUNT(*) FROM lapse_outbox WHERE TIMESTAMPDIFF(SECOND, UTC_TIMESTAMP(6), claimed_until) BETWEEN 40 AND 60"); n != 3 {
		t.Errorf("%d rows are to be tried again in a minute, want 3", n)
	}
	if n := testutil.ToFloat64(w.metrics.Relayed.WithLabelValues("unroutable")); n != 2 {
		t.Errorf("%v counted, want 2", n)
	}
	backlog, err := Stats(t.Context(), w.db)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(Backlog{Rows: 3, SetAside: 3}, backlog, cmp.AllowUnexported(Backlog{})); diff != "" {
		t.Errorf("backlog (-want +got):\n%s", diff)
	}

	// When the exchange is there, they pass.
	if err := w.channel().ExchangeDeclare(missing, "fanout", false, true, false, false, nil); err != nil {
		t.Fatal(err)
	}
	if err := w.channel().ExchangeBind(w.topology.Events(), "", missing, false, nil); err != nil {
		t.Fatal(err)
	}
	w.exec("UPDATE lapse_outbox SET claimed_until = '2000-01-01'")
	receive(t, deliveries)
	receive(t, deliveries)
	eventually(t, "the last one is set aside for longer", func() bool {
		return w.number("SELECT COUNT(*) FROM lapse_outbox WHERE attempts = 2 AND TIMESTAMPDIFF(SECOND, UTC_TIMESTAMP(6), claimed_until) BETWEEN 100 AND 120") == 1
	})
}

// statements counts what a pool sends, but for the beginning and end of transactions.
func statements(t *testing.T, db *gorm.DB) *atomic.Int64 {
	t.Helper()
	var n atomic.Int64
	count := func(*gorm.DB) { n.Add(1) }
	if err := errors.Join(
		db.Callback().Row().Before("gorm:row").Register("test:count", count),
		db.Callback().Raw().Before("gorm:raw").Register("test:count", count),
	); err != nil {
		t.Fatal(err)
	}
	return &n
}

func TestNothingIsLostWhileTheBrokerIsAway(t *testing.T) {
	w := newWorld(t)
	proxy, url := amqptest.NewBrokerProxy(t, amqptest.URL(t))
	conn := amqptest.Dial(t, url)
	deliveries := w.listen()
	n := statements(t, w.db)
	r := w.relay(w.publisher(conn), func(c *RelayConfig) { c.Poll, c.Lease = 50*time.Millisecond, 3*time.Second })
	run(t, r)
	w.add(w.event("before"))
	receive(t, deliveries)
	eventually(t, "the outbox is empty", func() bool { return w.rows() == 0 })

	proxy.Refuse()
	proxy.Reset()
	const rows = 2000
	for range rows / 100 {
		messages := make([]Message, 100)
		for i := range messages {
			messages[i] = w.event("meanwhile")
		}
		w.add(messages...)
		r.Wake()
	}
	eventually(t, "claims were given back", func() bool {
		return w.number("SELECT COUNT(*) FROM lapse_outbox WHERE claimed_until > UTC_TIMESTAMP(6)") == 0
	})
	before := n.Load()
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		r.Wake() // a busy checkout must not make it busy
	}
	if n := n.Load() - before; n > 1 {
		t.Errorf("%d statements in 2 s with the broker away, want at most one that measures the backlog", n)
	}
	if n := w.rows(); n != rows {
		t.Errorf("%d rows left, want %d", n, rows)
	}
	proxy.Restore()
	ids := map[string]bool{}
	for len(ids) < rows {
		ids[receive(t, deliveries).MessageId] = true
	}
	eventually(t, "the outbox is empty", func() bool { return w.rows() == 0 })
}

// A connection that is lost in the middle leaves some rows unknown. They are sent again, with the same
// id.
func TestALostConnectionLosesNothing(t *testing.T) {
	w := newWorld(t)
	proxy, url := amqptest.NewBrokerProxy(t, amqptest.URL(t))
	conn := amqptest.Dial(t, url)
	deliveries := w.listen()
	const rows = 10_000
	messages := make([]Message, rows)
	for i := range messages {
		messages[i] = w.event("{}")
	}
	w.add(messages...)
	for range 2 {
		run(t, w.relay(w.publisher(conn), func(c *RelayConfig) { c.Poll = 50 * time.Millisecond }))
	}
	ids := map[string]bool{}
	total := 0
	for cut := 1000; len(ids) < rows; total++ {
		ids[receive(t, deliveries).MessageId] = true
		if len(ids) == cut && cut < rows {
			proxy.Reset()
			cut += 3000
		}
	}
	eventually(t, "the outbox is empty", func() bool { return w.rows() == 0 })
	t.Logf("%d deliveries of %d messages", total, rows)
}

// blockable is a publisher whose broker has raised an alarm.
type blockable struct {
	Publisher
	blocked atomic.Bool
}

func (b *blockable) Ready() error {
	if b.blocked.Load() {
		return errors.New("blocked")
	}
	return b.Publisher.Ready()
}

func TestABlockedPublisherStopsClaims(t *testing.T) {
	w := newWorld(t)
	pub := &blockable{Publisher: w.publisher(w.conn)}
	pub.blocked.Store(true)
	deliveries := w.listen()
	w.add(w.event("{}"))
	n := statements(t, w.db)
	r := w.relay(pub, func(c *RelayConfig) { c.Poll = 10 * time.Millisecond })
	run(t, r)
	r.Wake()
	select {
	case <-deliveries:
		t.Error("published")
	case <-time.After(500 * time.Millisecond):
	}
	if n := n.Load(); n != 1 {
		t.Errorf("%d statements, want only the one that measures the backlog", n)
	}
	if n := testutil.ToFloat64(w.metrics.Rows); n != 1 {
		t.Errorf("the backlog is %v meanwhile, want 1", n)
	}
	pub.blocked.Store(false)
	receive(t, deliveries)
}

func TestTheRowsOfARelayThatDiedWaitForTheLease(t *testing.T) {
	w := newWorld(t)
	w.add(w.event("1"), w.event("2"))
	pub := w.publisher(w.conn)
	const lease = 2 * time.Second
	dead := w.relay(pub, func(c *RelayConfig) { c.Lease = lease })
	start := time.Now()
	if b, err := dead.claim(t.Context(), 0, math.MaxInt64, 500); err != nil || len(b.ids) != 2 {
		t.Fatal(b, err)
	}
	deliveries := w.listen()
	run(t, w.relay(pub))
	w.add(w.event("3"))
	for i, want := range []string{"3", "1", "2"} {
		if got := string(receive(t, deliveries).Body); got != want {
			t.Errorf("delivery %d is %q, want %q", i, got, want)
		}
	}
	if took := time.Since(start); took < lease || took > lease+1500*time.Millisecond {
		t.Errorf("after %s, want the lease of %s and at most a poll", took, lease)
	}
}

// A relay that is to stop finishes what it has claimed, and gives back what it cannot finish.
func TestStoppingLeavesNoClaim(t *testing.T) {
	w := newWorld(t)
	proxy, url := amqptest.NewBrokerProxy(t, amqptest.URL(t))
	conn := amqptest.Dial(t, url)
	deliveries := w.listen()
	stop := run(t, w.relay(w.publisher(conn)))
	w.add(w.event("first"))
	receive(t, deliveries)
	eventually(t, "the outbox is empty", func() bool { return w.rows() == 0 })
	proxy.Stall()
	w.add(w.event("second"))
	eventually(t, "it is claimed", func() bool {
		return w.number("SELECT COUNT(*) FROM lapse_outbox WHERE claimed_until > UTC_TIMESTAMP(6)") == 1
	})
	start := time.Now()
	stop()
	if took := time.Since(start); took > grace+2*time.Second {
		t.Errorf("stopping took %s", took)
	}
	if n := w.number("SELECT COUNT(*) FROM lapse_outbox WHERE claimed_until < TIMESTAMPADD(SECOND, 2, UTC_TIMESTAMP(6))"); n != 1 {
		t.Errorf("%d rows given back, want 1", n)
	}
	proxy.Restore()
}

// Under REPEATABLE READ, the gap that even an empty claim locks would block every insert until the
// claim's transaction ended.
func TestAnEmptyClaimBlocksNoInsert(t *testing.T) {
	w := newWorld(t)
	err := database.Transact(t.Context(), w.db, func(claim *gorm.DB) error {
		var ids []int64
		if err := claim.Raw(claimable, 0, int64(math.MaxInt64), 500).Scan(&ids).Error; err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		return database.Transact(ctx, w.db, func(tx *gorm.DB) error { return Add(tx, w.event("{}")) })
	})
	if err != nil {
		t.Error(err)
	}
}

func TestWakeRelaysAtOnce(t *testing.T) {
	w := newWorld(t)
	deliveries := w.listen()
	r := w.relay(w.publisher(w.conn), func(c *RelayConfig) { c.Poll = time.Hour })
	run(t, r)
	for range 3 {
		w.add(w.event("{}"))
		r.Wake()
		receive(t, deliveries)
	}
}

func TestAtRestARelayAsksOnceASecond(t *testing.T) {
	w := newWorld(t)
	deliveries := w.listen()
	r := w.relay(w.publisher(w.conn))
	run(t, r)
	w.add(w.event("{}"))
	r.Wake()
	receive(t, deliveries)
	eventually(t, "the outbox is empty", func() bool { return w.rows() == 0 })
	pool, err := w.db.DB()
	if err != nil {
		t.Fatal(err)
	}
	pool.SetMaxOpenConns(1) // so that one session's counter counts everything
	questions := func() (n int) {
		var name string
		if err := w.db.Raw("SHOW SESSION STATUS LIKE 'Questions'").Row().Scan(&name, &n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	time.Sleep(2 * time.Second) // it looks more often right after there was something
	before := questions()
	const seconds = 4
	time.Sleep(seconds * time.Second)
	if n := questions() - before - 1; n > seconds+1 {
		t.Errorf("%d queries in %d s", n, seconds)
	} else {
		t.Logf("%d queries in %d s", n, seconds)
	}
}

// https://github.com/OneUptime/oneuptime/issues/3117: with an order that no index serves, each claim
// would lock all candidates, and claims would wait for one another.
func TestClaimsRunInParallelEachByAnIndex(t *testing.T) {
	w := newWorld(t)
	const rows, each = 100_000, 500
	messages := make([]Message, 0, 10_000)
	for range cap(messages) {
		messages = append(messages, w.event("{}"))
	}
	for range rows / len(messages) {
		for i := range messages {
			messages[i].ID = ""
		}
		w.add(messages...)
	}
	var plan string
	if err := w.db.Raw("EXPLAIN FORMAT=JSON "+claimable, 0, int64(math.MaxInt64), each).Row().Scan(&plan); err != nil {
		t.Fatal(err)
	}
	// Each server has a form of its own.
	if !strings.Contains(plan, `"key": "PRIMARY"`) && !strings.Contains(plan, `"index_name": "PRIMARY"`) || strings.Contains(plan, "sort") {
		t.Errorf("plan %s", plan)
	}

	// Four transactions hold their claims at the same time, so none waited for another.
	held := map[int64]bool{}
	var open []*gorm.DB
	for range 4 {
		tx := w.db.Begin()
		open = append(open, tx)
		start := time.Now()
		var ids []struct{ ID int64 }
		if err := tx.Raw(claimable, 0, int64(math.MaxInt64), each).Scan(&ids).Error; err != nil {
			t.Fatal(err)
		}
		t.Logf("a claim of %d out of %d rows took %s", len(ids), rows, time.Since(start))
		for _, row := range ids {
			held[row.ID] = true
		}
	}
	for _, tx := range open {
		tx.Rollback()
	}
	if len(held) != 4*each {
		t.Errorf("%d different rows claimed, want %d", len(held), 4*each)
	}

	start := time.Now()
	if _, err := Stats(t.Context(), w.db); err != nil {
		t.Fatal(err)
	}
	t.Logf("the backlog took %s", time.Since(start))
	start = time.Now()
	for range 4 {
		run(t, w.relay(w.publisher(w.conn)))
	}
	eventually(t, "the outbox is empty", func() bool { return w.rows() == 0 })
	t.Logf("4 relays took %s for %d rows", time.Since(start), rows)
	if n := testutil.ToFloat64(w.metrics.Relayed.WithLabelValues("confirmed")); n != rows {
		t.Errorf("%v relayed, want each of %d rows once", n, rows)
	}
}

// A queue that is full makes its rows wait and no others. The broker's nack for one message comes between
// acks for its neighbours, and must not be taken for one of them.
func TestRefusedRowsAreSentAgain(t *testing.T) {
	w := newWorld(t)
	ch := w.channel()
	full, err := ch.QueueDeclare("", false, true, true, false, amqp091.Table{"x-max-length": int64(1), "x-overflow": "reject-publish"})
	if err != nil {
		t.Fatal(err)
	}
	if err := ch.QueueBind(full.Name, "full", w.topology.Events(), false, nil); err != nil {
		t.Fatal(err)
	}
	deliveries := w.listen()
	const each = 200
	var messages []Message
	for range each {
		for _, kind := range []string{"full", "free"} {
			messages = append(messages, Message{Message: amqp.Message{Kind: kind}, Exchange: w.topology.Events()})
		}
	}
	w.add(messages...)
	stop := run(t, w.relay(w.publisher(w.conn), func(c *RelayConfig) { c.Poll = 50 * time.Millisecond }))
	for range 2 * each {
		receive(t, deliveries)
	}
	eventually(t, "all refused rows wait", func() bool {
		return w.number("SELECT COUNT(*) FROM lapse_outbox WHERE attempts > 0 AND error IS NULL") == w.rows()
	})
	if n := w.rows(); n != each-1 {
		t.Errorf("%d rows are left, want %d: all but the one that the queue had room for", n, each-1)
	}
	stop()
	w.exec("DELETE FROM lapse_outbox WHERE id NOT IN (SELECT id FROM (SELECT MIN(id) AS id FROM lapse_outbox) AS one)")
	run(t, w.relay(w.publisher(w.conn), func(c *RelayConfig) { c.Poll = 50 * time.Millisecond }))
	if _, err := ch.QueuePurge(full.Name, false); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the outbox is empty", func() bool { return w.rows() == 0 })
}

// A queue whose replicas have no majority answers nothing, and makes the broker handle nothing else on
// a fresh channel either.
func TestAQueueThatDoesNotAnswerHoldsUpOnlyItsOwn(t *testing.T) {
	w := newWorld(t)
	node := amqptest.NewNode(t)
	w.conn = amqptest.Dial(t, node.URL())
	if err := w.topology.Declare(t.Context(), w.conn); err != nil {
		t.Fatal(err)
	}
	stuck := w.topology.Delay(time.Minute)
	process := func(function string) {
		t.Helper()
		node.Ctl("eval", fmt.Sprintf("ok = sys:%s(list_to_atom(\"%%2F_%s\")).", function, stuck))
	}
	process("suspend")
	events, due := w.listen(), w.consume(w.channel(), w.topology.DueQueue("timer"))
	timer := func(ahead time.Duration) Message {
		return Message{Message: amqp.Message{Kind: "timer"}, Deadline: time.Now().Add(ahead)}
	}

	// The first row is alone with the queue's silence; the others follow.
	const each, ill = 1500, 500
	w.add(timer(time.Hour))
	pub := amqp.NewPublisher(amqptest.Dial(t, node.URL()), amqp.PublisherConfig{ConfirmTimeout: 2 * time.Second, Logger: amqptest.Logger(t)})
	t.Cleanup(func() { pub.Close() })
	r := w.relay(pub, func(c *RelayConfig) { c.Lease = 9 * time.Second })
	run(t, r)
	eventually(t, "it was not answered", func() bool {
		return w.number("SELECT COUNT(*) FROM lapse_outbox WHERE attempts > 0") == 1
	})
	start := time.Now()
	for i := range each {
		messages := []Message{w.event("{}"), timer(0)}
		if i%(each/ill) == 0 {
			messages = append(messages, timer(time.Hour))
		}
		w.add(messages...)
	}
	r.Wake()
	for range each {
		receive(t, events)
		receive(t, due)
	}
	eventually(t, "no other row is left", func() bool { return w.rows() == 1+ill })
	if took := time.Since(start); took > 20*time.Second {
		t.Errorf("%d rows for other queues took %s", 2*each, took)
	} else {
		t.Logf("%d rows for other queues took %s", 2*each, took)
	}
	if n := w.number("SELECT COUNT(*) FROM lapse_outbox WHERE error IS NOT NULL"); n != 0 {
		t.Errorf("%d rows are set aside", n)
	}

	process("resume")
	start = time.Now()
	eventually(t, "the outbox is empty", func() bool { return w.rows() == 0 })
	t.Logf("%d rows for the queue took %s", 1+ill, time.Since(start))
}
