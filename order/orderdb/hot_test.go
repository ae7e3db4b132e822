package orderdb_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/lapse-go/lapse/order"
)

// Somebody keeps an article locked. That costs the orders for it their turn, and the others in their batch
// some seconds, not minutes.
func TestPlacingBesideALockedArticle(t *testing.T) {
	s := newShop(t)
	s.setStock(1000, "cold", "hot")
	tx := s.db.Begin()
	defer tx.Rollback()
	if err := tx.Exec("SELECT * FROM lapse_stock WHERE sku = 'hot' FOR UPDATE").Error; err != nil {
		t.Fatal(err)
	}
	drafts := make([]order.Draft, 100)
	for i := range drafts {
		sku := "cold"
		if i%10 == 0 {
			sku = "hot"
		}
		drafts[i] = order.Draft{ID: fmt.Sprint("o", i), Lines: []order.Line{{SKU: sku, Quantity: 1, Price: order.Money{Amount: 100, Currency: "EUR"}}}}
	}
	begin := time.Now()
	placed, err := s.PlaceAll(t.Context(), drafts)
	if err != nil {
		t.Fatal(err)
	}
	took := time.Since(begin)
	t.Logf("it took %s", took.Round(time.Millisecond))
	if took > 20*time.Second {
		t.Errorf("it took %s", took)
	}
	for i, p := range placed {
		if hot := i%10 == 0; hot != errors.Is(p.Err, order.ErrUnavailable) || !hot && p.Err != nil {
			t.Errorf("order %d: %v", i, p.Err)
		}
	}
}
