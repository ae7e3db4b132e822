package orderdb_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/lapse-go/lapse/amqp/amqptest"
	owntable "github.com/lapse-go/lapse/deploy/examples/own-table"
	"github.com/lapse-go/lapse/order"
	"github.com/lapse-go/lapse/order/orderdb"
)

// BenchmarkExpire expires due orders of two lines each, 200 in a batch, by one worker; nothing is
// published.
func BenchmarkExpire(b *testing.B) {
	s := newShopOn(b, amqptest.Database(b))
	s.store = orderdb.New(s.db, orderdb.Config{})
	s.Repository = s.store
	skus := names("sku-", 50)
	s.setStock(1_000_000_000, skus...)

	const size = 200
	var batches [][]string
	for i := range b.N {
		drafts := make([]order.Draft, size)
		ids := make([]string, size)
		for j := range drafts {
			ids[j] = fmt.Sprintf("o-%06d-%03d", i, j)
			drafts[j] = draft(ids[j], skus[(i+j)%len(skus)], skus[(i+7*j+1)%len(skus)])
		}
		if _, err := s.PlaceAll(b.Context(), drafts); err != nil {
			b.Fatal(err)
		}
		batches = append(batches, ids)
	}
	s.makeDue(-time.Second, slices.Concat(batches...)...)

	b.ResetTimer()
	for _, ids := range batches {
		got, err := s.Expire(b.Context(), ids)
		if err != nil {
			b.Fatal(err)
		}
		for _, e := range got.Orders {
			if e.Outcome != order.OutcomeExpired {
				b.Fatalf("%s: %s %v", e.ID, e.Outcome, e.Err)
			}
		}
	}
	b.ReportMetric(float64(b.N*size)/b.Elapsed().Seconds(), "orders/s")
}

// BenchmarkPlace places orders of two lines each, 200 in a batch, by one worker; nothing is published.
func BenchmarkPlace(b *testing.B) {
	s := newShopOn(b, amqptest.Database(b))
	s.Repository = orderdb.New(s.db, orderdb.Config{})
	skus := names("sku-", 50)
	for _, sku := range skus {
		if _, err := s.SetStock(b.Context(), sku, 1_000_000_000); err != nil {
			b.Fatal(err)
		}
	}
	const size = 200
	b.ResetTimer()
	for i := range b.N {
		drafts := make([]order.Draft, size)
		for j := range drafts {
			drafts[j] = draft(fmt.Sprintf("o-%06d-%03d", i, j), skus[(i+j)%len(skus)], skus[(i+7*j+1)%len(skus)])
		}
		if _, err := s.PlaceAll(b.Context(), drafts); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N*size)/b.Elapsed().Seconds(), "orders/s")
}

// BenchmarkExpireOwnTable does what [BenchmarkExpire] does over tables of the shop's own, with the statements of
// the examples: two lines each, the stock and a line of history.
func BenchmarkExpireOwnTable(b *testing.B) {
	for _, name := range owntable.Names {
		b.Run(name, func(b *testing.B) {
			shop := owntable.Open(b, amqptest.Database(b), name)
			table := orderdb.NewTable(shop.DB, shop.Mapping, orderdb.Config{})
			skus := names("sku-", 50)
			for _, sku := range skus {
				if err := shop.DB.Exec("INSERT INTO stock VALUES (?, 1000000000, 0, 0)", sku).Error; err != nil {
					b.Fatal(err)
				}
			}
			const size = 200
			var batches [][]string
			for i := range b.N {
				orders := make([]owntable.Order, size)
				ids := make([]string, size)
				for j := range orders {
					ids[j] = fmt.Sprint(1_000_000_000_000_000_000 + i*size + j)
					orders[j] = owntable.Order{ID: ids[j], Status: order.Pending, Due: -time.Second, Lines: map[string]int{skus[(i+j)%len(skus)]: 1, skus[(i+7*j+1)%len(skus)]: 1}}
				}
				if err := shop.Insert(shop.DB, orders...); err != nil {
					b.Fatal(err)
				}
				batches = append(batches, ids)
			}
			b.ResetTimer()
			for _, ids := range batches {
				got, err := table.Expire(b.Context(), ids)
				if err != nil {
					b.Fatal(err)
				}
				for _, e := range got.Orders {
					if e.Outcome != order.OutcomeExpired {
						b.Fatalf("%s: %s %v", e.ID, e.Outcome, e.Err)
					}
				}
			}
			b.ReportMetric(float64(b.N*size)/b.Elapsed().Seconds(), "orders/s")
		})
	}
}
