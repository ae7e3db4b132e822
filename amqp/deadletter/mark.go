package deadletter

import (
	"context"
	"slices"
	"strings"

	"gorm.io/gorm"

	"github.com/lapse-go/lapse/amqp/database"
)

// outcome is what became of a letter in a replay.
type outcome struct {
	letter         int64
	result, detail string
	given          string // the message id that the replay gave it, because it came without one
}

// mark writes what became of letters, until the database takes it, or ctx ends.
func (r *runner) mark(ctx context.Context, outcomes []outcome) error {
	err := r.persist(ctx, func() error {
		err := database.Transact(ctx, r.cfg.DB, func(tx *gorm.DB) error { return r.markIn(tx, outcomes) })
		if database.IsDuplicate(err) {
			return nil // the answer to the commit was lost, but not the commit
		}
		return err
	})
	return err
}

func (r *runner) markIn(tx *gorm.DB, outcomes []outcome) error {
	var published, failed []int64
	settled := make(map[string][]int64) // by the guard's answer
	var values []any
	for _, o := range outcomes {
		o.detail = bounded(o.detail, maxWhy)
		switch o.result {
		case resultPublished:
			published = append(published, o.letter)
		case resultFailed:
			failed = append(failed, o.letter)
		case resultSettled:
			settled[o.detail] = append(settled[o.detail], o.letter)
		}
		values = append(values, r.job.ID, o.letter, o.result, o.detail)
	}
	err := tx.Exec("INSERT INTO lapse_replay_results (replay_id, letter_id, result, detail, at) VALUES "+
		strings.TrimSuffix(strings.Repeat("(?, ?, ?, ?, UTC_TIMESTAMP(6)),", len(outcomes)), ","), values...).Error
	if err != nil {
		return err
	}
	if len(published) > 0 {
		slices.Sort(published)
		err := tx.Exec("UPDATE lapse_dead_letters SET state = ?, resolved_at = UTC_TIMESTAMP(6) WHERE id IN ?", Replayed, published).Error
		if err != nil {
			return err
		}
	}
	for _, o := range outcomes {
		if o.given == "" {
			continue
		}
		// By that it is known again if it comes back.
		if err := tx.Exec("UPDATE lapse_dead_letters SET message_id = ? WHERE id = ?", []byte(o.given), o.letter).Error; err != nil {
			return err
		}
	}
	for answer, ids := range settled {
		err := tx.Exec("UPDATE lapse_dead_letters SET state = ?, resolved_at = UTC_TIMESTAMP(6), resolved_by = ?, resolution = ? WHERE id IN ?",
			Settled, self, answer, ids).Error
		if err != nil {
			return err
		}
	}
	if len(failed) > 0 {
		// They are open still, and not to be tried again by whoever takes the replay over.
		err := tx.Exec("UPDATE lapse_dead_letters SET replay_id = NULL WHERE id IN ?", failed).Error
		if err != nil {
			return err
		}
	}
	// Whoever has taken the replay over publishes, and marks, these letters again. This comes last, so that nobody waits
	// for long who asks for the end of the replay.
	mine := tx.Exec(`UPDATE lapse_replays SET published = published + ?, settled = settled + ?, failed = failed + ?,
		updated_at = UTC_TIMESTAMP(6) WHERE id = ? AND owner = ?`,
		len(published), len(outcomes)-len(published)-len(failed), len(failed), r.job.ID, r.owner)
	if mine.Error != nil {
		return mine.Error
	}
	if mine.RowsAffected == 0 {
		return errTaken
	}
	return nil
}
