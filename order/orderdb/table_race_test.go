package orderdb_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/lapse-go/lapse/amqp/amqptest"
	"github.com/lapse-go/lapse/amqp/database"
	owntable "github.com/lapse-go/lapse/deploy/examples/own-table"
	"github.com/lapse-go/lapse/order"
	"github.com/lapse-go/lapse/order/orderdb"
)

// Batches of different orders for the same articles, and payments for others, wait for each other and never in
// a circle; the pieces add up.
func TestOwnTablesDoNotDeadlock(t *testing.T) {
	for _, name := range owntable.Names {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const workers, batches, size, articles = 4, 10, 50, 30
			db, metrics := amqptest.Database(t), database.NewMetrics(nil)
			if err := db.Use(metrics); err != nil {
				t.Fatal(err)
			}
			shop := owntable.Open(t, db, name)
			table := orderdb.NewTable(db, shop.Mapping, orderdb.Config{})
			skus := names("sku-", articles)
			for _, sku := range skus {
				exec(t, db, "INSERT INTO stock VALUES (?, 100000, 0, 0)", sku)
			}
			id := func(n int) string { return fmt.Sprint(1_000_000_000_000 + n) }
			for i := range workers * batches {
				orders := make([]owntable.Order, size)
				for j := range orders {
					lines := make(map[string]int)
					for range 3 {
						lines[skus[rand.IntN(articles)]] = 1 + rand.IntN(3)
					}
					orders[j] = owntable.Order{ID: id(i*size + j), Status: order.Pending, Due: -time.Second, Lines: lines}
				}
				if err := shop.Insert(db, orders...); err != nil {
					t.Fatal(err)
				}
			}
			var all sync.WaitGroup
			for worker := range workers {
				all.Go(func() {
					for i := range batches {
						var ids []string
						for j := range size {
							ids = append(ids, id((worker*batches+i)*size+j))
						}
						if _, err := shop.Pay(t.Context(), ids[rand.IntN(size)]); err != nil {
							t.Error(err)
						}
						got := 0
						expiries, err := table.Expire(t.Context(), ids)
						if err != nil {
							t.Error(err)
						}
						for _, e := range expiries.Orders {
							if e.Outcome == order.OutcomeExpired {
								got++
							}
						}
						if got != size-1 {
							t.Errorf("%d of %d expired", got, size)
						}
					}
				})
			}
			all.Wait()
			if n := testutil.ToFloat64(metrics.Reruns.WithLabelValues("1213")); n > 0 {
				t.Errorf("%g deadlocks", n)
			}
			var wrong int
			if err := db.Raw("SELECT COUNT(*) FROM stock WHERE reserved <> 0 OR available + sold <> 100000").Scan(&wrong).Error; err != nil || wrong != 0 {
				t.Errorf("%d articles do not add up, %v", wrong, err)
			}
			var history int
			if err := db.Raw("SELECT COUNT(*) FROM order_history WHERE event = 'expired'").Scan(&history).Error; err != nil || history != workers*batches*(size-1) {
				t.Errorf("the history has %d expired orders, %v", history, err)
			}
		})
	}
}

// Somebody keeps an article locked that four orders of a batch want to give back. They have to wait, and the others
// are done within seconds.
func TestOwnTableBesideALockedArticle(t *testing.T) {
	t.Parallel() // it waits
	shop := owntable.Open(t, amqptest.Database(t), "snowflake")
	table := orderdb.NewTable(shop.DB, shop.Mapping, orderdb.Config{})
	exec(t, shop.DB, "INSERT INTO stock VALUES ('cold', 1000, 0, 0), ('hot', 1000, 0, 0)")
	var ids []string
	hot := func(n int) bool { return n%25 == 0 }
	for i := range 100 {
		o := owntable.Order{ID: fmt.Sprint(1000 + i), Status: order.Pending, Due: -time.Second, Lines: map[string]int{"cold": 1}}
		if hot(i) {
			o.Lines = map[string]int{"hot": 1}
		}
		if err := shop.Insert(shop.DB, o); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, o.ID)
	}
	tx := shop.DB.Begin()
	defer tx.Rollback()
	if err := tx.Exec("SELECT * FROM stock WHERE sku = 'hot' FOR UPDATE").Error; err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	got, err := table.Expire(t.Context(), ids)
	if err != nil {
		t.Fatal(err)
	}
	took := time.Since(begin)
	t.Logf("it took %s", took.Round(time.Millisecond))
	if took > 20*time.Second {
		t.Errorf("it took %s", took)
	}
	for i, e := range got.Orders {
		if hot(i) != errors.Is(e.Err, order.ErrUnavailable) || !hot(i) && e.Outcome != order.OutcomeExpired {
			t.Errorf("order %d: %s %v", i, e.Outcome, e.Err)
		}
	}
	tx.Rollback()
	// The sessions wait as long as before.
	pool, err := shop.DB.DB()
	if err != nil {
		t.Fatal(err)
	}
	for range pool.Stats().OpenConnections {
		conn, err := pool.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		var wait int
		if err := conn.QueryRowContext(t.Context(), "SELECT @@SESSION.innodb_lock_wait_timeout").Scan(&wait); err != nil || wait != 3 {
			t.Errorf("a session waits for %d s, %v", wait, err)
		}
	}
	for _, e := range mustExpire(t, table, ids).Orders {
		if e.Outcome != order.OutcomeExpired && e.Outcome != order.OutcomeAlreadyExpired {
			t.Errorf("later, order %s: %s %v", e.ID, e.Outcome, e.Err)
		}
	}
}

func mustExpire(t *testing.T, table *orderdb.Table, ids []string) order.Expiries {
	t.Helper()
	got, err := table.Expire(t.Context(), ids)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// The pool may be the shop's, whose sessions are in another time zone and of another isolation level.
func TestOwnTableOnAForeignPool(t *testing.T) {
	for _, name := range owntable.Names {
		shop := owntable.Open(t, amqptest.Database(t), name)
		exec(t, shop.DB, "INSERT INTO stock VALUES ('shoe', 10, 0, 0)")
		due, early := shop.ID("due"), shop.ID("early")
		err := shop.Insert(shop.DB,
			owntable.Order{ID: due, Status: order.Pending, Due: -time.Minute, Lines: map[string]int{"shoe": 1}},
			owntable.Order{ID: early, Status: order.Pending, Due: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		pool := foreign(t, shop.DB)
		table := orderdb.NewTable(pool, shop.Mapping, orderdb.Config{})
		overdue, err := table.Overdue(t.Context(), 30*time.Second, order.Cursor{}, 10)
		if err != nil || len(overdue) != 1 || overdue[0].ID != due || overdue[0].Late < 59*time.Second || overdue[0].Late > 2*time.Minute {
			t.Errorf("%s: overdue are %+v, %v", name, overdue, err)
		}
		for i, e := range mustExpire(t, table, []string{due, early}).Orders {
			if want := []order.Outcome{order.OutcomeExpired, order.OutcomeNotDue}[i]; e.Outcome != want {
				t.Errorf("%s: %s: %s %v", name, e.ID, e.Outcome, e.Err)
			}
		}
		// Each has its event once, whatever is tried again.
		if again := mustExpire(t, table, []string{due}); again.Orders[0].Outcome != order.OutcomeAlreadyExpired {
			t.Errorf("%s: again: %+v", name, again.Orders)
		}
	}
}
