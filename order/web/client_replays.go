package web

import (
	"context"
	"net/http"
	"net/url"

	"github.com/lapse-go/lapse/amqp/deadletter"
)

// DryRun says what a replay would come to: see [deadletter.Desk.DryRun].
func (c *Client) DryRun(ctx context.Context, s deadletter.Selection, withIDs bool) (deadletter.Forecast, error) {
	if err := sendable(s); err != nil {
		return deadletter.Forecast{}, err
	}
	var reply Forecast
	body := startReplayBody{Selection: SelectionOf(s), DryRun: true, WithIDs: withIDs}
	err := c.askMuch(ctx, maxDeskReply, http.MethodPost, "/v1/replays", body, &reply, nil)
	return reply.forecast(), err
}

// StartReplay starts a replay: see [deadletter.Desk.Start]. A [deadletter.BusyError] in the error names the replay that
// is running already.
func (c *Client) StartReplay(ctx context.Context, r deadletter.Request) (deadletter.Replay, error) {
	if err := sendable(r.Selection); err != nil {
		return deadletter.Replay{}, err
	}
	body := startReplayBody{Selection: SelectionOf(r.Selection), Reason: r.By.Why, Rate: &r.Rate, To: (*Route)(r.To)}
	return c.replay(ctx, http.MethodPost, "/v1/replays", body)
}

// Replay returns a replay as it is at present.
func (c *Client) Replay(ctx context.Context, id string) (deadletter.Replay, error) {
	return c.replay(ctx, http.MethodGet, replayPath(id), nil)
}

// CancelReplay has a replay stop within a second, and returns it as it then is: see [deadletter.Desk.Cancel].
func (c *Client) CancelReplay(ctx context.Context, id string, by deadletter.By) (deadletter.Replay, error) {
	return c.replay(ctx, http.MethodPost, replayPath(id)+"/cancel", map[string]string{"reason": by.Why})
}

// Replays lists replays: see [deadletter.Desk.Replays].
func (c *Client) Replays(ctx context.Context, p deadletter.Page) (replays []deadletter.Replay, next string, err error) {
	var reply Replays
	query := url.Values{}
	addPage(query, p)
	err = c.look(ctx, "/v1/replays", query, &reply)
	return each(reply.Replays, Replay.replay), reply.Next, err
}

// ReplayResults lists what became of the letters of a replay, by their ids: see [deadletter.Desk.Results].
func (c *Client) ReplayResults(ctx context.Context, id, result string, p deadletter.Page) (results []deadletter.Result, next string, err error) {
	var reply ReplayResults
	query := url.Values{}
	add(query, "result", result)
	addPage(query, deadletter.Page{After: p.After, Limit: p.Limit})
	err = c.look(ctx, replayPath(id)+"/results", query, &reply)
	return each(reply.Results, ReplayResult.result), reply.Next, err
}

func (c *Client) replay(ctx context.Context, method, path string, body any) (deadletter.Replay, error) {
	var reply Replay
	if err := c.askMuch(ctx, maxDeskReply, method, path, body, &reply, nil); err != nil {
		return deadletter.Replay{}, err
	}
	return reply.replay(), nil
}
