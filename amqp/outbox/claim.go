package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"gorm.io/gorm"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/amqp/database"
)

// A batch is rows that this relay has claimed.
type batch struct {
	ids   []int64
	since time.Time // the lease began no earlier
	full  bool      // there may be more
}

// maxBatchBytes bounds what a batch holds in memory, unless one row alone is larger.
const maxBatchBytes = 8 << 20

const claimable = `
	SELECT id, size FROM lapse_outbox
	WHERE id >= ? AND id < ? AND claimed_until <= UTC_TIMESTAMP(6)
	ORDER BY id LIMIT ? FOR UPDATE SKIP LOCKED`

// claim takes up to limit rows with ids from from to below, so that no other relay takes them until
// the lease is over. It returns nil if there are none.
func (r *Relay) claim(ctx context.Context, from, below int64, limit int) (*batch, error) {
	var b batch
	err := database.Transact(ctx, r.db, func(tx *gorm.DB) error {
		b = batch{since: time.Now()}
		rows, err := tx.Raw(claimable, from, below, limit).Rows()
		if err != nil {
			return err
		}
		defer rows.Close()
		for bytes := 0; rows.Next(); {
			var id int64
			var size int
			if err := rows.Scan(&id, &size); err != nil {
				return err
			}
			if bytes += size; bytes > maxBatchBytes && len(b.ids) > 0 {
				b.full = true
				break
			}
			b.ids = append(b.ids, id)
		}
		if err := errors.Join(rows.Err(), rows.Close()); err != nil || len(b.ids) == 0 {
			return err
		}
		b.full = b.full || len(b.ids) == limit
		return tx.Exec("UPDATE lapse_outbox SET claimed_until = TIMESTAMPADD(MICROSECOND, ?, UTC_TIMESTAMP(6)) WHERE id IN ?",
			r.cfg.Lease.Microseconds(), b.ids).Error
	})
	if err != nil {
		return nil, fmt.Errorf("claiming rows of the outbox: %w", err)
	}
	if len(b.ids) == 0 {
		return nil, nil
	}
	return &b, nil
}

// letter is a row on its way.
type letter struct {
	id  int64
	out amqp.Publishing
	err error // why it cannot be published, or what came of it
}

// read gets what is in the claimed rows. What remains of a timer is told by the database, and counts
// from when its answer came, so that a timer is a little late rather than early.
func (r *Relay) read(ctx context.Context, b *batch) ([]letter, error) {
	rows, err := r.db.WithContext(ctx).Raw(`
		SELECT id, message_id, exchange, kind, body, content_type, app_id, headers, window_ms,
			TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), due_at),
			TIMESTAMPDIFF(SECOND, '1970-01-01', COALESCE(made_at, created_at))
		FROM lapse_outbox WHERE id IN ? ORDER BY id`, b.ids).Rows()
	if err != nil {
		return nil, fmt.Errorf("reading rows of the outbox: %w", err)
	}
	defer rows.Close()
	asOf := time.Now()
	letters := make([]letter, 0, len(b.ids))
	for rows.Next() {
		var l letter
		var exchange, headers sql.NullString
		var window, remaining sql.NullInt64
		var made int64
		err := rows.Scan(&l.id, &l.out.ID, &exchange, &l.out.Kind, &l.out.Body, &l.out.ContentType, &l.out.AppID,
			&headers, &window, &remaining, &made)
		if err != nil {
			return nil, fmt.Errorf("reading rows of the outbox: %w", err)
		}
		l.out.Timestamp = time.Unix(made, 0).UTC()
		if headers.Valid {
			if l.out.Headers, err = decodeHeaders(headers.String); err != nil {
				l.err = fmt.Errorf("%w: %w", amqp.ErrInvalid, err)
			}
		}
		l.out.Exchange = exchange.String
		if remaining.Valid {
			left := microseconds(remaining.Int64) - time.Since(asOf)
			step := r.cfg.Topology.Ladder.Step(time.Duration(window.Int64)*time.Millisecond, left)
			l.out.Exchange, l.out.Expiration = r.cfg.Topology.Delay(step.Rung), step.Expiration
		} else if l.out.Exchange == "" {
			l.err = fmt.Errorf("%w: the row has neither an exchange nor a deadline", amqp.ErrInvalid)
		}
		letters = append(letters, l)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("reading rows of the outbox: %w", err)
	}
	return letters, nil
}

// microseconds is a duration that stops at Go's bounds: a deadline may be a thousand years away.
func microseconds(n int64) time.Duration {
	const bound = math.MaxInt64 / int64(time.Microsecond)
	return time.Duration(min(max(n, -bound), bound)) * time.Microsecond
}

// What becomes of rows that were not confirmed. Assignments take effect from left to right, so
// attempts counts those before this one.
const (
	// The broker's answer is not known, or it is away: soon again, after other rows had their turn.
	release = "claimed_until = TIMESTAMPADD(SECOND, 1, UTC_TIMESTAMP(6))"
	// A queue is full, most likely: after 1, 2, 4 … 32 s.
	postpone = "claimed_until = TIMESTAMPADD(SECOND, 1 << LEAST(attempts, 5), UTC_TIMESTAMP(6)), attempts = attempts + 1"
	// Nothing will change by itself: after 1, 2, 4 … 60 min.
	setAside = "claimed_until = TIMESTAMPADD(SECOND, LEAST(60 << LEAST(attempts, 6), 3600), UTC_TIMESTAMP(6)), attempts = attempts + 1, error = ?"
)

const maxErrorText = 1000 // bytes

// settle deletes what was confirmed and gives back the rest, in one transaction.
func (r *Relay) settle(ctx context.Context, letters []letter) error {
	var confirmed, released, postponed []int64
	aside := map[string][]int64{} // by error text: usually a few
	for _, l := range letters {
		switch {
		case l.err == nil:
			confirmed = append(confirmed, l.id)
		case errors.Is(l.err, amqp.ErrUnroutable), errors.Is(l.err, amqp.ErrInvalid):
			text := errorText(l.err)
			aside[text] = append(aside[text], l.id)
		case errors.Is(l.err, amqp.ErrRefused):
			postponed = append(postponed, l.id)
		default:
			released = append(released, l.id)
		}
	}
	err := database.Transact(ctx, r.db, func(tx *gorm.DB) error {
		if len(confirmed) > 0 {
			if err := tx.Exec("DELETE FROM lapse_outbox WHERE id IN ?", confirmed).Error; err != nil {
				return err
			}
		}
		const update = "UPDATE lapse_outbox SET "
		if len(postponed) > 0 {
			if err := tx.Exec(update+postpone+" WHERE id IN ?", postponed).Error; err != nil {
				return err
			}
		}
		if len(released) > 0 {
			if err := tx.Exec(update+release+" WHERE id IN ?", released).Error; err != nil {
				return err
			}
		}
		for text, ids := range aside {
			if err := tx.Exec(update+setAside+" WHERE id IN ?", text, ids).Error; err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("settling rows of the outbox: %w", err)
	}
	return nil
}

func errorText(err error) string {
	text := err.Error()
	text = strings.ToValidUTF8(text[:min(len(text), maxErrorText)], "\uFFFD")
	return text
}
