package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/lapse-go/lapse/order"
	"github.com/lapse-go/lapse/order/checkout"
	"github.com/lapse-go/lapse/order/web"
)

type stock struct {
	Set  stockSet  `cmd:"" help:"Set how many pieces of an article are available. Those that are reserved or sold stay so."`
	Show stockShow `cmd:"" help:"Show the stock of the articles, or of all."`
}

type stockSet struct {
	shopFlags
	SKU       string `arg:"" name:"sku" help:"The article: 1 to 64 printable ASCII characters without spaces."`
	Available int64  `arg:"" help:"Pieces that may be ordered from now on: 0 to 1000000000000."`
}

func (s *stockSet) Run(ctx context.Context, to console) error {
	return s.with(func(shop *checkout.Checkout) error {
		set, err := shop.SetStock(ctx, s.SKU, s.Available)
		if err != nil {
			return err
		}
		return s.print(to, web.StockOf(set), stockHeader, stockRows(set)...)
	})
}

type stockShow struct {
	shopFlags
	SKUs []string `arg:"" optional:"" name:"sku" help:"Articles; all when none is given."`
}

func (s *stockShow) Run(ctx context.Context, to console) error {
	return s.with(func(shop *checkout.Checkout) error {
		found, err := shop.Stock(ctx, s.SKUs...)
		if err != nil {
			return err
		}
		list := make([]web.Stock, len(found))
		for i, known := range found {
			list[i] = web.StockOf(known)
		}
		if err := s.print(to, list, stockHeader, stockRows(found...)...); err != nil {
			return err
		}
		for _, sku := range s.SKUs {
			if !slices.ContainsFunc(found, func(known order.Stock) bool { return known.SKU == sku }) {
				return fmt.Errorf("%w %s: `lapse stock set` makes it known", order.ErrUnknownSKU, sku)
			}
		}
		return nil
	})
}

var stockHeader = table.Row{"sku", "available", "reserved", "sold"}

func stockRows(list ...order.Stock) []table.Row {
	var rows []table.Row
	for _, s := range list {
		rows = append(rows, table.Row{s.SKU, s.Available, s.Reserved, s.Sold})
	}
	return rows
}
