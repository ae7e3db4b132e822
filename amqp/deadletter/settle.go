package deadletter

import (
	"context"
	"fmt"
	"slices"
	"time"

	"gorm.io/gorm"

	"github.com/lapse-go/lapse/amqp/database"
)

const (
	settleEvery = 30 * time.Second
	settleBatch = 500
	// settleBatches bounds a round; the next one goes on from there.
	settleBatches = 40
)

// settle resolves open letters that the guard finds settled, until ctx ends. Any number of processes may do so: each
// letter is resolved once. While the guard or the database cannot say anything, rounds are given up.
func (d *Desk) settle(ctx context.Context) error {
	if d.cfg.Guard == nil {
		<-ctx.Done()
		return ctx.Err()
	}
	trouble := complaint{logger: d.cfg.Logger, about: "finding settled letters"}
	ticker := time.NewTicker(settleEvery)
	defer ticker.Stop()
	for from := (*death)(nil); ; {
		next, settled, err := d.settleRound(ctx, from)
		from = next
		trouble.note(ctx, err)
		if settled > 0 {
			d.cfg.Logger.Info("dead letters were resolved, for nothing is left to do about them", "letters", settled)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
	}
}

// settleRound goes through open letters from a place on, and returns the next place, nil when it came to the end.
func (d *Desk) settleRound(ctx context.Context, from *death) (next *death, settled int64, err error) {
	db := d.cfg.DB.WithContext(ctx)
	for range settleBatches {
		rows, err := page(db, "id, died_at, subject", Filter{State: Open}, from, true, settleBatch)
		if err != nil {
			return from, settled, fmt.Errorf("reading open letters: %w", err)
		}
		if len(rows) == 0 {
			return nil, settled, nil
		}
		var ids []int64
		for _, r := range rows {
			if len(r.Subject) > 0 {
				ids = append(ids, r.ID)
			}
		}
		n, err := d.settleThese(ctx, ids)
		if settled += n; err != nil {
			return from, settled, err
		}
		last := rows[len(rows)-1]
		from = &death{time.Time(last.DiedAt), last.ID}
	}
	return from, settled, nil
}

func (d *Desk) settleThese(ctx context.Context, ids []int64) (settled int64, err error) {
	for after := int64(0); len(ids) > 0; {
		letters, err := batch(d.cfg.DB.WithContext(ctx), settleBatch, condition{"id IN ? AND id > ?", []any{ids, after}})
		if err != nil || len(letters) == 0 {
			return settled, err
		}
		after = letters[len(letters)-1].ID
		verdicts, err := d.ask(ctx, letters)
		if err != nil {
			return settled, err
		}
		answers := make(map[string][]int64)
		for i, v := range verdicts {
			if v.Settled {
				answers[v.Answer] = append(answers[v.Answer], letters[i].ID)
			}
		}
		n, err := d.resolveSettled(ctx, answers)
		if settled += n; err != nil {
			return settled, err
		}
	}
	return settled, nil
}

// resolveSettled resolves letters, by the guard's answer. What somebody has done something about meanwhile is left alone.
func (d *Desk) resolveSettled(ctx context.Context, answers map[string][]int64) (n int64, err error) {
	for answer, ids := range answers {
		slices.Sort(ids)
		var resolved int64
		err := database.Transact(ctx, d.cfg.DB, func(tx *gorm.DB) error {
			free, err := free(tx) // a replay that is under way settles its letters itself
			if err != nil {
				return err
			}
			sql, args := where(condition{"id IN ? AND state = ?", []any{ids, Open}}, free)
			updated := tx.Exec("UPDATE lapse_dead_letters SET state = ?, resolved_at = UTC_TIMESTAMP(6), resolved_by = ?, resolution = ?, replay_id = NULL WHERE "+sql,
				append([]any{Settled, self, bounded(answer, maxWhy)}, args...)...)
			resolved = updated.RowsAffected
			return updated.Error
		})
		if err != nil {
			return n, fmt.Errorf("resolving settled letters: %w", err)
		}
		n += resolved
	}
	return n, nil
}
