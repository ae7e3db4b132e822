package orderdb_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/lapse-go/lapse/amqp/amqptest"
	owntable "github.com/lapse-go/lapse/deploy/examples/own-table"
	"github.com/lapse-go/lapse/order"
	"github.com/lapse-go/lapse/order/orderdb"
)

// Among many orders, those that are asked for are found by an index, and read in its order.
func TestOwnTablesAreReadByIndexes(t *testing.T) {
	for _, name := range owntable.Names {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			shop := owntable.Open(t, amqptest.Database(t), name)
			id := func(n int) string { return fmt.Sprint(1_000_000_000_000 + n) }
			for i := range 20 {
				orders := make([]owntable.Order, 1000)
				for j := range orders {
					n := i*1000 + j
					o := owntable.Order{ID: id(n), Status: order.Paid, Due: -time.Duration(n) * time.Second}
					switch n % 4 {
					case 0:
						o.Status = order.Pending
					case 1:
						o.Status, o.Due = order.Pending, time.Duration(n)*time.Second
					}
					orders[j] = o
				}
				if err := shop.Insert(shop.DB, orders...); err != nil {
					t.Fatal(err)
				}
			}
			var analyzed []map[string]any
			if err := shop.DB.Raw("ANALYZE TABLE " + shop.Mapping.Table).Scan(&analyzed).Error; err != nil {
				t.Fatal(err)
			}
			table := orderdb.NewTable(shop.DB, shop.Mapping, orderdb.Config{})
			plans := explain(t, shop.DB, shop.Mapping.Table)

			page, err := table.Overdue(t.Context(), 30*time.Second, order.Cursor{}, 200)
			if err != nil || len(page) != 200 {
				t.Fatalf("%d are overdue, %v", len(page), err)
			}
			if page, err = table.Overdue(t.Context(), 30*time.Second, page[199].Cursor(), 200); err != nil || len(page) != 200 {
				t.Fatalf("%d more are overdue, %v", len(page), err)
			}
			ids := make([]string, len(page))
			for i, o := range page {
				ids[i] = o.ID
			}
			if _, err := table.Expire(t.Context(), ids); err != nil {
				t.Fatal(err)
			}
			byID := "PRIMARY"
			if name == "order-number" {
				byID = "shop_order_no"
			}
			seen := ""
			for _, p := range *plans {
				key := byID
				if strings.Contains(p.sql, "LIMIT") {
					key = ""
				} else if _, text := p.vars[1].(string); text != (name == "order-number") {
					t.Errorf("%s\nhas as its second parameter a %T", p.sql, p.vars[1])
				}
				verb, _, _ := strings.Cut(p.sql, " ")
				seen += verb + " "
				if p.Type != "range" || key != "" && p.Key != key || key == "" && !strings.HasSuffix(p.Key, "_due") ||
					strings.Contains(p.Extra, "filesort") || strings.Contains(p.Extra, "temporary") {
					t.Errorf("%s\nis done by %+v", p.sql, p)
				}
			}
			if seen != "SELECT SELECT SELECT UPDATE SELECT " {
				t.Errorf("what was looked at is %s", seen)
			}
		})
	}
}

// plan is how the server does a statement.
type plan struct {
	sql              string `gorm:"-"`
	vars             []any  `gorm:"-"`
	Type, Key, Extra string
}

// explain has the server explain, before each statement about a table, how it does it.
func explain(t *testing.T, db *gorm.DB, table string) *[]plan {
	t.Helper()
	plans := new([]plan)
	look := func(tx *gorm.DB) {
		sql := strings.TrimSpace(tx.Statement.SQL.String())
		if !strings.Contains(sql, "`"+table+"`") || strings.HasPrefix(sql, "EXPLAIN") {
			return
		}
		var rows []plan
		explained := tx.Session(&gorm.Session{NewDB: true})
		explained.Statement.ConnPool = tx.Statement.ConnPool
		if err := explained.Raw("EXPLAIN FORMAT=TRADITIONAL "+sql, tx.Statement.Vars...).Scan(&rows).Error; err != nil || len(rows) != 1 {
			t.Errorf("explaining %s: %+v, %v", sql, rows, err)
			return
		}
		rows[0].sql, rows[0].vars = sql, tx.Statement.Vars
		*plans = append(*plans, rows[0])
	}
	if err := db.Callback().Row().Before("gorm:row").Register("test:explain", look); err != nil {
		t.Fatal(err)
	}
	if err := db.Callback().Raw().Before("gorm:raw").Register("test:explain", look); err != nil {
		t.Fatal(err)
	}
	return plans
}
