package orderdb

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/lapse-go/lapse/order"
)

// Counts says how many orders have each status, each counted up to most. It locks nothing, and reads an index.
func (s *Store) Counts(ctx context.Context, most int) (map[order.Status]int, error) {
	counts := make(map[order.Status]int)
	for _, status := range []order.Status{order.Pending, order.Paid, order.Cancelled, order.Expired} {
		var n int
		err := s.db.WithContext(ctx).Raw(`SELECT COUNT(*) FROM (
			SELECT 1 FROM lapse_orders FORCE INDEX (lapse_orders_status) WHERE status = ? LIMIT ?) AS found`, status, most).Row().Scan(&n)
		if err != nil {
			return nil, fmt.Errorf("counting orders that are %s: %w", status, unavailable(err))
		}
		counts[status] = n
	}
	return counts, nil
}

// Closing is how well orders were expired that were due lately.
type Closing struct {
	// Since is for how long before now orders were due that were looked at, and Orders how many that are.
	Since  time.Duration
	Orders int
	// P50 and P99 are how late half of them, and all but a hundredth, were expired.
	P50, P99 time.Duration
	// Rate is how many were expired a second, over that time.
	Rate float64
}

// Closing looks at the orders that are expired and were due within that time, at most so many of them, the last. What
// is overdue still, or was due before, is not among them. It locks nothing.
func (s *Store) Closing(ctx context.Context, within time.Duration, most int) (Closing, error) {
	c := Closing{Since: within}
	var late []time.Duration
	var first int64
	err := query(s.db.WithContext(ctx), func(scan func(...any) error) error {
		var us int64
		err := scan(&us, &first)
		late = append(late, time.Duration(us)*time.Microsecond)
		return err
	}, `SELECT TIMESTAMPDIFF(MICROSECOND, deadline, closed_at), TIMESTAMPDIFF(MICROSECOND, deadline, UTC_TIMESTAMP(6))
		FROM lapse_orders FORCE INDEX (lapse_orders_due)
		WHERE status = 'expired' AND deadline > UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND
		ORDER BY deadline DESC LIMIT ?`, within.Microseconds(), most)
	if err != nil {
		return Closing{}, fmt.Errorf("looking at the orders that were expired lately: %w", unavailable(err))
	}
	if len(late) == 0 {
		return c, nil
	}
	if len(late) == most {
		c.Since = max(time.Duration(first)*time.Microsecond, time.Millisecond)
	}
	slices.Sort(late)
	at := func(share float64) time.Duration {
		return late[max(0, int(math.Ceil(share*float64(len(late))))-1)]
	}
	c.Orders, c.P50, c.P99 = len(late), at(.5), at(.99)
	c.Rate = float64(len(late)) / c.Since.Seconds()
	return c, nil
}
