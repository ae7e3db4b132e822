// Package owntable runs the examples in this folder: shops with a table of orders of their own. Tests use it.
package owntable

import (
	"context"
	"embed"
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/lapse-go/lapse/amqp/database"
	"github.com/lapse-go/lapse/order"
	"github.com/lapse-go/lapse/order/orderdb"
)

//go:embed */schema.sql */lapse.yaml
var files embed.FS

// Names are those of the examples.
var Names = []string{"auto-increment", "snowflake", "order-number"}

// Shop is one of the examples on a database, and does what the shop does itself.
type Shop struct {
	DB      *gorm.DB
	Mapping orderdb.Mapping
}

// Open makes the tables of an example on an empty database, or one with Lapse's tables.
func Open(t testing.TB, db *gorm.DB, name string) *Shop {
	t.Helper()
	schema, err := files.ReadFile(name + "/schema.sql")
	if err != nil {
		t.Fatal(err)
	}
	for statement := range strings.SplitSeq(string(schema), ";\n") {
		if strings.TrimSpace(statement) == "" {
			continue
		}
		if err := db.WithContext(t.Context()).Exec(statement).Error; err != nil {
			t.Fatal(err)
		}
	}
	mapping, err := files.Open(name + "/lapse.yaml")
	if err != nil {
		t.Fatal(err)
	}
	defer mapping.Close()
	s := &Shop{DB: db}
	if s.Mapping, err = orderdb.ReadMapping(mapping); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *Shop) numeric() bool { return s.Mapping.Table != "shop_order" }

// Bind is an id as it is compared with the column: a text and a large number would be compared as floating-point
// numbers, to which two that are near each other are one.
func (s *Shop) Bind(id string) any {
	if s.numeric() {
		if n, err := strconv.ParseUint(id, 10, 64); err == nil {
			return n
		}
	}
	return id
}

// ID is the shop's id for an order that a test names: for the text the name itself, and for numbers one that
// stands in the same order, by the first eight bytes.
func (s *Shop) ID(name string) string {
	if !s.numeric() {
		return name
	}
	var first [8]byte
	copy(first[:], name)
	return fmt.Sprint(binary.BigEndian.Uint64(first[:]))
}

// status is the one that the shop gives itself.
func (s *Shop) status(is order.Status) string {
	switch is {
	case order.Pending:
		return s.Mapping.Pending
	case order.Paid:
		return s.Mapping.Paid[0]
	case order.Cancelled:
		return s.Mapping.Cancelled[0]
	}
	return s.Mapping.Expired
}

// deadline is SQL for the value of the deadline column a number of microseconds, a parameter, from now on.
func (s *Shop) deadline() string {
	switch s.Mapping.DeadlineIn {
	case orderdb.Milliseconds:
		return "(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + ?) DIV 1000"
	case "+08:00":
		return "UTC_TIMESTAMP(6) + INTERVAL 8 HOUR + INTERVAL ? MICROSECOND"
	}
	return "UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND"
}

// inUTC is SQL for the deadline of a row in UTC.
func (s *Shop) inUTC() string {
	switch s.Mapping.DeadlineIn {
	case orderdb.Milliseconds:
		return "'1970-01-01' + INTERVAL " + s.Mapping.Deadline + " * 1000 MICROSECOND"
	case "+08:00":
		return s.Mapping.Deadline + " - INTERVAL 8 HOUR"
	}
	return s.Mapping.Deadline
}

// Order is one to be placed.
type Order struct {
	ID     string
	Status order.Status
	// Due is when it has to be paid, from now on.
	Due time.Duration
	// Lines are the pieces by article.
	Lines map[string]int
}

// Insert writes orders, with their lines and without a timer; those with the same Due get the same deadline. The
// pieces are reserved of the stock, which there has to be.
func (s *Shop) Insert(tx *gorm.DB, orders ...Order) error {
	var args []any
	pieces := make(map[string]int)
	for _, o := range orders {
		args = append(args, s.Bind(o.ID), s.status(o.Status), o.Due.Microseconds())
	}
	row := "(?, ?, " + s.deadline() + ")"
	insert := fmt.Sprintf("INSERT INTO %s (%s, %s, %s) VALUES %s", s.Mapping.Table, s.Mapping.ID, s.Mapping.Status, s.Mapping.Deadline,
		row+strings.Repeat(", "+row, len(orders)-1))
	if err := tx.Exec(insert, args...).Error; err != nil {
		return err
	}
	args = nil
	for _, o := range orders {
		for sku, quantity := range o.Lines {
			args = append(args, s.Bind(o.ID), sku, quantity)
			pieces[sku] += quantity
		}
	}
	if len(args) == 0 {
		return nil
	}
	if err := tx.Exec("INSERT INTO order_lines (order_id, sku, quantity) VALUES (?, ?, ?)"+strings.Repeat(", (?, ?, ?)", len(args)/3-1), args...).Error; err != nil {
		return err
	}
	return s.move(tx, pieces, "available", "reserved")
}

// move moves pieces from one count of the stock to another, in the order of the skus.
func (s *Shop) move(tx *gorm.DB, pieces map[string]int, from, to string) error {
	var sums, skus []any
	for sku, n := range pieces {
		sums, skus = append(sums, sku, n), append(skus, sku)
	}
	sum := "CASE sku" + strings.Repeat(" WHEN ? THEN ?", len(skus)) + " END"
	args := append(append(append([]any(nil), sums...), sums...), skus)
	return tx.Exec(fmt.Sprintf("UPDATE stock SET %[1]s = %[1]s - %[3]s, %[2]s = %[2]s + %[3]s WHERE sku IN ? ORDER BY sku", from, to, sum), args...).Error
}

// Place places an order as a checkout does, in any language: the order, its lines, the stock and the timer, in one
// transaction.
func (s *Shop) Place(ctx context.Context, o Order) error {
	return database.Transact(ctx, s.DB, func(tx *gorm.DB) error { return s.PlaceIn(tx, o) })
}

// PlaceIn does so in a transaction that does more.
func (s *Shop) PlaceIn(tx *gorm.DB, o Order) error {
	o.Status = order.Pending
	if err := s.Insert(tx, o); err != nil {
		return err
	}
	return s.SetTimer(tx, o.ID, o.Due)
}

// ExtendIn moves the deadline of an order that is still to be paid, by so much. The timer that is under way finds a
// later one by itself; for an earlier one it comes too late, so that takes another.
func (s *Shop) ExtendIn(tx *gorm.DB, id string, by time.Duration) (extended bool, err error) {
	later := s.Mapping.Deadline + " + INTERVAL ? MICROSECOND"
	if s.Mapping.DeadlineIn == orderdb.Milliseconds {
		later = s.Mapping.Deadline + " + ? DIV 1000"
	}
	updated := tx.Exec(fmt.Sprintf("UPDATE %s SET %s = %s WHERE %s = ? AND %s = ?", s.Mapping.Table, s.Mapping.Deadline, later,
		s.Mapping.ID, s.Mapping.Status), by.Microseconds(), s.Bind(id), s.Mapping.Pending)
	if updated.Error != nil || updated.RowsAffected == 0 || by > 0 {
		return updated.RowsAffected > 0, updated.Error
	}
	return true, s.SetTimer(tx, id, 0)
}

// SetTimer has the order's timer set, in the transaction that places it. The window is how long the customer has, or
// zero for an order that had its time before.
func (s *Shop) SetTimer(tx *gorm.DB, id string, window time.Duration) error {
	var seconds any
	if window > 0 {
		seconds = window.Seconds()
	}
	return tx.Exec(fmt.Sprintf("CALL lapse_timer('order.payment_timeout', ?, (SELECT %s FROM %s WHERE %s = ?), ?)",
		s.inUTC(), s.Mapping.Table, s.Mapping.ID), id, s.Bind(id), seconds).Error
}

// Pay pays an order, and reports whether it was still to be paid.
func (s *Shop) Pay(ctx context.Context, id string) (paid bool, err error) {
	return s.change(ctx, id, order.Paid, "sold")
}

// Cancel cancels an order, and reports whether it was still to be paid.
func (s *Shop) Cancel(ctx context.Context, id string) (cancelled bool, err error) {
	return s.change(ctx, id, order.Cancelled, "available")
}

// change changes an order that is pending to something else. The condition is what it takes beside Lapse: whoever
// is first changes it, and the other is told so.
func (s *Shop) change(ctx context.Context, id string, to order.Status, count string) (changed bool, err error) {
	err = database.Transact(ctx, s.DB, func(tx *gorm.DB) error {
		updated := tx.Exec(fmt.Sprintf("UPDATE %s SET %s = ? WHERE %s = ? AND %[2]s = ?", s.Mapping.Table, s.Mapping.Status, s.Mapping.ID),
			s.status(to), s.Bind(id), s.Mapping.Pending)
		if changed = updated.RowsAffected == 1; updated.Error != nil || !changed {
			return updated.Error
		}
		if err := tx.Exec("INSERT INTO order_history (order_id, event, at) VALUES (?, ?, UTC_TIMESTAMP(6))", s.Bind(id), string(to)).Error; err != nil {
			return err
		}
		pieces := make(map[string]int)
		var lines []struct {
			SKU      string
			Quantity int
		}
		if err := tx.Raw("SELECT sku, quantity FROM order_lines WHERE order_id = ?", s.Bind(id)).Scan(&lines).Error; err != nil || len(lines) == 0 {
			return err
		}
		for _, line := range lines {
			pieces[line.SKU] += line.Quantity
		}
		return s.move(tx, pieces, "reserved", count)
	})
	return changed && err == nil, err
}
