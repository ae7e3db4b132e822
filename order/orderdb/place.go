package orderdb

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"gorm.io/gorm"

	"github.com/lapse-go/lapse/amqp/database"
	"github.com/lapse-go/lapse/order"
)

// maxPlaceLines bounds, in order lines, the orders that one transaction places.
const maxPlaceLines = 10_000

// Place places the drafts.
func (s *Store) Place(ctx context.Context, drafts []order.Draft) ([]order.Placement, error) {
	contended := false
	placed := make([]order.Placement, len(drafts))
	todo := make([]int, len(drafts))
	for i := range drafts {
		todo[i] = i
	}
	for len(todo) > 0 {
		batches, first := split(drafts, todo)
		for _, batch := range batches {
			err := settle(batch, func(batch []int) error {
				stock := plain
				if contended && len(batch) == 1 {
					stock = forUpdateNow // the batch has waited long enough: see Expire
				}
				err := s.placeBatch(ctx, drafts, batch, placed, stock)
				contended = contended || database.IsConflict(err)
				return err
			}, func(i int, err error) {
				placed[i].Err = err
			})
			if err != nil {
				return nil, err
			}
		}
		var left []int
		for _, i := range todo {
			d, j := drafts[i], first[drafts[i].ID]
			switch {
			case i == j:
			case d.Hash() == drafts[j].Hash():
				placed[i] = placed[j]
				placed[i].Repeated = placed[i].Err == nil
			case placed[j].Err == nil:
				placed[i].Err = otherContent(d.ID)
			default:
				left = append(left, i) // the id may be its own yet
			}
		}
		todo = left
	}
	return placed, nil
}

// split divides those drafts that are still to do, by their indexes, into batches for one transaction each.
// It leaves out all but the first with the same id.
func split(drafts []order.Draft, todo []int) (batches [][]int, first map[string]int) {
	first = make(map[string]int, len(todo))
	var batch []int
	lines := 0
	for _, i := range todo {
		d := drafts[i]
		if _, again := first[d.ID]; again {
			continue
		}
		first[d.ID] = i
		if lines += len(d.Lines); len(batch) == maxBatch || lines > maxPlaceLines {
			batches = append(batches, batch)
			batch, lines = nil, len(d.Lines)
		}
		batch = append(batch, i)
	}
	return append(batches, batch), first
}

func (s *Store) placeBatch(ctx context.Context, drafts []order.Draft, batch []int, placed []order.Placement, stock string) error {
	chosen := make([]order.Draft, len(batch))
	for i, at := range batch {
		chosen[i] = drafts[at]
	}
	var answers []order.Placement
	var emitted bool
	place := func(stock string) error {
		return database.Transact(ctx, s.db, func(tx *gorm.DB) (err error) {
			answers, emitted, err = s.place(tx, chosen, stock)
			return err
		})
	}
	err := place(stock)
	if errors.Is(err, errSoldMeanwhile) {
		err = place(forUpdate)
	}
	if err != nil {
		return err
	}
	for i, at := range batch {
		placed[at] = answers[i]
	}
	if emitted {
		s.committed()
	}
	return nil
}

// PlaceIn places an order in a transaction of the caller's own, beside what else the caller writes. It
// answers and fails like [order.Service.Place], whose Prepare gives the draft an id and a window.
//
// After an error that wraps [order.ErrInvalid] or [order.ErrConflict], or is an [order.ShortageError], the
// caller may go on and commit: nothing of the order is left in its transaction, but for the
// order.refused event of one that lacks stock. After any other error some of it may be, and the caller
// has to roll back. Nothing is run again here: if the error is a conflict ([database.IsConflict]), the
// caller runs the whole transaction again.
//
// The session may have any settings, and any isolation level from READ COMMITTED on, which is the one
// under which others wait least. Stock stays locked until the caller's transaction ends, so this is best
// called last. Config.Committed is not called.
func (s *Store) PlaceIn(tx *gorm.DB, d order.Draft) (order.Order, error) {
	if err := d.Validate(); err != nil {
		return order.Order{}, err
	}
	answers, _, err := s.place(session(tx.Statement.Context, tx), []order.Draft{d}, forUpdate)
	if err != nil {
		return order.Order{}, unavailable(err)
	}
	return answers[0].Order, answers[0].Err
}

// errSoldMeanwhile says that stock was there when it was looked at, and not when it was reserved.
var errSoldMeanwhile = errors.New("stock was reserved by others meanwhile")

// place places drafts with different ids. Stock goes to those that come first.
//
// Who gets stock is decided by a read of it. If that is a plain one, an article that many want is
// locked by the last statement only; place fails with [errSoldMeanwhile] if others were faster.
func (s *Store) place(tx *gorm.DB, drafts []order.Draft, stock string) (answers []order.Placement, emitted bool, err error) {
	now, err := clock(tx)
	if err != nil {
		return nil, false, err
	}
	answers = make([]order.Placement, len(drafts))
	placedEvents := make(map[string]order.Event, len(drafts))
	index := make(map[string]int, len(drafts))
	var fresh []order.Order
	for i, d := range drafts {
		index[d.ID] = i
		answers[i].Order, placedEvents[d.ID], answers[i].Err = order.Place(d, now)
		if answers[i].Err == nil {
			fresh = append(fresh, answers[i].Order)
		}
	}
	// Rows are locked, here and everywhere, in the order of their ids.
	slices.SortFunc(fresh, func(a, b order.Order) int { return strings.Compare(a.ID, b.ID) })
	fresh, existing, err := insertFresh(tx, fresh, func(id string) []byte {
		hash := drafts[index[id]].Hash()
		return hash[:]
	})
	if err != nil {
		return nil, false, err
	}
	for _, r := range existing {
		i := index[r.ID]
		if answers[i], err = repeated(tx, r, drafts[i], answers[i].Order); err != nil {
			return nil, false, err
		}
	}

	slices.SortFunc(fresh, func(a, b order.Order) int { return index[a.ID] - index[b.ID] })
	granted, refused, err := allot(tx, fresh, stock)
	if err != nil {
		return nil, false, err
	}
	var events []order.Event
	var timers []order.Timer
	for _, o := range granted {
		events = append(events, placedEvents[o.ID])
		timers = append(timers, order.Timer{OrderID: o.ID, Deadline: o.Deadline, Window: o.Window})
	}
	if err := insertContents(tx, granted); err != nil {
		return nil, false, err
	}
	if err := insertTimeline(tx, events); err != nil {
		return nil, false, err
	}
	for id, shortage := range refused {
		i := index[id]
		events = append(events, order.RefuseDraft(drafts[i], shortage, now))
		answers[i] = order.Placement{Err: fmt.Errorf("order %s: %w", id, shortage)}
	}
	if len(events) == 0 {
		return answers, false, nil
	}
	if err := s.emit(tx, events, timers); err != nil {
		return nil, false, err
	}
	all, err := moveStock(tx, reserve, granted...)
	if err == nil && !all {
		err = errSoldMeanwhile
	}
	return answers, true, err
}

// insertFresh inserts those orders that are not there yet, and returns them and the rows of the
// others. It inserts first: looking first would find nothing and then deadlock with whoever else did.
func insertFresh(tx *gorm.DB, orders []order.Order, content func(id string) []byte) (fresh []order.Order, existing []record, err error) {
	for len(orders) > 0 {
		err := insertOrders(tx, orders, content)
		if err == nil {
			break
		}
		if !database.IsDuplicate(err) {
			return nil, nil, err
		}
		ids := make([]string, len(orders))
		for i, o := range orders {
			ids[i] = o.ID
		}
		// It has to see what was committed last, also in a caller's transaction with a snapshot.
		found, lookErr := records(tx, ids, forShare)
		if lookErr != nil {
			return nil, nil, lookErr
		}
		if len(found) == 0 {
			return nil, nil, err
		}
		existing = append(existing, found...)
		orders = slices.DeleteFunc(orders, func(o order.Order) bool {
			return slices.ContainsFunc(found, func(r record) bool { return r.ID == o.ID })
		})
	}
	return orders, existing, nil
}

// repeated is the answer for a draft whose id exists: the order as it is now, if it has the same
// content, which is that of asPlaced.
func repeated(tx *gorm.DB, r record, d order.Draft, asPlaced order.Order) (order.Placement, error) {
	if !r.sameContent(d) {
		return order.Placement{Err: otherContent(d.ID)}, nil
	}
	o := r.Order
	o.Tags, o.Lines = asPlaced.Tags, asPlaced.Lines
	if err := addPayments(tx, &o, forShare); err != nil {
		return order.Placement{}, err
	}
	return order.Placement{Order: o, Repeated: true}, nil
}

func otherContent(id string) error {
	return fmt.Errorf("%w: order %s was placed before with another content: give the new order an id of its own", order.ErrConflict, id)
}

// allot decides who of the freshly inserted orders gets stock, for all of its lines or nothing, and
// deletes those that get none.
func allot(tx *gorm.DB, orders []order.Order, lock string) (granted []order.Order, refused map[string]*order.ShortageError, err error) {
	if len(orders) == 0 {
		return nil, nil, nil
	}
	skus, _ := order.Quantities(orders...)
	left, err := available(tx, skus, lock)
	if err != nil {
		return nil, nil, err
	}
	refused = make(map[string]*order.ShortageError)
	for _, o := range orders {
		if shortage := take(left, o); shortage != nil {
			refused[o.ID] = shortage
		} else {
			granted = append(granted, o)
		}
	}
	if len(refused) > 0 {
		err := tx.Exec("DELETE o FROM lapse_orders o FORCE INDEX (PRIMARY) WHERE o.id IN ?", slices.Collect(maps.Keys(refused))).Error
		if err != nil {
			return nil, nil, fmt.Errorf("taking refused orders back: %w", err)
		}
	}
	return granted, refused, nil
}

// available is how many pieces there are of those articles that are known.
func available(tx *gorm.DB, skus []string, lock string) (map[string]int64, error) {
	pieces := make(map[string]int64, len(skus))
	err := query(tx, func(scan func(...any) error) error {
		var sku string
		var n int64
		err := scan(&sku, &n)
		pieces[sku] = n
		return err
	}, `SELECT sku, available FROM lapse_stock FORCE INDEX (PRIMARY) WHERE sku IN ? ORDER BY sku`+lock, skus)
	if err != nil {
		return nil, fmt.Errorf("reading stock: %w", err)
	}
	return pieces, nil
}

// take takes an order's pieces from what is left, or none of them.
func take(left map[string]int64, o order.Order) *order.ShortageError {
	var shortage order.ShortageError
	skus, pieces := order.Quantities(o)
	for _, sku := range skus {
		switch n, known := left[sku]; {
		case !known:
			shortage.Unknown = append(shortage.Unknown, sku)
		case n < pieces[sku]:
			shortage.Short = append(shortage.Short, sku)
		}
	}
	if shortage.Unknown != nil || shortage.Short != nil {
		return &shortage
	}
	for _, sku := range skus {
		left[sku] -= pieces[sku]
	}
	return nil
}

// clock is the time by the database's clock.
func clock(tx *gorm.DB) (now time.Time, err error) {
	err = query(tx, func(scan func(...any) error) error {
		return scan((*instant)(&now))
	}, "SELECT CAST(UTC_TIMESTAMP(6) AS CHAR)")
	if err != nil {
		return now, fmt.Errorf("reading the clock: %w", err)
	}
	return now, nil
}
