package web

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/lapse-go/lapse/amqp/deadletter"
)

// DeadLetterGroup is letters that failed alike, as JSON.
type DeadLetterGroup struct {
	_ struct{} `additionalProperties:"true"`

	ID        string            `json:"id" doc:"Gets its letters as group."`
	Kind      string            `json:"kind"`
	Reason    deadletter.Reason `json:"reason"`
	Pattern   string            `json:"pattern" doc:"The error without ids, numbers, times and addresses."`
	Count     int64             `json:"count" doc:"How many letters match."`
	FirstSeen time.Time         `json:"first_seen" doc:"When the first of them died."`
	LastSeen  time.Time         `json:"last_seen"`
	Example   int64             `json:"example" doc:"The id of the last."`
}

// DeadLetterGroups are groups as JSON.
type DeadLetterGroups struct {
	_ struct{} `additionalProperties:"true"`

	Groups []DeadLetterGroup `json:"groups" nullable:"false"`
}

// DeadLetterGroupOf is the group as JSON.
func DeadLetterGroupOf(g deadletter.Group) DeadLetterGroup {
	return DeadLetterGroup{ID: g.ID, Kind: plain(g.Kind), Reason: g.Reason, Pattern: plain(g.Pattern), Count: g.Count,
		FirstSeen: g.FirstSeen.UTC(), LastSeen: g.LastSeen.UTC(), Example: g.Example}
}

func (b DeadLetterGroup) group() deadletter.Group {
	return deadletter.Group{ID: b.ID, Kind: b.Kind, Reason: b.Reason, Pattern: b.Pattern, Count: b.Count,
		FirstSeen: b.FirstSeen, LastSeen: b.LastSeen, Example: b.Example}
}

func (s *Server) registerGroups(api huma.API) {
	register(s, api, &operation{
		id: "group-dead-letters", method: http.MethodGet, path: "/v1/dead-letters/groups", role: Viewer, status: http.StatusOK,
		summary: "Group dead letters by kind, reason and error", doc: "Those with the most letters first, at most 1000.",
	}, func(ctx context.Context, in *FilterQuery) (*answerOf[DeadLetterGroups], error) {
		f := in.filter()
		return answered(search(ctx, s, f, func(ctx context.Context) (DeadLetterGroups, error) {
			groups, err := s.cfg.Desk.Groups(ctx, f)
			return DeadLetterGroups{Groups: each(groups, DeadLetterGroupOf)}, err
		}))
	})
}
