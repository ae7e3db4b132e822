package orderdb

import (
	"fmt"
	"slices"
	"strings"

	"gorm.io/gorm"

	"github.com/lapse-go/lapse/order"
)

func insertOrders(tx *gorm.DB, orders []order.Order, content func(id string) []byte) error {
	rows := make([][]any, len(orders))
	for i, o := range orders {
		rows[i] = []any{o.ID, o.Status, o.Customer, o.Region, o.Total.Amount, o.Total.Currency, instant(o.PlacedAt),
			o.Window.Microseconds(), instant(o.Deadline), o.Version, content(o.ID)}
	}
	return insert(tx, "lapse_orders", []string{"id", "status", "customer", "region", "total", "currency", "placed_at",
		"window_us", "deadline", "version", "content"}, rows)
}

func insertContents(tx *gorm.DB, orders []order.Order) error {
	var lines, tags [][]any
	for _, o := range orders {
		for i, line := range o.Lines {
			lines = append(lines, []any{o.ID, i, line.SKU, line.Quantity, line.Price.Amount})
		}
		for _, tag := range o.Tags {
			tags = append(tags, []any{o.ID, tag})
		}
	}
	if err := insert(tx, "lapse_order_lines", []string{"order_id", "position", "sku", "quantity", "price"}, lines); err != nil {
		return err
	}
	return insert(tx, "lapse_order_tags", []string{"order_id", "tag"}, tags)
}

func insertTimeline(tx *gorm.DB, events []order.Event) error {
	rows := make([][]any, len(events))
	for i, event := range events {
		e := event.Entry()
		rows[i] = []any{event.Order.ID, e.Version, instant(e.At), e.Type, e.By.Who, e.By.Why, e.Detail}
	}
	return insert(tx, "lapse_timeline", []string{"order_id", "version", "at", "type", "who", "why", "detail"}, rows)
}

// A stockMove is how an order's pieces move from one count of lapse_stock to another.
type stockMove struct {
	from, to string
	ifEnough bool // leave articles alone that have too few, instead of failing
}

var (
	reserve = stockMove{from: "available", to: "reserved", ifEnough: true}
	release = stockMove{from: "reserved", to: "available"}
	sell    = stockMove{from: "reserved", to: "sold"}
)

// maxCases is how many articles one statement moves at most: for each, the server looks through the
// list of all.
const maxCases = 500

// moveStock moves the pieces of the orders and reports whether those of all articles were there. It is
// one statement, or a few if the articles are many, and the transaction's last on rows that others wait
// for. They are locked by sku, without a join: with one, the server may lock them in another order, and
// two batches deadlock.
func moveStock(tx *gorm.DB, move stockMove, orders ...order.Order) (all bool, err error) {
	skus, pieces := order.Quantities(orders...)
	all = true
	for skus := range slices.Chunk(skus, maxCases) {
		sum := "CASE sku" + strings.Repeat(" WHEN ? THEN ?", len(skus)) + " END"
		var sums []any
		for _, sku := range skus {
			sums = append(sums, sku, pieces[sku])
		}
		set := fmt.Sprintf("UPDATE lapse_stock FORCE INDEX (PRIMARY) SET %[1]s = %[1]s - %[3]s, %[2]s = %[2]s + %[3]s WHERE sku IN ?", move.from, move.to, sum)
		args := append(slices.Concat(sums, sums), skus)
		if move.ifEnough {
			set += fmt.Sprintf(" AND %s >= %s", move.from, sum)
			args = append(args, sums...)
		}
		// A count that would become negative is an error: the columns are unsigned.
		moved := tx.Exec(set+" ORDER BY sku", args...)
		if moved.Error != nil {
			return false, fmt.Errorf("moving stock from %s to %s: %w", move.from, move.to, moved.Error)
		}
		all = all && int(moved.RowsAffected) == len(skus)
	}
	return all, nil
}
