package web_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/lapse-go/lapse/order"
	"github.com/lapse-go/lapse/order/web"
)

func TestRoles(t *testing.T) {
	ctx, tokens := t.Context(), make(map[web.Role]string)
	s := start(t, nil, withTokens(t, tokens))
	s.stocked("kettle", 100)
	s.stocked("filter", 100)
	for _, test := range []struct {
		name  string
		needs web.Role
		do    func(c *web.Client, id string) error
	}{
		{"place", web.Checkout, func(c *web.Client, id string) error { _, err := c.Place(ctx, draft(id)); return err }},
		{"get", web.Viewer, func(c *web.Client, _ string) error { _, err := c.Get(ctx, "checkout"); return err }},
		{"timeline", web.Viewer, func(c *web.Client, _ string) error { _, err := c.Timeline(ctx, "checkout"); return err }},
		{"stock", web.Viewer, func(c *web.Client, _ string) error { _, err := c.Stock(ctx, "kettle"); return err }},
		{"overview", web.Viewer, func(c *web.Client, _ string) error { _, err := c.Overview(ctx); return err }},
		{"paused", web.Viewer, func(c *web.Client, _ string) error { _, err := c.Paused(ctx); return err }},
		{"extend", web.Checkout, func(c *web.Client, id string) error {
			_, err := c.Extend(ctx, id, time.Now().Add(time.Hour), order.By{})
			return err
		}},
		{"pay", web.Checkout, func(c *web.Client, id string) error {
			_, err := c.Pay(ctx, id, order.Payment{Reference: "P-" + id})
			return err
		}},
		{"cancel", web.Checkout, func(c *web.Client, id string) error {
			id += "-2"
			if _, err := c.Place(ctx, draft(id)); err != nil {
				return err
			}
			_, err := c.Cancel(ctx, id, order.By{})
			return err
		}},
		{"extend all", web.Operator, func(c *web.Client, id string) error {
			_, err := c.ExtendAll(ctx, order.ExtendRequest{Key: id, More: time.Minute})
			return err
		}},
		{"set stock", web.Operator, func(c *web.Client, _ string) error { _, err := c.SetStock(ctx, "kettle", 100); return err }},
		{"pause", web.Operator, func(c *web.Client, _ string) error { return c.Pause(ctx, order.By{}) }},
		{"resume", web.Operator, func(c *web.Client, _ string) error { return c.Resume(ctx, order.By{}) }},
		{"sweep", web.Operator, func(c *web.Client, _ string) error { _, err := c.Sweep(ctx); return err }},
	} {
		wantProblem(t, test.do(s.client(""), "none"), "unauthorized", http.StatusUnauthorized, web.ErrUnauthorized)
		wantProblem(t, test.do(s.client("lapse_AAAAAAAAAAAAAAAAAAAAAAAAAA"), "other"), "unauthorized", http.StatusUnauthorized, web.ErrUnauthorized)
		may := false
		for _, role := range web.Roles {
			may = may || role == test.needs
			err := test.do(s.client(tokens[role]), string(role))
			if may && err != nil {
				t.Errorf("%s as %s: %v", test.name, role, err)
			}
			if !may {
				p := asProblem(t, err, "forbidden", http.StatusForbidden, web.ErrForbidden)
				if !strings.Contains(p.Detail, "needs "+string(test.needs)) {
					t.Errorf("%s as %s: %s", test.name, role, p.Detail)
				}
			}
		}
	}
	timeline, err := s.client(tokens[web.Viewer]).Timeline(ctx, "operator")
	if err != nil || len(timeline) < 2 || timeline[1].By.Who != "operator-1" {
		t.Errorf("%+v, %v", timeline, err)
	}
}

func TestTokensInRequests(t *testing.T) {
	tokens := make(map[web.Role]string)
	s := start(t, nil, withTokens(t, tokens))
	good := tokens[web.Viewer]
	for _, test := range []struct {
		header []string
		status int
	}{
		{nil, 401},
		{[]string{"Authorization", ""}, 401},
		{[]string{"Authorization", good}, 401},
		{[]string{"Authorization", "Basic " + good}, 401},
		{[]string{"Authorization", "Bearer " + good + "x"}, 401},
		{[]string{"Authorization", "Bearer " + good[1:]}, 401},
		{[]string{"Authorization", "Bearer " + good, "Authorization", "Bearer " + good}, 401},
		{[]string{"Authorization", "Bearer " + good}, 200},
		{[]string{"Authorization", "bearer  " + good}, 200},
		// With tokens any host will do.
		{[]string{"Authorization", "Bearer " + good, "Host", "lapse.example"}, 200},
	} {
		status, header, p := s.send("GET", "/v1/pause", "", test.header...)
		if status != test.status || (status == 401) != strings.HasPrefix(header.Get("Www-Authenticate"), "Bearer") || strings.Contains(p.Error(), good) {
			t.Errorf("%q: %d, %v, %v", test.header, status, header, &p)
		}
	}
	// But not any page, and a large body is not read first.
	status, _, p := s.send("POST", "/v1/pause", "{}", "Authorization", "Bearer "+tokens[web.Operator], "Sec-Fetch-Site", "cross-site")
	if status != 403 || p.Type != "urn:lapse:problem:cross-origin" {
		t.Errorf("%d %v", status, &p)
	}
	if status, _, p := s.send("POST", "/v1/orders", strings.Repeat("x", 2<<20)); status != 401 {
		t.Errorf("%d %v", status, &p)
	}
	for _, path := range []string{"/healthz", "/openapi.json"} {
		if status, _, p := s.send("GET", path, ""); status != 200 {
			t.Errorf("%s: %d %v", path, status, &p)
		}
	}
}

func TestReadTokens(t *testing.T) {
	token, line, err := web.NewToken("shop", web.Checkout)
	if err != nil || !strings.HasPrefix(token, "lapse_") || len(token) < 32 || strings.Contains(line, token) {
		t.Fatal(token, line, err)
	}
	_, other, err := web.NewToken("office", web.Operator)
	if err != nil {
		t.Fatal(err)
	}
	hash := strings.Fields(line)[2]
	if _, err := web.ReadTokens(strings.NewReader("# who may\r\n\n" + line + "\r\n  " + other + "\n")); err != nil {
		t.Error(err)
	}
	for _, test := range []struct{ text, want string }{
		{"", "no tokens: "},
		{"# nobody yet\n\n", "no tokens: "},
		{line + "\nshop viewer " + strings.Fields(other)[2], "line 2: the name of line 1 again"},
		{line + "\nanother viewer " + hash, "line 2: the token of line 1 again"},
		{"\nshop admin " + hash, "line 2: no role, or an unknown one: give viewer, checkout or operator"},
		{"shop checkout " + hash[1:], "line 1: the third word is no SHA-256"},
		{"shop checkout " + strings.Repeat("z", 64), "line 1: the third word is no SHA-256"},
		{"shop checkout " + token, "line 1: there is a token itself"},
		{token + " checkout " + hash, "line 1: there is a token itself"},
		{"shop checkout", "line 1: 2 words"},
		{"shop checkout " + hash + " really", "line 1: 4 words"},
		{"café checkout " + hash, "line 1: the first word is no name"},
		{"local checkout " + hash, "line 1: the name local is kept"},
		{strings.Repeat("x", 100_000), "line 1: "},
	} {
		_, err := web.ReadTokens(strings.NewReader(test.text))
		if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), token[6:]) || strings.Contains(err.Error(), hash[2:]) {
			t.Errorf("%.40q: %v", test.text, err)
		}
	}
	for name, role := range map[string]web.Role{"": web.Viewer, "a b": web.Viewer, "#a": web.Viewer, "local": web.Viewer, "a": "admin"} {
		if _, _, err := web.NewToken(name, role); err == nil {
			t.Errorf("a token for %q, %q", name, role)
		}
	}
}
