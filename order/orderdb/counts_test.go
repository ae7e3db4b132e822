package orderdb_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"gorm.io/gorm"

	"github.com/lapse-go/lapse/amqp/amqptest"
	"github.com/lapse-go/lapse/order"
	"github.com/lapse-go/lapse/order/orderdb"
)

func TestCounts(t *testing.T) {
	s := newShop(t)
	for i, status := range []string{"pending", "pending", "pending", "paid", "expired", "expired"} {
		exec(t, s.db, `INSERT INTO lapse_orders (id, status, customer, region, total, currency, placed_at, window_us, deadline, closed_at, version, content)
			VALUES (?, ?, '', '', 1, 'EUR', UTC_TIMESTAMP(6), 1, UTC_TIMESTAMP(6), NULL, 1, '')`, fmt.Sprint("o-", i), status)
	}
	for most, want := range map[int]map[order.Status]int{
		100: {order.Pending: 3, order.Paid: 1, order.Cancelled: 0, order.Expired: 2},
		2:   {order.Pending: 2, order.Paid: 1, order.Cancelled: 0, order.Expired: 2},
	} {
		got, err := s.store.Counts(t.Context(), most)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("up to %d: %v (-want +got):\n%s", most, err, diff)
		}
	}
}

func TestClosing(t *testing.T) {
	s := newShop(t)
	closing := func(most int) string {
		t.Helper()
		c, err := s.store.Closing(t.Context(), 5*time.Minute, most)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("%d orders, %s, %s, %.1f/s in %s", c.Orders, c.P50, c.P99, c.Rate, c.Since.Round(time.Second))
	}
	if got, want := closing(10), "0 orders, 0s, 0s, 0.0/s in 5m0s"; got != want {
		t.Errorf("of none: %s, want %s", got, want)
	}
	// Order i was due i seconds ago, and is expired i milliseconds late.
	exec(t, s.db, `INSERT INTO lapse_orders (id, status, customer, region, total, currency, placed_at, window_us, deadline, closed_at, version, content)
		WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n WHERE i < 200)
		SELECT CONCAT('o-', i), IF(i <= 150, 'expired', 'paid'), '', '', 1, 'EUR', UTC_TIMESTAMP(6), 1,
			UTC_TIMESTAMP(6) - INTERVAL i SECOND, UTC_TIMESTAMP(6) - INTERVAL i SECOND + INTERVAL 1000 * i MICROSECOND, 2, '' FROM n`)
	for most, want := range map[int]string{
		1000: "150 orders, 75ms, 149ms, 0.5/s in 5m0s",
		100:  "100 orders, 50ms, 99ms, 1.0/s in 1m40s",
	} {
		if got := closing(most); got != want {
			t.Errorf("of at most %d: %s, want %s", most, got, want)
		}
	}
	exec(t, s.db, "UPDATE lapse_orders SET deadline = deadline - INTERVAL 5 MINUTE")
	if got, want := closing(10), "0 orders, 0s, 0s, 0.0/s in 5m0s"; got != want {
		t.Errorf("of those that were due before: %s, want %s", got, want)
	}
}

// Looking at an overview may not cost what it tells of: neither reads more than it says.
func TestCountsAreBounded(t *testing.T) {
	s := newShopOn(t, amqptest.Database(t))
	exec(t, s.db, `INSERT INTO lapse_orders (id, status, customer, region, total, currency, placed_at, window_us, deadline, closed_at, version, content)
		WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n WHERE i < 900)
		SELECT CONCAT('o-', a.i, '-', b.i), IF(a.i <= 10, 'pending', 'expired'), '', '', 1, 'EUR', UTC_TIMESTAMP(6), 1,
			UTC_TIMESTAMP(6) - INTERVAL a.i SECOND, UTC_TIMESTAMP(6), 2, '' FROM n a, n b WHERE b.i <= 60`)
	err := s.db.Connection(func(tx *gorm.DB) error {
		// read is how many rows the connection has read so far.
		read := func() (rows int) {
			var counters []struct{ Value int }
			if err := tx.Raw("SHOW SESSION STATUS LIKE 'Handler_read%'").Scan(&counters).Error; err != nil {
				t.Fatal(err)
			}
			for _, c := range counters {
				rows += c.Value
			}
			return rows
		}
		store := orderdb.New(tx, orderdb.Config{})
		before := read()
		counts, err := store.Counts(t.Context(), 1000)
		if err != nil || counts[order.Expired] != 1000 || counts[order.Pending] != 600 {
			t.Errorf("%v, %v", counts, err)
		}
		if rows := read() - before; rows > 4*2000 { // it reads each twice: from the index, and from what it has found
			t.Errorf("to count up to 1000 of each status it has read %d rows", rows)
		}
		before = read()
		c, err := store.Closing(t.Context(), 5*time.Minute, 1000)
		if err != nil || c.Orders != 1000 {
			t.Errorf("%+v, %v", c, err)
		}
		if rows := read() - before; rows > 2000 {
			t.Errorf("to look at 1000 it has read %d rows", rows)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
