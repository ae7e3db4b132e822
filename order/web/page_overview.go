package web

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/order"
	"github.com/lapse-go/lapse/order/checkout"
)

type overviewView struct {
	checkout.Overview
	Known    bool // there is an overview
	Desk     bool // there is a page of letters
	Switch   order.Pause
	NoSwitch error // why that is not known
	Statuses []statusCount
	Rungs    []amqp.Depth // that timers wait in
	Waiting  int64        // in all of them
	Due      int64        // in the due queues
	Buried   int64        // in the queues of dead letters, not collected yet
	Others   []amqp.Depth // than rungs
}

type statusCount struct {
	Status order.Status
	Orders int
	More   bool
}

func (s *Server) registerOverviewActions() {
	s.page("POST /pause", "page-pause", Operator, s.turnPage("paused", s.pause))
	s.page("POST /resume", "page-resume", Operator, s.turnPage("resumed", s.resume))
	s.page("POST /sweep", "page-sweep", Operator, s.sweepPage)
}

func (s *Server) overviewPage(r *http.Request) (view, error) {
	o := overviewView{Known: s.cfg.Overview != nil, Desk: s.cfg.Desk != nil}
	if o.Known {
		o.Overview = s.cfg.Overview(r.Context())
	} else {
		o.At = time.Now()
	}
	o.Switch, o.NoSwitch = look(r.Context(), s, s.cfg.Switch.Paused)
	if o.Orders != nil {
		for _, status := range []order.Status{order.Pending, order.Paid, order.Cancelled, order.Expired} {
			n := o.Orders.Value[status]
			o.Statuses = append(o.Statuses, statusCount{status, n, n >= checkout.MostCounted})
		}
	}
	if o.Queues != nil {
		for _, d := range o.Queues.Value.Depths {
			switch d.Role {
			case "rung":
				o.Waiting += d.Messages
				o.Rungs = append(o.Rungs, d)
				continue
			case "due":
				o.Due += d.Messages
			case "dead", "unrouted":
				o.Buried += d.Messages
			}
			o.Others = append(o.Others, d)
		}
	}
	return view{Template: "overview", Title: "Overview", Section: "/", Fragment: "tiles", Data: o}, nil
}

// MostCounted and MostOverdue are how many are counted.
func (o overviewView) MostCounted() int { return checkout.MostCounted }
func (o overviewView) MostOverdue() int { return checkout.MostOverdue }

// MostRung is the most that waits in a rung, 1 if that is nothing.
func (o overviewView) MostRung() int64 {
	most := int64(1)
	for _, d := range o.Rungs {
		most = max(most, d.Messages)
	}
	return most
}

// Rung is the delay in the name of a rung's queue.
func (o overviewView) Rung(queue string) string { return queue[strings.LastIndex(queue, ".")+1:] }

// Filled are the rungs in which something waits.
func (o overviewView) Filled() []amqp.Depth {
	return slices.DeleteFunc(slices.Clone(o.Rungs), func(d amqp.Depth) bool { return d.Messages == 0 })
}

// turnPage pauses or resumes.
func (s *Server) turnPage(what string, turn func(context.Context, order.By) error) func(*http.Request) (view, error) {
	return func(r *http.Request) (view, error) {
		by, err := reason(r)
		if err != nil {
			return view{}, err
		}
		return view{To: done("/", what)}, turn(r.Context(), by)
	}
}

func (s *Server) sweepPage(r *http.Request) (view, error) {
	by, err := reason(r)
	if err != nil {
		return view{}, err
	}
	sum, err := s.sweep(r.Context(), by)
	return view{To: done("/", "swept", int64(sum.Found), int64(sum.Expired), int64(sum.Failed))}, err
}

// reason is who does something, and why, which the form has to say.
func reason(r *http.Request) (order.By, error) {
	why := strings.TrimSpace(r.PostForm.Get("why"))
	if why == "" {
		return order.By{}, problem(invalid, "no reason: say why it is done")
	}
	return by(r.Context(), why), nil
}
