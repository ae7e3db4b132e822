package web

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/lapse-go/lapse/amqp/deadletter"
)

// Replay is a replay as JSON.
type Replay struct {
	_ struct{} `additionalProperties:"true"`

	ID        string                 `json:"id"`
	State     deadletter.ReplayState `json:"state" enum:"running,cancelling,done,cancelled"`
	Who       string                 `json:"who"`
	Reason    string                 `json:"reason"`
	Selection Selection              `json:"selection" doc:"As it was given. Which letters that are was fixed when the replay started."`
	Rate      int                    `json:"rate" doc:"Messages a second; 0 is as fast as the broker confirms."`
	To        *Route                 `json:"to,omitempty" doc:"Where to, if not to each letter's first route."`
	Total     int64                  `json:"total" doc:"Letters."`
	Published int64                  `json:"published" doc:"Letters that were published and confirmed."`
	Settled   int64                  `json:"settled" doc:"Letters that were not published, since there is nothing left to do."`
	Failed    int64                  `json:"failed" doc:"Letters that could not be published. They are open still."`
	Left      int64                  `json:"left" doc:"Letters that are still to do, or were left undone when it was cancelled."`
	Trouble   string                 `json:"trouble,omitempty" doc:"What it waits for at present."`
	Owner     string                 `json:"owner,omitempty" doc:"The process that runs it."`
	CreatedAt time.Time              `json:"created_at"`
	StartedAt *time.Time             `json:"started_at,omitempty"`
	UpdatedAt time.Time              `json:"updated_at"`
	EndedAt   *time.Time             `json:"ended_at,omitempty"`
}

// Route is where messages are published, as JSON.
type Route struct {
	Exchange   string `json:"exchange" maxLength:"255" doc:"Empty for the default exchange, which routes to the queue that the key names."`
	RoutingKey string `json:"routing_key" maxLength:"255"`
}

// ReplayOf is the replay as JSON.
func ReplayOf(r deadletter.Replay) Replay {
	return Replay{
		ID: r.ID, State: r.State, Who: r.By.Who, Reason: r.By.Why, Selection: SelectionOf(r.Selection), Rate: r.Rate, To: (*Route)(r.To),
		Total: r.Total, Published: r.Published, Settled: r.Settled, Failed: r.Failed, Left: r.Left(), Trouble: plain(r.Trouble), Owner: r.Owner,
		CreatedAt: r.CreatedAt.UTC(), StartedAt: maybe(r.StartedAt), UpdatedAt: r.UpdatedAt.UTC(), EndedAt: maybe(r.EndedAt),
	}
}

func (b Replay) replay() deadletter.Replay {
	return deadletter.Replay{
		ID: b.ID, State: b.State, By: deadletter.By{Who: b.Who, Why: b.Reason}, Selection: b.Selection.selection(), Rate: b.Rate, To: (*deadletter.Route)(b.To),
		Total: b.Total, Published: b.Published, Settled: b.Settled, Failed: b.Failed, Trouble: b.Trouble, Owner: b.Owner,
		CreatedAt: b.CreatedAt, StartedAt: value(b.StartedAt), UpdatedAt: b.UpdatedAt, EndedAt: value(b.EndedAt),
	}
}

// Replays is a page of replays as JSON.
type Replays struct {
	_ struct{} `additionalProperties:"true"`

	Replays []Replay `json:"replays" nullable:"false"`
	Next    string   `json:"next,omitempty" doc:"Gets the next page as after. Absent on the last."`
}

// Forecast is what a replay would come to, as JSON.
type Forecast struct {
	_ struct{} `additionalProperties:"true"`

	Total     int64              `json:"total" doc:"Letters."`
	Settled   int64              `json:"settled" doc:"Letters that would not be published."`
	Answers   map[string]int64   `json:"answers" doc:"How many letters, by what became of what they are about."`
	SettledBy map[string]int64   `json:"settled_by,omitempty" doc:"How many letters of each answer would not be published. Answers without any are absent."`
	IDs       map[string][]int64 `json:"ids,omitempty" doc:"The letters by answer, at most 10,000 of each, if asked for."`
}

// ForecastOf is the forecast as JSON.
func ForecastOf(f deadletter.Forecast) Forecast {
	b := Forecast{Total: f.Total, Settled: f.Settled, Answers: f.Answers, SettledBy: f.SettledBy, IDs: f.IDs}
	if b.Answers == nil {
		b.Answers = map[string]int64{}
	}
	return b
}

func (b Forecast) forecast() deadletter.Forecast {
	return deadletter.Forecast{Total: b.Total, Settled: b.Settled, Answers: b.Answers, SettledBy: b.SettledBy, IDs: b.IDs}
}

type replayInput struct{ Body startReplayBody }

type startReplayBody struct {
	Selection
	Reason  string `json:"reason,omitempty" maxLength:"1000" doc:"Needed unless it is a dry run."`
	Rate    *int   `json:"rate,omitempty" minimum:"0" maximum:"100000" doc:"Messages a second, 50 when absent; 0 is as fast as the broker confirms."`
	To      *Route `json:"to,omitempty" doc:"Where to publish, instead of each letter's first route."`
	DryRun  bool   `json:"dry_run,omitempty" doc:"Only say what it would come to."`
	WithIDs bool   `json:"with_ids,omitempty" doc:"Have the dry run say which letters, too."`
}

type replayAnswer struct {
	Status   int
	Location string `header:"Location"`
	Body     any
}

// ReplayPath is the part of a request that names a replay. It is exported because huma needs that.
type ReplayPath struct {
	ID string `path:"id" minLength:"1" maxLength:"64" pattern:"^[!-~]+$" patternDescription:"printable ASCII without spaces" doc:"The replay's id."`
}

type cancelReplayInput struct {
	ReplayPath
	Body struct {
		Reason string `json:"reason" minLength:"1" maxLength:"1000" doc:"For the audit."`
	}
}

func (s *Server) registerReplays(api huma.API) {
	register(s, api, &operation{
		id: "start-replay", method: http.MethodPost, path: "/v1/replays", role: Operator, status: http.StatusCreated, maxBody: maxSelectionBody,
		summary: "Replay dead letters",
		doc: "Publishes the messages of open letters again. Which letters is fixed when it starts; those about which there is nothing left to do are not published. " +
			"If any of them belongs to another replay that is running, it is answered 409 with the other's id, so it is safe to send again. " +
			"A dry run is answered 200, and changes nothing.",
		problems: []*problemType{notFoundHere, replayRunning},
		answers:  map[int]any{http.StatusOK: Forecast{}, http.StatusCreated: Replay{}},
	}, s.startReplay)
	register(s, api, &operation{
		id: "list-replays", method: http.MethodGet, path: "/v1/replays", role: Viewer, status: http.StatusOK,
		summary: "List replays",
	}, func(ctx context.Context, in *PageQuery) (*answerOf[Replays], error) {
		return answered(look(ctx, s, func(ctx context.Context) (Replays, error) {
			replays, next, err := s.cfg.Desk.Replays(ctx, in.page())
			return Replays{Replays: each(replays, ReplayOf), Next: next}, err
		}))
	})
	register(s, api, &operation{
		id: "get-replay", method: http.MethodGet, path: "/v1/replays/{id}", role: Viewer, status: http.StatusOK,
		summary: "Show a replay", doc: "As it is at present: ask again to watch its progress.",
		problems: []*problemType{notFoundHere},
	}, func(ctx context.Context, in *ReplayPath) (*answerOf[Replay], error) {
		return answered(look(ctx, s, func(ctx context.Context) (Replay, error) {
			r, err := s.cfg.Desk.Replay(ctx, in.ID)
			return ReplayOf(r), err
		}))
	})
	s.registerReplayResults(api)
	register(s, api, &operation{
		id: "cancel-replay", method: http.MethodPost, path: "/v1/replays/{id}/cancel", role: Operator, status: http.StatusOK, maxBody: maxBody,
		summary: "Cancel a replay", doc: "It stops within a second. What was published stays so.",
		problems: []*problemType{notFoundHere, replayEnded},
	}, func(ctx context.Context, in *cancelReplayInput) (*answerOf[Replay], error) {
		by := deadletter.By{Who: actor(ctx), Why: in.Body.Reason}
		return answered(call(ctx, s, func(ctx context.Context) (Replay, error) {
			if err := s.cfg.Desk.Cancel(ctx, in.ID, by); err != nil {
				return Replay{}, err
			}
			r, err := s.cfg.Desk.Replay(ctx, in.ID)
			return ReplayOf(r), err
		}))
	})
}

func (s *Server) startReplay(ctx context.Context, in *replayInput) (*replayAnswer, error) {
	selection := in.Body.selection()
	if in.Body.DryRun {
		f, err := callLong(ctx, s, func(ctx context.Context) (deadletter.Forecast, error) {
			return s.cfg.Desk.DryRun(ctx, selection, in.Body.WithIDs)
		})
		if err != nil {
			return nil, err
		}
		return &replayAnswer{Status: http.StatusOK, Body: ForecastOf(f)}, nil
	}
	request := deadletter.Request{
		Selection: selection, By: deadletter.By{Who: actor(ctx), Why: in.Body.Reason}, Rate: deadletter.DefaultRate, To: (*deadletter.Route)(in.Body.To),
	}
	if in.Body.Rate != nil {
		request.Rate = *in.Body.Rate
	}
	r, err := callLong(ctx, s, func(ctx context.Context) (deadletter.Replay, error) { return s.cfg.Desk.Start(ctx, request) })
	if err != nil {
		return nil, err
	}
	return &replayAnswer{Status: http.StatusCreated, Location: replayPath(r.ID), Body: ReplayOf(r)}, nil
}

func replayPath(id string) string { return "/v1/replays/" + segment(id) }
