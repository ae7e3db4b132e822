package web_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/lapse-go/lapse/amqp/deadletter"
	"github.com/lapse-go/lapse/order"
)

// died is when the first letter of a test died; each is a second later than the one before.
var died = time.Date(2030, 1, 31, 12, 0, 0, 123456000, time.UTC)

// letter puts a letter into the table. What the columns do not say is usual.
func (s *service) letter(id int64, columns map[string]any) {
	s.t.Helper()
	at := died.Add(time.Duration(id) * time.Second).Format("2006-01-02 15:04:05.000000")
	row := map[string]any{
		"id": id, "identity": fmt.Sprintf("letter-%d", id), "message_id": fmt.Appendf(nil, "M-%d", id), "kind": []byte("order.payment_timeout"),
		"subject": fmt.Appendf(nil, "A-%d", id), "queue": []byte("lapse.dead"), "exchange": []byte("lapse.due"), "routing_key": []byte("order.payment_timeout"),
		"reason": "out-of-tries", "attempts": 7, "error": "no row", "first_error": "no row yet", "first_error_at": at, "fingerprint": "0123456789abcdef",
		"properties": []byte(`{"content_type":"application/json"}`), "headers": []byte(`{"lapse-attempt":7}`), "body": []byte(`{"order_id":"A-1"}`), "size": 18,
		"died_at": at, "collected_at": at, "replays": 0, "replayed_by": "", "state": "open",
	}
	for name, value := range columns {
		row[name] = value
		if body, ok := value.([]byte); ok && name == "body" {
			row["size"] = len(body)
		}
	}
	if err := s.db.Table("lapse_dead_letters").Create(row).Error; err != nil {
		s.t.Fatal(err)
	}
}

// get asks for something in JSON.
func (s *service) get(path string, reply any) {
	s.t.Helper()
	text := s.text(path)
	if err := json.Unmarshal([]byte(text), reply); err != nil {
		s.t.Fatalf("%s: %v: %.500s", path, err, text)
	}
}

func (s *service) text(path string) string {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, s.url+path, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	answer, err := s.http.Do(r)
	if err != nil {
		s.t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK {
		s.t.Fatalf("%s: %s %v: %.500s", path, answer.Status, err, text)
	}
	return string(text)
}

func ids(letters []deadletter.Letter) (all []int64) {
	for _, l := range letters {
		all = append(all, l.ID)
	}
	return all
}

// What the client tells of letters is what the desk does.
func TestLookingAtDeadLetters(t *testing.T) {
	ctx, s := t.Context(), start(t, nil)
	desk := s.shop.Desk()
	const last = int64(math.MaxInt64)
	s.letter(1, nil)
	s.letter(2, map[string]any{"kind": []byte("order.place"), "reason": "hopeless", "fingerprint": "fedcba9876543210", "error": "malformed: <b>&", "subject": []byte{}})
	s.letter(3, map[string]any{"state": "discarded", "resolved_at": "2030-02-01 00:00:00", "resolved_by": "anna", "resolution": "worthless", "first_error_at": nil})
	s.letter(4, map[string]any{"message_id": []byte("M-1"), "replays": 1, "replayed_by": "0190", "replay_id": "0191", "body": []byte("the needle é")})
	s.letter(last, map[string]any{"died_at": "2030-01-31 12:00:00.000001"})

	for _, test := range []struct {
		f    deadletter.Filter
		p    deadletter.Page
		want []int64
	}{
		{deadletter.Filter{}, deadletter.Page{}, []int64{4, 3, 2, 1, last}},
		{deadletter.Filter{}, deadletter.Page{Oldest: true}, []int64{last, 1, 2, 3, 4}},
		{deadletter.Filter{State: deadletter.Open}, deadletter.Page{}, []int64{4, 2, 1, last}},
		{deadletter.Filter{State: deadletter.Discarded}, deadletter.Page{}, []int64{3}},
		{deadletter.Filter{Kind: "order.place"}, deadletter.Page{}, []int64{2}},
		{deadletter.Filter{Reason: deadletter.Hopeless}, deadletter.Page{}, []int64{2}},
		{deadletter.Filter{Group: "fedcba9876543210"}, deadletter.Page{}, []int64{2}},
		{deadletter.Filter{Subject: "A-1"}, deadletter.Page{}, []int64{1}},
		{deadletter.Filter{MessageID: "M-1"}, deadletter.Page{}, []int64{4, 1}},
		{deadletter.Filter{From: died.Add(2 * time.Second), To: died.Add(4 * time.Second)}, deadletter.Page{}, []int64{3, 2}},
		{deadletter.Filter{From: died, Text: "needle é"}, deadletter.Page{}, []int64{4}},
		{deadletter.Filter{Kind: "none"}, deadletter.Page{}, nil},
		{deadletter.Filter{Kind: "a\xff'\x00%"}, deadletter.Page{}, nil},
	} {
		letters, next, count, err := s.DeadLetters(ctx, test.f, test.p)
		if err != nil || next != "" || count != int64(len(test.want)) {
			t.Errorf("%+v: %d, next %q, %v", test.f, count, next, err)
		}
		if diff := cmp.Diff(test.want, ids(letters)); diff != "" {
			t.Errorf("%+v: %s", test.f, diff)
		}
		want, _, err := desk.List(ctx, test.f, test.p)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, letters, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%+v: %s", test.f, diff)
		}
	}

	var paged []int64
	for page := (deadletter.Page{Limit: 2}); ; {
		letters, next, count, err := s.DeadLetters(ctx, deadletter.Filter{}, page)
		if err != nil || count != 5 || len(letters) > 2 {
			t.Fatal(letters, count, err)
		}
		paged = append(paged, ids(letters)...)
		if page.After = next; next == "" {
			break
		}
	}
	if diff := cmp.Diff([]int64{4, 3, 2, 1, last}, paged); diff != "" {
		t.Error("by pages: ", diff)
	}

	// Without a word about the state, the open ones.
	var listed struct {
		DeadLetters []json.RawMessage `json:"dead_letters"`
		Count       int64
	}
	s.get("/v1/dead-letters?oldest=true", &listed)
	if listed.Count != 4 || !bytes.Contains(listed.DeadLetters[0], []byte(`"id":9223372036854775807,`)) || bytes.Contains(listed.DeadLetters[0], []byte(`"body"`)) {
		t.Errorf("%d: %s", listed.Count, listed.DeadLetters)
	}

	for _, id := range []int64{1, 2, 3, 4, last} {
		letter, history, err := s.DeadLetter(ctx, id)
		if err != nil {
			t.Fatal(err)
		}
		want, err := desk.Get(ctx, id)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, letter); diff != "" {
			t.Errorf("letter %d: %s", id, diff)
		}
		events, err := desk.History(ctx, id)
		if err != nil || len(events) == 0 {
			t.Fatal(events, err)
		}
		if diff := cmp.Diff(events, history); diff != "" {
			t.Errorf("history of letter %d: %s", id, diff)
		}
	}
	_, _, err := s.DeadLetter(ctx, 5)
	wantProblem(t, err, "not-found", http.StatusNotFound, deadletter.ErrNotFound)

	for _, group := range []map[string]any{
		{"fingerprint": "0123456789abcdef", "kind": []byte("order.payment_timeout"), "reason": "out-of-tries", "pattern": "no row"},
		{"fingerprint": "fedcba9876543210", "kind": []byte("order.place"), "reason": "hopeless", "pattern": "malformed: <b>&"},
	} {
		if err := s.db.Table("lapse_dead_letter_groups").Create(group).Error; err != nil {
			t.Fatal(err)
		}
	}
	groups, err := s.DeadLetterGroups(ctx, deadletter.Filter{State: deadletter.Open})
	if err != nil || len(groups) != 2 || groups[0].Count != 3 {
		t.Errorf("%+v, %v", groups, err)
	}
	want, err := desk.Groups(ctx, deadletter.Filter{State: deadletter.Open})
	if diff := cmp.Diff(want, groups); err != nil || diff != "" {
		t.Error(err, diff)
	}
}

// Any bytes come through, or a text that says what they are.
func TestLettersOfAnyBytes(t *testing.T) {
	ctx, s := t.Context(), start(t, nil)
	large := bytes.Repeat([]byte("0123456789\xf0\x9f\x99\x82\x00"), 4<<20/15)
	for i, body := range [][]byte{{}, {0}, []byte("\xff\xfe"), []byte("🙂 \"quoted\"\r\n\u2028"), large, bytes.Repeat([]byte{0xff}, 4<<20)} {
		s.letter(int64(i+1), map[string]any{"body": body})
		letter, _, err := s.DeadLetter(ctx, int64(i+1))
		if err != nil || !bytes.Equal(letter.Body, body) || letter.Size != len(body) {
			t.Errorf("body %d: %.50q, %v", i, letter.Body, err)
		}
	}
	s.letter(100, map[string]any{
		"kind": []byte("kind\xff"), "message_id": []byte("\x00\\x"), "routing_key": []byte("é"),
		"headers": []byte(`{"whole":-9223372036854775808,"text":"<é>","raw":{"$bytes":"a\\xff"},"small":{"$int32":5},"float":{"$float64":"0.5"},` +
			`"none":{"$float64":"NaN"},"time":{"$time":"2026-01-02T03:04:05Z"},"price":{"$decimal":[2,1999]},"nil":null,"list":[1,{"deep":true}]}`),
	})
	var letter struct {
		Kind       string
		MessageID  string `json:"message_id"`
		RoutingKey string `json:"routing_key"`
		Headers    json.RawMessage
	}
	s.get("/v1/dead-letters/100", &letter)
	if letter.Kind != `kind\xff` || letter.MessageID != "\x00\\x" || letter.RoutingKey != "é" {
		t.Errorf("%+v", letter)
	}
	const want = `{"float":0.5,"list":[1,{"deep":true}],"nil":null,"none":"NaN","price":1999e-2,"raw":{"base64":"Yf8="},"small":5,"text":"<é>",` +
		`"time":"2026-01-02T03:04:05Z","whole":-9223372036854775808}`
	if diff := cmp.Diff(want, string(letter.Headers)); diff != "" {
		t.Error(diff)
	}
	got, _, err := s.DeadLetter(ctx, 100)
	if err != nil || got.Headers["whole"] != int64(math.MinInt64) || string(got.Headers["raw"].([]byte)) != "a\xff" || got.Headers["price"] != 19.99 {
		t.Errorf("%v, %v", got.Headers, err)
	}
	// Bytes can be asked for in a query, but JSON has none, and would make other letters of them.
	if _, _, count, err := s.DeadLetters(ctx, deadletter.Filter{Kind: "kind\xff"}, deadletter.Page{}); err != nil || count != 1 {
		t.Errorf("%d, %v", count, err)
	}
	selection := deadletter.Selection{Filter: &deadletter.Filter{Kind: "kind\xff"}}
	for _, err := range []error{
		second(s.Discard(ctx, selection, deadletter.By{Why: "why"})), second(s.DryRun(ctx, selection, false)),
		second(s.StartReplay(ctx, deadletter.Request{Selection: selection})),
	} {
		if !errors.Is(err, deadletter.ErrInvalid) {
			t.Errorf("a selection of bytes: %v", err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

// Whatever a query says, it is answered, or told what is wrong.
func TestHostileQueries(t *testing.T) {
	s := start(t, nil)
	s.letter(1, nil)
	for _, test := range []struct {
		path          string
		status        int
		kind, mention string
	}{
		{"dead-letters?limit=0", 422, "invalid", "query.limit"},
		{"dead-letters?limit=1001", 422, "invalid", "query.limit"},
		{"dead-letters?limit=99999999999999999999", 422, "invalid", "query.limit"},
		{"dead-letters?limit=1e3", 422, "invalid", "query.limit"},
		{"dead-letters?state=any", 422, "invalid", "query.state"},
		{"dead-letters?reason=bad", 422, "invalid", "query.reason"},
		{"dead-letters?oldest=perhaps", 422, "invalid", "query.oldest"},
		{"dead-letters?order=desc", 422, "invalid", "query.order"},
		{"dead-letters?from=yesterday", 422, "invalid", "query.from"},
		{"dead-letters?from=2030-01-01T00:00:00", 422, "invalid", "query.from"},
		{"dead-letters?to=9999-12-31T23:59:59-23:59", 422, "invalid", ""},
		{"dead-letters?from=0000-01-01T00:00:00Z", 422, "invalid", ""},
		{"dead-letters?from=2030-01-02T00:00:00Z&to=2030-01-01T00:00:00Z", 422, "invalid", "begins before it ends"},
		{"dead-letters?text=x", 422, "invalid", "from when on"},
		{"dead-letters?from=2030-01-01T00:00:00Z&text=" + strings.Repeat("x", 201), 422, "invalid", "query.text"},
		{"dead-letters?after=x", 422, "invalid", "next"},
		{"dead-letters?after=" + url.QueryEscape("' OR 1=1 -- "), 422, "invalid", "next"},
		{"dead-letters?after=bGV0dGVyczo5OTk5OTk", 422, "invalid", "next"},
		{"dead-letters?after=" + strings.Repeat("A", 1001), 422, "invalid", "query.after"},
		{"dead-letters?kind=" + strings.Repeat("x", 256), 422, "invalid", "query.kind"},
		{"dead-letters?kind=%zz", 400, "malformed", ""},
		{"dead-letters?kind=%00%ff%27%22%5c%25_", 200, "", ""},
		{"dead-letters?message_id=%f0%9f%99%82&group=0123456789abcdef&subject=%27%20OR%201%3D1", 200, "", ""},
		{"dead-letters?from=2030-01-01T00:00:00Z&text=%27%25_%5c%00%ff", 200, "", ""},
		{"dead-letters?from=2030-01-01T00:00:00.5%2B01:00", 200, "", ""},
		{"dead-letters?kind=", 200, "", ""},
		{"dead-letters/groups?limit=1", 422, "invalid", "query.limit"},
		{"dead-letters/groups?text=x", 422, "invalid", "from when on"},
		{"dead-letters/export?format=xlsx", 422, "invalid", "query.format"},
		{"dead-letters/export?text=x", 422, "invalid", "from when on"},
		{"dead-letters/0", 422, "invalid", "path.id"},
		{"dead-letters/-1", 422, "invalid", "path.id"},
		{"dead-letters/one", 422, "invalid", "path.id"},
		{"dead-letters/1.0", 422, "invalid", "path.id"},
		{"dead-letters/9223372036854775808", 422, "invalid", "path.id"},
		{"dead-letters/9223372036854775807", 404, "not-found", ""},
		{"dead-letters/", 404, "no-such-path", ""},
		{"dead-letters/1/history", 404, "no-such-path", ""},
		{"replays/" + url.PathEscape("' OR 1=1"), 422, "invalid", "path.id"},
		{"replays/none", 404, "not-found", ""},
		{"replays/none/results", 404, "not-found", ""},
		{"replays/none/results?result=lost", 422, "invalid", "query.result"},
		{"replays?after=x", 422, "invalid", "next"},
		{"audit?after=x", 422, "invalid", "next"},
		{"audit?actor=%ff%00%27&action=%f0%9f%99%82&subject=%ff", 200, "", ""},
		{"audit?from=2030-01-01", 422, "invalid", "query.from"},
	} {
		status, _, p := s.send("GET", "/v1/"+test.path, "")
		if status != test.status || strings.TrimPrefix(p.Type, "urn:lapse:problem:") != test.kind || !strings.Contains(p.Error(), test.mention) {
			t.Errorf("%.100s: %d %s: %v", test.path, status, p.Type, &p)
		}
	}
}

// And so it is with what a body says. None of it does anything.
func TestHostileSelections(t *testing.T) {
	s := start(t, nil)
	s.letter(1, nil)
	many := `{"reason":"why","ids":[` + strings.Repeat("1,", 10_000) + `1]}`
	for _, test := range []struct{ body, kind, mention string }{
		{`{"reason":"why"}`, "invalid", "no letters are selected"},
		{`{"reason":"why","ids":[]}`, "invalid", "no letters are selected"},
		{`{"reason":"why","filter":{}}`, "invalid", "without a condition"},
		{`{"reason":"why","filter":{"state":"all"}}`, "invalid", "without a condition"},
		{`{"reason":"why","filter":null}`, "invalid", ""},
		{`{"reason":"why","all":false}`, "invalid", "no letters are selected"},
		{`{"reason":"why","all":true,"ids":[1]}`, "invalid", "only one"},
		{`{"reason":"why","all":"true"}`, "invalid", "body.all"},
		{`{"reason":"why","ids":[0]}`, "invalid", ""},
		{`{"reason":"why","ids":[1.5]}`, "invalid", "body.ids[0]"},
		{`{"reason":"why","ids":["1"]}`, "invalid", "body.ids[0]"},
		{`{"reason":"why","ids":[9223372036854775808]}`, "invalid", ""},
		{`{"reason":"why","ids":[2]}`, "not-found", "2"},
		{many, "invalid", "body.ids"},
		{`{"reason":"why","filter":{"knid":"x"}}`, "invalid", "body.filter.knid"},
		{`{"reason":"why","filter":{"from":"today"}}`, "invalid", "body.filter.from"},
		{`{"reason":"why","filter":{"text":"x"}}`, "invalid", "from when on"},
		{`{"reason":"` + strings.Repeat("x", 1001) + `","all":true}`, "invalid", "body.reason"},
		{`{"reason":"` + strings.Repeat("é", 1000) + `","all":true}`, "invalid", "1000"},
		{`{"all":true}`, "invalid", "reason"},
		{`{"reason":"","all":true}`, "invalid", "reason"},
		{`{"reason":"why","all":true,"who":"root"}`, "invalid", "body.who"},
	} {
		for _, path := range []string{"/v1/dead-letters/discard", "/v1/dead-letters/restore", "/v1/replays"} {
			_, _, p := s.send("POST", path, test.body, "Content-Type", "application/json")
			if p.Type != "urn:lapse:problem:"+test.kind || !strings.Contains(p.Error(), test.mention) {
				t.Errorf("%s %.100s: %v", path, test.body, &p)
			}
		}
	}
	for _, body := range []string{
		`{"reason":"why","all":true,"rate":-1}`, `{"reason":"why","all":true,"rate":100001}`, `{"reason":"why","all":true,"rate":0.5}`,
		`{"reason":"why","all":true,"to":{}}`, `{"reason":"why","all":true,"to":{"exchange":"` + strings.Repeat("x", 256) + `","routing_key":"k"}}`,
		`{"dry_run":true}`, `{"dry_run":true,"filter":{}}`,
	} {
		if status, _, p := s.send("POST", "/v1/replays", body, "Content-Type", "application/json"); status != http.StatusUnprocessableEntity {
			t.Errorf("%.100s: %d %v", body, status, &p)
		}
	}
	letter, err := s.shop.Desk().Get(t.Context(), 1)
	replays, _, listing := s.shop.Desk().Replays(t.Context(), deadletter.Page{})
	if err != nil || listing != nil || letter.State != deadletter.Open || letter.Replay != "" || len(replays) > 0 {
		t.Errorf("one of them did something: %+v, %v, %v, %v", letter, replays, err, listing)
	}
	if !errors.Is(second(s.Discard(t.Context(), deadletter.Selection{}, deadletter.By{Why: "why"})), order.ErrInvalid) {
		t.Error("the client")
	}
}
