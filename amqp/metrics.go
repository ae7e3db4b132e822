package amqp

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Metrics are the transport's counters. All parts of one process share one.
type Metrics struct {
	// Reconnections counts connections made after the first, by connection name.
	Reconnections *prometheus.CounterVec
	// Blocked is 1 while the broker blocks the named connection (memory or disk alarm).
	Blocked *prometheus.GaugeVec
	// BlockedSeconds counts the seconds for which it did.
	BlockedSeconds *prometheus.CounterVec
	// Published counts messages by what became of them: confirmed, unroutable, refused, unconfirmed,
	// invalid.
	Published *prometheus.CounterVec
	// Handled counts messages by kind and outcome: done, deferred, retried, dead.
	Handled *prometheus.CounterVec
	// BatchSize is how many messages a handler got at once, by kind.
	BatchSize *prometheus.HistogramVec
	// Repairs counts consumers that were set up again, by kind and cause: cancelled (the broker ended
	// the consumer, for instance because its queue was deleted), channel (channel or connection lost),
	// idle (nothing came for a minute).
	Repairs *prometheus.CounterVec
	// Outages counts the times a handler's server went away, by kind.
	Outages *prometheus.CounterVec
	// Panics counts the handler's panics, by kind.
	Panics *prometheus.CounterVec
	// Returned counts messages handed back to their queue unsettled, by kind.
	Returned *prometheus.CounterVec
}

// NewMetrics makes the counters and registers them with r, unless r is nil.
func NewMetrics(r prometheus.Registerer) *Metrics {
	f := promauto.With(r)
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return f.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	return &Metrics{
		Reconnections:  counter("lapse_reconnections_total", "Connections made after the first.", "connection"),
		Blocked:        f.NewGaugeVec(prometheus.GaugeOpts{Name: "lapse_connection_blocked", Help: "1 while the broker blocks the connection."}, []string{"connection"}),
		BlockedSeconds: counter("lapse_connection_blocked_seconds_total", "Seconds for which the broker blocked the connection.", "connection"),
		Published:      counter("lapse_published_total", "Messages published, by result.", "result"),
		Handled:        counter("lapse_messages_total", "Messages handled, by outcome.", "kind", "outcome"),
		BatchSize: f.NewHistogramVec(prometheus.HistogramOpts{
			Name: "lapse_batch_size", Help: "Messages handled at once.",
			Buckets: []float64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000},
		}, []string{"kind"}),
		Repairs:  counter("lapse_consumer_repairs_total", "Consumers set up again, by cause.", "kind", "cause"),
		Outages:  counter("lapse_handler_outages_total", "Times the server behind a handler went away.", "kind"),
		Panics:   counter("lapse_handler_panics_total", "Panics of a handler.", "kind"),
		Returned: counter("lapse_messages_returned_total", "Messages handed back to their queue unsettled.", "kind"),
	}
}
