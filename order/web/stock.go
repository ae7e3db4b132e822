package web

import (
	"context"
	"fmt"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/lapse-go/lapse/order"
)

// Stock is how many pieces there are of an article, as JSON.
type Stock struct {
	_ struct{} `additionalProperties:"true"`

	SKU       string `json:"sku"`
	Available int64  `json:"available" doc:"May be ordered."`
	Reserved  int64  `json:"reserved" doc:"Belong to pending orders."`
	Sold      int64  `json:"sold" doc:"Belong to paid orders."`
}

type stockAnswer struct{ Body Stock }

// StockPath is the part of a request that names an article. It is exported because huma needs that.
type StockPath struct {
	SKU string `path:"sku" minLength:"1" maxLength:"64" pattern:"^[!-~]+$" patternDescription:"printable ASCII without spaces" doc:"The article, escaped like an order's id."`
}

type setStockInput struct {
	StockPath
	Body struct {
		Available int64 `json:"available" minimum:"0" maximum:"1000000000000" doc:"How many pieces may be ordered from now on; those that are reserved or sold stay so."`
	}
}

func (s *Server) registerStock(api huma.API) {
	register(s, api, &operation{
		id: "get-stock", method: http.MethodGet, path: "/v1/stock/{sku}", role: Viewer, status: http.StatusOK,
		summary: "Show the stock of an article", problems: []*problemType{notFoundHere},
	}, func(ctx context.Context, in *StockPath) (*stockAnswer, error) {
		stock, err := look(ctx, s, func(ctx context.Context) ([]order.Stock, error) { return s.cfg.Orders.Stock(ctx, in.SKU) })
		if err != nil {
			return nil, err
		}
		if len(stock) == 0 {
			return nil, problem(notFoundHere, "article %s has no stock: set it first", in.SKU)
		}
		return &stockAnswer{StockOf(stock[0])}, nil
	})
	register(s, api, &operation{
		id: "set-stock", method: http.MethodPut, path: "/v1/stock/{sku}", role: Operator, status: http.StatusOK, maxBody: maxBody,
		summary: "Set the stock of an article",
		doc:     "An article can be ordered once its stock was set. What is ordered or given back while somebody counts is lost by it.",
	}, func(ctx context.Context, in *setStockInput) (*stockAnswer, error) {
		stock, err := call(ctx, s, func(ctx context.Context) (order.Stock, error) {
			return s.cfg.Orders.SetStock(ctx, in.SKU, in.Body.Available)
		})
		if err != nil {
			return nil, err
		}
		return &stockAnswer{StockOf(stock)}, nil
	})
}

// StockOf is the stock as JSON.
func StockOf(s order.Stock) Stock {
	return Stock{SKU: s.SKU, Available: s.Available, Reserved: s.Reserved, Sold: s.Sold}
}

func (b Stock) stock() order.Stock {
	return order.Stock{SKU: b.SKU, Available: b.Available, Reserved: b.Reserved, Sold: b.Sold}
}

func stockPath(sku string) string { return fmt.Sprintf("/v1/stock/%s", segment(sku)) }
