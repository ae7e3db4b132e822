package web

import (
	"context"
	"net/http"
)

// Overview says how the service is, as far as it can be found out: see [checkout.Closer.Overview].
//
// [checkout.Closer.Overview]: https://pkg.go.dev/github.com/lapse-go/lapse/order/checkout#Closer.Overview
func (c *Client) Overview(ctx context.Context) (Overview, error) {
	var reply Overview
	err := c.ask(ctx, http.MethodGet, "/v1/overview", nil, &reply, nil)
	return reply, err
}
