package deadletter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"gorm.io/gorm"

	"github.com/lapse-go/lapse/amqp/database"
)

// Discard takes the open ones of the letters off the desk, and returns how many that were. They are kept, and can be restored,
// until their retention is over. On an error some may have been discarded all the same: as many as n says.
// It fails with a [*BusyError] if any of them belongs to a running replay.
func (d *Desk) Discard(ctx context.Context, s Selection, by By) (n int64, err error) {
	return d.change(ctx, change{
		action: "discard", doing: "discarding letters", of: condition{"state = ?", []any{Open}},
		set: condition{"state = ?, resolved_at = UTC_TIMESTAMP(6), resolved_by = ?, resolution = ?, replay_id = NULL",
			[]any{Discarded, bounded(by.Who, maxWho), bounded(by.Why, maxWhy)}},
	}, s, by)
}

// Restore has letters that were resolved in any way be open again, and returns how many that were, as Discard does. What
// is settled still does not stay open: the guard finds it again.
func (d *Desk) Restore(ctx context.Context, s Selection, by By) (n int64, err error) {
	return d.change(ctx, change{
		action: "restore", doing: "restoring letters", of: condition{"state IN ?", []any{[]State{Replayed, Settled, Discarded}}},
		set: condition{"state = ?, resolved_at = NULL, resolved_by = '', resolution = '', replay_id = NULL", []any{Open}},
	}, s, by)
}

// change is what becomes of letters that somebody selected.
type change struct {
	action, doing string
	of            condition // the letters that it is for
	set           condition
}

// changeBatch is how many letters are changed at once, so that nobody waits for long.
const changeBatch = 1000

func (d *Desk) change(ctx context.Context, c change, s Selection, by By) (n int64, err error) {
	if err := errors.Join(s.Validate(), by.validate()); err != nil {
		return 0, err
	}
	selection, err := json.Marshal(s)
	if err != nil {
		return 0, err
	}
	entry := Entry{Actor: by.Who, Action: c.action, Selection: string(selection), Reason: by.Why}
	var ids []int64
	err = database.Transact(ctx, d.cfg.DB, func(tx *gorm.DB) (err error) {
		ids, err = c.find(tx, s)
		return err
	})
	for last := false; err == nil && !last; {
		batch := ids[:min(len(ids), changeBatch)]
		ids = ids[len(batch):]
		last = len(ids) == 0
		var changed int64
		err = database.Transact(ctx, d.cfg.DB, func(tx *gorm.DB) (err error) {
			if changed, err = c.apply(tx, batch); err != nil || !last {
				return err
			}
			entry.Count, entry.Result = n+changed, "done"
			return record(tx, entry)
		})
		if err == nil {
			n += changed
		}
	}
	if err == nil {
		return n, nil
	}
	if n > 0 {
		err = fmt.Errorf("stopped after %d: %w", n, err)
	}
	entry.Count, entry.Result = n, ""
	d.Did(ctx, entry, err)
	return n, fmt.Errorf("%s: %w", c.doing, err)
}

// find fixes which letters there are to change: those that come later are not meant.
func (c change) find(tx *gorm.DB, s Selection) (ids []int64, err error) {
	last, err := claim(tx, s)
	if err != nil {
		return nil, err
	}
	sql, args := where(append(s.conditions(), c.of, condition{"id <= ?", []any{last}})...)
	if err := tx.Raw("SELECT id FROM lapse_dead_letters WHERE "+sql, args...).Scan(&ids).Error; err != nil {
		return nil, err
	}
	slices.Sort(ids) // rows are locked in the order of their ids
	return ids, nil
}

// apply changes the letters but for those that are not any more as they were. If a replay has begun with any of them, it
// changes none.
func (c change) apply(tx *gorm.DB, ids []int64) (n int64, err error) {
	if len(ids) == 0 {
		return 0, nil
	}
	selected := Selection{IDs: ids}
	if err := idle(tx, selected); err != nil {
		return 0, err
	}
	sql, args := where(append(selected.conditions(), c.of)...)
	changed := tx.Exec("UPDATE lapse_dead_letters SET "+c.set.sql+" WHERE "+sql, append(slices.Clone(c.set.args), args...)...)
	return changed.RowsAffected, changed.Error
}
