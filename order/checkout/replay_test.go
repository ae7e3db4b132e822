package checkout_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/amqp/amqptest"
	"github.com/lapse-go/lapse/amqp/database"
	"github.com/lapse-go/lapse/amqp/deadletter"
	"github.com/lapse-go/lapse/order/checkout"
)

// childEnv has the test program be a desk that runs until it is killed, on the database that it names.
const childEnv = "LAPSE_TEST_DESK"

func child() {
	db, err := database.Open(os.Getenv(childEnv), database.Options{})
	if err != nil {
		panic(err)
	}
	c, err := checkout.New(db, checkout.Config{Namespace: os.Getenv(childEnv + "_NAMESPACE")})
	if err != nil {
		panic(err)
	}
	panic(c.Serve(context.Background(), amqp.Config{URIs: []string{os.Getenv(childEnv + "_BROKER")}}, checkout.Desk))
}

// desk starts a process that does nothing but run the desk.
func (s *shop) desk() *exec.Cmd {
	s.t.Helper()
	process := exec.Command(os.Args[0])
	process.Env = append(os.Environ(), childEnv+"="+amqptest.DSN(s.t, s.db),
		childEnv+"_BROKER="+s.url, childEnv+"_NAMESPACE="+s.cfg.Namespace)
	if err := process.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		_ = process.Process.Kill()
		_ = process.Wait()
	})
	return process
}

// The timers of 10,000 orders are dead letters. They are replayed, customers pay meanwhile, and the process that
// replays is killed halfway. Another goes on, and each order ends once: paid, or expired.
func TestReplayedTimersAreEffectiveOnce(t *testing.T) {
	const orders, paidBefore, paidMeanwhile = 10_000, 500, 500
	s := newShop(t, place{}, checkout.Config{SweepEvery: noSweep})
	ids := s.orders("r", orders, time.Millisecond)
	s.exec("DELETE FROM lapse_outbox WHERE due_at IS NOT NULL") // their timers are lost, but for those that died
	s.exec(`INSERT INTO lapse_dead_letters (identity, message_id, kind, subject, queue, exchange, routing_key, reason, attempts, error, first_error,
			fingerprint, properties, headers, body, size, died_at, collected_at, replays, replayed_by, state)
		SELECT CONCAT('letter-', id), CONCAT('timer-', id), ?, id, ?, ?, ?, 'out-of-tries', 8, 'the database made no sense', '', '0000000000000001',
			'{}', '{"lapse-attempt":8}', CONCAT('{"order_id":"', id, '","deadline":"2026-01-01T00:00:00Z"}'), 60, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), 0, '', 'open'
		FROM lapse_orders`, kindPaymentTimeout, s.Topology().Dead(), s.Topology().Due(), kindPaymentTimeout)
	for i := range paidBefore {
		if _, err := s.pay(t.Context(), ids[i*7], fmt.Sprintf("before-%d", i)); err != nil {
			t.Fatal(err)
		}
	}

	closing := s.start(s.url, checkout.Timer, checkout.Relay)
	closing.awaitReady()
	first := s.desk()
	r, err := s.Desk().Start(t.Context(), deadletter.Request{
		Selection: deadletter.Selection{All: true}, By: deadletter.By{Who: "kim", Why: "it makes sense again"}, Rate: 2500,
	})
	if err != nil {
		t.Fatal(err)
	}
	payments := make(chan struct{})
	go func() {
		defer close(payments)
		for i := range paidMeanwhile {
			// Some are too late, which is theirs to be told.
			_, _ = s.pay(t.Context(), ids[orders-1-i*7], fmt.Sprintf("meanwhile-%d", i))
		}
	}()
	now := func() deadletter.Replay {
		r, err := s.Desk().Replay(t.Context(), r.ID)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	await(t, time.Minute, "half of it", func() bool { r := now(); return r.Published+r.Settled >= orders/2 })
	if err := first.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = first.Wait()
	if r := now(); r.State.Ended() || r.Left() == 0 {
		t.Fatalf("it was killed too late: %+v", r)
	}
	s.desk()
	await(t, 2*time.Minute, "the end of the replay", func() bool { return now().State.Ended() })
	<-payments
	end := now()
	t.Logf("%d published, %d settled", end.Published, end.Settled)
	if end.State != deadletter.Done || end.Left() != 0 || end.Failed != 0 || end.Settled < paidBefore {
		t.Errorf("%+v", end)
	}
	if n := s.sql("SELECT COUNT(*) FROM lapse_dead_letters WHERE state = 'open'"); n != 0 {
		t.Errorf("%d letters are open", n)
	}
	v := s.judge(time.Minute)
	if n := s.sql("SELECT COUNT(*) FROM lapse_orders WHERE status = 'paid'"); n < paidBefore {
		t.Errorf("%d orders are paid: %v", n, v)
	}
}
