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
	began time.Time // its round
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

// row is one on its way.
type row struct {
	id    int64
	out   amqp.Publishing
	timer bool  // it has a deadline
	err   error // why it cannot be published, or what came of it
}

// read gets what is in the claimed rows. What remains of a timer is told by the database, and counts
// from when its answer came, so that a timer is a little late rather than early.
func (r *Relay) read(ctx context.Context, b *batch) ([]row, error) {
	found, err := r.db.WithContext(ctx).Raw(`
		SELECT id, message_id, exchange, kind, body, content_type, app_id, headers, window_ms,
			TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), due_at),
			TIMESTAMPDIFF(SECOND, '1970-01-01', COALESCE(made_at, created_at))
		FROM lapse_outbox WHERE id IN ? ORDER BY id`, b.ids).Rows()
	if err != nil {
		return nil, fmt.Errorf("reading rows of the outbox: %w", err)
	}
	defer found.Close()
	asOf := time.Now()
	rows := make([]row, 0, len(b.ids))
	for found.Next() {
		var m row
		var exchange, headers sql.NullString
		var window, remaining sql.NullInt64
		var made int64
		err := found.Scan(&m.id, &m.out.ID, &exchange, &m.out.Kind, &m.out.Body, &m.out.ContentType, &m.out.AppID,
			&headers, &window, &remaining, &made)
		if err != nil {
			return nil, fmt.Errorf("reading rows of the outbox: %w", err)
		}
		m.out.Timestamp = time.Unix(made, 0).UTC()
		if headers.Valid {
			if m.out.Headers, err = decodeHeaders(headers.String); err != nil {
				m.err = fmt.Errorf("%w: %w", amqp.ErrInvalid, err)
			}
		}
		m.out.Exchange = exchange.String
		if m.timer = remaining.Valid; m.timer {
			left := microseconds(remaining.Int64) - time.Since(asOf)
			step := r.cfg.Topology.Ladder.Step(time.Duration(window.Int64)*time.Millisecond, left)
			m.out.Exchange, m.out.Expiration = r.cfg.Topology.Delay(step.Rung), step.Expiration
		} else if m.out.Exchange == "" {
			m.err = fmt.Errorf("%w: the row has neither an exchange nor a deadline", amqp.ErrInvalid)
		}
		rows = append(rows, m)
	}
	if err := found.Err(); err != nil {
		return nil, fmt.Errorf("reading rows of the outbox: %w", err)
	}
	return rows, nil
}

// microseconds is a duration that stops at Go's bounds: a deadline may be a thousand years away.
func microseconds(n int64) time.Duration {
	const bound = math.MaxInt64 / int64(time.Microsecond)
	return time.Duration(min(max(n, -bound), bound)) * time.Microsecond
}

// What becomes of rows that were not confirmed. Assignments take effect from left to right, so
// attempts counts those before this one.
const (
	// The broker does not answer, which is no fault of theirs: soon again.
	release = "claimed_until = TIMESTAMPADD(SECOND, 1, UTC_TIMESTAMP(6))"
	// A queue is full, or does not answer: after 1, 2, 4 … 32 s, so that they leave room for others.
	postpone = "claimed_until = TIMESTAMPADD(SECOND, 1 << LEAST(attempts, 5), UTC_TIMESTAMP(6)), attempts = attempts + 1"
	// Nothing will change by itself: after 1, 2, 4 … 60 min.
	setAside = "claimed_until = TIMESTAMPADD(SECOND, LEAST(60 << LEAST(attempts, 6), 3600), UTC_TIMESTAMP(6)), attempts = attempts + 1, error = ?"
)

const maxErrorText = 1000 // bytes

// settle deletes what was confirmed and gives back the rest, in one transaction.
func (r *Relay) settle(ctx context.Context, rows []row) error {
	// A row that was alone may itself be the reason why there was no answer.
	unconfirmed := postpone
	if len(rows) > 1 && silence(rows) {
		unconfirmed = release
	}
	var confirmed []int64
	again := map[string][]int64{} // by what becomes of them
	aside := map[string][]int64{} // by error text: usually a few
	for _, m := range rows {
		switch {
		case m.err == nil:
			confirmed = append(confirmed, m.id)
		case errors.Is(m.err, amqp.ErrUnroutable), errors.Is(m.err, amqp.ErrInvalid):
			text := errorText(m.err)
			aside[text] = append(aside[text], m.id)
		case errors.Is(m.err, amqp.ErrRefused):
			again[postpone] = append(again[postpone], m.id)
		default:
			again[unconfirmed] = append(again[unconfirmed], m.id)
		}
	}
	err := database.Transact(ctx, r.db, func(tx *gorm.DB) error {
		if len(confirmed) > 0 {
			if err := tx.Exec("DELETE FROM lapse_outbox WHERE id IN ?", confirmed).Error; err != nil {
				return err
			}
		}
		for change, ids := range again {
			if err := tx.Exec("UPDATE lapse_outbox SET "+change+" WHERE id IN ?", ids).Error; err != nil {
				return err
			}
		}
		for text, ids := range aside {
			if err := tx.Exec("UPDATE lapse_outbox SET "+setAside+" WHERE id IN ?", text, ids).Error; err != nil {
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
