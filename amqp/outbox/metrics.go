package outbox

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/lapse-go/lapse/amqp"
)

// Metrics count what relays do. All relays of one process share one.
type Metrics struct {
	// Relayed counts rows by what became of them: confirmed, unroutable and invalid (both set aside),
	// refused, unconfirmed, and held because the queue did not answer others (these three try again).
	Relayed *prometheus.CounterVec
	// Timers counts the rows with a deadline that were confirmed.
	Timers prometheus.Counter
	// Rows, SetAside and Oldest (in seconds) are the [Backlog], as of the last minute.
	Rows, SetAside, Oldest prometheus.Gauge
}

// NewMetrics makes the metrics and registers them with r, unless r is nil.
func NewMetrics(r prometheus.Registerer) *Metrics {
	f := promauto.With(r)
	gauge := func(name, help string) prometheus.Gauge {
		return f.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}
	m := &Metrics{
		Relayed: f.NewCounterVec(prometheus.CounterOpts{
			Name: "lapse_outbox_relayed_total", Help: "Rows of the outbox that were handled, by result.",
		}, []string{"result"}),
		Timers: f.NewCounter(prometheus.CounterOpts{
			Name: "lapse_timers_published_total", Help: "Rows of the outbox with a deadline that the broker has confirmed.",
		}),
		Rows:     gauge("lapse_outbox_rows", "Rows in the outbox, counted up to 100,000."),
		SetAside: gauge("lapse_outbox_set_aside_rows", "Rows in the outbox that can not be routed or published."),
		Oldest:   gauge("lapse_outbox_oldest_seconds", "Age of the oldest row that is not set aside."),
	}
	for _, err := range []error{nil, amqp.ErrUnroutable, amqp.ErrInvalid, amqp.ErrRefused, errHeld, amqp.ErrUnconfirmed} {
		m.Relayed.WithLabelValues(result(err))
	}
	return m
}

func (m *Metrics) set(b Backlog) {
	m.Rows.Set(float64(b.Rows))
	m.SetAside.Set(float64(b.SetAside))
	m.Oldest.Set(b.Oldest.Seconds())
}

func (m *Metrics) count(rows []row) {
	counts := map[string]int{}
	for _, row := range rows {
		counts[result(row.err)]++
		if row.timer && row.err == nil {
			m.Timers.Inc()
		}
	}
	for result, n := range counts {
		m.Relayed.WithLabelValues(result).Add(float64(n))
	}
}

func result(err error) string {
	switch {
	case err == nil:
		return "confirmed"
	case errors.Is(err, amqp.ErrUnroutable):
		return "unroutable"
	case errors.Is(err, amqp.ErrInvalid):
		return "invalid"
	case errors.Is(err, amqp.ErrRefused):
		return "refused"
	case errors.Is(err, errHeld):
		return "held"
	}
	return "unconfirmed"
}
