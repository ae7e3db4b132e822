package web

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/lapse-go/lapse/order"
)

// Pause is whether expiry is paused, as JSON.
type Pause struct {
	_ struct{} `additionalProperties:"true"`

	Paused bool       `json:"paused"`
	Since  *time.Time `json:"since,omitempty" doc:"When it was paused or resumed last."`
	Who    string     `json:"who,omitempty" doc:"By whom."`
	Why    string     `json:"why,omitempty"`
}

// PauseOf is the pause as JSON.
func PauseOf(p order.Pause) Pause {
	b := Pause{Paused: p.Paused, Who: p.By.Who, Why: p.By.Why}
	if !p.Since.IsZero() {
		since := p.Since.UTC()
		b.Since = &since
	}
	return b
}

type pauseAnswer struct{ Body Pause }

type whyInput struct{ Body *whyBody }

// Summary is what a round of the sweep did, as JSON.
type Summary struct {
	_ struct{} `additionalProperties:"true"`

	Found   int `json:"found" doc:"Orders that were overdue."`
	Expired int `json:"expired" doc:"Orders that this round expired; others may have been first."`
	Failed  int `json:"failed" doc:"Orders that could not be expired; the next round tries them again."`
}

// SummaryOf is the summary as JSON.
func SummaryOf(s order.Summary) Summary {
	return Summary{Found: s.Found, Expired: s.Expired, Failed: s.Failed}
}

type summaryAnswer struct{ Body Summary }

func (s *Server) registerPause(api huma.API) {
	register(s, api, &operation{
		id: "get-pause", method: http.MethodGet, path: "/v1/pause", role: Viewer, status: http.StatusOK,
		summary: "Show whether expiry is paused",
	}, func(ctx context.Context, _ *struct{}) (*pauseAnswer, error) {
		p, err := look(ctx, s, s.cfg.Switch.Paused)
		if err != nil {
			return nil, err
		}
		return &pauseAnswer{PauseOf(p)}, nil
	})
	register(s, api, &operation{
		id: "pause", method: http.MethodPost, path: "/v1/pause", role: Operator, status: http.StatusNoContent, maxBody: maxBody,
		summary: "Pause expiry", doc: "Everywhere, at once; payment goes on. Nothing is expired any more once it is answered.",
	}, switching(s.pause))
	register(s, api, &operation{
		id: "resume", method: http.MethodPost, path: "/v1/resume", role: Operator, status: http.StatusNoContent, maxBody: maxBody,
		summary: "End the pause", doc: "What became due meanwhile is expired as the timers and the sweep get to it.",
	}, switching(s.resume))
	register(s, api, &operation{
		id: "sweep", method: http.MethodPost, path: "/v1/sweep", role: Operator, status: http.StatusOK,
		summary: "Expire overdue orders now", doc: "Does one round of the sweep, for orders whose timers did not come.",
		problems: []*problemType{paused},
	}, func(ctx context.Context, _ *struct{}) (*summaryAnswer, error) {
		sum, err := s.sweep(ctx, by(ctx, ""))
		if err != nil {
			return nil, err
		}
		return &summaryAnswer{SummaryOf(sum)}, nil
	})
}

func switching(turn func(context.Context, order.By) error) func(context.Context, *whyInput) (*struct{}, error) {
	return func(ctx context.Context, in *whyInput) (*struct{}, error) { return nil, turn(ctx, in.Body.by(ctx)) }
}
