package web

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/lapse-go/lapse/amqp/deadletter"
)

// Selection is the letters with which something is to be done, as JSON: one of the three.
type Selection struct {
	IDs    []int64 `json:"ids,omitempty" nullable:"false" maxItems:"10000" doc:"The letters themselves."`
	Filter *Filter `json:"filter,omitempty" doc:"Those that match; it has at least one condition."`
	All    bool    `json:"all,omitempty" doc:"All letters."`
}

// SelectionOf is the selection as JSON.
func SelectionOf(s deadletter.Selection) Selection {
	b := Selection{IDs: s.IDs, All: s.All}
	if s.Filter != nil {
		f := FilterOf(*s.Filter)
		b.Filter = &f
	}
	return b
}

func (b Selection) selection() deadletter.Selection {
	s := deadletter.Selection{IDs: b.IDs, All: b.All}
	if b.Filter != nil {
		f := b.Filter.filter()
		s.Filter = &f
	}
	return s
}

// Affected is how many letters something was done with, as JSON.
type Affected struct {
	_ struct{} `additionalProperties:"true"`

	Count int64 `json:"count" doc:"Letters."`
}

type resolveInput struct{ Body resolveBody }

type resolveBody struct {
	Selection
	Reason string `json:"reason" minLength:"1" maxLength:"1000" doc:"For the audit, and for whoever asks later."`
}

func (s *Server) registerResolve(api huma.API) {
	resolve := func(id, summary, doc string, do func(context.Context, deadletter.Selection, deadletter.By) (int64, error)) {
		register(s, api, &operation{
			id: id + "-dead-letters", method: http.MethodPost, path: "/v1/dead-letters/" + id, role: Operator, status: http.StatusOK, maxBody: maxSelectionBody,
			summary: summary, doc: doc, problems: []*problemType{notFoundHere, replayRunning},
		}, func(ctx context.Context, in *resolveInput) (*answerOf[Affected], error) {
			by := deadletter.By{Who: actor(ctx), Why: in.Body.Reason}
			return answered(callLong(ctx, s, func(ctx context.Context) (Affected, error) {
				n, err := do(ctx, in.Body.selection(), by)
				return Affected{Count: n}, err
			}))
		})
	}
	resolve("discard", "Discard dead letters", "Takes the open ones of them off the desk. They can be restored until their retention is over.", s.cfg.Desk.Discard)
	resolve("restore", "Restore dead letters", "Has letters that were discarded, replayed or settled be open again.", s.cfg.Desk.Restore)
}
