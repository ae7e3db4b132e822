package orderdb_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"gorm.io/gorm"

	"github.com/lapse-go/lapse/amqp/amqptest"
	"github.com/lapse-go/lapse/amqp/database"
	owntable "github.com/lapse-go/lapse/deploy/examples/own-table"
	"github.com/lapse-go/lapse/order"
	"github.com/lapse-go/lapse/order/orderdb"
	"github.com/lapse-go/lapse/order/ordertest"
)

func TestConformanceOfOwnTables(t *testing.T) {
	for _, name := range owntable.Names {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ordertest.TestStore(t, func(t *testing.T) ordertest.Subject { return ownTable(t, name) })
		})
	}
}

// ownTable is an example as the subject of the conformance suite. Each order has a line of an article of its own.
func ownTable(t *testing.T, name string) ordertest.Subject {
	shop := owntable.Open(t, amqptest.Database(t), name)
	contended := ""
	table := orderdb.NewTable(shop.DB, shop.Mapping, orderdb.Config{Emit: func(_ *gorm.DB, events []order.Event, _ []order.Timer) error {
		return conflictOver(contended, events)
	}})
	nowhere, err := database.Open("nobody@tcp(127.0.0.1:1)/nothing", database.Options{})
	if err != nil {
		t.Fatal(err)
	}
	subject := ordertest.Subject{
		Store: table,
		ID:    shop.ID,
		Plant: func(t testing.TB, planted ...ordertest.Planted) {
			t.Helper()
			orders := make([]owntable.Order, len(planted))
			for i, p := range planted {
				sku := "sku-" + p.ID
				exec(t, shop.DB, "INSERT INTO stock VALUES (?, 1, 0, 0)", sku)
				orders[i] = owntable.Order{ID: p.ID, Status: p.Status, Due: p.Due, Lines: map[string]int{sku: 1}}
			}
			if err := shop.Insert(shop.DB, orders...); err != nil {
				t.Fatal(err)
			}
		},
		Pay: func(ctx context.Context, id string) error {
			paid, err := shop.Pay(ctx, id)
			if err == nil && !paid {
				err = errors.New("not pending any more")
			}
			return err
		},
		SetPaused: func(t testing.TB, paused bool) {
			if err := table.SetPause(t.Context(), order.Pause{Paused: paused, By: order.By{Who: "tester"}}); err != nil {
				t.Fatal(err)
			}
		},
		Poison: func(t testing.TB, id string) {
			// Giving its stock back would make a count negative.
			exec(t, shop.DB, "UPDATE stock SET reserved = 0 WHERE sku = ?", "sku-"+id)
		},
		Contend: func(_ testing.TB, id string) { contended = id },
		Away:    orderdb.NewTable(nowhere, shop.Mapping, orderdb.Config{}),
	}
	if id := shop.ID("order-a1"); id != "order-a1" {
		n, err := strconv.ParseUint(id, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		subject.Strange = []string{
			"0" + id, "00" + id, "+" + id, "-" + id, " " + id, id + " ", id + ".0", id + "e0", id + "\x00", fmt.Sprintf("0x%x", n), fmt.Sprintf("%e", float64(n)),
			"18446744073709551616", "9223372036854775808", "-9223372036854775809", strings.Repeat("9", 64), strings.Repeat("9", 65),
			"order-a1", "", "\xff", "🛒", "'",
		}
	}
	return subject
}

// The ids at the ends of a column's range are exact, and those next to them are not there.
func TestIDsOfOwnTables(t *testing.T) {
	db := amqptest.Database(t)
	var database string
	if err := db.Raw("SELECT DATABASE()").Scan(&database).Error; err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		column string
		ids    []string
		others []string
	}{
		{"BIGINT UNSIGNED", []string{"0", "18446744073709551615"}, []string{"18446744073709551614", "18446744073709551616", "-1", "-0", "00"}},
		{"BIGINT", []string{"-9223372036854775808", "9223372036854775807", "9007199254740993"}, []string{"9223372036854775808", "9007199254740992", "9007199254740994"}},
		{"INT(8) UNSIGNED ZEROFILL", []string{"7", "4294967295"}, []string{"00000007", "4294967296"}},
		{"MEDIUMINT", []string{"-8388608", "8388607"}, []string{"8388608", "-8388609"}},
		{"SMALLINT UNSIGNED", []string{"65535"}, []string{"65536", "-1"}},
		{"TINYINT", []string{"-128", "127"}, []string{"128", "255", "-129"}},
		{"CHAR(20) CHARACTER SET ascii COLLATE ascii_bin", []string{"7", "A-7"}, []string{"07", "a-7", "7.0"}},
		{"VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin", []string{"7", strings.Repeat("x", 64)}, []string{"7 ", "x"}},
		{"VARCHAR(20) CHARACTER SET latin1 COLLATE latin1_general_cs", []string{"B", "a"}, []string{"b", "A"}},
		{"VARBINARY(20)", []string{"7", "A-7"}, []string{"07", "a-7"}},
	} {
		t.Run(test.column, func(t *testing.T) {
			exec(t, db, "DROP TABLE IF EXISTS `my ``orders`")
			exec(t, db, "CREATE TABLE `my ``orders` (`the ``id` "+test.column+" NOT NULL UNIQUE, `st@te` SMALLINT NOT NULL, ```due` INT UNSIGNED NULL, KEY (`st@te`, ```due`))")
			m := orderdb.Mapping{
				Table: database + ".my `orders", ID: "the `id", Status: "st@te", Deadline: "`due", DeadlineIn: orderdb.Seconds,
				Pending: "0", Paid: []string{"1"}, Expired: "-2",
				OnExpiry: []string{"UPDATE `my ``orders` SET `st@te` = @closed := -2 WHERE `the ``id` IN (:ids) AND `the ``id` IN ( :ids )"},
			}
			table := orderdb.NewTable(db, m, orderdb.Config{})
			for _, id := range test.ids {
				exec(t, db, "INSERT INTO `my ``orders` VALUES (?, 0, UNIX_TIMESTAMP() - 60)", id)
			}
			want := append(slices.Repeat([]order.Outcome{order.OutcomeExpired}, len(test.ids)),
				slices.Repeat([]order.Outcome{order.OutcomeNotFound}, len(test.others))...)
			overdue, err := table.Overdue(t.Context(), 0, order.Cursor{}, 10)
			if err != nil {
				t.Fatal(err)
			}
			for _, o := range overdue {
				if !slices.Contains(test.ids, o.ID) {
					t.Errorf("%s is overdue", o.ID)
				}
			}
			if len(overdue) != len(test.ids) {
				t.Errorf("overdue are %+v", overdue)
			}
			got, err := table.Expire(t.Context(), slices.Concat(test.ids, test.others))
			if err != nil {
				t.Fatal(err)
			}
			for i, e := range got.Orders {
				if e.Outcome != want[i] {
					t.Errorf("%s: %s %v", e.ID, e.Outcome, e.Err)
				}
			}
		})
	}
}

// A collation may take two ids for one that differ in a byte. The order is then another one.
func TestIDsThatAreNearlyTheSame(t *testing.T) {
	db := amqptest.Database(t)
	exec(t, db, "CREATE TABLE orders (id VARCHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin PRIMARY KEY, status INT, due INT, KEY (status, due))")
	exec(t, db, "INSERT INTO orders VALUES ('A-7 ', 0, 1)")
	table := orderdb.NewTable(db, orderdb.Mapping{
		Table: "orders", ID: "id", Status: "status", Deadline: "due", DeadlineIn: orderdb.Seconds,
		Pending: "0", Paid: []string{"1"}, Expired: "2",
	}, orderdb.Config{})
	got, err := table.Expire(t.Context(), []string{"A-7", "A-7 "})
	if err != nil || got.Orders[0].Outcome != order.OutcomeNotFound || got.Orders[1].Outcome != order.OutcomeNotFound {
		t.Errorf("expiring: %+v, %v", got, err)
	}
	if heads, err := table.Find(t.Context(), []string{"A-7"}); err != nil || len(heads) != 0 {
		t.Errorf("finding: %+v, %v", heads, err)
	}
}

// What a row says that the mapping does not explain costs that order its expiry, and nobody else.
func TestRowsThatMakeNoSense(t *testing.T) {
	db := amqptest.Database(t)
	exec(t, db, "CREATE TABLE orders (id INT PRIMARY KEY, status INT NULL, due BIGINT NULL, KEY (status, due))")
	table := orderdb.NewTable(db, orderdb.Mapping{
		Table: "orders", ID: "id", Status: "status", Deadline: "due", DeadlineIn: orderdb.Milliseconds,
		Pending: "0", Paid: []string{"1"}, Expired: "2",
	}, orderdb.Config{})
	exec(t, db, "INSERT INTO orders VALUES (1, 7, 1), (2, NULL, 1), (3, 0, NULL), (4, 0, 0), (5, 0, -1), (6, 0, ?), (7, 1, NULL), (8, 0, 1735689600000), (9, 0, 1735689600)", int64(math.MaxInt64))
	said := map[string]string{"1": `its status is "7"`, "2": "its status is NULL", "3": "no deadline in due", "4": "no deadline in due", "5": "its due is -1", "6": "its due is 9223372036854775807", "9": "its due is 1735689600, which in milliseconds since 1970 is no time of this century"}
	ids := []string{"1", "2", "3", "4", "5", "6", "7", "8", "9"}

	heads, err := table.Find(t.Context(), ids)
	if len(heads) != 2 || heads["7"].Status != order.Paid || heads["8"].Status != order.Pending {
		t.Errorf("found %+v", heads)
	}
	for id, text := range said {
		if err == nil || !strings.Contains(err.Error(), "order "+id+" of orders: ") || !strings.Contains(err.Error(), text) {
			t.Errorf("order %s: finding it said %v", id, err)
		}
	}
	overdue, err := table.Overdue(t.Context(), 0, order.Cursor{}, 10)
	if err != nil || len(overdue) != 1 || overdue[0].ID != "8" {
		t.Errorf("overdue are %+v, %v", overdue, err)
	}
	got, err := table.Expire(t.Context(), ids)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range got.Orders {
		text, fails := said[e.ID]
		switch {
		case fails && (e.Outcome != order.OutcomeFailed || errors.Is(e.Err, order.ErrUnavailable) || !strings.Contains(e.Err.Error(), text)):
			t.Errorf("order %s: %s %v", e.ID, e.Outcome, e.Err)
		case e.ID == "7" && e.Outcome != order.OutcomeAlreadyPaid, e.ID == "8" && e.Outcome != order.OutcomeExpired:
			t.Errorf("order %s: %s %v", e.ID, e.Outcome, e.Err)
		}
	}
}

// A trigger of the shop's that refuses one order, with a state that says nothing, stops nobody else.
func TestATriggerThatRefusesAnOrder(t *testing.T) {
	shop := owntable.Open(t, amqptest.Database(t), "auto-increment")
	table := orderdb.NewTable(shop.DB, shop.Mapping, orderdb.Config{})
	var ids []string
	for i := range 20 {
		ids = append(ids, fmt.Sprint(i+1))
		exec(t, shop.DB, "INSERT INTO orders (id, status, pay_until) VALUES (?, 0, '2026-01-01')", i+1)
	}
	exec(t, shop.DB, `CREATE TRIGGER refuse BEFORE UPDATE ON orders FOR EACH ROW
		IF NEW.id = 13 THEN SIGNAL SQLSTATE 'HY000' SET MESSAGE_TEXT = 'this one is special'; END IF`)
	expiries, err := table.Expire(t.Context(), ids)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range expiries.Orders {
		if failed := e.Outcome == order.OutcomeFailed; failed != (e.ID == "13") || failed && !strings.Contains(e.Err.Error(), "this one is special") {
			t.Errorf("order %s: %s %v", e.ID, e.Outcome, e.Err)
		}
	}
}

// What sets an order back to pending would have it expired again and again, with its stock and its event.
func TestAnOrderThatIsSetBack(t *testing.T) {
	shop := owntable.Open(t, amqptest.Database(t), "auto-increment")
	shop.Mapping.OnExpiry = []string{"UPDATE orders SET status = 0 WHERE id IN (:ids) AND id = 2"}
	table := orderdb.NewTable(shop.DB, shop.Mapping, orderdb.Config{})
	exec(t, shop.DB, "INSERT INTO orders (id, status, pay_until) VALUES (1, 0, '2026-01-01'), (2, 0, '2026-01-01')")
	expiries, err := table.Expire(t.Context(), []string{"1", "2"})
	if err != nil {
		t.Fatal(err)
	}
	if first, second := expiries.Orders[0], expiries.Orders[1]; first.Outcome != order.OutcomeExpired ||
		second.Outcome != order.OutcomeFailed || !strings.Contains(second.Err.Error(), "did not stay expired") {
		t.Errorf("it gave %+v", expiries)
	}
}

// A table that is altered under a running program is looked at again: what fits goes on, and what does not is told with
// its cure.
func TestATableThatIsAltered(t *testing.T) {
	shop := owntable.Open(t, amqptest.Database(t), "auto-increment")
	table := orderdb.NewTable(shop.DB, shop.Mapping, orderdb.Config{})
	expire := func(id string) (order.Outcome, error) {
		t.Helper()
		exec(t, shop.DB, "INSERT INTO orders (id, status, pay_until) VALUES (?, 0, '2026-01-01')", id)
		expiries, err := table.Expire(t.Context(), []string{id})
		if err != nil {
			return "", err
		}
		return expiries.Orders[0].Outcome, nil
	}
	if outcome, err := expire("1"); outcome != order.OutcomeExpired {
		t.Fatal(outcome, err)
	}
	exec(t, shop.DB, "ALTER TABLE orders DROP INDEX orders_due, ADD INDEX orders_overdue (status, pay_until)")
	for range 2 { // once by the old name
		_, _ = table.Overdue(t.Context(), 0, order.Cursor{}, 1)
	}
	if _, err := table.Overdue(t.Context(), 0, order.Cursor{}, 1); err != nil {
		t.Errorf("by another index: %v", err)
	}
	exec(t, shop.DB, "ALTER TABLE orders CHANGE status state TINYINT NOT NULL")
	_, _ = table.Expire(t.Context(), []string{"1"})
	_, err := table.Expire(t.Context(), []string{"1"})
	if misfit, ok := errors.AsType[*orderdb.MisfitError](err); !ok || !errors.Is(err, order.ErrUnavailable) || !strings.Contains(misfit.Error(), "no column status") {
		t.Errorf("without the column: %v", err)
	}
	exec(t, shop.DB, "ALTER TABLE orders CHANGE state status TINYINT NOT NULL")
	if outcome, err := expire("2"); outcome != order.OutcomeExpired {
		t.Errorf("as it was again: %s, %v", outcome, err)
	}
}

// Whoever looks at the table anew while others have it doubted again goes on with what it has seen.
func TestATableThatIsDoubtedByMany(t *testing.T) {
	shop := owntable.Open(t, amqptest.Database(t), "auto-increment")
	table := orderdb.NewTable(shop.DB, shop.Mapping, orderdb.Config{})
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	done := make(chan struct{})
	var doubters sync.WaitGroup
	doubters.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
				_, _ = table.Overdue(ended, 0, order.Cursor{}, 1)
			}
		}
	})
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 25 {
				if _, err := table.Overdue(t.Context(), 0, order.Cursor{}, 1); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	close(done)
	doubters.Wait()
}

// A deadline that is no date, which lenient sessions may write, does not hide the orders behind it from the sweep.
func TestDeadlinesThatAreNoDates(t *testing.T) {
	shop := owntable.Open(t, amqptest.Database(t), "auto-increment")
	table := orderdb.NewTable(shop.DB, shop.Mapping, orderdb.Config{})
	err := shop.DB.Connection(func(tx *gorm.DB) error {
		return errors.Join(
			tx.Exec("SET SESSION sql_mode = 'ALLOW_INVALID_DATES'").Error,
			tx.Exec("INSERT INTO orders (id, status, pay_until) VALUES (1, 0, '2025-00-00'), (2, 0, '2025-02-30 12:00:00'), (3, 0, '2026-01-01'), (4, 0, '0000-00-00')").Error,
			tx.Exec("SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION'").Error,
		)
	})
	if err != nil {
		t.Fatal(err)
	}
	sweep := order.Sweep{Store: table, Batch: 1}
	sum, err := sweep.Once(t.Context())
	if want := (order.Summary{Found: 3, Expired: 1, Failed: 2}); err != nil || sum != want {
		t.Errorf("swept %+v, %v, want %+v", sum, err, want)
	}
	expiries, err := table.Expire(t.Context(), []string{"1", "3"})
	if err != nil || expiries.Orders[0].Outcome != order.OutcomeFailed || expiries.Orders[1].Outcome != order.OutcomeAlreadyExpired {
		t.Errorf("expiring gave %+v, %v", expiries, err)
	}
}
