package deadletter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"unicode/utf8"

	"github.com/google/uuid"
	"gorm.io/gorm"

	"github.com/lapse-go/lapse/amqp/database"
)

// MaxRate is the most messages a second that a replay can be asked to keep to.
const MaxRate = 100_000

func (r Request) validate() error {
	if err := r.Selection.Validate(); err != nil {
		return err
	}
	if err := r.By.validate(); err != nil {
		return err
	}
	if r.Rate < 0 || r.Rate > MaxRate {
		return fmt.Errorf("%w: a rate of %d messages a second: give 1 to %d, or 0 for as fast as they are confirmed", ErrInvalid, r.Rate, MaxRate)
	}
	if r.To == nil {
		return nil
	}
	for name, text := range map[string]string{"exchange": r.To.Exchange, "routing key": r.To.RoutingKey} {
		if len(text) > 255 || !utf8.ValidString(text) {
			return fmt.Errorf("%w: the %s of the other destination: give at most 255 bytes of UTF-8", ErrInvalid, name)
		}
	}
	if r.To.Exchange == "" && r.To.RoutingKey == "" {
		return fmt.Errorf("%w: the other destination has neither an exchange nor a routing key: give both, or the name of a queue as the routing key alone", ErrInvalid)
	}
	return nil
}

// manner is how the messages are published, for the audit.
func (r Request) manner() string {
	manner := fmt.Sprintf(", %d a second", r.Rate)
	if r.Rate == 0 {
		manner = ", as fast as they are confirmed"
	}
	if r.To != nil {
		manner += fmt.Sprintf(", to exchange %q with routing key %q", r.To.Exchange, r.To.RoutingKey)
	}
	return manner
}

// Start fixes which letters there are to replay, and has them replayed by whichever process runs [Desk.Run]. It fails
// with a [*BusyError] if any of them belongs to another replay that is running.
func (d *Desk) Start(ctx context.Context, r Request) (Replay, error) {
	if err := r.validate(); err != nil {
		return Replay{}, err
	}
	selection, err := json.Marshal(r.Selection)
	if err != nil {
		return Replay{}, err
	}
	who, why := bounded(r.By.Who, maxWho), bounded(r.By.Why, maxWhy)
	id := uuid.Must(uuid.NewV7()).String()
	var started Replay
	err = database.Transact(ctx, d.cfg.DB, func(tx *gorm.DB) error {
		last, err := claim(tx, r.Selection)
		if err != nil {
			return err
		}
		ids, err := find(tx, r.Selection, last, Open)
		if err != nil {
			return err
		}
		if len(ids) == 0 {
			return fmt.Errorf("%w: none of the letters that are selected is open, so there is nothing to replay", ErrInvalid)
		}
		total := int64(0)
		for part := range slices.Chunk(ids, maxBatch) {
			// Who and why are written now, so that there is less to write of each letter while they are published.
			claimed := tx.Exec("UPDATE lapse_dead_letters SET replay_id = ?, resolved_by = ?, resolution = ? WHERE id IN ? AND state = ?", id, who, why, part, Open)
			if claimed.Error != nil {
				return claimed.Error
			}
			total += claimed.RowsAffected
		}
		var exchange, key any
		if r.To != nil {
			exchange, key = []byte(r.To.Exchange), []byte(r.To.RoutingKey)
		}
		err = tx.Exec(`INSERT INTO lapse_replays (id, state, who, why, selection, high_water, rate, to_exchange, to_key, total, created_at, updated_at)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6))`,
			id, Running, who, why, string(selection), last, r.Rate, exchange, key, total).Error
		if err != nil {
			return err
		}
		err = record(tx, Entry{
			Actor: who, Action: "replay", Subject: id, Selection: string(selection),
			Count: total, Reason: why, Result: "started" + r.manner(),
		})
		if err != nil {
			return err
		}
		started, err = replayIn(tx, id)
		return err
	})
	if err != nil {
		return Replay{}, fmt.Errorf("starting a replay: %w", err)
	}
	return started, nil
}

// claim begins a transaction that does something with the selected letters: nobody else begins one until it ends.
// It returns the high-water mark, the last letter that there is.
func claim(tx *gorm.DB, s Selection) (last int64, err error) {
	if err := idle(tx, s); err != nil {
		return 0, err
	}
	if err := s.exist(tx); err != nil {
		return 0, err
	}
	err = tx.Raw("SELECT COALESCE(MAX(id), 0) FROM lapse_dead_letters").Scan(&last).Error
	return last, err
}

// idle fails with a [*BusyError] if any of the selected letters belongs to a replay that is under way. None begins until the
// transaction ends.
func idle(tx *gorm.DB, s Selection) error {
	replays, err := underWay(tx)
	if err != nil {
		return err
	}
	for _, replay := range replays {
		sql, args := where(append(s.conditions(), condition{"replay_id = ? AND state = ?", []any{replay, Open}})...)
		var one []int64
		if err := tx.Raw("SELECT id FROM lapse_dead_letters WHERE "+sql+" LIMIT 1", args...).Scan(&one).Error; err != nil {
			return err
		}
		if len(one) > 0 {
			return &BusyError{replay}
		}
	}
	return nil
}

// find returns the ids of those selected letters that are in one of the states, in their order, up to a last one.
func find(db *gorm.DB, s Selection, last int64, states ...State) (ids []int64, err error) {
	sql, args := where(append(s.conditions(), condition{"state IN ? AND id <= ?", []any{states, last}})...)
	err = db.Raw("SELECT id FROM lapse_dead_letters WHERE "+sql, args...).Scan(&ids).Error
	slices.Sort(ids) // rows are locked in this order, here as elsewhere
	return ids, err
}

// underWay are the replays that have not ended, to which no other is added until the transaction ends. An open letter
// belongs to one if its replay_id names it.
func underWay(tx *gorm.DB) (ids []string, err error) {
	if err := tx.Exec("SELECT id FROM lapse_desk WHERE id = 1 FOR UPDATE").Error; err != nil {
		return nil, err
	}
	err = tx.Raw("SELECT id FROM lapse_replays WHERE state IN ? ORDER BY id", []ReplayState{Running, Cancelling}).Scan(&ids).Error
	return ids, err
}

// free is the condition that a letter belongs to no replay that is under way, until the transaction ends.
func free(tx *gorm.DB) (condition, error) {
	ids, err := underWay(tx)
	if err != nil || len(ids) == 0 {
		return condition{sql: "TRUE"}, err
	}
	return condition{"(replay_id IS NULL OR replay_id NOT IN ?)", []any{ids}}, nil
}

// Cancel has a replay stop within a second. It fails with [ErrEnded] if the replay has ended.
func (d *Desk) Cancel(ctx context.Context, id string, by By) error {
	if err := by.validate(); err != nil {
		return err
	}
	err := database.Transact(ctx, d.cfg.DB, func(tx *gorm.DB) error {
		cancelled := tx.Exec("UPDATE lapse_replays SET state = ?, updated_at = UTC_TIMESTAMP(6) WHERE id = ? AND state = ?", Cancelling, id, Running)
		if cancelled.Error != nil {
			return cancelled.Error
		}
		r, err := replayIn(tx, id)
		if err != nil {
			return err
		}
		if r.State.Ended() {
			return fmt.Errorf("%w: replay %s is %s since %s", ErrEnded, id, r.State, r.EndedAt.UTC().Format("2006-01-02 15:04:05 UTC"))
		}
		if cancelled.RowsAffected == 0 {
			return nil // somebody else has asked for it
		}
		return record(tx, Entry{Actor: by.Who, Action: "replay.cancel", Subject: id, Reason: by.Why, Result: "asked for"})
	})
	if errors.Is(err, ErrEnded) || errors.Is(err, ErrNotFound) {
		return err
	}
	if err != nil {
		return fmt.Errorf("cancelling replay %s: %w", id, err)
	}
	return d.abandoned(ctx, id)
}
