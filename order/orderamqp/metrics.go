package orderamqp

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/lapse-go/lapse/order"
)

// Metrics counts what became of orders whose timers came, and of those that came by message.
type Metrics struct {
	// Closings counts answers of the store by outcome: "expired", "already paid", …
	Closings *prometheus.CounterVec
	// Lateness is how long after its deadline an order was expired, by the database's clock.
	Lateness prometheus.Histogram
	// Placements counts orders that came by message by outcome: "placed", "repeated" (it had been placed
	// before), "refused", "failed" (retried, or a dead letter).
	Placements *prometheus.CounterVec
}

const (
	placementPlaced   = "placed"
	placementRepeated = "repeated"
	placementRefused  = "refused"
	placementFailed   = "failed"
)

// NewMetrics makes the counters and registers them with r, unless r is nil.
func NewMetrics(r prometheus.Registerer) *Metrics {
	f := promauto.With(r)
	return &Metrics{
		Closings: f.NewCounterVec(prometheus.CounterOpts{
			Name: "lapse_timers_total", Help: "Timers that came, by what became of the order.",
		}, []string{"outcome"}),
		Lateness: f.NewHistogram(prometheus.HistogramOpts{
			Name: "lapse_lateness_seconds", Help: "From the deadline of an order to its expiry, by a timer or by the sweep.",
			Buckets: []float64{.01, .025, .05, .1, .25, .5, .8, 1, 2.5, 5, 10, 30, 60, 300, 3600},
		}),
		Placements: f.NewCounterVec(prometheus.CounterOpts{
			Name: "lapse_placements_total", Help: "Orders that came by message, by what became of them.",
		}, []string{"outcome"}),
	}
}

func (m *Metrics) observe(e order.Expiry, now time.Time) {
	if m == nil {
		return
	}
	m.Closings.WithLabelValues(string(e.Outcome)).Inc()
	if e.Outcome == order.OutcomeExpired {
		m.Lateness.Observe(now.Sub(e.Deadline).Seconds())
	}
}

func (m *Metrics) placements(counts map[string]int) {
	if m == nil {
		return
	}
	for outcome, n := range counts {
		m.Placements.WithLabelValues(outcome).Add(float64(n))
	}
}
