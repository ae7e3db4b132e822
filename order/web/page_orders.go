package web

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/lapse-go/lapse/order"
)

func (s *Server) registerOrderPages() {
	if s.cfg.Orders == nil {
		return
	}
	s.page("GET /orders", "page-orders", Viewer, s.ordersPage)
	s.page("GET /orders/{id}", "page-order", Viewer, s.orderPage)
	s.page("POST /orders/{id}/extend", "page-extend-order", Checkout, s.extendPage)
	s.page("POST /orders/{id}/cancel", "page-cancel-order", Checkout, s.cancelPage)
	s.page("POST /orders/extend", "page-extend-orders", Operator, s.extendAllPage)
}

// ordersPage finds an order by its id.
func (s *Server) ordersPage(r *http.Request) (view, error) {
	if id := strings.TrimSpace(r.URL.Query().Get("id")); id != "" {
		if err := order.ValidateID("order id", id); err != nil {
			return view{}, err
		}
		return view{To: orderPage(id)}, nil
	}
	// The key has the form be done once, however often it is sent.
	return view{Template: "orders", Title: "Orders", Section: "/orders", Data: order.NewID()}, nil
}

type orderView struct {
	order.Order
	Timeline []order.Entry
	Later    string // half an hour later than it is, for the form
	Desk     bool
}

func (s *Server) orderPage(r *http.Request) (view, error) {
	id := r.PathValue("id")
	v, err := look(r.Context(), s, func(ctx context.Context) (v orderView, err error) {
		if v.Order, err = s.cfg.Orders.Get(ctx, id); err != nil {
			return v, err
		}
		v.Timeline, err = s.cfg.Orders.Timeline(ctx, id)
		return v, err
	})
	if err != nil {
		return view{}, err
	}
	later := v.Deadline
	if now := time.Now(); later.Before(now) {
		later = now
	}
	v.Later, v.Desk = forInput(later.Add(30*time.Minute)), s.cfg.Desk != nil
	return view{Template: "order", Title: "Order " + id, Section: "/orders", Data: v}, nil
}

// Pending is whether its deadline can be moved.
func (v orderView) Pending() bool { return v.Status == order.Pending }

func (s *Server) extendPage(r *http.Request) (view, error) {
	by, err := reason(r)
	if err != nil {
		return view{}, err
	}
	to, err := parseTime("deadline", r.PostForm.Get("deadline"))
	if err != nil {
		return view{}, err
	}
	id := r.PathValue("id")
	_, err = s.extendOrder(r.Context(), id, to, by)
	return view{To: done(orderPage(id), "extended")}, err
}

func (s *Server) cancelPage(r *http.Request) (view, error) {
	by, err := reason(r)
	if err != nil {
		return view{}, err
	}
	id := r.PathValue("id")
	_, err = s.cancelOrder(r.Context(), id, by)
	return view{To: done(orderPage(id), "cancelled")}, err
}

func (s *Server) extendAllPage(r *http.Request) (view, error) {
	by, err := reason(r)
	if err != nil {
		return view{}, err
	}
	more, err := time.ParseDuration(strings.TrimSpace(r.PostForm.Get("by")))
	if err != nil {
		return view{}, problem(invalid, "by %.80q: give a duration such as 20m", r.PostForm.Get("by"))
	}
	request := order.ExtendRequest{Key: r.PostForm.Get("key"), More: more, Tag: strings.TrimSpace(r.PostForm.Get("tag")), By: by}
	p, err := s.extendOrders(r.Context(), request)
	return view{To: done("/orders", "more-time", p.Extended)}, err
}
