package orderdb

import (
	"context"
	"fmt"

	"gorm.io/gorm"

	"github.com/lapse-go/lapse/amqp/database"
	"github.com/lapse-go/lapse/order"
)

// Refuse has order.refused published for drafts that were not placed.
func (s *Store) Refuse(ctx context.Context, drafts []order.Draft, errs []error) error {
	if len(drafts) == 0 {
		return nil
	}
	err := database.Transact(ctx, s.db, func(tx *gorm.DB) error {
		now, err := clock(tx)
		if err != nil {
			return err
		}
		events := make([]order.Event, len(drafts))
		for i, d := range drafts {
			events[i] = order.RefuseDraft(d, errs[i], now)
		}
		return s.emit(tx, events, nil)
	})
	if err != nil {
		return unavailable(fmt.Errorf("refusing orders: %w", err))
	}
	s.committed()
	return nil
}
