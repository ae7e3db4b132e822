package orderdb

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"gorm.io/gorm"

	"github.com/lapse-go/lapse/amqp/database"
	"github.com/lapse-go/lapse/order"
)

// Expire expires those of the orders that are pending and due.
func (s *Store) Expire(ctx context.Context, ids []string) (order.Expiries, error) {
	return s.expireAll(ctx, ids, s.expire)
}

// expiry is the work of one transaction: it settles the orders with these ids, which are in ascending order,
// each once. Lock is [forUpdate] or [forUpdateNow]. One that it does not find it does not answer for.
type expiry func(tx *gorm.DB, ids []string, lock string) (now time.Time, answers []order.Expiry, err error)

// expireAll settles the ids in batches, and gives the answers in their order.
func (s *base) expireAll(ctx context.Context, ids []string, expire expiry) (order.Expiries, error) {
	var now time.Time
	contended := false
	answers := make(map[string]order.Expiry, len(ids))
	// Also when no id is a valid one: the caller wants to know the time, and whether expiry is paused.
	batches := slices.Collect(slices.Chunk(distinct(ids), maxBatch))
	if len(batches) == 0 {
		batches = [][]string{nil}
	}
	for _, batch := range batches {
		err := settle(batch, func(batch []string) error {
			lock := forUpdate
			if contended && len(batch) == 1 {
				// The batch has waited long enough: if each of its orders did, too, for an article that
				// somebody has locked, it would take hours.
				lock = forUpdateNow
			}
			var settled []order.Expiry
			err := database.Transact(ctx, s.db, func(tx *gorm.DB) (err error) {
				now, err = readSwitch(tx)
				if err != nil || len(batch) == 0 {
					return err
				}
				var later time.Time
				if later, settled, err = expire(tx, batch, lock); !later.IsZero() {
					now = later // it may have waited for locks
				}
				return err
			})
			if lost, once := errors.AsType[onlyOnce](err); once {
				err = lost.error
			}
			if err != nil {
				contended = contended || database.IsConflict(err)
				return err
			}
			expired := false
			for _, e := range settled {
				answers[e.ID] = e
				expired = expired || e.Outcome == order.OutcomeExpired
			}
			if expired {
				s.committed()
			}
			return nil
		}, func(id string, err error) {
			answers[id] = order.Expiry{ID: id, Outcome: order.OutcomeFailed, Err: err}
		})
		if err != nil {
			return order.Expiries{}, err
		}
	}

	result := order.Expiries{Now: now, Orders: make([]order.Expiry, len(ids))}
	for i, id := range ids {
		e, answered := answers[id]
		if !answered {
			e = order.Expiry{ID: id, Outcome: order.OutcomeNotFound}
		}
		result.Orders[i] = e
		if e.Outcome == order.OutcomeExpired {
			e.Outcome = order.OutcomeAlreadyExpired // if the id comes again
			answers[id] = e
		}
	}
	return result, nil
}

// onlyOnce is a conflict after which the transaction is not run again.
type onlyOnce struct{ error }

// readSwitch keeps expiry from being paused until the transaction ends, and tells the time.
func readSwitch(tx *gorm.DB) (now time.Time, err error) {
	now, pause, err := readPause(tx, forShare)
	if err == nil && pause.Paused {
		err = fmt.Errorf("%w since %s by %q: %s", order.ErrPaused, pause.Since.Format(time.RFC3339), pause.By.Who, pause.By.Why)
	}
	return now, err
}

// expire is an [expiry].
func (s *Store) expire(tx *gorm.DB, ids []string, lock string) (now time.Time, answers []order.Expiry, err error) {
	// Whoever pays one of them at this moment has its row; this waits for it and then sees it paid.
	found, err := records(tx, ids, lock)
	if err != nil {
		return now, nil, err
	}
	var due []*order.Order
	for i := range found {
		r := &found[i]
		now = r.now
		answer := answerFor(r)
		answers = append(answers, answer)
		if answer.Outcome == order.OutcomeExpired {
			due = append(due, &r.Order)
		}
	}
	if len(due) == 0 {
		return now, answers, nil
	}
	return now, answers, s.expireDue(tx, due, now, lock)
}

// answerFor is what becomes of an order, without its lines.
func answerFor(r *record) order.Expiry {
	answer := order.Expiry{ID: r.ID, Deadline: r.Deadline}
	_, _, err := order.Expire(r.Order, r.now)
	switch {
	case err == nil:
		answer.Outcome = order.OutcomeExpired
	case errors.Is(err, order.ErrNotDue):
		answer.Outcome, answer.Remaining = order.OutcomeNotDue, r.Deadline.Sub(r.now)
	case errors.Is(err, order.ErrAlreadyPaid):
		answer.Outcome = order.OutcomeAlreadyPaid
	case errors.Is(err, order.ErrAlreadyCancelled):
		answer.Outcome = order.OutcomeAlreadyCancelled
	case errors.Is(err, order.ErrAlreadyExpired):
		answer.Outcome = order.OutcomeAlreadyExpired
	default:
		answer.Outcome, answer.Err = order.OutcomeFailed, err
	}
	return answer
}

// expireDue expires orders whose rows are locked.
func (s *Store) expireDue(tx *gorm.DB, due []*order.Order, now time.Time, lock string) error {
	if err := addContents(tx, due); err != nil {
		return err
	}
	ids := make([]string, len(due))
	expired := make([]order.Order, len(due))
	events := make([]order.Event, len(due))
	for i, o := range due {
		var err error
		if expired[i], events[i], err = order.Expire(*o, now); err != nil {
			return err
		}
		ids[i] = o.ID
	}
	if lock == forUpdateNow {
		skus, _ := order.Quantities(expired...)
		if _, err := available(tx, skus, lock); err != nil {
			return err
		}
	}
	updated := tx.Exec(`UPDATE lapse_orders FORCE INDEX (PRIMARY) SET status = 'expired', closed_at = ?, version = version + 1
		WHERE id IN ? AND status = 'pending'`, instant(now), ids)
	if updated.Error != nil {
		return fmt.Errorf("updating orders: %w", updated.Error)
	}
	if int(updated.RowsAffected) != len(ids) {
		return fmt.Errorf("%d of %d orders changed although their rows were locked", len(ids)-int(updated.RowsAffected), len(ids))
	}
	if err := insertTimeline(tx, events); err != nil {
		return err
	}
	if err := s.emit(tx, events, nil); err != nil {
		return err
	}
	_, err := moveStock(tx, release, expired...)
	return err
}
