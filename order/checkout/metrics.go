package checkout

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/amqp/outbox"
	"github.com/lapse-go/lapse/order"
	"github.com/lapse-go/lapse/order/orderamqp"
)

type metrics struct {
	transport *amqp.Metrics
	outbox    *outbox.Metrics
	orders    *orderamqp.Metrics
	// swept counts orders that the sweep expired. They are a sign of lost timers only while the broker
	// is up and the due queue empty.
	swept prometheus.Counter
	loops loops
	watch watchMetrics
}

func newMetrics(r prometheus.Registerer) metrics {
	return metrics{
		transport: amqp.NewMetrics(r),
		outbox:    outbox.NewMetrics(r),
		orders:    orderamqp.NewMetrics(r),
		swept: promauto.With(r).NewCounter(prometheus.CounterOpts{
			Name: "lapse_swept_total", Help: "Orders expired by the sweep because their timer had not come.",
		}),
		loops: newLoops(r),
		watch: newWatchMetrics(r),
	}
}

// sweptOrder tells of an order that the sweep has expired.
func (m metrics) sweptOrder(e order.Expiry, now time.Time) {
	m.swept.Inc()
	m.orders.Lateness.Observe(now.Sub(e.Deadline).Seconds())
}

// sweepRound tells of a round of the sweep.
func (m metrics) sweepRound(took time.Duration, _ order.Summary, err error) {
	m.loops.round("sweep", took, err)
}

// relayRound tells of a round of the relay.
func (m metrics) relayRound(took time.Duration, err error) {
	m.loops.round("relay", took, err)
}

// loops are the metrics of the loops that work in rounds: relay, sweep and watch. The series of a loop
// begin with its first round, so that a process has those of the loops that it runs.
type loops struct {
	took    *prometheus.HistogramVec
	rounds  *prometheus.CounterVec
	success *prometheus.GaugeVec
}

func newLoops(r prometheus.Registerer) loops {
	f := promauto.With(r)
	return loops{
		took: f.NewHistogramVec(prometheus.HistogramOpts{
			Name: "lapse_loop_duration_seconds", Help: "What a round of a loop took, whether or not it went well.",
			Buckets: []float64{.001, .005, .01, .05, .1, .5, 1, 5, 10, 30, 60},
		}, []string{"loop"}),
		rounds: f.NewCounterVec(prometheus.CounterOpts{
			Name: "lapse_loop_runs_total", Help: "Rounds of a loop, by result.",
		}, []string{"loop", "result"}),
		success: f.NewGaugeVec(prometheus.GaugeOpts{
			Name: "lapse_loop_last_success_timestamp_seconds", Help: "When a round of the loop last went well; 0 if none did.",
		}, []string{"loop"}),
	}
}

// round tells of one. That the end of the process cut it short is neither a success nor a failure.
func (l loops) round(loop string, took time.Duration, err error) {
	if errors.Is(err, context.Canceled) {
		return
	}
	l.took.WithLabelValues(loop).Observe(took.Seconds())
	success, failure := l.rounds.WithLabelValues(loop, "success"), l.rounds.WithLabelValues(loop, "failure")
	last := l.success.WithLabelValues(loop)
	if err != nil {
		failure.Inc()
		return
	}
	success.Inc()
	last.SetToCurrentTime()
}

// watchMetrics are gauges of what the watch measures. All are vectors, those without labels too, because
// that is what a series can be removed from: what cannot be measured is not there, rather than a
// number from before. NaN would say the same, but make NaN of every sum that it is part of.
type watchMetrics struct {
	paused, overdue, oldest, letters, depth *prometheus.GaugeVec
}

func newWatchMetrics(r prometheus.Registerer) watchMetrics {
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return promauto.With(r).NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
	}
	return watchMetrics{
		paused:  gauge("lapse_paused", "1 while expiry is paused. Absent while the database does not answer."),
		overdue: gauge("lapse_overdue_orders", "Pending orders that the sweep should have expired, counted up to 1,000. Absent while the database does not answer."),
		oldest:  gauge("lapse_overdue_oldest_seconds", "Since the deadline of the longest overdue of them. Absent while the database does not answer."),
		letters: gauge("lapse_desk_open_letters", "Dead letters on the desk about which nobody has done anything, by reason, counted up to 100,000. Absent while the database does not answer.", "reason"),
		depth:   gauge("lapse_queue_messages", "Messages that are ready in a queue. Absent while the broker does not answer, or if there is no such queue.", "queue", "role"),
	}
}
