package deadletter

import (
	"context"
	"fmt"
	"time"

	"gorm.io/gorm"

	"github.com/lapse-go/lapse/amqp/database"
)

const (
	pruneEvery = time.Hour
	pruneBatch = 1000 // letters that are deleted at once, so that nobody waits for long
)

// prune deletes letters whose retention is over, until ctx ends. Any number of processes may do so.
func (d *Desk) prune(ctx context.Context) error {
	trouble := complaint{logger: d.cfg.Logger, about: "deleting letters whose retention is over"}
	ticker := time.NewTicker(pruneEvery)
	defer ticker.Stop()
	for {
		_, err := d.pruneRound(ctx)
		trouble.note(ctx, err)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
	}
}

// pruneRound deletes all that is old enough, by batches, and says so in the log and in the audit: nothing goes in silence.
func (d *Desk) pruneRound(ctx context.Context) (pruned int64, err error) {
	if d.cfg.Keep < 0 {
		return 0, fmt.Errorf("letters are kept for %s: give a period, such as 2160h", d.cfg.Keep)
	}
	for _, state := range States {
		if state == Open {
			continue
		}
		for from := new(death); from != nil && err == nil; {
			var n int64
			n, from, err = d.pruneSome(ctx, state, *from)
			pruned += n
		}
	}
	if pruned > 0 {
		d.cfg.Logger.Info("dead letters were deleted, for they were resolved long ago", "letters", pruned, "longer_ago_than", d.cfg.Keep)
		d.Did(ctx, Entry{Actor: self, Action: "prune", Count: pruned, Reason: fmt.Sprintf("resolved longer ago than %s", d.cfg.Keep)}, err)
	}
	return pruned, err
}

// pruneSome deletes letters of a state, from a place on in the order of their deaths, with what replays made of them, and
// returns the next place, nil if it came to the end. Since a letter dies before it is resolved, all that is old enough is found
// by the index of deaths; one more would cost each letter that is resolved.
func (d *Desk) pruneSome(ctx context.Context, state State, from death) (n int64, next *death, err error) {
	keep := d.cfg.Keep.Microseconds()
	over := condition{"state = ? AND resolved_at < UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND", []any{state, keep}}
	sql, args := where(over, condition{"died_at < UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND", []any{keep}})
	if !from.at.IsZero() {
		at := instant(from.at)
		sql, args = sql+" AND died_at >= ? AND (died_at > ? OR id > ?)", append(args, at, at, from.id)
	}
	var old []row
	err = d.cfg.DB.WithContext(ctx).Raw("SELECT id, died_at FROM lapse_dead_letters FORCE INDEX (lapse_dead_letters_state) WHERE "+sql+
		" ORDER BY died_at, id LIMIT ?", append(args, pruneBatch)...).Scan(&old).Error
	if err != nil || len(old) == 0 {
		return 0, nil, err
	}
	candidates := make([]int64, len(old))
	for i, r := range old {
		candidates[i] = r.ID
	}
	err = database.Transact(ctx, d.cfg.DB, func(tx *gorm.DB) error {
		// Only now they are locked, in the order of their ids, as everywhere. Some may be gone, or restored.
		var ids []int64
		sql, args := where(condition{"id IN ?", []any{candidates}}, over)
		err := tx.Raw("SELECT id FROM lapse_dead_letters WHERE "+sql+" ORDER BY id FOR UPDATE", args...).Scan(&ids).Error
		if n = int64(len(ids)); err != nil || n == 0 {
			return err
		}
		if err := tx.Exec("DELETE FROM lapse_dead_letters WHERE id IN ?", ids).Error; err != nil {
			return err
		}
		return tx.Exec("DELETE FROM lapse_replay_results WHERE letter_id IN ?", ids).Error
	})
	if err != nil {
		return 0, nil, err
	}
	if len(old) == pruneBatch {
		last := old[len(old)-1]
		next = &death{time.Time(last.DiedAt), last.ID}
	}
	return n, next, nil
}
