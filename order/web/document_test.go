package web_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/gorillamux"

	"github.com/lapse-go/lapse/amqp/deadletter"
	"github.com/lapse-go/lapse/order"
	"github.com/lapse-go/lapse/order/web"
)

func (s *service) document() []byte {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), "GET", s.url+"/openapi.json", nil)
	if err != nil {
		s.t.Fatal(err)
	}
	answer, err := s.http.Do(r)
	if err != nil {
		s.t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != 200 || answer.Header.Get("Content-Type") != "application/openapi+json" {
		s.t.Fatal(err, answer.Status, answer.Header)
	}
	return text
}

func TestTheDocument(t *testing.T) {
	s := start(t, nil)
	text := s.document()
	documented(t, text)
	var document struct {
		Openapi string
		Paths   map[string]map[string]struct {
			OperationID, Summary string
			Security             []map[string][]string
			Responses            map[string]struct{ Content map[string]any }
		}
	}
	if err := json.Unmarshal(text, &document); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(document.Openapi, "3.1") {
		t.Errorf("OpenAPI %s", document.Openapi)
	}
	var ids []string
	for path, operations := range document.Paths {
		for method, op := range operations {
			ids = append(ids, op.OperationID)
			if op.Summary == "" {
				t.Errorf("%s %s has no summary", method, path)
			}
			if !strings.HasPrefix(path, "/v1/") {
				continue
			}
			if len(op.Security) != 1 || op.Security[0]["bearer"] == nil {
				t.Errorf("%s %s: security %v", method, path, op.Security)
			}
			for _, status := range []string{"401", "403", "422", "503"} {
				if op.Responses[status].Content["application/problem+json"] == nil {
					t.Errorf("%s %s: no problem for %s", method, path, status)
				}
			}
		}
	}
	slices.Sort(ids)
	if want := strings.Fields("asyncapi audit cancel-order cancel-replay discard-dead-letters export-dead-letters extend-order extend-orders get-dead-letter get-order get-pause get-replay " +
		"get-stock group-dead-letters health list-dead-letters list-replay-results list-replays overview pause pay-order place-order ready restore-dead-letters resume " +
		"schema-event schema-order.payment_timeout schema-order.place set-stock start-replay sweep"); !slices.Equal(ids, want) {
		t.Errorf("operations: %v", ids)
	}
	for _, unwanted := range []string{"$schema", "unpkg", "ErrorModel"} {
		if bytes.Contains(text, []byte(unwanted)) {
			t.Errorf("the document has %s", unwanted)
		}
	}
}

// documented has the document validated, and finds the operation of a request in it.
func documented(t *testing.T, text []byte) routers.Router {
	t.Helper()
	document, err := openapi3.NewLoader().LoadFromData(text)
	if err == nil {
		// A schema may have words of its own, such as the one in which huma tells people what a pattern means.
		err = document.Validate(t.Context(), openapi3.AllowExtraSiblingFields("patternDescription"), openapi3.EnableSchemaPatternValidation(), openapi3.EnableSchemaFormatValidation(), openapi3.EnableExamplesValidation())
	}
	if err != nil {
		t.Fatal(err)
	}
	router, err := gorillamux.NewRouter(document)
	if err != nil {
		t.Fatal(err)
	}
	return router
}

// checked has each answer compared with the document, and each request that was answered well.
type checked struct {
	t     *testing.T
	by    routers.Router
	next  http.RoundTripper
	count int
}

func (c *checked) RoundTrip(r *http.Request) (*http.Response, error) {
	request := &openapi3filter.RequestValidationInput{Request: r.Clone(r.Context()), Options: &openapi3filter.Options{
		AuthenticationFunc: openapi3filter.NoopAuthenticationFunc,
	}}
	var err error
	if r.Body != nil {
		request.Request.Body, err = r.GetBody()
	}
	if err == nil {
		request.Route, request.PathParams, err = c.by.FindRoute(r)
	}
	if err != nil {
		return nil, err
	}
	answer, err := c.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(answer.Body)
	answer.Body.Close()
	if err != nil {
		return nil, err
	}
	answer.Body = io.NopCloser(bytes.NewReader(text))
	c.count++
	err = openapi3filter.ValidateResponse(r.Context(), (&openapi3filter.ResponseValidationInput{
		RequestValidationInput: request, Status: answer.StatusCode, Header: answer.Header,
		Options: &openapi3filter.Options{IncludeResponseStatus: true},
	}).SetBodyBytes(text))
	if err == nil && answer.StatusCode < 300 {
		err = openapi3filter.ValidateRequest(r.Context(), request)
	}
	if err != nil {
		c.t.Errorf("%s %s: %s: %v", r.Method, r.URL, answer.Status, err)
	}
	return answer, nil
}

func TestAnswersAreAsDocumented(t *testing.T) {
	ctx, tokens := t.Context(), make(map[web.Role]string)
	s := start(t, nil, withTokens(t, tokens))
	c := &checked{t: t, by: documented(t, s.document()), next: s.http.Transport}
	s.http.Transport = c
	s.Client = s.client(tokens[web.Operator])
	viewer, nobody := s.client(tokens[web.Viewer]), s.client("")
	ignored := func(_ any, _ error) {}

	_, err := s.Place(ctx, draft("A-1")) // unknown articles
	wantProblem(t, err, "unknown-sku", 409, order.ErrUnknownSKU)
	for _, sku := range []string{"kettle", "filter"} {
		if _, err := s.SetStock(ctx, sku, 100); err != nil {
			t.Fatal(err)
		}
	}
	o := s.placed("A-1")
	s.placed("A-2")
	ignored(s.Get(ctx, "A-1"))
	ignored(s.Get(ctx, "none"))
	ignored(s.Extend(ctx, "A-1", o.Deadline.Add(time.Hour), order.By{Why: "why not"}))
	ignored(s.Pay(ctx, "A-1", order.Payment{Reference: "P-1", Amount: o.Total}))
	ignored(s.Pay(ctx, "A-1", order.Payment{Reference: "P-2"}))
	ignored(s.Cancel(ctx, "A-2", order.By{Why: "changed his mind"}))
	ignored(s.Pay(ctx, "A-2", order.Payment{Reference: "P-3"}))
	ignored(s.Get(ctx, "A-2"))
	ignored(s.Extend(ctx, "A-2", o.Deadline, order.By{}))
	ignored(s.ExtendAll(ctx, order.ExtendRequest{Key: "k", More: time.Minute, Tag: "sale"}))
	ignored(s.ExtendAll(ctx, order.ExtendRequest{Key: "k", More: time.Hour}))
	ignored(s.Stock(ctx, "kettle", "none"))
	ignored(s.PlaceAsync(ctx, draft("A-3"))) // without a broker
	ignored(s.Paused(ctx))
	ignored(s.Overview(ctx))
	ignored(nil, s.Pause(ctx, order.By{Why: "the bank is away"}))
	ignored(s.Paused(ctx))
	ignored(s.Sweep(ctx))
	ignored(nil, s.Resume(ctx, order.By{}))
	ignored(s.Sweep(ctx))
	ignored(nil, s.Check(ctx))
	ignored(viewer.Place(ctx, draft("A-4")))
	ignored(nobody.Paused(ctx))
	if c.count < 26 {
		t.Errorf("only %d answers", c.count)
	}
}

func TestAnswersOfTheDeskAreAsDocumented(t *testing.T) {
	ctx, tokens := t.Context(), make(map[web.Role]string)
	s := start(t, nil, withTokens(t, tokens))
	letters := s.timers("A-1", "A-2", "", "A-4")
	s.letter(5, map[string]any{"kind": []byte("\xff"), "headers": []byte(`{"a":{"$bytes":"\\xff"},"b":[null,1,true]}`), "properties": []byte(`{}`), "state": "settled", "resolved_at": "2030-02-01 00:00:00"})
	// The schema is that of each line, here of the only one.
	openapi3filter.RegisterBodyDecoder("application/x-ndjson", openapi3filter.JSONBodyDecoder)
	t.Cleanup(func() { openapi3filter.UnregisterBodyDecoder("application/x-ndjson") })
	c := &checked{t: t, by: documented(t, s.document()), next: s.http.Transport}
	s.http.Transport = c
	s.Client = s.client(tokens[web.Operator])
	filter, all, by := deadletter.Filter{}, deadletter.Selection{All: true}, deadletter.By{Why: "why"}
	ignored := func(...any) {}

	ignored(s.DeadLetters(ctx, filter, deadletter.Page{Limit: 1}))
	ignored(s.DeadLetters(ctx, deadletter.Filter{State: deadletter.Open, From: died, To: died.Add(time.Hour), Text: "x", Reason: deadletter.Hopeless}, deadletter.Page{Oldest: true}))
	ignored(s.DeadLetters(ctx, filter, deadletter.Page{After: "x"}))
	for _, id := range []int64{1, 3, 5, 6} {
		ignored(s.DeadLetter(ctx, id))
	}
	ignored(s.DeadLetterGroups(ctx, filter))
	ignored(s.ExportDeadLetters(ctx, deadletter.Filter{Subject: "A-1"}, web.NDJSON, io.Discard))
	ignored(s.ExportDeadLetters(ctx, filter, web.CSV, io.Discard))
	ignored(s.DryRun(ctx, all, true))
	ignored(s.DryRun(ctx, deadletter.Selection{}, true))
	replay, err := s.StartReplay(ctx, deadletter.Request{Selection: deadletter.Selection{IDs: letters[:1]}, By: by, To: &deadletter.Route{RoutingKey: "q"}})
	ignored(s.StartReplay(ctx, deadletter.Request{Selection: all, By: by}))
	ignored(s.Replay(ctx, replay.ID))
	ignored(s.Replays(ctx, deadletter.Page{}))
	ignored(s.ReplayResults(ctx, replay.ID, "failed", deadletter.Page{}))
	ignored(s.CancelReplay(ctx, replay.ID, by))
	ignored(s.CancelReplay(ctx, replay.ID, by))
	ignored(s.Discard(ctx, deadletter.Selection{Filter: &deadletter.Filter{Subject: "A-2"}}, by))
	ignored(s.Restore(ctx, all, by))
	ignored(s.Audit(ctx, deadletter.AuditFilter{Actor: "operator-1", From: died.AddDate(-10, 0, 0)}, deadletter.Page{Limit: 2}))
	ignored(s.client(tokens[web.Viewer]).Discard(ctx, all, by))
	if c.count < 23 || err != nil {
		t.Errorf("only %d answers, %v", c.count, err)
	}
}
