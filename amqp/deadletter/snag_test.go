package deadletter

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"gorm.io/gorm"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/amqp/amqptest"
)

// awaitReplay waits until a replay is as wanted.
func awaitReplay(t testing.TB, d *Desk, id, what string, so func(Replay) bool) (r Replay) {
	t.Helper()
	eventually(t, what, func() (is bool) {
		var err error
		if r, err = d.Replay(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		return so(r)
	})
	return r
}

// declare has a channel declare something that ends with the test.
func declare(t testing.TB, conn *amqp.Conn, do, undo func(*amqp091.Channel) error) {
	t.Helper()
	if err := conn.Do(t.Context(), do); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := conn.Do(context.WithoutCancel(t.Context()), undo); err != nil {
			t.Error(err)
		}
	})
}

// A queue that is full refuses messages: the replay says so and waits, what was confirmed is marked, and when there is room
// again it goes on; or it is cancelled, and then it is not done.
func TestAReplayWaitsForAFullQueue(t *testing.T) {
	for _, cancels := range []bool{false, true} {
		t.Run(fmt.Sprint(cancels), func(t *testing.T) {
			d := desk(t, nil)
			conn := amqptest.Conn(t)
			full := amqptest.Namespace() + ".full"
			declare(t, conn, func(ch *amqp091.Channel) error {
				_, err := ch.QueueDeclare(full, true, false, false, false, amqp091.Table{"x-max-length": int64(10), "x-overflow": "reject-publish"})
				return err
			}, func(ch *amqp091.Channel) error { _, err := ch.QueueDelete(full, false, false, false); return err })
			put(t, d, 30, Route{"", full})
			running(t, d, conn)
			r := begin(t, d, Request{Selection: Selection{All: true}})
			r = awaitReplay(t, d, r.ID, "it waits", func(r Replay) bool { return r.Trouble != "" })
			if r.Published < 10 || r.Published > 20 || r.Failed != 0 || !strings.Contains(r.Trouble, "refused") {
				t.Errorf("%+v", r)
			}
			if cancels {
				if err := d.Cancel(t.Context(), r.ID, By{"kim", "enough"}); err != nil {
					t.Fatal(err)
				}
				if now := ended(t, d, r.ID, 5*time.Second); now.State != Cancelled || now.Left() < 10 || now.Failed != 0 || now.Trouble != "" {
					t.Errorf("%+v", now)
				}
				return
			}
			took := 0
			for r.State == Running {
				for range 10 {
					if err := conn.Do(t.Context(), func(ch *amqp091.Channel) error {
						n, err := ch.QueuePurge(full, false)
						took += n
						return err
					}); err != nil {
						t.Fatal(err)
					}
				}
				r = awaitReplay(t, d, r.ID, "it goes on", func(now Replay) bool { return now.State.Ended() || now.Published > r.Published })
			}
			if r.State != Done || r.Published != 30 || r.Failed != 0 {
				t.Errorf("%+v", r)
			}
		})
	}
}

// Over some messages the broker closes the channel, and so leaves those beside them in doubt: only these fail.
func TestMessagesFailAlone(t *testing.T) {
	d := desk(t, nil)
	conn, name := queue(t)
	internal := amqptest.Namespace() + ".internal"
	declare(t, conn, func(ch *amqp091.Channel) error {
		return ch.ExchangeDeclare(internal, "fanout", true, false, true, false, nil)
	}, func(ch *amqp091.Channel) error { return ch.ExchangeDelete(internal, false, false) })
	put(t, d, 20, Route{"", name})
	run(t, d.cfg.DB, "UPDATE lapse_dead_letters SET exchange = ? WHERE id < 9", internal)
	run(t, d.cfg.DB, "UPDATE lapse_dead_letters SET headers = 'damaged' WHERE id = 9")
	running(t, d, conn)
	r := ended(t, d, begin(t, d, Request{Selection: Selection{All: true}}).ID, 20*time.Second)
	if r.State != Done || r.Published != 11 || r.Failed != 9 {
		t.Errorf("%+v", r)
	}
	results, _, err := d.Results(t.Context(), r.ID, "failed", Page{})
	if err != nil || len(results) != 9 || results[0].Letter != 1 || !strings.Contains(results[0].Detail, "ACCESS_REFUSED") ||
		results[8].Letter != 9 || !strings.Contains(results[8].Detail, "headers") {
		t.Errorf("%+v, %v", results, err)
	}
	if n := number(t, d.cfg.DB, "SELECT COUNT(*) FROM lapse_dead_letters WHERE state = 'open' AND replay_id IS NULL"); n != 9 {
		t.Errorf("%d letters are open", n)
	}
}

// While the guard cannot tell, nothing is published.
func TestAReplayWaitsForItsGuard(t *testing.T) {
	guard := &orders{settled: map[string]bool{}, away: errors.New("no table orders")}
	d := desk(t, guard)
	conn, name := queue(t)
	put(t, d, 5, Route{"", name})
	if _, err := d.DryRun(t.Context(), Selection{All: true}, false); err == nil || !strings.Contains(err.Error(), "no table orders") {
		t.Errorf("a dry run: %v", err)
	}
	running(t, d, conn)
	r := begin(t, d, Request{Selection: Selection{All: true}})
	r = awaitReplay(t, d, r.ID, "it waits", func(r Replay) bool { return strings.Contains(r.Trouble, "no table orders") })
	if r.Published != 0 || r.Settled != 0 || r.Owner == "" {
		t.Errorf("%+v", r)
	}
	guard.change(func() { guard.away, guard.settled["order-2"] = nil, true })
	if r = ended(t, d, r.ID, 10*time.Second); r.Published != 4 || r.Settled != 1 || r.Trouble != "" {
		t.Errorf("%+v", r)
	}
}

// A process that ends hands its replay on at once, and nothing is published twice.
func TestAReplayIsHandedOn(t *testing.T) {
	const letters = 9000
	d := desk(t, nil)
	other := New(d.config())
	conn, name := queue(t)
	put(t, d, letters, Route{"", name})
	stop := running(t, d, conn)
	r := begin(t, d, Request{Selection: Selection{All: true}, Rate: 3000})
	first := awaitReplay(t, d, r.ID, "some are published", func(r Replay) bool { return r.Published > letters/4 })
	stop()
	if r, err := d.Replay(t.Context(), r.ID); err != nil || r.Owner != "" || r.State != Running || r.Left() == 0 {
		t.Fatalf("%+v, %v", r, err)
	}
	running(t, other, conn)
	second := awaitReplay(t, d, r.ID, "another runs it", func(r Replay) bool { return r.Owner != "" })
	if second.Owner == first.Owner || time.Since(first.UpdatedAt) > leaseTime {
		t.Errorf("from %s to %s", first.Owner, second.Owner)
	}
	r = ended(t, d, r.ID, 20*time.Second)
	if n := len(drainFast(t, conn, name)); r.Published != letters || n != letters {
		t.Errorf("%d messages: %+v", n, r)
	}
}

// The database has marked letters, and nobody heard of it: they are counted once.
func TestAMarkWhoseAnswerWasLost(t *testing.T) {
	d := desk(t, nil)
	put(t, d, 10, Route{"", "x"})
	r := begin(t, d, Request{Selection: Selection{All: true}})
	pool, err := d.cfg.DB.DB()
	if err != nil {
		t.Fatal(err)
	}
	losses := &atomic.Int32{}
	lossy := d.cfg.DB.Session(&gorm.Session{})
	lossy.Statement.ConnPool = forgetful{pool, losses}
	lossy.Config.ConnPool = lossy.Statement.ConnPool
	cfg := d.config()
	cfg.DB = lossy
	runner, err := New(cfg).lease(t.Context())
	if err != nil || runner == nil {
		t.Fatal(err)
	}
	losses.Store(1)
	err = runner.mark(t.Context(), []outcome{{letter: 1, result: resultPublished, detail: "x"}, {letter: 2, result: resultSettled, detail: "paid"}, {letter: 3, result: resultFailed, detail: "no"}})
	if err != nil || losses.Load() != 0 {
		t.Fatalf("%v, %d", err, losses.Load())
	}
	if r, err = d.Replay(t.Context(), r.ID); err != nil || r.Published != 1 || r.Settled != 1 || r.Failed != 1 || r.Left() != 7 {
		t.Errorf("%+v, %v", r, err)
	}
	// Another process takes the replay, and so this one marks nothing any more.
	run(t, d.cfg.DB, "UPDATE lapse_replays SET owner = 'another'")
	if err := runner.mark(t.Context(), []outcome{{letter: 4, result: resultPublished, detail: "x"}}); !errors.Is(err, errTaken) {
		t.Errorf("%v, want errTaken", err)
	}
	if n := number(t, d.cfg.DB, "SELECT COUNT(*) FROM lapse_dead_letters WHERE state = 'replayed'"); n != 1 {
		t.Errorf("%d letters are replayed", n)
	}
}

// Case: a message is replayed to another route, and fails again. It is on the desk again, with its first route.
func TestAReplayThatFailsAgain(t *testing.T) {
	c := newCollection(t, amqptest.Database(t))
	c.desk.cfg.Guard = &orders{}
	c.collect(c.topology.Dead())
	c.bury(func(amqp.Message) amqp.Outcome { return amqp.Dead(errors.New("no such order")) })
	const missing = "mistyped"
	c.publish(c.topology.Due(), amqp.Message{ID: "m-1", Kind: kind, Body: []byte(`{}`)})
	c.await(1)
	run(t, c.db, "UPDATE lapse_dead_letters SET exchange = 'first', routing_key = ?", missing)
	running(t, c.desk, amqptest.Conn(t))
	for round := range 3 {
		r := ended(t, c.desk, begin(t, c.desk, Request{Selection: Selection{All: true}, To: &Route{c.topology.Due(), kind}}).ID, 20*time.Second)
		if r.Published != 1 || r.Total != 1 {
			t.Fatalf("%+v", r)
		}
		c.await(round + 2)
		letters := c.all()
		slices.SortFunc(letters, func(a, b Letter) int { return int(a.ID - b.ID) })
		l := letters[len(letters)-1]
		if l.Exchange != "first" || l.RoutingKey != missing || l.MessageID != "m-1" || l.Replays != round+1 || l.ReplayedBy != r.ID || l.State != Open || l.Attempts != 1 {
			t.Errorf("%+v", l)
		}
	}
	if n := number(t, c.db, "SELECT COUNT(*) FROM lapse_dead_letters WHERE state = 'replayed'"); n != 3 {
		t.Errorf("%d letters are replayed", n)
	}
}
