package web

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

type metrics struct {
	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec
}

func newMetrics(r prometheus.Registerer) metrics {
	f := promauto.With(r)
	return metrics{
		requests: f.NewCounterVec(prometheus.CounterOpts{
			Name: "lapse_http_requests_total",
			Help: "HTTP requests by operation (none: no such path or method) and status (499: the client did not wait).",
		}, []string{"operation", "status"}),
		duration: f.NewHistogramVec(prometheus.HistogramOpts{
			Name: "lapse_http_request_duration_seconds", Help: "From a request's header to its answer.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 60},
		}, []string{"operation"}),
	}
}

func (m metrics) observe(op *operation, status int, took time.Duration) {
	m.requests.WithLabelValues(op.id, strconv.Itoa(status)).Inc()
	m.duration.WithLabelValues(op.id).Observe(took.Seconds())
}
