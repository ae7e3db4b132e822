package orderdb

import (
	"context"
	"fmt"
	"time"

	"gorm.io/gorm"

	"github.com/lapse-go/lapse/order"
)

// readPause reads the switch, and the database's clock.
func readPause(tx *gorm.DB) (now time.Time, pause order.Pause, err error) {
	err = query(tx, func(scan func(...any) error) error {
		return scan((*instant)(&now), &pause.Paused, &pause.By.Who, &pause.By.Why, (*instant)(&pause.Since))
	}, `SELECT CAST(UTC_TIMESTAMP(6) AS CHAR), paused, who, why, CAST(since AS CHAR) FROM lapse_control WHERE id = 1`)
	if err != nil {
		return now, pause, fmt.Errorf("reading the pause switch: %w", err)
	}
	return now, pause, nil
}

// Pause tells whether expiry is paused.
func (s *Store) Pause(ctx context.Context) (order.Pause, error) {
	_, pause, err := readPause(session(ctx, s.db))
	return pause, unavailable(err)
}

// Paused reports whether expiry is paused.
func (s *Store) Paused(ctx context.Context) (bool, error) {
	pause, err := s.Pause(ctx)
	return pause.Paused, err
}

// SetPause pauses or resumes expiry.
func (s *Store) SetPause(ctx context.Context, state order.Pause) error {
	err := session(ctx, s.db).Exec("REPLACE INTO lapse_control (id, paused, who, why, since) VALUES (1, ?, ?, ?, UTC_TIMESTAMP(6))",
		state.Paused, state.By.Who, state.By.Why).Error
	if err != nil {
		return unavailable(fmt.Errorf("setting the pause switch: %w", err))
	}
	return nil
}

// SetStock sets how many pieces of an article are available.
func (s *Store) SetStock(ctx context.Context, sku string, pieces int64) (order.Stock, error) {
	db := session(ctx, s.db)
	err := db.Exec(`INSERT INTO lapse_stock (sku, available, reserved, sold) VALUES (?, ?, 0, 0)
		ON DUPLICATE KEY UPDATE available = ?`, sku, pieces, pieces).Error
	if err != nil {
		return order.Stock{}, unavailable(fmt.Errorf("setting the stock of %s: %w", sku, err))
	}
	stock, err := s.Stock(ctx, sku)
	if err != nil {
		return order.Stock{}, err
	}
	return stock[0], nil
}

// Stock lists the stock of the articles, or of all.
func (s *Store) Stock(ctx context.Context, skus ...string) ([]order.Stock, error) {
	var stock []order.Stock
	scan := func(scan func(...any) error) error {
		var one order.Stock
		err := scan(&one.SKU, &one.Available, &one.Reserved, &one.Sold)
		stock = append(stock, one)
		return err
	}
	const list = "SELECT sku, available, reserved, sold FROM lapse_stock"
	var err error
	if len(skus) == 0 {
		err = query(session(ctx, s.db), scan, list+" ORDER BY sku")
	} else if known := distinct(skus); len(known) > 0 {
		err = query(session(ctx, s.db), scan, list+" WHERE sku IN ? ORDER BY sku", known)
	}
	if err != nil {
		return nil, unavailable(fmt.Errorf("reading stock: %w", err))
	}
	return stock, nil
}
