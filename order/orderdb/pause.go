package orderdb

import (
	"context"
	"fmt"
	"time"

	"gorm.io/gorm"

	"github.com/lapse-go/lapse/amqp/database"
	"github.com/lapse-go/lapse/order"
)

const selectPause = "SELECT CAST(UTC_TIMESTAMP(6) AS CHAR), paused, who, why, CAST(since AS CHAR) FROM lapse_control WHERE id = 1"

// readPause reads the switch, and the database's clock. An expiry reads it with [forShare] and so has it
// until it ends: whoever sets it waits for those that have seen it otherwise.
func readPause(tx *gorm.DB, lock string) (now time.Time, pause order.Pause, err error) {
	found := false
	err = query(tx, func(scan func(...any) error) error {
		found = true
		return scan((*instant)(&now), &pause.Paused, &pause.By.Who, &pause.By.Why, (*instant)(&pause.Since))
	}, selectPause+lock)
	if err == nil && !found {
		err = fmt.Errorf("%w: table lapse_control has lost its one row, without which nothing is expired: INSERT INTO lapse_control (id, paused, who, why, since) VALUES (1, FALSE, '', '', UTC_TIMESTAMP(6))",
			order.ErrUnavailable)
	}
	if err != nil {
		return now, pause, fmt.Errorf("reading the pause switch: %w", err)
	}
	return now, pause, nil
}

// Pause tells whether expiry is paused.
func (s *base) Pause(ctx context.Context) (order.Pause, error) {
	_, pause, err := readPause(session(ctx, s.db), plain)
	return pause, unavailable(err)
}

// Paused reports whether expiry is paused.
func (s *base) Paused(ctx context.Context) (bool, error) {
	pause, err := s.Pause(ctx)
	return pause.Paused, err
}

// SetPause pauses or resumes expiry. It waits for the expiries that are under way.
func (s *base) SetPause(ctx context.Context, state order.Pause) error {
	err := database.Transact(ctx, s.db, func(tx *gorm.DB) error {
		// The statement that waits has the time at which it began: the next one has that of the pause.
		if _, _, err := readPause(tx, forUpdate); err != nil {
			return err
		}
		return tx.Exec("UPDATE lapse_control SET paused = ?, who = ?, why = ?, since = UTC_TIMESTAMP(6) WHERE id = 1",
			state.Paused, state.By.Who, state.By.Why).Error
	})
	if err != nil {
		return unavailable(fmt.Errorf("setting the pause switch: %w", err))
	}
	return nil
}
