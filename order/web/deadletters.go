package web

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/lapse-go/lapse/amqp/deadletter"
)

// Filter says which dead letters, in a query or as JSON. What is absent does not restrict.
type Filter struct {
	State     string            `query:"state" json:"state,omitempty" enum:"open,replayed,settled,discarded,all" doc:"When absent: the open ones in a query, all in a selection."`
	Kind      string            `query:"kind" json:"kind,omitempty" maxLength:"255"`
	Reason    deadletter.Reason `query:"reason" json:"reason,omitempty" enum:"hopeless,out-of-tries,delivery-limit,expired,rejected,unroutable,unknown"`
	Group     string            `query:"group" json:"group,omitempty" maxLength:"255"`
	Subject   string            `query:"subject" json:"subject,omitempty" maxLength:"255" doc:"For instance an order's id."`
	MessageID string            `query:"message_id" json:"message_id,omitempty" maxLength:"255"`
	From      time.Time         `query:"from" json:"from,omitzero" doc:"Letters that died then or later."`
	To        time.Time         `query:"to" json:"to,omitzero" doc:"Letters that died before."`
	Text      string            `query:"text" json:"text,omitempty" maxLength:"200" doc:"Is in the body, the headers or the error, byte by byte. It needs from."`
}

// allStates is the word for letters in any state.
const allStates = "all"

// FilterOf is the filter as JSON.
func FilterOf(f deadletter.Filter) Filter {
	return Filter{State: string(f.State), Kind: f.Kind, Reason: f.Reason, Group: f.Group, Subject: f.Subject,
		MessageID: f.MessageID, From: f.From.UTC(), To: f.To.UTC(), Text: f.Text}
}

func (b Filter) filter() deadletter.Filter {
	f := deadletter.Filter{State: deadletter.State(b.State), Kind: b.Kind, Reason: b.Reason, Group: b.Group, Subject: b.Subject,
		MessageID: b.MessageID, From: b.From, To: b.To, Text: b.Text}
	if b.State == allStates {
		f.State = ""
	}
	return f
}

// FilterQuery is a filter as the query of a request. It is exported because huma needs that.
type FilterQuery struct{ Filter }

func (q FilterQuery) filter() deadletter.Filter {
	if q.State == "" {
		q.State = string(deadletter.Open)
	}
	return q.Filter.filter()
}

// PageQuery is the part of a request that says which part of a list. It is exported because huma needs that.
type PageQuery struct {
	CursorQuery
	Oldest bool `query:"oldest" doc:"The oldest first, instead of the newest."`
}

// CursorQuery is a [PageQuery] of a list that has only one order.
type CursorQuery struct {
	Limit int    `query:"limit" minimum:"1" maximum:"1000" default:"50" doc:"At most so many."`
	After string `query:"after" maxLength:"1000" doc:"What the page before gave as next."`
}

func (q PageQuery) page() deadletter.Page {
	return deadletter.Page{After: q.After, Limit: q.Limit, Oldest: q.Oldest}
}

// DeadLetters is a page of dead letters as JSON.
type DeadLetters struct {
	_ struct{} `additionalProperties:"true"`

	DeadLetters []DeadLetter `json:"dead_letters" nullable:"false"`
	Next        string       `json:"next,omitempty" doc:"Gets the next page as after. Absent on the last."`
	Count       int64        `json:"count" doc:"How many letters match, on all pages."`
}

// answerOf is an answer with a body, and answered makes one.
type answerOf[T any] struct{ Body T }

func answered[T any](body T, err error) (*answerOf[T], error) {
	if err != nil {
		return nil, err
	}
	return &answerOf[T]{body}, nil
}

type deadLettersInput struct {
	FilterQuery
	PageQuery
}

// registerDesk serves what is done with dead letters. Paths that are words come before {id}.
func (s *Server) registerDesk(api huma.API) {
	register(s, api, &operation{
		id: "list-dead-letters", method: http.MethodGet, path: "/v1/dead-letters", role: Viewer, status: http.StatusOK,
		summary: "List dead letters", doc: "Without their properties, headers and bodies. Looking changes nothing.",
	}, func(ctx context.Context, in *deadLettersInput) (*answerOf[DeadLetters], error) {
		f := in.filter()
		return answered(search(ctx, s, f, func(ctx context.Context) (DeadLetters, error) {
			letters, next, err := s.cfg.Desk.List(ctx, f, in.page())
			if err != nil {
				return DeadLetters{}, err
			}
			count, err := s.cfg.Desk.Count(ctx, f)
			return DeadLetters{DeadLetters: each(letters, DeadLetterOf), Next: next, Count: count}, err
		}))
	})
	s.registerGroups(api)
	s.registerExport(api)
	s.registerDeadLetter(api)
	s.registerResolve(api)
	s.registerReplays(api)
	s.registerAudit(api)
}

// search looks for letters. A text is looked for in all letters of the time, which may take long.
func search[T any](ctx context.Context, s *Server, f deadletter.Filter, do func(context.Context) (T, error)) (T, error) {
	if f.Text == "" {
		return look(ctx, s, do)
	}
	return longCall(ctx, s, s.searches, do)
}

// each converts all of them, none to an empty list.
func each[A, B any](all []A, convert func(A) B) []B {
	converted := make([]B, len(all))
	for i, one := range all {
		converted[i] = convert(one)
	}
	return converted
}
