package orderdb

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"time"

	"gorm.io/gorm"

	"github.com/lapse-go/lapse/order"
)

// How rows are read. Others than plain reads lock them, in the order of their ids, and see what was
// committed last, whatever the isolation level.
const (
	plain     = ""
	forUpdate = " FOR UPDATE"
	forShare  = " LOCK IN SHARE MODE" // MariaDB knows no FOR SHARE
	// forUpdateNow does not wait for whoever has a row: that is a conflict.
	forUpdateNow = " FOR UPDATE NOWAIT"
)

// record is an order without lines, tags and payments, and what else its row tells.
type record struct {
	order.Order
	content []byte
	now     time.Time // by the database's clock, when the statement began
}

// records reads the rows of the orders, by their ids.
func records(tx *gorm.DB, ids []string, lock string) ([]record, error) {
	found := make([]record, 0, len(ids))
	err := query(tx, func(scan func(...any) error) error {
		var r record
		var window int64
		err := scan(&r.ID, &r.Status, &r.Customer, &r.Region, &r.Total.Amount, &r.Total.Currency, (*instant)(&r.PlacedAt),
			&window, (*instant)(&r.Deadline), (*instant)(&r.ClosedAt), &r.Version, &r.content, (*instant)(&r.now))
		r.Window = time.Duration(window) * time.Microsecond
		found = append(found, r)
		return err
	}, `SELECT id, status, customer, region, total, currency, CAST(placed_at AS CHAR),
		window_us, CAST(deadline AS CHAR), CAST(closed_at AS CHAR), version, content, CAST(UTC_TIMESTAMP(6) AS CHAR)
		FROM lapse_orders FORCE INDEX (PRIMARY) WHERE id IN ? ORDER BY id`+lock, ids)
	if err != nil {
		return nil, fmt.Errorf("reading orders: %w", err)
	}
	return found, nil
}

// addContents reads the lines and tags of orders, which never change once they are placed.
func addContents(tx *gorm.DB, orders []*order.Order) error {
	if len(orders) == 0 {
		return nil
	}
	byID := make(map[string]*order.Order, len(orders))
	ids := make([]string, len(orders))
	for i, o := range orders {
		byID[o.ID], ids[i] = o, o.ID
	}
	type placed struct {
		position int
		line     order.Line
	}
	lines := make(map[string][]placed, len(orders))
	err := query(tx, func(scan func(...any) error) error {
		var id string
		var p placed
		if err := scan(&id, &p.position, &p.line.SKU, &p.line.Quantity, &p.line.Price.Amount); err != nil {
			return err
		}
		o := byID[id]
		if p.position < 0 {
			o.Tags = append(o.Tags, p.line.SKU)
			return nil
		}
		p.line.Price.Currency = o.Total.Currency
		lines[id] = append(lines[id], p)
		return nil
	}, `SELECT order_id, position, sku, quantity, price FROM lapse_order_lines WHERE order_id IN ?
		UNION ALL SELECT order_id, -1, tag, 0, 0 FROM lapse_order_tags WHERE order_id IN ?`, ids, ids)
	if err != nil {
		return fmt.Errorf("reading order lines and tags: %w", err)
	}
	for _, o := range orders {
		slices.Sort(o.Tags)
		slices.SortFunc(lines[o.ID], func(a, b placed) int { return a.position - b.position })
		for _, p := range lines[o.ID] {
			o.Lines = append(o.Lines, p.line)
		}
	}
	return nil
}

// addPayments reads the payments of an order. One that is pending has none.
func addPayments(tx *gorm.DB, o *order.Order, lock string) error {
	if o.Status == order.Pending {
		return nil
	}
	err := query(tx, func(scan func(...any) error) error {
		var p order.Payment
		err := scan(&p.Reference, &p.Amount.Amount, &p.Amount.Currency, (*instant)(&p.At), &p.Late)
		o.Payments = append(o.Payments, p)
		return err
	}, `SELECT reference, amount, currency, CAST(at AS CHAR), late
		FROM lapse_payments WHERE order_id = ? ORDER BY version`+lock, o.ID)
	if err != nil {
		return fmt.Errorf("reading payments: %w", err)
	}
	return nil
}

// load reads a whole order, and tells the time by the database's clock.
func load(tx *gorm.DB, id string, lock string) (order.Order, time.Time, error) {
	if order.ValidateID("order id", id) != nil {
		return order.Order{}, time.Time{}, notFound(id)
	}
	found, err := records(tx, []string{id}, lock)
	if err != nil {
		return order.Order{}, time.Time{}, err
	}
	if len(found) == 0 {
		return order.Order{}, time.Time{}, notFound(id)
	}
	o := found[0].Order
	if err := addContents(tx, []*order.Order{&o}); err != nil {
		return order.Order{}, time.Time{}, err
	}
	err = addPayments(tx, &o, plain)
	return o, found[0].now, err
}

func notFound(id string) error { return fmt.Errorf("%w: %.80q", order.ErrNotFound, id) }

// sameContent reports whether the order was placed by a draft with the content of this one.
func (r record) sameContent(d order.Draft) bool {
	hash := d.Hash()
	return bytes.Equal(r.content, hash[:])
}

// Get loads an order. The error wraps [order.ErrNotFound] or [order.ErrUnavailable].
func (s *Store) Get(ctx context.Context, id string) (order.Order, error) {
	o, _, err := load(session(ctx, s.db), id, plain)
	return o, unavailable(err)
}

// Timeline lists what happened to an order. The error wraps [order.ErrNotFound] or
// [order.ErrUnavailable].
func (s *Store) Timeline(ctx context.Context, id string) ([]order.Entry, error) {
	if order.ValidateID("order id", id) != nil {
		return nil, notFound(id)
	}
	var entries []order.Entry
	err := query(session(ctx, s.db), func(scan func(...any) error) error {
		var e order.Entry
		err := scan(&e.Version, (*instant)(&e.At), &e.Type, &e.By.Who, &e.By.Why, &e.Detail)
		entries = append(entries, e)
		return err
	}, `SELECT version, CAST(at AS CHAR), type, who, why, detail FROM lapse_timeline WHERE order_id = ? ORDER BY version`, id)
	if err != nil {
		return nil, unavailable(fmt.Errorf("reading the timeline: %w", err))
	}
	if len(entries) == 0 {
		return nil, notFound(id)
	}
	return entries, nil
}

// Find looks orders up.
func (s *Store) Find(ctx context.Context, ids []string) (map[string]order.Head, error) {
	heads := make(map[string]order.Head, len(ids))
	for chunk := range slices.Chunk(distinct(ids), maxRows) {
		err := query(session(ctx, s.db), func(scan func(...any) error) error {
			var h order.Head
			err := scan(&h.ID, &h.Status, (*instant)(&h.Deadline))
			heads[h.ID] = h
			return err
		}, `SELECT id, status, CAST(deadline AS CHAR) FROM lapse_orders WHERE id IN ?`, chunk)
		if err != nil {
			return nil, unavailable(fmt.Errorf("finding orders: %w", err))
		}
	}
	return heads, nil
}

// Overdue lists pending orders whose deadline passed at least grace ago.
func (s *Store) Overdue(ctx context.Context, grace time.Duration, after order.Cursor, limit int) ([]order.Overdue, error) {
	cursor := instant(after.Deadline)
	if after.Deadline.IsZero() {
		cursor = instant(time.Unix(0, 0))
	}
	var overdue []order.Overdue
	err := query(session(ctx, s.db), func(scan func(...any) error) error {
		var o order.Overdue
		var now time.Time
		err := scan(&o.ID, (*instant)(&o.Deadline), (*instant)(&now))
		o.Late = now.Sub(o.Deadline)
		overdue = append(overdue, o)
		return err
	}, `SELECT id, CAST(deadline AS CHAR), CAST(UTC_TIMESTAMP(6) AS CHAR)
		FROM lapse_orders FORCE INDEX (lapse_orders_due)
		WHERE status = 'pending' AND deadline <= UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND
		AND deadline >= ? AND (deadline > ? OR id > ?)
		ORDER BY deadline, id LIMIT ?`, grace.Microseconds(), cursor, cursor, after.ID, limit)
	if err != nil {
		return nil, unavailable(fmt.Errorf("listing overdue orders: %w", err))
	}
	return overdue, nil
}
