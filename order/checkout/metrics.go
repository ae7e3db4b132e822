package checkout

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/amqp/outbox"
	"github.com/lapse-go/lapse/order/orderamqp"
)

type metrics struct {
	transport *amqp.Metrics
	outbox    *outbox.Metrics
	timers    *orderamqp.Metrics
	// swept counts orders that the sweep expired. They are a sign of lost timers only while the broker
	// is up and the due queue empty.
	swept prometheus.Counter
}

func newMetrics(r prometheus.Registerer) metrics {
	return metrics{
		transport: amqp.NewMetrics(r),
		outbox:    outbox.NewMetrics(r),
		timers:    orderamqp.NewMetrics(r),
		swept: promauto.With(r).NewCounter(prometheus.CounterOpts{
			Name: "lapse_swept_total", Help: "Orders expired by the sweep because their timer had not come.",
		}),
	}
}
