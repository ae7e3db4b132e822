package amqp_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/amqp/amqptest"
)

// https://github.com/rabbitmq/amqp091-go/issues/178: under a memory alarm a caller is back when its
// context ends, though the socket takes nothing.
func TestPublishingUnderAMemoryAlarmAndAcrossARestart(t *testing.T) {
	node := amqptest.NewNode(t)
	metrics := amqp.NewMetrics(nil)
	conn := open(t, amqp.Config{URIs: []string{node.URL()}, Name: "alarm", MaxBackoff: time.Second, Metrics: metrics, Logger: amqptest.Logger(t)})
	topology := amqp.Topology{Namespace: "lapse-test", Ladder: amqp.Ladder{time.Second, time.Hour}, Kinds: []string{"timer"}}
	if err := topology.Declare(within(t, 30*time.Second), conn); err != nil {
		t.Fatal(err)
	}
	p := publisher(t, conn, amqp.PublisherConfig{ConfirmTimeout: time.Second})
	rung := topology.Delay(time.Hour)
	wantAll(t, p.Publish(within(t, 10*time.Second), to(rung, "timer", 10)...), nil)

	node.Ctl("set_vm_memory_high_watermark", "absolute", "1")
	// The broker tells a connection only once that publishes again. By then the sockets have swallowed
	// some, which is stored when the alarm is over, and confirmed to nobody.
	large := to(rung, "timer", 300)
	for i := range large {
		large[i].Body = make([]byte, 100_000)
	}
	started := time.Now()
	errs := p.Publish(within(t, 2*time.Second), large...)
	if took := time.Since(started); took < 1900*time.Millisecond || took > 2500*time.Millisecond {
		t.Errorf("a caller with 2s was back after %s", took)
	}
	wantAll(t, errs, amqp.ErrUnconfirmed)
	wantAll(t, errs, context.DeadlineExceeded)
	time.Sleep(1500 * time.Millisecond) // longer than the confirm timeout, which must not count now
	if err := p.Ready(); err == nil || !conn.Blocked() {
		t.Errorf("blocked %v, ready %v", conn.Blocked(), err)
	}
	if got := testutil.ToFloat64(metrics.Blocked.WithLabelValues("alarm")); got != 1 {
		t.Errorf("the metric says %v", got)
	}
	if got := testutil.ToFloat64(metrics.BlockedSeconds.WithLabelValues("alarm")); got < 1 {
		t.Errorf("blocked for %v seconds, and it goes on", got)
	}
	waiting := make(chan []error, 1)
	go func() { waiting <- p.Publish(within(t, 30*time.Second), to(rung, "timer", 10)...) }()
	node.Ctl("set_vm_memory_high_watermark", "0.6")
	wantAll(t, <-waiting, nil)
	until(t, conn, "unblocked", func() bool { return conn.Ready() == nil })
	if got := testutil.ToFloat64(metrics.BlockedSeconds.WithLabelValues("alarm")); got < 2 {
		t.Errorf("blocked for %v seconds", got)
	}
	if got := testutil.ToFloat64(metrics.Reconnections.WithLabelValues("alarm")); got != 0 {
		t.Errorf("the connection was taken for dead %v times", got)
	}

	for name, end := range map[string]func(){"stopped": node.Stop, "killed": node.Kill} {
		answers := make(chan []error, 1)
		under := make(chan struct{})
		go func() {
			var all []error
			for i := 0; conn.Ready() == nil; i++ {
				all = append(all, p.Publish(within(t, 5*time.Second), to(rung, "timer", 200)...)...)
				if i == 3 {
					close(under)
				}
			}
			answers <- all
		}()
		<-under
		end()
		confirmed, unconfirmed := 0, 0
		for _, err := range <-answers {
			switch {
			case err == nil:
				confirmed++
			case errors.Is(err, amqp.ErrUnconfirmed):
				unconfirmed++
			default:
				t.Errorf("%s: %v", name, err)
			}
		}
		if confirmed == 0 {
			t.Errorf("%s: none was confirmed", name)
		}
		t.Logf("%s: %d confirmed, %d unconfirmed", name, confirmed, unconfirmed)
		go func() { waiting <- p.Publish(within(t, time.Minute), to(rung, "timer", 10)...) }()
		node.Start()
		wantAll(t, <-waiting, nil)
	}
}
