package web

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/amqp/outbox"
	"github.com/lapse-go/lapse/order"
	"github.com/lapse-go/lapse/order/checkout"
	"github.com/lapse-go/lapse/order/orderdb"
)

// Overview is how the service is, as JSON. A part is absent where there is no such thing.
type Overview struct {
	_ struct{} `additionalProperties:"true"`

	At      time.Time                     `json:"at" doc:"When it was found out. It is the same for some seconds."`
	Trouble string                        `json:"trouble,omitempty" doc:"Why not all is connected, or not all works."`
	Pause   *Part[Pause]                  `json:"pause,omitempty"`
	Orders  *Part[map[order.Status]Count] `json:"orders,omitempty" doc:"By status."`
	Overdue *Part[Overdue]                `json:"overdue,omitempty" doc:"Orders that the sweep should have expired."`
	Closing *Part[Closing]                `json:"closing,omitempty" doc:"How well orders were expired that were due lately."`
	Queues  *Part[Queues]                 `json:"queues,omitempty"`
	Outbox  *Part[Outbox]                 `json:"outbox,omitempty"`
	Letters *Part[Count]                  `json:"letters,omitempty" doc:"Dead letters that are open."`
}

// Count is how many there are, as JSON.
type Count struct {
	_ struct{} `additionalProperties:"true"`

	Count int  `json:"count"`
	Over  bool `json:"over,omitempty" doc:"There may be more: they are counted up to here."`
}

// Overdue is orders that are overdue, as JSON.
type Overdue struct {
	_ struct{} `additionalProperties:"true"`

	Count
	OldestMs int64 `json:"oldest_ms" doc:"How late the oldest is."`
}

// Closing is how well orders were expired, as JSON.
type Closing struct {
	_ struct{} `additionalProperties:"true"`

	WithinMs int64   `json:"within_ms" doc:"For how long before now orders were due that were looked at."`
	Orders   int     `json:"orders" doc:"How many that are."`
	P50Ms    int64   `json:"p50_ms" doc:"How late half of them were expired, at most."`
	P99Ms    int64   `json:"p99_ms" doc:"How late all but a hundredth."`
	Rate     float64 `json:"rate" doc:"How many were expired a second."`
}

// Queues is how much waited in each queue, as JSON.
type Queues struct {
	_ struct{} `additionalProperties:"true"`

	At     time.Time `json:"at" doc:"When it was measured."`
	Queues []Queue   `json:"queues" nullable:"false"`
}

// Queue is how much waited in one, as JSON.
type Queue struct {
	_ struct{} `additionalProperties:"true"`

	Queue    string `json:"queue"`
	Role     string `json:"role" doc:"For instance due, dead, unrouted, parked or rung."`
	Messages int64  `json:"messages" doc:"Those that a consumer holds are not among them."`
	Missing  bool   `json:"missing,omitempty" doc:"There is no such queue."`
}

// Outbox is what waits in the outbox, as JSON.
type Outbox struct {
	_ struct{} `additionalProperties:"true"`

	Count
	SetAside int   `json:"set_aside" doc:"Those of them that could not be published, and are tried again from time to time."`
	OldestMs int64 `json:"oldest_ms" doc:"How long the oldest has waited that is not set aside."`
}

// OverviewOf is the overview as JSON. Of servers that are away it tells no names, except as trouble.
func OverviewOf(o checkout.Overview) Overview {
	return Overview{
		At: o.At.UTC(), Trouble: plain(o.Trouble),
		Pause: partOf(o.Pause, PauseOf),
		Orders: partOf(o.Orders, func(by map[order.Status]int) map[order.Status]Count {
			counts := make(map[order.Status]Count)
			for status, n := range by {
				counts[status] = countOf(n, checkout.MostCounted)
			}
			return counts
		}),
		Overdue: partOf(o.Overdue, func(v checkout.Overdue) Overdue {
			return Overdue{Count: countOf(v.Orders, checkout.MostOverdue), OldestMs: v.Oldest.Milliseconds()}
		}),
		Closing: partOf(o.Closing, func(v orderdb.Closing) Closing {
			return Closing{WithinMs: v.Since.Milliseconds(), Orders: v.Orders, P50Ms: v.P50.Milliseconds(), P99Ms: v.P99.Milliseconds(), Rate: v.Rate}
		}),
		Queues: partOf(o.Queues, func(v checkout.Queues) Queues {
			return Queues{At: v.At.UTC(), Queues: each(v.Depths, func(d amqp.Depth) Queue {
				return Queue{Queue: d.Queue, Role: d.Role, Messages: d.Messages, Missing: d.Missing}
			})}
		}),
		Outbox: partOf(o.Outbox, func(v outbox.Backlog) Outbox {
			return Outbox{Count: countOf(v.Rows, checkout.MostCounted), SetAside: v.SetAside, OldestMs: v.Oldest.Milliseconds()}
		}),
		Letters: partOf(o.Letters, func(n int64) Count { return countOf(int(n), checkout.MostCounted) }),
	}
}

func countOf(n, most int) Count { return Count{Count: n, Over: n >= most} }

func (s *Server) registerOverview(api huma.API) {
	register(s, api, &operation{
		id: "overview", method: http.MethodGet, path: "/v1/overview", role: Viewer, status: http.StatusOK,
		summary: "Show how the service is",
		doc:     "Orders, queues, the outbox and dead letters, as far as can be found out within two seconds or so: what is not known is no problem, but says why. It is the same for some seconds, whoever asks.",
	}, func(ctx context.Context, _ *struct{}) (*answerOf[Overview], error) {
		return &answerOf[Overview]{OverviewOf(s.cfg.Overview(ctx))}, nil
	})
}
