package web_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"github.com/lapse-go/lapse/amqp/deadletter"
	"github.com/lapse-go/lapse/order"
	"github.com/lapse-go/lapse/order/checkout"
	"github.com/lapse-go/lapse/order/web"
)

// Every page in both themes, and on a phone, where nothing may be wider than the screen. LAPSE_SCREENSHOTS names the
// folder for the pictures.
func TestPagesInBothThemes(t *testing.T) {
	tokens := map[web.Role]string{}
	s := start(t, nil, withTokens(t, tokens))
	s.Client = s.client(tokens[web.Operator])
	s.serveShop(checkout.Relay, checkout.Timer, checkout.Sweep, checkout.Desk, checkout.API)
	replay := s.furnish()

	pages := []struct{ name, path, awaits string }{
		{"overview", "/", "#overview"}, {"letters", "/letters", "#groups"}, {"letter", "/letters/7", "#letter"},
		{"replays", "/replays", "#replays"}, {"replay", "/replays/" + replay, "#replay-progress"},
		{"orders", "/orders", "#order-find"}, {"order", "/orders/A-1002", "#order"}, {"audit", "/audit", "#audit"},
		{"wrong-filter", "/letters?kind=mail&from=yesterday", "#problem"},
	}
	for _, theme := range []string{"light", "dark"} {
		for _, width := range []int{1280, 375} {
			t.Run(fmt.Sprintf("%s, %d", theme, width), func(t *testing.T) {
				w := open(t, s.url, width, 900)
				w.do("choosing the theme", func(ctx context.Context, target *chromedp.Target) (none chromedp.Void, err error) {
					_, err = cdp.Call(ctx, target, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
						Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: theme}},
					})
					return none, err
				})
				w.do("coming", w.visit("/"), seen("#sign-in"))
				w.fits("sign-in")
				w.picture("sign-in", theme, width)
				w.signIn(tokens[web.Operator])
				for _, page := range pages {
					w.do(page.name, w.visit(page.path), seen(page.awaits))
					w.fits(page.name)
					w.picture(page.name, theme, width)
				}
				w.do("a dry run", w.visit("/letters"), tick("#letters input[name=scope][value=filter]"), press("#replay"), seen("#dry-run"))
				w.fits("dry-run")
				w.picture("dry-run", theme, width)
				w.quiet("Password forms should have", "422")
			})
		}
	}
}

// fits fails if the page is wider than the window.
func (w *window) fits(page string) {
	w.t.Helper()
	if over := ask(w, "measuring", chromedp.Evaluate[int]("document.documentElement.scrollWidth - window.innerWidth")); over > 0 {
		w.t.Errorf("%s is %d pixels wider than the window", page, over)
	}
}

// picture keeps how the page looks, if somebody asked for that.
func (w *window) picture(page, theme string, width int) {
	w.t.Helper()
	folder := os.Getenv("LAPSE_SCREENSHOTS")
	if folder == "" {
		return
	}
	name := page + "-" + theme
	if width < 600 {
		name += "-phone"
	}
	if err := os.WriteFile(filepath.Join(folder, name+".png"), ask(w, "taking a picture", chromedp.FullScreenshot(100)), 0o644); err != nil {
		w.t.Error(err)
	}
}

// furnish fills a shop with what there is to see, and returns a replay that has ended.
func (s *service) furnish() (replay string) {
	s.t.Helper()
	ctx := s.t.Context()
	must := func(err error) {
		s.t.Helper()
		if err != nil {
			s.t.Fatal(err)
		}
	}
	s.stocked("kettle", 1000)
	s.stocked("filter", 1000)
	for n := range 60 {
		d := draft(fmt.Sprintf("A-%d", 1000+n))
		if n%3 == 1 {
			d.Window = 200 * time.Millisecond
		}
		_, err := s.Place(ctx, d)
		must(err)
		switch n % 6 {
		case 0:
			_, err = s.Pay(ctx, d.ID, order.Payment{Reference: fmt.Sprintf("pay-%d", 7000+n)})
		case 2:
			_, err = s.Extend(ctx, d.ID, time.Now().Add(26*time.Hour), order.By{Who: "kim", Why: "the bank is slow today"})
		case 3:
			if n > 30 {
				_, err = s.Cancel(ctx, d.ID, order.By{Who: "customer", Why: "ordered twice"})
			}
		}
		must(err)
	}
	errs := []struct {
		kind, reason, text string
		every              int
	}{
		{"order.payment_timeout", "out-of-tries", "order %s: not found; was its transaction rolled back?", 2},
		{"order.payment_timeout", "hopeless", "the timer of order %s has no deadline: give one in RFC 3339, UTC", 5},
		{"mail", "out-of-tries", "dial tcp 10.1.4.17:25: connect: connection refused, for %s", 3},
		{"order.pickup_reminder", "unroutable", "", 7},
	}
	groups := make(map[string]bool)
	for id := int64(1); id <= 84; id++ {
		e := errs[id%4]
		for _, one := range errs {
			if id%int64(one.every) == 0 {
				e = one
				break
			}
		}
		about := fmt.Sprintf("A-%d", 990+id%70)
		if id == 11 {
			about = "" // nobody can tell
		}
		text := e.text
		if text != "" {
			text = fmt.Sprintf(text, about)
		}
		fingerprint, pattern := deadletter.Fingerprint(e.kind, deadletter.Reason(e.reason), text)
		if !groups[fingerprint] {
			groups[fingerprint] = true
			must(s.db.Exec("INSERT INTO lapse_dead_letter_groups VALUES (?, ?, ?, ?)", fingerprint, e.kind, e.reason, pattern).Error)
		}
		body, err := json.Marshal(map[string]any{"order_id": about, "deadline": "2026-01-31T12:00:00Z", "cart": 9007199254740993})
		must(err)
		died := time.Now().UTC().Add(-time.Duration(id*id) * 37 * time.Second).Format("2006-01-02 15:04:05.000")
		columns := map[string]any{
			"kind": []byte(e.kind), "subject": []byte(about), "message_id": fmt.Appendf(nil, "0198c7a2-5b1e-7cc3-9d4e-%012d", id), "reason": e.reason,
			"error": text, "first_error": text, "fingerprint": fingerprint, "body": body, "died_at": died, "collected_at": died, "first_error_at": died,
			"headers": fmt.Appendf(nil, `{"lapse-attempt":8,"lapse-reason":%q,"tenant":"eu-1"}`, e.reason),
		}
		if e.kind != "order.payment_timeout" {
			columns["exchange"], columns["routing_key"] = []byte(""), []byte(s.shop.Topology().Parked())
		}
		s.letter(id, columns)
	}
	by := deadletter.By{Who: "kim", Why: "the mail server is back"}
	r, err := s.StartReplay(ctx, deadletter.Request{Selection: deadletter.Selection{Filter: &deadletter.Filter{Kind: "mail"}}, By: by})
	must(err)
	_, err = s.StartReplay(ctx, deadletter.Request{Selection: deadletter.Selection{IDs: []int64{1, 2, 4}}, By: deadletter.By{Who: "kim", Why: "to look at them"},
		To: &deadletter.Route{RoutingKey: "no-such-queue"}})
	must(err)
	_, err = s.Discard(ctx, deadletter.Selection{IDs: []int64{5, 10}}, deadletter.By{Who: "kim", Why: "test data of last week"})
	must(err)
	await(s.t, 20*time.Second, "the replay ends", func() bool {
		now, err := s.Replay(ctx, r.ID)
		must(err)
		return now.State.Ended()
	})
	return r.ID
}
