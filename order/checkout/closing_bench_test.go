package checkout_test

import (
	"fmt"
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/order"
	"github.com/lapse-go/lapse/order/checkout"
	"github.com/lapse-go/lapse/order/orderamqp"
)

// BenchmarkClosing closes 40,000 orders of two lines each, whose timers wait on one rung and become due
// at the same time, with one replica of all roles as it comes. It measures from then until the last order
// is closed, its stock given back, and its event confirmed by the broker:
//
//	go test -run '^$' -bench Closing -benchtime 1x ./order/checkout
func BenchmarkClosing(b *testing.B) {
	const (
		due  = 40_000
		rung = 10 * time.Second // to publish all timers takes less
	)
	for range b.N {
		b.StopTimer()
		s := openShop(b, place{}, checkout.Config{Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
		timers := make([]amqp.Publishing, 0, due)
		for i := range due / 2000 {
			for _, id := range s.orders(fmt.Sprintf("o%02d-", i), 2000, time.Millisecond) {
				m, err := orderamqp.EncodeTimer(order.Timer{OrderID: id, Deadline: time.Now()})
				if err != nil {
					b.Fatal(err)
				}
				timers = append(timers, amqp.Publishing{Message: m, Exchange: s.Topology().Delay(rung)})
			}
		}
		// Neither what was placed nor the orders' own timers are to be relayed now.
		s.exec("TRUNCATE TABLE lapse_outbox")
		publisher := amqp.NewPublisher(s.broker, amqp.PublisherConfig{})
		begin := time.Now()
		for _, err := range publisher.Publish(b.Context(), timers...) {
			if err != nil {
				b.Fatal(err)
			}
		}
		publisher.Close()
		r := s.start(s.url)
		r.awaitReady()
		if time.Since(begin) > rung {
			b.Fatal("publishing the timers took too long")
		}
		time.Sleep(time.Until(begin.Add(rung)))

		b.StartTimer()
		begin = time.Now()
		var closed time.Duration
		await(b, 2*time.Minute, "all orders are closed and all events relayed", func() bool {
			expired, relayed := r.metric("lapse_timers_total", "outcome", "expired"), r.metric("lapse_outbox_relayed_total", "result", "confirmed")
			if closed == 0 && expired >= due {
				closed = time.Since(begin)
			}
			return expired >= due && relayed >= due
		})
		took := time.Since(begin)
		b.StopTimer()
		b.ReportMetric(due/closed.Seconds(), "closed/s")
		b.ReportMetric(due/took.Seconds(), "orders/s")
		batches := r.metric("lapse_batch_size")
		b.ReportMetric(due/batches, "batch")
		if n := s.sql("SELECT COUNT(*) FROM lapse_orders WHERE status = 'expired'"); n != due {
			b.Errorf("%d orders are expired", n)
		}
		if n := s.sql("SELECT COUNT(*) FROM lapse_stock WHERE available <> ? OR reserved <> 0", pieces); n != 0 {
			b.Errorf("the stock of %d articles is not what it was", n)
		}
		r.end()
	}
}
