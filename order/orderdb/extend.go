package orderdb

import (
	"context"
	"fmt"
	"strings"
	"time"

	"gorm.io/gorm"

	"github.com/lapse-go/lapse/amqp/database"
	"github.com/lapse-go/lapse/order"
)

// ExtendSome takes one step of a request. The row of the request is locked for the step, so that
// several callers share the work, and it moves on in the same transaction as the orders.
func (s *Store) ExtendSome(ctx context.Context, r order.ExtendRequest) (order.ExtendProgress, error) {
	for limit := maxBatch; ; limit /= 2 {
		var progress order.ExtendProgress
		var emitted bool
		err := database.Transact(ctx, s.db, func(tx *gorm.DB) (err error) {
			progress, emitted, err = s.extend(tx, r, limit)
			return err
		})
		switch {
		case err == nil:
			if emitted {
				s.committed()
			}
			return progress, nil
		case database.IsConflict(err) && limit > 1:
			// Fewer at once.
		default:
			return order.ExtendProgress{}, unavailable(err)
		}
	}
}

func (s *Store) extend(tx *gorm.DB, r order.ExtendRequest, limit int) (progress order.ExtendProgress, emitted bool, err error) {
	progress, after, err := lockRequest(tx, r)
	if err != nil || progress.Done {
		return progress, false, err
	}
	ids, err := extendable(tx, r.Tag, progress.StartedAt, after, limit)
	if err != nil {
		return progress, false, err
	}
	var events []order.Event
	if len(ids) > 0 {
		after = ids[len(ids)-1]
		if events, err = s.extendOrders(tx, ids, order.ExtendBy(r.More, r.By)); err != nil {
			return progress, false, err
		}
	}
	progress.Extended += int64(len(events))
	progress.Done = len(ids) < limit
	err = tx.Exec("UPDATE lapse_extend_requests SET after_id = ?, extended = ?, done = ? WHERE request_key = ?",
		after, progress.Extended, progress.Done, r.Key).Error
	if err != nil {
		return progress, false, fmt.Errorf("updating the request: %w", err)
	}
	return progress, len(events) > 0, nil
}

// lockRequest locks the row of a request, which it makes if there is none, and tells how far it has
// come: all orders up to the id after are done.
func lockRequest(tx *gorm.DB, r order.ExtendRequest) (progress order.ExtendProgress, after string, err error) {
	for range 2 {
		known := order.ExtendRequest{Key: r.Key, By: r.By}
		var found bool
		err = query(tx, func(scan func(...any) error) error {
			found = true
			var more int64
			err := scan(&more, &known.Tag, (*instant)(&progress.StartedAt), &after, &progress.Extended, &progress.Done)
			known.More = time.Duration(more) * time.Microsecond
			return err
		}, `SELECT more_us, tag, CAST(started_at AS CHAR), after_id, extended, done
			FROM lapse_extend_requests WHERE request_key = ? FOR UPDATE`, r.Key)
		if err != nil {
			return progress, after, fmt.Errorf("reading the request: %w", err)
		}
		r.More = r.More.Truncate(time.Microsecond)
		if found && known != r {
			return progress, after, fmt.Errorf("%w: request %s was made before, for %s by tag %q: give the new one a key of its own",
				order.ErrConflict, r.Key, known.More, known.Tag)
		}
		if found {
			progress.Key = r.Key
			return progress, after, nil
		}
		now, err := clock(tx)
		if err != nil {
			return progress, after, err
		}
		err = insert(tx, "lapse_extend_requests",
			[]string{"request_key", "more_us", "tag", "who", "why", "started_at", "after_id", "extended", "done"},
			[][]any{{r.Key, r.More.Microseconds(), r.Tag, r.By.Who, r.By.Why, instant(now), "", 0, false}})
		if err == nil {
			return order.ExtendProgress{Key: r.Key, StartedAt: now}, "", nil
		}
		if !database.IsDuplicate(err) {
			return progress, after, err
		}
		// Another caller has just made it.
	}
	return progress, after, fmt.Errorf("request %s is there and is not", r.Key)
}

// extendable finds the next orders of a request, without a lock.
func extendable(tx *gorm.DB, tag string, placedUntil time.Time, after string, limit int) (ids []string, err error) {
	collect := func(scan func(...any) error) error {
		var id string
		err := scan(&id)
		ids = append(ids, id)
		return err
	}
	if tag == "" {
		err = query(tx, collect, `SELECT id FROM lapse_orders FORCE INDEX (lapse_orders_status)
			WHERE status = 'pending' AND id > ? AND placed_at <= ? ORDER BY id LIMIT ?`, after, instant(placedUntil), limit)
	} else {
		err = query(tx, collect, `SELECT o.id FROM lapse_order_tags t FORCE INDEX (lapse_order_tags_tag)
			STRAIGHT_JOIN lapse_orders o ON o.id = t.order_id
			WHERE t.tag = ? AND t.order_id > ? AND o.status = 'pending' AND o.placed_at <= ?
			ORDER BY t.order_id LIMIT ?`, tag, after, instant(placedUntil), limit)
	}
	if err != nil {
		return nil, fmt.Errorf("finding orders to extend: %w", err)
	}
	return ids, nil
}

// extendOrders locks orders and extends those that are still pending.
func (s *Store) extendOrders(tx *gorm.DB, ids []string, t order.Transition) ([]order.Event, error) {
	found, err := records(tx, ids, forUpdate)
	if err != nil {
		return nil, err
	}
	var pending []*order.Order
	var now time.Time
	for i := range found {
		now = found[i].now
		if found[i].Status == order.Pending {
			pending = append(pending, &found[i].Order)
		}
	}
	if err := addContents(tx, pending); err != nil {
		return nil, err
	}
	var events []order.Event
	var cases []any
	var extended []string
	for _, o := range pending {
		after, event, err := t(*o, now)
		if err != nil {
			return nil, err
		}
		if event.None() {
			continue
		}
		events = append(events, event)
		cases = append(cases, o.ID, instant(after.Deadline))
		extended = append(extended, o.ID)
	}
	if len(events) == 0 {
		return nil, nil
	}
	updated := tx.Exec(`UPDATE lapse_orders FORCE INDEX (PRIMARY) SET version = version + 1, deadline = CASE id`+
		strings.Repeat(" WHEN ? THEN ?", len(extended))+` END WHERE id IN ? AND status = 'pending'`, append(cases, extended)...)
	if updated.Error != nil {
		return nil, fmt.Errorf("updating orders: %w", updated.Error)
	}
	if err := insertTimeline(tx, events); err != nil {
		return nil, err
	}
	return events, s.emit(tx, events, nil)
}
