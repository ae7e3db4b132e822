package order

import "slices"

// Stock is how many pieces there are of an article. Placing, paying, cancelling and expiring move
// pieces between the three counts; only setting the stock, and adding to it, changes their sum.
type Stock struct {
	SKU       string
	Available int64 // may be ordered
	Reserved  int64 // belong to pending orders
	Sold      int64 // belong to paid orders
}

// MaxStock is the most pieces of an article that can be made available.
const MaxStock = 1_000_000_000_000

// Quantities are the pieces of each article that the orders have together, and the articles in
// ascending order.
func Quantities(orders ...Order) (skus []string, pieces map[string]int64) {
	pieces = make(map[string]int64)
	for _, o := range orders {
		for _, line := range o.Lines {
			if _, known := pieces[line.SKU]; !known {
				skus = append(skus, line.SKU)
			}
			pieces[line.SKU] += line.Quantity
		}
	}
	slices.Sort(skus)
	return skus, pieces
}
