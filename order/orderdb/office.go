package orderdb

import (
	"context"
	"fmt"
	"math"

	"github.com/lapse-go/lapse/amqp/database"
	"github.com/lapse-go/lapse/order"
)

// SetStock sets how many pieces of an article are available.
func (s *Store) SetStock(ctx context.Context, sku string, pieces int64) (order.Stock, error) {
	db := session(ctx, s.db)
	err := db.Exec(`INSERT INTO lapse_stock (sku, available, reserved, sold) VALUES (?, ?, 0, 0)
		ON DUPLICATE KEY UPDATE available = ?`, sku, pieces, pieces).Error
	if err != nil {
		return order.Stock{}, unavailable(fmt.Errorf("setting the stock of %s: %w", sku, err))
	}
	return s.stockOf(ctx, sku)
}

// AddStock adds pieces to those that are available of an article, or takes some away.
func (s *Store) AddStock(ctx context.Context, sku string, delta int64) (order.Stock, error) {
	db := session(ctx, s.db)
	most := int64(order.MaxStock)
	if delta < 0 {
		most = math.MaxInt64 // what was given back may exceed what can be set
	}
	for range 2 {
		// Signed, for in unsigned numbers a sum below zero is an error.
		added := db.Exec(`UPDATE lapse_stock SET available = CAST(available AS SIGNED) + ?
			WHERE sku = ? AND CAST(available AS SIGNED) + ? BETWEEN 0 AND ?`, delta, sku, delta, most)
		if added.Error != nil {
			return order.Stock{}, unavailable(fmt.Errorf("adding to the stock of %s: %w", sku, added.Error))
		}
		if added.RowsAffected > 0 {
			return s.stockOf(ctx, sku)
		}
		if delta < 0 {
			if _, err := s.stockOf(ctx, sku); err != nil {
				return order.Stock{}, err
			}
			return order.Stock{}, fmt.Errorf("taking %d pieces away: %w", -delta, &order.ShortageError{Short: []string{sku}})
		}
		err := insert(db, "lapse_stock", []string{"sku", "available", "reserved", "sold"}, [][]any{{sku, delta, 0, 0}})
		if err == nil {
			return s.stockOf(ctx, sku)
		}
		if !database.IsDuplicate(err) {
			return order.Stock{}, unavailable(err)
		}
		// It has too many, or another caller has just made it.
	}
	return order.Stock{}, fmt.Errorf("%w: %d more pieces of %s would be more than %d", order.ErrInvalid, delta, sku, most)
}

// stockOf is the stock of an article that has some.
func (s *Store) stockOf(ctx context.Context, sku string) (order.Stock, error) {
	stock, err := s.Stock(ctx, sku)
	if err == nil && len(stock) == 0 {
		err = &order.ShortageError{Unknown: []string{sku}}
	}
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
