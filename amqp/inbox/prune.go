package inbox

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"time"

	"gorm.io/gorm"

	"github.com/lapse-go/lapse/amqp/database"
)

// DefaultKeep is for how long notes are kept, unless a [Pruner] says otherwise.
const DefaultKeep = 30 * 24 * time.Hour

// pruneBatch is how many notes are deleted at once, so that nobody waits for long.
const pruneBatch = 1000

// Pruner deletes old notes. Any number may run at once.
type Pruner struct {
	DB *gorm.DB
	// Keep is for how long a message that was handled is known, by the database's clock: longer than it may come
	// again. A delivery comes again at once, a retry after hours, but a dead letter whenever somebody replays it.
	// [DefaultKeep] when zero.
	Keep time.Duration
	// Every is the time between two rounds. 1 h when zero.
	Every time.Duration
	// Logger is slog.Default when nil.
	Logger *slog.Logger
}

// Run prunes until ctx ends, and then returns the context's error. A round that fails is logged, and the next
// one does its work.
func (p *Pruner) Run(ctx context.Context) error {
	ticker := time.NewTicker(cmp.Or(p.Every, time.Hour))
	defer ticker.Stop()
	for {
		if _, err := p.Once(ctx); err != nil && ctx.Err() == nil {
			cmp.Or(p.Logger, slog.Default()).Warn("pruning the inbox failed; it is tried again", "error", err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
	}
}

// Once deletes all that is old enough, by batches, and returns how many notes it were.
func (p *Pruner) Once(ctx context.Context) (pruned int64, err error) {
	keep := cmp.Or(p.Keep, DefaultKeep)
	if keep < 0 {
		return 0, fmt.Errorf("inbox: keep %s: give a period, such as 720h", keep)
	}
	for {
		var n int64
		err := database.Transact(ctx, p.DB, func(tx *gorm.DB) error {
			deleted := tx.Exec("DELETE FROM lapse_inbox WHERE at < UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND ORDER BY at LIMIT ?",
				keep.Microseconds(), pruneBatch)
			n = deleted.RowsAffected
			return deleted.Error
		})
		if err != nil {
			return pruned, fmt.Errorf("inbox: pruning: %w", err)
		}
		if pruned += n; n < pruneBatch {
			return pruned, nil
		}
	}
}
