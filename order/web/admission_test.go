package web_test

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lapse-go/lapse/order/web"
)

// who may ask for what, at least. What is for everybody is not here.
var who = map[string]web.Role{
	"place-order": web.Checkout, "get-order": web.Viewer, "pay-order": web.Checkout, "cancel-order": web.Checkout,
	"extend-order": web.Checkout, "extend-orders": web.Operator, "get-stock": web.Viewer, "set-stock": web.Operator,
	"overview": web.Viewer, "get-pause": web.Viewer, "pause": web.Operator, "resume": web.Operator, "sweep": web.Operator,
	"list-dead-letters": web.Viewer, "get-dead-letter": web.Viewer, "group-dead-letters": web.Viewer, "export-dead-letters": web.Viewer,
	"discard-dead-letters": web.Operator, "restore-dead-letters": web.Operator,
	"start-replay": web.Operator, "list-replays": web.Viewer, "get-replay": web.Viewer, "list-replay-results": web.Viewer, "cancel-replay": web.Operator,
	"audit": web.Viewer,

	"page-overview": web.Viewer, "page-pause": web.Operator, "page-resume": web.Operator, "page-sweep": web.Operator,
	"page-letters": web.Viewer, "page-letter": web.Viewer, "page-letter-body": web.Viewer, "page-export": web.Viewer, "page-dry-run": web.Operator, "page-discard": web.Operator, "page-restore": web.Operator,
	"page-replays": web.Viewer, "page-replay": web.Viewer, "page-start-replay": web.Operator, "page-cancel-replay": web.Operator,
	"page-orders": web.Viewer, "page-order": web.Viewer, "page-extend-order": web.Checkout, "page-cancel-order": web.Checkout, "page-extend-orders": web.Operator,
	"page-audit": web.Viewer,
}

var public = map[string]bool{
	"health": true, "ready": true, "openapi": true, "asyncapi": true, "page-sign-in": true, "sign-in": true, "sign-out": true, "page-static": true,
}

var problemName = regexp.MustCompile("urn:lapse:problem:([a-z-]+)")

// try asks for an operation, and returns what a problem, or the page about it, says that it is.
func (s *service) try(op web.Operation, body string, header ...string) (status int, kind string) {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), op.Method, s.url+somewhere(op), strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	answer, err := s.http.Transport.RoundTrip(r) // and goes nowhere else
	if err != nil {
		s.t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	if found := problemName.FindSubmatch(text); found != nil && answer.StatusCode >= 400 {
		kind = string(found[1])
	}
	return answer.StatusCode, kind
}

// somewhere is a path of the operation.
func somewhere(op web.Operation) string {
	return strings.NewReplacer("{id}", "1", "{sku}", "kettle", "{version}", "1", "{name}", "app.css").Replace(op.Path)
}

// session is the cookie of one who has signed in on the page.
func (s *service) session(token string) string {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), http.MethodPost, s.url+"/sign-in", strings.NewReader(url.Values{"token": {token}}.Encode()))
	if err != nil {
		s.t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	answer, err := s.http.Transport.RoundTrip(r)
	if err != nil {
		s.t.Fatal(err)
	}
	answer.Body.Close()
	if len(answer.Cookies()) != 1 {
		s.t.Fatalf("signing in: %s, %v", answer.Status, answer.Header)
	}
	return answer.Cookies()[0].String()
}

// Every role against every action: whatever operations there are.
func TestEveryRoleAgainstEveryOperation(t *testing.T) {
	tokens, sessions := make(map[web.Role]string), make(map[web.Role]string)
	s := start(t, nil, withTokens(t, tokens))
	for role, token := range tokens {
		sessions[role] = s.session(token)
	}
	operations := s.server.Operations()
	if len(operations) < len(who)+len(public) {
		t.Errorf("only %d operations", len(operations))
	}
	for _, op := range operations {
		needs, known := who[op.ID]
		if open := public[op.ID] || strings.HasPrefix(op.ID, "schema-"); known == open || open != op.Public {
			t.Errorf("%s: who may? The test says %q, public %v, and the server public %v", op.ID, needs, open, op.Public)
			continue
		}
		as := func(token, session string) (int, string) {
			switch {
			case token == "":
				return s.try(op, "")
			case op.Page:
				return s.try(op, "", "Cookie", session, "Content-Type", "application/x-www-form-urlencoded")
			}
			return s.try(op, "", "Authorization", "Bearer "+token)
		}
		strangers := map[string][2]string{"nobody": {}, "a wrong token": {"lapse_AAAAAAAAAAAAAAAAAAAAAAAAAA", "lapse_session=b3BlcmF0b3ItMQ.AAAA"}}
		for name, stranger := range strangers {
			status, kind := as(stranger[0], stranger[1])
			refused := status == http.StatusUnauthorized && kind == "unauthorized" || op.Page && op.Method == http.MethodGet && status == http.StatusSeeOther
			if !op.Public && !refused || op.Public && op.ID != "sign-in" && status == http.StatusUnauthorized {
				t.Errorf("%s as %s: %d %s", op.ID, name, status, kind)
			}
		}
		may := op.Public
		for _, role := range web.Roles {
			may = may || role == needs
			status, kind := as(tokens[role], sessions[role])
			denied := status == http.StatusUnauthorized || status == http.StatusForbidden || status == http.StatusInternalServerError
			if may && denied && op.ID != "sign-in" {
				t.Errorf("%s as %s: %d %s", op.ID, role, status, kind)
			}
			if !may && (status != http.StatusForbidden || kind != "forbidden") {
				t.Errorf("%s as %s: %d %s, and it is for %s", op.ID, role, status, kind, needs)
			}
		}
	}
	if p, err := s.shop.Paused(t.Context()); err != nil || p.By.Who == "viewer-1" || p.By.Who == "checkout-1" {
		t.Errorf("%+v, %v", p, err)
	}
}

// Whatever changes something is not for pages of other sites, and takes no large or slow body.
func TestEveryOperationAgainstHostileClients(t *testing.T) {
	s := start(t, nil)
	var slow sync.WaitGroup
	defer slow.Wait()
	for _, op := range s.server.Operations() {
		if op.Method != http.MethodGet {
			for _, header := range [][]string{{"Sec-Fetch-Site", "cross-site"}, {"Sec-Fetch-Site", "same-site"}, {"Origin", "https://evil.example"}} {
				if status, kind := s.try(op, "{}", header...); status != http.StatusForbidden || kind != "cross-origin" {
					t.Errorf("%s with %v: %d %s", op.ID, header, status, kind)
				}
			}
		}
		if status, kind := s.try(op, strings.Repeat(" ", int(op.MaxBody)+1)); status != http.StatusRequestEntityTooLarge || kind != "body-too-large" {
			t.Errorf("%s with a large body: %d %s", op.ID, status, kind)
		}
		if op.MaxBody == 0 {
			continue
		}
		if status, kind := s.try(op, "{", "Content-Type", "application/json", "Idempotency-Key", "k"); status != http.StatusBadRequest && status != http.StatusUnprocessableEntity && status != http.StatusUnsupportedMediaType {
			t.Errorf("%s with half a body: %d %s", op.ID, status, kind)
		}
		slow.Go(func() {
			begin := time.Now()
			text := slowly(t, s, fmt.Sprintf("%s %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n{", op.Method, somewhere(op), op.MaxBody), ' ')
			answer, err := http.ReadResponse(bufio.NewReader(strings.NewReader(text)), nil)
			if err != nil {
				t.Errorf("%s with a slow body: %v", op.ID, err)
				return
			}
			defer answer.Body.Close()
			if took := time.Since(begin); answer.StatusCode != http.StatusRequestTimeout || took > 8*time.Second {
				t.Errorf("%s with a slow body: %s after %s", op.ID, answer.Status, took)
			}
		})
	}
}
