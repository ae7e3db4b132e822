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
	// Handled counts messages by kind and outcome: done, deferred, retried, dead, parked.
	Handled *prometheus.CounterVec
	// DeadLetters counts messages that became dead letters, by kind and reason: a [Reason], or
	// "rejected" for one that could not be published again and that the broker buried as it came. What
	// the broker buries of itself, after too many deliveries, is not counted.
	DeadLetters *prometheus.CounterVec
	// Workers is how many workers a process has, by kind, whether or not they are consuming, and
	// WorkersBusy how many of them have a batch in hand, waiting for a server that is away included.
	Workers, WorkersBusy *prometheus.GaugeVec
	// DueAge is how long ago the oldest message of the batch that was taken last became due, in seconds
	// and by kind. When it became due is told by the broker's clock in whole seconds; of a message that
	// came by no rung, when it was made is told by its sender's. A batch of which neither is known
	// leaves it as it is.
	DueAge *prometheus.GaugeVec
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
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return f.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
	}
	m := &Metrics{
		Reconnections:  counter("lapse_reconnections_total", "Connections made after the first.", "connection"),
		Blocked:        gauge("lapse_connection_blocked", "1 while the broker blocks the connection.", "connection"),
		BlockedSeconds: counter("lapse_connection_blocked_seconds_total", "Seconds for which the broker blocked the connection.", "connection"),
		Published:      counter("lapse_published_total", "Messages published, by result.", "result"),
		Handled:        counter("lapse_messages_total", "Messages handled, by outcome.", "kind", "outcome"),
		DeadLetters:    counter("lapse_dead_letters_total", "Messages that became dead letters, by reason; not those that the broker buries after too many deliveries.", "kind", "reason"),
		Workers:        gauge("lapse_workers", "Workers, consuming or not.", "kind"),
		WorkersBusy:    gauge("lapse_workers_busy", "Workers that have a batch in hand.", "kind"),
		DueAge:         gauge("lapse_due_age_seconds", "Since the oldest message of the batch taken last became due, by the broker's clock, which tells whole seconds; else since it was made.", "kind"),
		BatchSize: f.NewHistogramVec(prometheus.HistogramOpts{
			Name: "lapse_batch_size", Help: "Messages handled at once.",
			Buckets: []float64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000},
		}, []string{"kind"}),
		Repairs:  counter("lapse_consumer_repairs_total", "Consumers set up again, by cause.", "kind", "cause"),
		Outages:  counter("lapse_handler_outages_total", "Times the server behind a handler went away.", "kind"),
		Panics:   counter("lapse_handler_panics_total", "Panics of a handler.", "kind"),
		Returned: counter("lapse_messages_returned_total", "Messages handed back to their queue unsettled.", "kind"),
	}
	for _, err := range []error{nil, ErrUnroutable, ErrRefused, ErrUnconfirmed, ErrInvalid} {
		m.Published.WithLabelValues(result(err))
	}
	return m
}

// reasonRejected is the label of what is no [Reason]: the broker buried the message as it came.
const reasonRejected = "rejected"

// connection makes the series of a connection, so that they are there, and zero, before anything
// happens: from what is not there yet, no rate can be taken.
func (m *Metrics) connection(name string) {
	m.Reconnections.WithLabelValues(name)
	m.Blocked.WithLabelValues(name)
	m.BlockedSeconds.WithLabelValues(name)
}

// consumer does the same for the consumers of a kind.
func (m *Metrics) consumer(kind string) {
	for _, verb := range []verb{verbDone, verbDeferred, verbRetried, verbDead, verbParked} {
		m.Handled.WithLabelValues(kind, string(verb))
	}
	for _, reason := range []string{string(ReasonHopeless), string(ReasonOutOfTries), reasonRejected} {
		m.DeadLetters.WithLabelValues(kind, reason)
	}
	for _, cause := range []string{"cancelled", "channel", "idle"} {
		m.Repairs.WithLabelValues(kind, cause)
	}
	m.Workers.WithLabelValues(kind)
	m.WorkersBusy.WithLabelValues(kind)
	m.BatchSize.WithLabelValues(kind)
	m.Outages.WithLabelValues(kind)
	m.Panics.WithLabelValues(kind)
	m.Returned.WithLabelValues(kind)
}
