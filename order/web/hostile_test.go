package web_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lapse-go/lapse/order"
	"github.com/lapse-go/lapse/order/web"
)

// send makes a request as no client of ours would, and reads the answer.
func (s *service) send(method, path, body string, header ...string) (int, http.Header, web.Problem) {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), method, s.url+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		if header[i] == "Host" {
			r.Host = header[i+1]
		}
		r.Header.Add(header[i], header[i+1])
	}
	answer, err := s.http.Do(r)
	if err != nil {
		s.t.Fatal(err)
	}
	defer answer.Body.Close()
	return answer.StatusCode, answer.Header, problemIn(s.t, answer)
}

// problemIn reads an answer, which has to be a problem if it is a refusal.
func problemIn(t testing.TB, answer *http.Response) (p web.Problem) {
	t.Helper()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	if answer.StatusCode < 400 || len(text) == 0 {
		return p
	}
	if got := answer.Header.Get("Content-Type"); got != "application/problem+json" {
		t.Errorf("a refusal as %s: %s", got, text)
	}
	if err := json.Unmarshal(text, &p); err != nil {
		t.Errorf("%v: %s", err, text)
	}
	if p.Status != answer.StatusCode {
		t.Errorf("status %d in the problem of a %d", p.Status, answer.StatusCode)
	}
	if len(text) > 20_000 {
		t.Errorf("a problem of %d bytes", len(text))
	}
	return p
}

func TestHostileRequests(t *testing.T) {
	s := start(t, nil)
	const line = `{"sku":"kettle","quantity":1,"price":{"amount":1,"currency":"EUR"}}`
	body := func(lines string) string { return `{"id":"A-1","lines":[` + lines + `]}` }
	price := func(amount string) string {
		return body(`{"sku":"kettle","quantity":1,"price":{"amount":` + amount + `,"currency":"EUR"}}`)
	}
	for _, test := range []struct {
		name, method, path, body string
		header                   []string
		status                   int
		kind, place              string
	}{
		{"unknown field", "POST", "/v1/orders", `{"id":"A-1","lines":[` + line + `],"discount":1}`, nil, 422, "invalid", "body.discount"},
		{"unknown field inside", "POST", "/v1/orders", body(`{"sku":"kettle","quantity":1,"price":{"amount":1,"currency":"EUR","x":1}}`), nil, 422, "invalid", "body.lines[0].price.x"},
		{"wrong type", "POST", "/v1/orders", body(`{"sku":7,"quantity":"1","price":{"amount":1,"currency":"EUR"}}`), nil, 422, "invalid", "body.lines[0].sku"},
		{"a list for an object", "POST", "/v1/orders", `[]`, nil, 422, "invalid", "body"},
		{"null", "POST", "/v1/orders", `null`, nil, 422, "invalid", "body"},
		{"no lines", "POST", "/v1/orders", `{"id":"A-1"}`, nil, 422, "invalid", "body"},
		{"null lines", "POST", "/v1/orders", `{"id":"A-1","lines":null}`, nil, 422, "invalid", ""},
		{"no body", "POST", "/v1/orders", ``, nil, 400, "malformed", ""},
		{"no JSON", "POST", "/v1/orders", `{"id":`, nil, 400, "malformed", "body"},
		{"more after the JSON", "POST", "/v1/orders", body(line) + `{}`, nil, 400, "malformed", "body"},
		{"no UTF-8", "POST", "/v1/orders", "{\"customer\":\"\xff\",\"lines\":[" + line + "]}", nil, 400, "malformed", "body"},
		{"nested deep", "POST", "/v1/orders", strings.Repeat("[", 20_000), nil, 400, "malformed", "body"},
		{"beyond 64 bits", "POST", "/v1/orders", price("9223372036854775808"), nil, 422, "invalid", "body"},
		{"no whole number", "POST", "/v1/orders", price("1.5"), nil, 422, "invalid", "body.lines[0].price.amount"},
		{"below zero", "POST", "/v1/orders", price("-1"), nil, 422, "invalid", "body.lines[0].price.amount"},
		{"an exponent", "POST", "/v1/orders", price("1e999"), nil, 400, "malformed", "body"},
		{"a window of none", "POST", "/v1/orders", `{"window":"30","lines":[` + line + `]}`, nil, 422, "invalid", ""},
		{"an id with a space", "POST", "/v1/orders", `{"id":"A 1","lines":[` + line + `]}`, nil, 422, "invalid", "body.id"},
		{"async and invalid", "POST", "/v1/orders", `{"window":"-5m","lines":[` + line + `]}`, []string{"Prefer", "respond-async"}, 422, "invalid", ""},
		{"a form", "POST", "/v1/orders", `id=A-1`, []string{"Content-Type", "application/x-www-form-urlencoded"}, 415, "media-type", "body"},
		{"too large", "POST", "/v1/orders", `"` + strings.Repeat("x", 1<<20) + `"`, nil, 413, "body-too-large", ""},
		{"too large for a reason", "POST", "/v1/pause", `"` + strings.Repeat("x", 16<<10) + `"`, nil, 413, "body-too-large", ""},
		{"a body where there is none", "POST", "/v1/sweep", `{}`, nil, 413, "body-too-large", ""},
		{"a long reason", "POST", "/v1/pause", `{"why":"` + strings.Repeat("x", 1001) + `"}`, nil, 422, "invalid", "body.why"},
		{"unknown parameter", "GET", "/v1/orders/A-1?verbose=1", "", nil, 422, "invalid", "query.verbose"},
		{"a query that is none", "GET", "/v1/orders/A-1?%zz", "", nil, 400, "malformed", ""},
		{"no time", "POST", "/v1/orders/A-1/extend", `{"deadline":"tomorrow"}`, nil, 422, "invalid", "body.deadline"},
		{"no key", "POST", "/v1/orders:extend", `{"by":"20m"}`, nil, 422, "invalid", "header.Idempotency-Key"},
		{"no duration", "POST", "/v1/orders:extend", `{"by":"20"}`, []string{"Idempotency-Key", "k"}, 422, "invalid", ""},
		{"stock below zero", "PUT", "/v1/stock/kettle", `{"available":-1}`, nil, 422, "invalid", "body.available"},
		{"stock without end", "PUT", "/v1/stock/kettle", `{"available":1000000000001}`, nil, 422, "invalid", "body.available"},
		{"unknown path", "GET", "/v2/orders", "", nil, 404, "no-such-path", ""},
		{"a path that might be nicer", "GET", "/v1//pause", "", nil, 404, "no-such-path", ""},
		{"a slash at the end", "GET", "/v1/pause/", "", nil, 404, "no-such-path", ""},
		{"huma's pages", "GET", "/docs", "", nil, 404, "no-such-path", ""},
		{"wrong method", "DELETE", "/v1/orders/A-1", "", nil, 405, "method-not-allowed", ""},
		{"unknown method", "BREW", "/healthz", "", nil, 405, "method-not-allowed", ""},
		{"HEAD of what cannot be read", "HEAD", "/v1/sweep", "", nil, 405, "", ""},
		{"HEAD of no order", "HEAD", "/v1/orders/A-1", "", nil, 404, "", ""},
		{"HEAD", "HEAD", "/v1/pause", "", nil, 200, "", ""},
		{"another site", "POST", "/v1/pause", `{}`, []string{"Sec-Fetch-Site", "cross-site"}, 403, "cross-origin", ""},
		{"another origin", "POST", "/v1/pause", `{}`, []string{"Origin", "https://evil.example"}, 403, "cross-origin", ""},
		{"another host", "GET", "/v1/pause", "", []string{"Host", "evil.example"}, 421, "wrong-host", ""},
		{"another host that begins well", "GET", "/v1/pause", "", []string{"Host", "localhost.evil.example:80"}, 421, "wrong-host", ""},
		{"another host's health", "GET", "/healthz", "", []string{"Host", "evil.example"}, 421, "wrong-host", ""},
		{"localhost", "GET", "/v1/pause", "", []string{"Host", "LOCALHOST:1"}, 200, "", ""},
		{"IPv6", "GET", "/v1/pause", "", []string{"Host", "[::1]"}, 200, "", ""},
		{"IPv6 with a port", "GET", "/v1/pause", "", []string{"Host", "[::1]:8080"}, 200, "", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := *s
			s.t = t
			status, header, p := s.send(test.method, test.path, test.body, test.header...)
			if status != test.status || strings.TrimPrefix(p.Type, "urn:lapse:problem:") != test.kind {
				t.Errorf("got %d %s: %v", status, p.Type, &p)
			}
			if test.place != "" && !slices.ContainsFunc(p.Places, func(p web.Place) bool { return p.Location == test.place }) {
				t.Errorf("got %+v, want %s", p.Places, test.place)
			}
			if status == 405 && header.Get("Allow") == "" {
				t.Error("no Allow")
			}
		})
	}
	if _, err := s.shop.Get(t.Context(), "A-1"); err == nil {
		t.Error("one of them placed an order")
	}
	if p, err := s.shop.Paused(t.Context()); err != nil || p.Paused {
		t.Errorf("one of them paused: %v, %v", p, err)
	}
}

// Wrong everywhere is told of some places.
func TestManyPlacesThatAreWrong(t *testing.T) {
	s := start(t, nil)
	var fields strings.Builder
	for i := range 50_000 {
		fmt.Fprintf(&fields, `"f%d":1,`, i)
	}
	_, _, p := s.send("POST", "/v1/orders", `{`+fields.String()+`"lines":[]}`)
	if len(p.Places) != 20 || p.Status != 422 {
		t.Errorf("%d: %d places", p.Status, len(p.Places))
	}
	_, _, p = s.send("POST", "/v1/orders", `{"`+strings.Repeat("x", 500_000)+`":1,"lines":[]}`)
	if p.Status != 422 || len(p.Error()) > 2000 {
		t.Errorf("%d: %d bytes", p.Status, len(p.Error()))
	}
}

// Sixty-four bits are exact both ways.
func TestLargeNumbers(t *testing.T) {
	ctx, s := t.Context(), start(t, nil)
	s.stocked("kettle", 1)
	d := draft("A-1")
	d.Lines = []order.Line{{SKU: "kettle", Quantity: 1, Price: order.Money{Amount: 1<<63 - 1, Currency: "EUR"}}}
	if _, err := s.Place(ctx, d); err != nil {
		t.Fatal(err)
	}
	if o, err := s.Get(ctx, "A-1"); err != nil || o.Total.Amount != 1<<63-1 {
		t.Errorf("%v, %v", o.Total, err)
	}
}

// slowly sends a request bit by bit until the server has had enough, and returns what it answered.
func slowly(t *testing.T, s *service, begin string, trickle byte) string {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, begin); err != nil {
		t.Fatal(err)
	}
	var writing sync.WaitGroup
	defer writing.Wait()
	done := make(chan struct{})
	defer close(done)
	writing.Go(func() {
		for {
			select {
			case <-done:
				return
			case <-time.After(200 * time.Millisecond):
				if _, err := conn.Write([]byte{trickle}); err != nil {
					return
				}
			}
		}
	})
	_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
	answer, err := io.ReadAll(conn)
	if err != nil && !strings.Contains(err.Error(), "reset") {
		t.Errorf("reading: %v", err)
	}
	return string(answer)
}

func TestSlowClientsAreCut(t *testing.T) {
	s := start(t, nil)
	t.Run("header", func(t *testing.T) {
		t.Parallel()
		begin := time.Now()
		answer := slowly(t, s, "GET /v1/pause HTTP/1.1\r\nHost: localhost\r\nX-Long: ", 'x')
		if took := time.Since(begin); took > 8*time.Second || strings.Contains(answer, "200") {
			t.Errorf("after %s: %s", took, answer)
		}
	})
	t.Run("body", func(t *testing.T) {
		t.Parallel()
		begin := time.Now()
		text := slowly(t, s, "POST /v1/orders HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{", ' ')
		took := time.Since(begin)
		answer, err := http.ReadResponse(bufio.NewReader(strings.NewReader(text)), nil)
		if err != nil {
			t.Fatal(err, text)
		}
		defer answer.Body.Close()
		if p := problemIn(t, answer); p.Status != 408 || p.Type != "urn:lapse:problem:body-late" || took > 8*time.Second {
			t.Errorf("after %s: %d %v", took, answer.StatusCode, &p)
		}
	})
}

func TestLargeHeaders(t *testing.T) {
	s := start(t, nil)
	r, err := http.NewRequestWithContext(t.Context(), "GET", s.url+"/v1/pause", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X-Large", strings.Repeat("x", 40<<10))
	answer, err := s.http.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	if answer.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("got %s", answer.Status)
	}
}

// broken fails as no repository should.
type broken struct{ order.Repository }

func (broken) Get(context.Context, string) (order.Order, error) { panic("the secret is 42") }
func (broken) Stock(context.Context, ...string) ([]order.Stock, error) {
	return nil, fmt.Errorf("table lapse_stock has a secret")
}

func TestWhatFailsInsideStaysInside(t *testing.T) {
	var log bytes.Buffer
	var mu sync.Mutex
	s := start(t, nil, func(cfg *web.Config) {
		cfg.Orders = &order.Service{Repository: broken{cfg.Orders.Repository}}
		cfg.Logger = slog.New(slog.NewJSONHandler(locked{&mu, &log}, nil))
	})
	for path, inside := range map[string]string{"/v1/orders/A-1": "the secret is 42", "/v1/stock/kettle": "table lapse_stock has a secret"} {
		status, _, p := s.send("GET", path, "")
		if status != 500 || p.Type != "urn:lapse:problem:internal" || strings.Contains(p.Error(), "secret") {
			t.Errorf("%d %v", status, &p)
		}
		mu.Lock()
		var entry struct{ Level, Request, Error string }
		if err := json.Unmarshal(log.Bytes(), &entry); err != nil || entry.Level != "WARN" || !strings.Contains(entry.Error, inside) ||
			entry.Request == "" || !strings.Contains(p.Detail, entry.Request) {
			t.Errorf("log: %v, %s", err, log.String())
		}
		log.Reset()
		mu.Unlock()
	}
	// The rest goes on, and no other request is logged.
	s.send("GET", "/nothing", "")
	s.send("GET", "/v1/pause", "")
	if log.Len() > 0 {
		t.Errorf("log: %s", log.String())
	}
}

type locked struct {
	*sync.Mutex
	to io.Writer
}

func (l locked) Write(text []byte) (int, error) {
	l.Lock()
	defer l.Unlock()
	return l.to.Write(text)
}
