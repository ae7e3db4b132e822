package web_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/amqp/amqptest"
	"github.com/lapse-go/lapse/amqp/deadletter"
	"github.com/lapse-go/lapse/order"
	"github.com/lapse-go/lapse/order/web"
)

// timers puts a letter for each order into the table, which died as its timer, with ids from 1 on.
func (s *service) timers(orders ...string) (letters []int64) {
	s.t.Helper()
	for i, id := range orders {
		body := fmt.Appendf(nil, `{"order_id":%q,"deadline":"2026-01-31T12:00:00Z"}`, id)
		if id == "" {
			body = []byte("\xff no JSON")
		}
		s.letter(int64(i+1), map[string]any{"subject": []byte(id), "body": body, "exchange": []byte(s.shop.Topology().Due())})
		letters = append(letters, int64(i+1))
	}
	return letters
}

// runDesk has replays run until the test ends.
func (s *service) runDesk() {
	s.t.Helper()
	conn := amqptest.Conn(s.t)
	amqptest.Declare(s.t, conn, s.shop.Topology())
	ctx, stop := context.WithCancel(context.WithoutCancel(s.t.Context()))
	publisher := amqp.NewPublisher(conn, amqp.PublisherConfig{})
	var over sync.WaitGroup
	over.Go(func() { _ = s.shop.Desk().Run(ctx, publisher) })
	s.t.Cleanup(func() {
		stop()
		over.Wait()
		publisher.Close()
	})
}

func TestReplays(t *testing.T) {
	ctx, tokens := t.Context(), make(map[web.Role]string)
	s := start(t, nil, withTokens(t, tokens))
	s.Client = s.client(tokens[web.Operator])
	s.stocked("kettle", 10)
	s.stocked("filter", 10)
	s.placed("pending")
	s.placed("paid")
	if _, err := s.Pay(ctx, "paid", order.Payment{Reference: "P-1"}); err != nil {
		t.Fatal(err)
	}
	letters := s.timers("pending", "paid", "none", "")
	all, by := deadletter.Selection{IDs: letters}, deadletter.By{Who: "not me", Why: "mended it"}

	forecast, err := s.DryRun(ctx, all, true)
	if err != nil {
		t.Fatal(err)
	}
	want := deadletter.Forecast{
		Total: 4, Settled: 1, Answers: map[string]int64{"not due yet": 1, "already paid": 1, "not found": 1, "malformed": 1},
		SettledBy: map[string]int64{"already paid": 1},
		IDs:       map[string][]int64{"not due yet": {1}, "already paid": {2}, "not found": {3}, "malformed": {4}},
	}
	if diff := cmp.Diff(want, forecast); diff != "" {
		t.Error("dry run: ", diff)
	}
	if f, err := s.DryRun(ctx, deadletter.Selection{All: true}, false); err != nil || f.Total != 4 || f.IDs != nil {
		t.Errorf("dry run of all: %+v, %v", f, err)
	}

	// Nobody runs it yet.
	first, err := s.StartReplay(ctx, deadletter.Request{Selection: deadletter.Selection{IDs: letters[:1]}, By: by, Rate: 7, To: &deadletter.Route{RoutingKey: "nowhere"}})
	if err != nil || first.By.Who != "operator-1" || first.By.Why != by.Why || first.State != deadletter.Running || first.Rate != 7 || first.Total != 1 ||
		first.To == nil || first.To.RoutingKey != "nowhere" || !first.EndedAt.IsZero() || first.CreatedAt.IsZero() {
		t.Fatalf("%+v, %v", first, err)
	}
	_, err = s.StartReplay(ctx, deadletter.Request{Selection: all, By: by})
	s.wantBusy(err, first.ID)
	status, header, p := s.send("POST", "/v1/replays", `{"all":true,"reason":"again"}`, "Content-Type", "application/json", "Authorization", "Bearer "+tokens[web.Operator])
	if status != http.StatusConflict || p.Replay != first.ID || header.Get("Location") != "/v1/replays/"+first.ID {
		t.Errorf("%d, %v, %+v", status, header, p)
	}
	cancelled, err := s.CancelReplay(ctx, first.ID, by)
	if err != nil || cancelled.State != deadletter.Cancelled || cancelled.EndedAt.IsZero() || cancelled.Left() != 1 {
		t.Errorf("%+v, %v", cancelled, err)
	}
	_, err = s.CancelReplay(ctx, first.ID, by)
	wantProblem(t, err, "replay-ended", http.StatusConflict, deadletter.ErrEnded)
	for _, none := range []string{"none", "0190a0a0-0000-7000-8000-000000000000"} {
		for _, err := range []error{second(s.Replay(ctx, none)), second(s.CancelReplay(ctx, none, by)), third(s.ReplayResults(ctx, none, "", deadletter.Page{}))} {
			wantProblem(t, err, "not-found", http.StatusNotFound, deadletter.ErrNotFound)
		}
	}

	// Before anything runs that finds letters settled by itself.
	started, err := s.StartReplay(ctx, deadletter.Request{Selection: deadletter.Selection{Filter: &deadletter.Filter{Kind: "order.payment_timeout"}}, By: by})
	if err != nil || started.Rate != 0 || started.Total != 4 || started.Selection.Filter == nil {
		t.Fatalf("%+v, %v", started, err)
	}
	s.runDesk()
	var done deadletter.Replay
	await(t, 20*time.Second, "the replay is done", func() bool {
		done, err = s.Replay(ctx, started.ID)
		return err != nil || done.State == deadletter.Done
	})
	if err != nil || done.Published != 3 || done.Settled != 1 || done.Failed != 0 || done.Left() != 0 {
		t.Errorf("%+v, %v", done, err)
	}
	inside, err := s.shop.Desk().Replay(ctx, started.ID)
	if diff := cmp.Diff(inside, done); err != nil || diff != "" {
		t.Error(err, diff)
	}
	listed, next, err := s.Replays(ctx, deadletter.Page{Limit: 1})
	if err != nil || len(listed) != 1 || listed[0].ID != started.ID || next == "" {
		t.Errorf("%+v, %q, %v", listed, next, err)
	}
	listed, next, err = s.Replays(ctx, deadletter.Page{Limit: 1, After: next})
	if err != nil || len(listed) != 1 || listed[0].ID != first.ID || next != "" {
		t.Errorf("%+v, %q, %v", listed, next, err)
	}
	results, next, err := s.ReplayResults(ctx, started.ID, "published", deadletter.Page{Limit: 2})
	if err != nil || len(results) != 2 || results[0].Letter != 1 || results[1].Letter != 3 || results[0].At.IsZero() || next == "" {
		t.Errorf("%+v, %q, %v", results, next, err)
	}
	results, _, err = s.ReplayResults(ctx, started.ID, "settled", deadletter.Page{})
	if diff := cmp.Diff([]deadletter.Result{{Letter: 2, Result: "settled", Detail: "already paid"}}, results, cmpopts.IgnoreFields(deadletter.Result{}, "At")); err != nil || diff != "" {
		t.Error(err, diff)
	}
	letter, history, err := s.DeadLetter(ctx, 1)
	if err != nil || letter.State != deadletter.Replayed || letter.ResolvedBy != "operator-1" || letter.Resolution != by.Why || len(history) < 2 {
		t.Errorf("%+v, %+v, %v", letter, history, err)
	}
	_, err = s.StartReplay(ctx, deadletter.Request{Selection: all, By: by})
	wantProblem(t, err, "invalid", http.StatusUnprocessableEntity, deadletter.ErrInvalid) // none is open
}

func third[A, B any](_ A, _ B, err error) error          { return err }
func fourth[A, B, C any](_ A, _ B, _ C, err error) error { return err }

func (s *service) wantBusy(err error, replay string) {
	s.t.Helper()
	p := asProblem(s.t, err, "replay-running", http.StatusConflict, nil)
	if busy, ok := errors.AsType[*deadletter.BusyError](err); !ok || busy.Replay != replay || p.Replay != replay {
		s.t.Errorf("%v is not about replay %s", err, replay)
	}
}

// Without a rate it is 50 a second.
func TestTheRateOfReplays(t *testing.T) {
	s := start(t, nil)
	s.timers("A-1", "A-2", "A-3")
	for i, test := range []struct {
		json string
		rate int
	}{{``, 50}, {`,"rate":0`, 0}, {`,"rate":100000`, 100_000}} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.url+"/v1/replays", strings.NewReader(fmt.Sprintf(`{"ids":[%d],"reason":"why"%s}`, i+1, test.json)))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		answer, err := s.http.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		var replay web.Replay
		err = json.NewDecoder(answer.Body).Decode(&replay)
		answer.Body.Close()
		if err != nil || answer.StatusCode != http.StatusCreated || replay.Rate != test.rate || answer.Header.Get("Location") != "/v1/replays/"+replay.ID {
			t.Errorf("%s: %s, %+v, %v", test.json, answer.Status, replay, err)
		}
	}
}

func TestDiscardingAndRestoring(t *testing.T) {
	ctx, tokens := t.Context(), make(map[web.Role]string)
	s := start(t, nil, withTokens(t, tokens))
	s.Client = s.client(tokens[web.Operator])
	letters := s.timers("A-1", "A-2", "A-3")
	by := deadletter.By{Who: "not me", Why: "worthless"}
	if n, err := s.Discard(ctx, deadletter.Selection{IDs: letters[:2]}, by); err != nil || n != 2 {
		t.Errorf("%d, %v", n, err)
	}
	if n, err := s.Discard(ctx, deadletter.Selection{All: true}, by); err != nil || n != 1 {
		t.Errorf("%d, %v", n, err)
	}
	letter, _, err := s.DeadLetter(ctx, 1)
	if err != nil || letter.State != deadletter.Discarded || letter.ResolvedBy != "operator-1" || letter.Resolution != "worthless" || letter.ResolvedAt.IsZero() {
		t.Errorf("%+v, %v", letter, err)
	}
	if n, err := s.Restore(ctx, deadletter.Selection{Filter: &deadletter.Filter{State: deadletter.Discarded, Subject: "A-3"}}, by); err != nil || n != 1 {
		t.Errorf("%d, %v", n, err)
	}
	replay, err := s.StartReplay(ctx, deadletter.Request{Selection: deadletter.Selection{IDs: letters[2:]}, By: by})
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Discard(ctx, deadletter.Selection{All: true}, by)
	s.wantBusy(err, replay.ID)

	entries, next, err := s.Audit(ctx, deadletter.AuditFilter{Actor: "operator-1"}, deadletter.Page{Oldest: true})
	if err != nil || next != "" {
		t.Fatal(next, err)
	}
	want, _, err := s.shop.Desk().Audit(ctx, deadletter.AuditFilter{}, deadletter.Page{Oldest: true})
	if diff := cmp.Diff(want, entries, cmpopts.IgnoreFields(deadletter.Entry{}, "Selection")); err != nil || diff != "" {
		t.Error(err, diff)
	}
	var actions []string
	for i, e := range entries {
		actions = append(actions, fmt.Sprint(e.Action, " ", e.Count, " ", e.Reason))
		var given, told deadletter.Selection
		if json.Unmarshal([]byte(want[i].Selection), &given) != nil || json.Unmarshal([]byte(e.Selection), &told) != nil || !cmp.Equal(given, told) {
			t.Errorf("selected: %s, and told: %s", want[i].Selection, e.Selection)
		}
	}
	if diff := cmp.Diff([]string{"discard 2 worthless", "discard 1 worthless", "restore 1 worthless", "replay 1 worthless", "discard 0 worthless"}, actions); diff != "" {
		t.Error(diff)
	}
	for _, test := range []struct {
		f    deadletter.AuditFilter
		want int
	}{
		{deadletter.AuditFilter{Action: "discard"}, 3},
		{deadletter.AuditFilter{Actor: "anna"}, 0},
		{deadletter.AuditFilter{Subject: replay.ID}, 1},
		{deadletter.AuditFilter{From: entries[1].At, To: entries[3].At}, 2},
	} {
		if entries, _, err := s.Audit(ctx, test.f, deadletter.Page{}); err != nil || len(entries) != test.want {
			t.Errorf("%+v: %+v, %v", test.f, entries, err)
		}
	}
	page, next, err := s.Audit(ctx, deadletter.AuditFilter{}, deadletter.Page{Limit: 3})
	if err != nil || len(page) != 3 || next == "" || page[0].Count != 0 {
		t.Errorf("%+v, %q, %v", page, next, err)
	}
}
