package outbox

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"gorm.io/gorm"
)

// Backlog is what waits in the outbox.
type Backlog struct {
	// Rows that are there, counted up to 100,000.
	Rows int
	// SetAside is those of them that could not be routed, or never be published. They are tried again
	// from time to time.
	SetAside int
	// Oldest is how long the oldest row that is not set aside has waited.
	Oldest time.Duration

	lowest sql.NullInt64 // id of a row that is not set aside
}

// Stats reads the backlog. It takes some 30 ms when a hundred thousand rows wait.
func Stats(ctx context.Context, db *gorm.DB) (Backlog, error) {
	var b Backlog
	var oldest int64
	err := db.WithContext(ctx).Raw(`
		SELECT COUNT(*), COALESCE(SUM(aside), 0), MIN(IF(aside, NULL, id)),
			COALESCE(TIMESTAMPDIFF(MICROSECOND, MIN(IF(aside, NULL, created_at)), UTC_TIMESTAMP(6)), 0)
		FROM (SELECT id, created_at, error IS NOT NULL AS aside FROM lapse_outbox ORDER BY id LIMIT 100000) AS waiting`).
		Row().Scan(&b.Rows, &b.SetAside, &b.lowest, &oldest)
	if err != nil {
		return Backlog{}, fmt.Errorf("reading the backlog of the outbox: %w", err)
	}
	b.Oldest = max(0, microseconds(oldest))
	return b, nil
}
