package orderdb

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"gorm.io/gorm"

	"github.com/lapse-go/lapse/amqp/database"
	"github.com/lapse-go/lapse/order"
)

// Table is an [order.Store] on a table of the shop's own. Placing, paying and cancelling are the shop's
// business; it has to change a status only from pending, in one statement: UPDATE … SET status = paid WHERE id
// = … AND status = pending. It is safe for use by several goroutines.
type Table struct {
	base
	mapping Mapping
	layout  atomic.Pointer[layout] // nil until the table was found to fit
}

var (
	_ order.Store       = (*Table)(nil)
	_ order.PauseSwitch = (*Table)(nil)
)

// NewTable makes a store of the table that the mapping describes. It does not talk to the database: the first
// use does, see [Table.Check]. Each expired order has an order.expired emitted, which tells its id, status and
// deadline, and when it was expired; its version is 0.
func NewTable(db *gorm.DB, m Mapping, cfg Config) *Table {
	return &Table{base: newBase(db, cfg), mapping: m}
}

// look is the layout of the table, which it checks if nobody has done so. Whatever keeps it from that may be
// mended, by an ALTER TABLE for instance, and no order is to blame.
func (t *Table) look(ctx context.Context) (*layout, error) {
	if l := t.layout.Load(); l != nil {
		return l, nil
	}
	l, err := t.check(ctx)
	if err != nil {
		return nil, notReady{err}
	}
	return l, nil // not what is stored: others may doubt that already
}

// notReady is an error of [Table.Check] as an [order.ErrUnavailable], in its own words: mostly the database is there.
type notReady struct{ error }

func (e notReady) Unwrap() []error { return []error{order.ErrUnavailable, e.error} }

// doubt has the table looked at again after an error that no order is to blame for: it may have been altered, and
// what does not fit is then told with its cure.
func (t *Table) doubt(err error) error {
	if errors.Is(err, order.ErrUnavailable) {
		t.layout.Store(nil)
	}
	return err
}

// row is an order as the table has it.
type row struct {
	order.Head
	err error // its status or deadline makes no sense
	now time.Time
}

// rows reads orders by their ids, which are in ascending order.
func (t *Table) rows(tx *gorm.DB, l *layout, ids []string, lock string) ([]row, error) {
	known := l.known(ids)
	if len(known) == 0 {
		return nil, nil
	}
	found := make([]row, 0, len(known))
	err := query(tx, func(scan func(...any) error) error {
		var r row
		var status, deadline *string
		if err := scan(&r.ID, &status, &deadline, (*instant)(&r.now)); err != nil {
			return err
		}
		if r.Status, r.Deadline, r.err = l.read(status, deadline); r.err != nil {
			r.err = fmt.Errorf("order %s of %s: %w", r.ID, t.mapping.Table, r.err)
		}
		// Whatever a collation takes for equal is not the same order.
		if _, asked := slices.BinarySearch(ids, r.ID); asked {
			found = append(found, r)
		}
		return nil
	}, l.selectRows+lock, known)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", t.mapping.Table, err)
	}
	return found, nil
}

// Find looks orders up. Those whose status or deadline the mapping does not explain make an error, with which
// the others are found.
func (t *Table) Find(ctx context.Context, ids []string) (map[string]order.Head, error) {
	l, err := t.look(ctx)
	if err != nil {
		return nil, err
	}
	heads := make(map[string]order.Head, len(ids))
	var errs []error
	for chunk := range slices.Chunk(distinct(ids), maxRows) {
		found, err := t.rows(session(ctx, t.db), l, chunk, plain)
		if err != nil {
			return nil, t.doubt(unavailable(err))
		}
		for _, r := range found {
			if r.err != nil {
				errs = append(errs, r.err)
				continue
			}
			heads[r.ID] = r.Head
		}
	}
	return heads, errors.Join(errs...)
}

// Expire expires those of the orders that are pending and due.
func (t *Table) Expire(ctx context.Context, ids []string) (order.Expiries, error) {
	l, err := t.look(ctx)
	if err != nil {
		return order.Expiries{}, err
	}
	expiries, err := t.expireAll(ctx, ids, func(tx *gorm.DB, ids []string, lock string) (time.Time, []order.Expiry, error) {
		return t.expire(tx, l, ids, lock)
	})
	return expiries, t.doubt(err)
}

// expire is an [expiry].
func (t *Table) expire(tx *gorm.DB, l *layout, ids []string, lock string) (now time.Time, answers []order.Expiry, err error) {
	found, err := t.rows(tx, l, ids, lock)
	if err != nil {
		return now, nil, err
	}
	var due []row
	for _, r := range found {
		now = r.now
		answer := order.Expiry{ID: r.ID, Outcome: order.OutcomeFailed, Err: r.err}
		if r.err == nil {
			answer = answerFor(&record{Order: order.Order{ID: r.ID, Status: r.Status, Deadline: r.Deadline}, now: r.now})
		}
		answers = append(answers, answer)
		if answer.Outcome == order.OutcomeExpired {
			due = append(due, r)
		}
	}
	if len(due) == 0 {
		return now, answers, nil
	}
	return now, answers, t.expireDue(tx, l, due, now, lock)
}

// expireDue expires orders whose rows are locked.
func (t *Table) expireDue(tx *gorm.DB, l *layout, due []row, now time.Time, lock string) error {
	ids := make([]string, len(due))
	events := make([]order.Event, len(due))
	for i, r := range due {
		ids[i] = r.ID
		o := order.Order{ID: r.ID, Status: order.Expired, Deadline: r.Deadline, ClosedAt: now}
		// A shop that opens an order again gives it another deadline.
		events[i] = order.Event{ID: fmt.Sprintf("%s.expired.%d", r.ID, r.Deadline.UnixMicro()), Type: order.EventExpired, Order: o, At: now}
	}
	known := l.known(ids)
	updated := tx.Exec(l.updateRows, l.expired, known, l.pending)
	if updated.Error != nil {
		return fmt.Errorf("updating %s: %w", t.mapping.Table, updated.Error)
	}
	if int(updated.RowsAffected) != len(ids) {
		return fmt.Errorf("%d of %d orders changed although their rows were locked", len(ids)-int(updated.RowsAffected), len(ids))
	}
	// First, for the shop's statements may lock rows that others wait for.
	if err := t.emit(tx, events, nil); err != nil {
		return err
	}
	if err := t.onExpiry(tx, known, lock); err != nil {
		return err
	}
	// What is pending again would be expired again, with all that belongs to it.
	var stay int
	if err := tx.Raw(l.countExpired, known, l.expired).Row().Scan(&stay); err != nil {
		return fmt.Errorf("counting what expired in %s: %w", t.mapping.Table, err)
	}
	if stay != len(ids) {
		return fmt.Errorf("%d of %d orders did not stay expired: a trigger of %s or a statement of on_expiry changes their %s or their id", len(ids)-stay, len(ids), t.mapping.Table, t.mapping.Status)
	}
	return nil
}

// onExpiry runs the shop's own statements.
func (t *Table) onExpiry(tx *gorm.DB, ids []any, lock string) (err error) {
	if len(t.mapping.OnExpiry) == 0 {
		return nil
	}
	if lock == forUpdateNow {
		// Which rows they lock only the server knows, so this is the shortest wait that it has.
		if err := tx.Exec("SET @lapse_wait = @@SESSION.innodb_lock_wait_timeout, SESSION innodb_lock_wait_timeout = 1").Error; err != nil {
			return err
		}
		defer func() {
			tx.Exec("SET SESSION innodb_lock_wait_timeout = @lapse_wait")
			if database.IsConflict(err) {
				err = onlyOnce{err}
			}
		}()
	}
	list := "(?" + strings.Repeat(",?", len(ids)-1) + ")"
	for i, text := range t.mapping.OnExpiry {
		lists := len(idList.FindAllString(text, -1))
		args := make([]any, 0, lists*len(ids))
		for range lists {
			args = append(args, ids...)
		}
		// Not through gorm, to which an @ is the beginning of a parameter's name.
		if _, err := tx.Statement.ConnPool.ExecContext(tx.Statement.Context, idList.ReplaceAllLiteralString(text, list), args...); err != nil {
			return fmt.Errorf("on_expiry, statement %d: %w", i+1, err)
		}
	}
	return nil
}

// Overdue lists pending orders whose deadline passed at least grace ago.
func (t *Table) Overdue(ctx context.Context, grace time.Duration, after order.Cursor, limit int) ([]order.Overdue, error) {
	l, err := t.look(ctx)
	if err != nil {
		return nil, err
	}
	if after.Deadline.IsZero() {
		after.Deadline = year2000
	}
	deadline := l.deadline.bind(after.Deadline)
	id, ok := l.id.bind(after.ID)
	if !ok {
		id = l.id.beforeAll()
	}
	var overdue []order.Overdue
	err = query(session(ctx, t.db), func(scan func(...any) error) error {
		var o order.Overdue
		var text string
		var now time.Time
		if err := scan(&o.ID, &text, (*instant)(&now)); err != nil {
			return err
		}
		// One that is no time is listed, too, so that its expiry fails and is told, and the others are found.
		o.Deadline, err = l.deadline.position(text)
		o.Late = now.Sub(o.Deadline)
		overdue = append(overdue, o)
		return err
	}, l.selectOverdue, l.pending, grace.Microseconds(), deadline, deadline, id, limit)
	if err != nil {
		return nil, t.doubt(unavailable(fmt.Errorf("listing overdue orders of %s: %w", t.mapping.Table, err)))
	}
	return overdue, nil
}
