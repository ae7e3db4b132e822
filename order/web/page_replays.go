package web

import (
	"cmp"
	"context"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lapse-go/lapse/amqp/deadletter"
)

func (s *Server) registerReplayPages() {
	s.page("GET /replays", "page-replays", Viewer, s.replaysPage)
	s.page("POST /replays", "page-start-replay", Operator, s.startReplayPage)
	s.page("GET /replays/{id}", "page-replay", Viewer, s.replayPage)
	s.page("POST /replays/{id}/cancel", "page-cancel-replay", Operator, s.cancelReplayPage)
}

// maxIDsShown is how many ids of an answer a dry run shows.
const maxIDsShown = 200

type dryRunView struct {
	chosen
	Forecast deadletter.Forecast
	Rows     []forecastRow
	Rate     int
}

type forecastRow struct {
	Answer string
	Count  int64
	// Settled is how many of them would not be published.
	Settled int64
	IDs     []int64
	More    int64 // that are not shown
}

// dryRunPage says what a replay would come to, and asks whether it is to begin.
func (s *Server) dryRunPage(r *http.Request) (view, error) {
	c, err := readChosen(r)
	if err != nil {
		return view{}, err
	}
	if err := s.freeze(r.Context(), &c); err != nil {
		return view{}, err
	}
	withIDs := r.PostForm.Get("with_ids") != ""
	f, err := callLong(r.Context(), s, func(ctx context.Context) (deadletter.Forecast, error) {
		return s.cfg.Desk.DryRun(ctx, c.Selection, withIDs)
	})
	d := dryRunView{chosen: c, Forecast: f, Rate: deadletter.DefaultRate}
	for _, answer := range slices.SortedFunc(maps.Keys(f.Answers), func(a, b string) int {
		return cmp.Or(cmp.Compare(f.Answers[b], f.Answers[a]), cmp.Compare(a, b))
	}) {
		row := forecastRow{Answer: answer, Count: f.Answers[answer], Settled: f.SettledBy[answer]}
		if withIDs {
			ids := f.IDs[answer]
			row.IDs = ids[:min(len(ids), maxIDsShown)]
			row.More = row.Count - int64(len(row.IDs))
		}
		d.Rows = append(d.Rows, row)
	}
	return view{Template: "dry-run", Title: "Replay letters", Section: "/letters", Data: d}, err
}

// Publishes is how many letters a replay would publish.
func (d dryRunView) Publishes() int64 { return d.Forecast.Total - d.Forecast.Settled }

// Becomes is what the replay would do with them.
func (r forecastRow) Becomes() string {
	switch r.Settled {
	case 0:
		return "published"
	case r.Count:
		return "resolved, not published"
	}
	return number(r.Count-r.Settled) + " published, " + number(r.Settled) + " resolved"
}

// hint is what a guard's answer lets one expect.
func hint(answer string) string {
	switch answer {
	case "malformed", "not found":
		return "will most likely die again"
	}
	return ""
}

// Summary is the answers in a sentence.
func (d dryRunView) Summary() string {
	parts := make([]string, len(d.Rows))
	for i, row := range d.Rows {
		parts[i] = number(row.Count) + " " + row.Answer
	}
	return strings.Join(parts, ", ")
}

func (s *Server) startReplayPage(r *http.Request) (view, error) {
	c, err := readChosen(r)
	if err != nil {
		return view{}, err
	}
	by, err := reason(r)
	if err != nil {
		return view{}, err
	}
	request := deadletter.Request{Selection: c.Selection, By: deadletter.By(by), Rate: deadletter.DefaultRate}
	if text := strings.TrimSpace(r.PostForm.Get("rate")); text != "" {
		if request.Rate, err = strconv.Atoi(text); err != nil {
			return view{}, problem(invalid, "rate %.80q: give messages a second, or 0 for as fast as the broker confirms", text)
		}
	}
	exchange, key := r.PostForm.Get("exchange"), r.PostForm.Get("routing_key")
	if exchange != "" || key != "" {
		request.To = &deadletter.Route{Exchange: exchange, RoutingKey: key}
	}
	replay, err := callLong(r.Context(), s, func(ctx context.Context) (deadletter.Replay, error) { return s.cfg.Desk.Start(ctx, request) })
	if err != nil {
		return view{}, err
	}
	return view{To: done(replayPage(replay.ID), "started")}, nil
}

type replaysView struct {
	Replays []deadletter.Replay
	Next    string
}

func (s *Server) replaysPage(r *http.Request) (view, error) {
	p, err := pageOf(r.URL.Query())
	if err != nil {
		return view{}, err
	}
	v, err := look(r.Context(), s, func(ctx context.Context) (replaysView, error) {
		replays, next, err := s.cfg.Desk.Replays(ctx, p)
		return replaysView{replays, nextPage(r, next)}, err
	})
	return view{Template: "replays", Title: "Replays", Section: "/replays", Data: v}, err
}

type replayView struct {
	deadletter.Replay
	Results []deadletter.Result
	Result  string // the only ones that are listed
	Next    string
	Says    []string
}

func (s *Server) replayPage(r *http.Request) (view, error) {
	id, q := r.PathValue("id"), r.URL.Query()
	p, err := pageOf(q)
	if err != nil {
		return view{}, err
	}
	fragment := r.Header.Get("HX-Request") == "true"
	v, err := look(r.Context(), s, func(ctx context.Context) (v replayView, err error) {
		v.Result = q.Get("result")
		if v.Replay, err = s.cfg.Desk.Replay(ctx, id); err != nil || fragment && !v.State.Ended() {
			return v, err
		}
		var next string
		v.Results, next, err = s.cfg.Desk.Results(ctx, id, v.Result, p)
		v.Next = nextPage(r, next)
		return v, err
	})
	if err != nil {
		return view{}, err
	}
	v.Says = selectionWords(v.Selection)
	page := view{Template: "replay", Title: "Replay " + id, Section: "/replays", Fragment: "progress", Data: v}
	if v.State.Ended() {
		page.Fragment, page.Target = "whole", "#replay-whole" // for the last time, with the results
	} else {
		page.Refresh = 2
	}
	return page, nil
}

// Done is how many letters are done with.
func (v replayView) Done() int64 { return v.Total - v.Left() }

// PerSecond is how many letters a second are done with, on the whole.
func (v replayView) PerSecond() string {
	end := v.EndedAt
	if end.IsZero() {
		end = v.UpdatedAt
	}
	took := end.Sub(v.StartedAt).Seconds()
	if v.StartedAt.IsZero() || took <= 0 {
		return "–"
	}
	return strconv.FormatFloat(float64(v.Done())/took, 'f', 1, 64)
}

// Took is for how long it has run.
func (v replayView) Took() time.Duration {
	switch {
	case v.StartedAt.IsZero():
		return 0
	case v.EndedAt.IsZero():
		return v.UpdatedAt.Sub(v.StartedAt)
	}
	return v.EndedAt.Sub(v.StartedAt)
}

func (s *Server) cancelReplayPage(r *http.Request) (view, error) {
	by, err := reason(r)
	if err != nil {
		return view{}, err
	}
	id := r.PathValue("id")
	_, err = call(r.Context(), s, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, s.cfg.Desk.Cancel(ctx, id, deadletter.By(by))
	})
	return view{To: done(replayPage(id), "cancelling")}, err
}

func replayPage(id string) string { return "/replays/" + url.PathEscape(id) }
