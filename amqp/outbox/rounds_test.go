package outbox

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/amqp/amqptest"
	"github.com/lapse-go/lapse/amqp/database"
)

// rounds is what a relay told of its rounds.
type rounds struct {
	mu        sync.Mutex
	well, ill int
	took      time.Duration // the longest
	errs      []error
}

func (r *rounds) told(took time.Duration, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.took = max(r.took, took)
	if err == nil {
		r.well++
	} else {
		r.ill, r.errs = r.ill+1, append(r.errs, err)
	}
}

func (r *rounds) counts() (well, ill int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.well, r.ill
}

// awaitWell waits until three more rounds have gone well.
func (r *rounds) awaitWell(t *testing.T, when string) {
	t.Helper()
	before, _ := r.counts()
	eventually(t, "rounds go well "+when, func() bool { well, _ := r.counts(); return well >= before+3 })
}

// awaitIll waits until rounds fail and wants none to go well then.
func (r *rounds) awaitIll(t *testing.T, when string) {
	t.Helper()
	fail := func() {
		_, before := r.counts()
		eventually(t, "rounds fail "+when, func() bool { _, ill := r.counts(); return ill >= before+2 })
	}
	fail()
	before, _ := r.counts()
	fail()
	if well, _ := r.counts(); well != before {
		t.Errorf("%d rounds went well %s", well-before, when)
	}
}

func TestRoundsAreTold(t *testing.T) {
	w := newWorld(t)
	brokerProxy, url := amqptest.NewBrokerProxy(t, amqptest.URL(t))
	dsn, err := mysql.ParseDSN(amqptest.DSN(t, w.db))
	if err != nil {
		t.Fatal(err)
	}
	databaseProxy := amqptest.NewProxy(t, dsn.Addr)
	dsn.Addr = databaseProxy.Addr()
	db, err := database.Open(dsn.FormatDSN(), database.Options{Logger: amqptest.Logger(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if pool, err := db.DB(); err == nil {
			pool.Close()
		}
	})
	var told rounds
	deliveries, due := w.listen(), w.consume(w.channel(), w.topology.DueQueue("timer"))
	r := NewRelay(db, w.publisher(amqptest.Dial(t, url)), RelayConfig{
		Topology: w.topology, Metrics: w.metrics, Logger: amqptest.Logger(t), Poll: 50 * time.Millisecond, OnRound: told.told,
	})
	run(t, r)
	told.awaitWell(t, "while there is nothing to do")

	timer := Message{Message: amqp.Message{Kind: "timer"}, Deadline: time.Now()}
	w.add(w.event("{}"), timer, timer)
	receive(t, deliveries)
	receive(t, due)
	receive(t, due)
	eventually(t, "the outbox is empty", func() bool { return w.rows() == 0 })
	if n := testutil.ToFloat64(w.metrics.Timers); n != 2 {
		t.Errorf("%v timers were counted, want 2", n)
	}
	told.awaitWell(t, "after some rows")

	brokerProxy.Refuse()
	told.awaitIll(t, "while the broker is away")
	brokerProxy.Restore()
	told.awaitWell(t, "when the broker is back")

	databaseProxy.Refuse()
	told.awaitIll(t, "while the database is away")
	databaseProxy.Restore()
	told.awaitWell(t, "when the database is back")
	if told.took <= 0 {
		t.Error("no round took any time")
	}
}

// A broker that is there and confirms nothing makes a round fail; one that refuses single rows does not.
func TestARoundWithoutAnyConfirmFails(t *testing.T) {
	w := newWorld(t)
	var told rounds
	stalled, url := amqptest.NewBrokerProxy(t, amqptest.URL(t))
	pub := amqp.NewPublisher(amqptest.Dial(t, url), amqp.PublisherConfig{ConfirmTimeout: time.Second, Logger: amqptest.Logger(t)})
	t.Cleanup(func() { pub.Close() })
	run(t, w.relay(pub, func(c *RelayConfig) { c.OnRound = told.told }))
	w.add(Message{Message: amqp.Message{Kind: "nowhere"}, Exchange: w.topology.Namespace + ".missing"})
	eventually(t, "it is set aside", func() bool {
		return w.number("SELECT COUNT(*) FROM lapse_outbox WHERE error IS NOT NULL") == 1
	})
	told.awaitWell(t, "although a row cannot be routed")
	if _, ill := told.counts(); ill != 0 {
		t.Errorf("%d rounds failed: %v", ill, told.errs)
	}
	stalled.Stall()
	w.add(w.event("{}"))
	eventually(t, "a round fails for want of confirms", func() bool {
		told.mu.Lock()
		defer told.mu.Unlock()
		return slices.ContainsFunc(told.errs, func(err error) bool { return errors.Is(err, errSilent) })
	})
}
