package checkout_test

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/amqp/amqptest"
	"github.com/lapse-go/lapse/amqp/database"
	"github.com/lapse-go/lapse/amqp/deadletter"
	"github.com/lapse-go/lapse/order"
	"github.com/lapse-go/lapse/order/checkout"
)

// rounds is how long the watch may take to notice something.
const rounds = 20 * time.Second

// Without the broker, nothing is known of its queues, and all of the orders.
func TestTheWatchWithoutTheBroker(t *testing.T) {
	var log lines
	s := openShop(t, place{}, checkout.Config{SweepEvery: noSweep, SweepGrace: time.Millisecond, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	proxy, url := amqptest.NewBrokerProxy(t, s.url)
	r := s.start(url)
	queues := func() int { return r.series("lapse_queue_messages") }
	await(t, rounds, "the queues are measured", func() bool { return queues() == len(amqp.DefaultLadder())+len(s.Topology().Kinds)+3 })

	proxy.Refuse()
	s.orders("o", 3, 100*time.Millisecond)
	if err := s.Pause(t.Context(), order.By{Who: "test"}); err != nil {
		t.Fatal(err)
	}
	await(t, rounds, "the queues are gone", func() bool { return queues() == 0 })
	await(t, rounds, "the pause is seen", func() bool { return r.metric("lapse_paused") == 1 })
	await(t, rounds, "the overdue orders are seen", func() bool { return r.metric("lapse_overdue_orders") == 3 })
	if late := r.metric("lapse_overdue_oldest_seconds"); late <= 0 || late > 60 {
		t.Errorf("the oldest is overdue by %v seconds", late)
	}
	failures := func() float64 { return r.metric("lapse_loop_runs_total", "loop", "watch", "result", "failure") }
	await(t, rounds, "two rounds have failed", func() bool { return failures() >= 2 })

	proxy.Restore()
	await(t, rounds, "the queues are measured again", func() bool { return queues() > 0 })
	await(t, rounds, "it is well again", func() bool {
		return strings.Count(log.text(), "all metrics can be measured again") == 1
	})
	if n := strings.Count(log.text(), "some metrics are missing"); n != 1 {
		t.Errorf("the log says %d times that metrics are missing:\n%s", n, log.text())
	}
}

// Without the database, nothing is known of the orders, and all of the queues.
func TestTheWatchWithoutTheDatabase(t *testing.T) {
	s := openShop(t, place{}, checkout.Config{SweepEvery: noSweep})
	dsn, err := mysql.ParseDSN(amqptest.DSN(t, s.db))
	if err != nil {
		t.Fatal(err)
	}
	proxy := amqptest.NewProxy(t, dsn.Addr)
	dsn.Addr = proxy.Addr()
	db, err := database.Open(dsn.FormatDSN(), database.Options{Logger: s.cfg.Logger})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if pool, err := db.DB(); err == nil {
			pool.Close()
		}
	})
	cfg, metrics := s.cfg, prometheus.NewRegistry()
	cfg.Registerer = metrics
	c, err := checkout.New(db, cfg)
	if err != nil {
		t.Fatal(err)
	}
	r := serve(t, c, metrics, s.url, checkout.Relay, checkout.Timer) // nobody takes what is unrouted
	orders := func() int {
		return r.series("lapse_paused") + r.series("lapse_overdue_orders") + r.series("lapse_overdue_oldest_seconds") + r.series("lapse_desk_open_letters")
	}
	all := 3 + len(deadletter.Reasons)
	await(t, rounds, "the orders are watched", func() bool { return orders() == all })

	for name, fail := range map[string]func(){"refuses": proxy.Refuse, "does not answer": proxy.Stall} {
		fail()
		await(t, rounds, "the orders are not watched any more, as the database "+name, func() bool { return orders() == 0 })
		before := r.metric("lapse_queue_messages", "role", "unrouted")
		s.deliver(amqp.Message{Kind: "order.unheard_of", Body: []byte("{}")})
		await(t, rounds, "a message is counted, although the database "+name, func() bool {
			return r.metric("lapse_queue_messages", "role", "unrouted") == before+1
		})
		proxy.Restore()
		await(t, rounds, "the orders are watched again", func() bool { return orders() == all })
	}
}

// A process that only sweeps has no connection to the broker, and watches the orders all the same.
func TestTheWatchOfAProcessThatOnlySweeps(t *testing.T) {
	s := openShop(t, place{}, checkout.Config{})
	r := s.start(s.url, checkout.Sweep)
	await(t, rounds, "it is watched", func() bool { return r.series("lapse_paused") == 1 && r.series("lapse_overdue_orders") == 1 })
	if n := r.series("lapse_queue_messages"); n != 0 {
		t.Errorf("it reports %d queues", n)
	}
	if ill := r.metric("lapse_loop_runs_total", "loop", "watch", "result", "failure"); ill != 0 {
		t.Errorf("%v rounds failed", ill)
	}
}
