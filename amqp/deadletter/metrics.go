package deadletter

import (
	"context"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// counted is how many open letters are counted.
const counted = 100_000

// Open counts the open letters by reason, up to 100,000 in all.
func (d *Desk) Open(ctx context.Context) (map[Reason]int64, error) {
	rows, err := d.cfg.DB.WithContext(ctx).Raw(`SELECT reason, COUNT(*) FROM
		(SELECT reason FROM lapse_dead_letters WHERE state = 'open' LIMIT ?) AS open GROUP BY reason`, counted).Rows()
	if err != nil {
		return nil, fmt.Errorf("counting dead letters: %w", err)
	}
	defer rows.Close()
	open := map[Reason]int64{}
	for rows.Next() {
		var reason Reason
		var n int64
		if err := rows.Scan(&reason, &n); err != nil {
			return nil, err
		}
		open[reason] = n
	}
	return open, rows.Err()
}

type metrics struct {
	collected *prometheus.CounterVec
}

func newMetrics(r prometheus.Registerer) *metrics {
	m := &metrics{
		collected: promauto.With(r).NewCounterVec(prometheus.CounterOpts{
			Name: "lapse_desk_collected_total", Help: "Dead letters stored, by reason.",
		}, []string{"reason"}),
	}
	for _, reason := range Reasons {
		m.collected.WithLabelValues(string(reason))
	}
	return m
}
