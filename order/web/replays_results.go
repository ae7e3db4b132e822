package web

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/lapse-go/lapse/amqp/deadletter"
)

// ReplayResult is what became of a letter in a replay, as JSON.
type ReplayResult struct {
	_ struct{} `additionalProperties:"true"`

	Letter int64     `json:"letter" doc:"Its id."`
	Result string    `json:"result" enum:"published,settled,failed"`
	Detail string    `json:"detail,omitempty" doc:"What was found, or the error."`
	At     time.Time `json:"at"`
}

// ReplayResults is a page of results as JSON.
type ReplayResults struct {
	_ struct{} `additionalProperties:"true"`

	Results []ReplayResult `json:"results" nullable:"false"`
	Next    string         `json:"next,omitempty" doc:"Gets the next page as after. Absent on the last."`
}

// ReplayResultOf is the result as JSON.
func ReplayResultOf(r deadletter.Result) ReplayResult {
	return ReplayResult{Letter: r.Letter, Result: r.Result, Detail: plain(r.Detail), At: r.At.UTC()}
}

func (b ReplayResult) result() deadletter.Result {
	return deadletter.Result{Letter: b.Letter, Result: b.Result, Detail: b.Detail, At: b.At}
}

type replayResultsInput struct {
	ReplayPath
	CursorQuery
	Result string `query:"result" enum:"published,settled,failed" doc:"Only letters of which this became."`
}

func (s *Server) registerReplayResults(api huma.API) {
	register(s, api, &operation{
		id: "list-replay-results", method: http.MethodGet, path: "/v1/replays/{id}/results", role: Viewer, status: http.StatusOK,
		summary: "List what became of each letter in a replay", doc: "By the ids of the letters.",
		problems: []*problemType{notFoundHere},
	}, func(ctx context.Context, in *replayResultsInput) (*answerOf[ReplayResults], error) {
		return answered(look(ctx, s, func(ctx context.Context) (ReplayResults, error) {
			results, next, err := s.cfg.Desk.Results(ctx, in.ID, in.Result, deadletter.Page{After: in.After, Limit: in.Limit})
			return ReplayResults{Results: each(results, ReplayResultOf), Next: next}, err
		}))
	})
}
