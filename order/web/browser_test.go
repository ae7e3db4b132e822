package web_test

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/lapse-go/lapse/order"
	"github.com/lapse-go/lapse/order/checkout"
	"github.com/lapse-go/lapse/order/web"
)

// window is one of the system's Chromium, for a test.
type window struct {
	context.Context
	t   testing.TB
	url string

	mu       sync.Mutex
	problems []string // what the browser complained of: scripts that failed, what the policy forbade
}

type step = chromedp.Action[chromedp.Void]

// open opens a window of that width and height in CSS pixels, for as long as the test runs.
func open(t testing.TB, at string, width, height int) *window {
	t.Helper()
	ctx, cancel := chromedp.NewExecAllocator(context.WithoutCancel(t.Context()), append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.NoSandbox, // root, as in a container, cannot have one; all that is opened is our own
		chromedp.DisableGPU, chromedp.WindowSize(width, height))...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	w := &window{Context: ctx, t: t, url: at}
	if err := chromedp.Do(ctx, chromedp.EmulateViewport(int64(width), int64(height))); err != nil {
		t.Fatalf("%v; is there no Chromium? `deploy/dev/up --tests` installs it on Debian, as root", err)
	}
	var listening sync.WaitGroup
	listening.Go(func() {
		for m, err := range chromedp.Console(ctx) {
			if err != nil {
				return
			}
			w.mu.Lock()
			w.problems = append(w.problems, m.Text)
			w.mu.Unlock()
		}
	})
	t.Cleanup(func() {
		if err := chromedp.Cancel(ctx); err != nil {
			t.Log(err)
		}
		cancel()
		listening.Wait()
	})
	return w
}

// do does things in the window, one after the other, within 20 seconds.
func (w *window) do(what string, steps ...step) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w, 20*time.Second)
	defer cancel()
	if err := chromedp.Do(ctx, steps...); err != nil {
		at, _ := chromedp.Run(w, chromedp.Location())
		page, _ := chromedp.Run(w, chromedp.Text(chromedp.CSS("body")))
		w.t.Fatalf("%s: %v, at %s:\n%.3000s", what, err, at, page)
	}
}

// ask returns what the window answers.
func ask[T any](w *window, what string, question chromedp.Action[T]) T {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w, 20*time.Second)
	defer cancel()
	answer, err := chromedp.Run(ctx, question)
	if err != nil {
		w.t.Fatalf("%s: %v", what, err)
	}
	return answer
}

// visit goes to a place on the page.
func (w *window) visit(path string) step { return chromedp.Navigate(w.url + path) }

// text is what an element says.
func (w *window) text(selector string) string {
	w.t.Helper()
	return ask(w, "reading "+selector, chromedp.Text(chromedp.CSS(selector)))
}

func seen(selector string) step         { return chromedp.WaitVisible(chromedp.CSS(selector)) }
func fill(selector, text string) step   { return chromedp.SetValue(chromedp.CSS(selector), text) }
func typeIn(selector, text string) step { return chromedp.SendKeys(chromedp.CSS(selector), text) }
func tick(selector string) step         { return chromedp.Click(chromedp.CSS(selector)) }

// says waits until an element says so, also on the next page.
func says(selector, part string) step {
	return becomes(fmt.Sprintf("(document.querySelector(%q)?.innerText ?? '').includes(%q)", selector, part))
}

// becomes waits until an expression is true, also on the next page.
func becomes(expression string) step {
	return func(ctx context.Context, target *chromedp.Target) (none chromedp.Void, err error) {
		for {
			// It fails while one page goes and the other comes.
			if is, err := chromedp.Evaluate[bool](expression)(ctx, target); err == nil && is {
				return none, nil
			}
			select {
			case <-ctx.Done():
				return none, fmt.Errorf("%w, before %s", ctx.Err(), expression)
			case <-time.After(50 * time.Millisecond):
			}
		}
	}
}

// press presses a button or a link, and waits for the page to which it leads.
func press(selector string) step {
	return chromedp.Func(func(ctx context.Context, _ *chromedp.Target) error {
		_, err := chromedp.RunResponse(ctx, chromedp.Click(chromedp.CSS(selector)))
		return err
	})
}

// quiet fails if the browser complained of anything, but for what was expected.
func (w *window) quiet(expected ...string) {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, problem := range w.problems {
		known := false
		for _, part := range expected {
			known = known || strings.Contains(problem, part)
		}
		if !known {
			w.t.Errorf("the browser says: %s", problem)
		}
	}
}

func (w *window) signIn(token string) {
	w.t.Helper()
	w.do("signing in", w.visit("/"), typeIn("#sign-in input[name=token]", token), press("#sign-in button"),
		seen("#overview"))
}

// What an operator does with dead letters, from signing in to reading the audit.
func TestThePageInABrowser(t *testing.T) {
	tokens := map[web.Role]string{}
	s := start(t, nil, withTokens(t, tokens))
	s.Client = s.client(tokens[web.Operator])
	s.stocked("kettle", 1000)
	s.stocked("filter", 1000)
	s.serveShop(checkout.Relay, checkout.Timer, checkout.Desk, checkout.API)

	lately := func(id int64, columns map[string]any) {
		columns["died_at"] = time.Now().UTC().Add(time.Duration(id)*time.Second - time.Hour).Format("2006-01-02 15:04:05")
		s.letter(id, columns)
	}
	const markup = `<b>A&1</b>`
	const trouble = `<script>alert("x")</script> <img src=x onerror=alert(1)> & "quotes"`
	s.placed(markup)
	lately(1, map[string]any{"subject": []byte(markup), "message_id": []byte("M-" + markup), "error": trouble, "reason": "hopeless",
		"body": fmt.Appendf(nil, `{"order_id":%q,"deadline":"2030-01-01T00:00:00Z","big":9007199254740993}`, markup)})
	s.placed("paid-1")
	lately(2, map[string]any{"subject": []byte("paid-1"), "body": []byte(`{"order_id":"paid-1","deadline":"2030-01-01T00:00:00Z"}`)})
	for id := int64(3); id < 43; id++ {
		lately(id, map[string]any{"kind": []byte("mail"), "exchange": []byte(""), "routing_key": []byte(s.shop.Topology().Parked())})
	}
	err := s.db.Exec("INSERT INTO lapse_dead_letter_groups VALUES ('0123456789abcdef', 'order.payment_timeout', 'out-of-tries', 'no row')").Error
	if err != nil {
		t.Fatal(err)
	}
	w := open(t, s.url, 1280, 900)

	w.do("signing in with a wrong token", w.visit("/letters"), typeIn("#sign-in input[name=token]", "lapse_WRONG"),
		press("#sign-in button"), seen("#problem"))
	w.signIn(tokens[web.Operator])

	w.do("filtering", w.visit("/letters"), seen("#groups"),
		fill("#filter select[name=reason]", "hopeless"), press("#filter button"))
	at := ask(w, "reading the address", chromedp.Location())
	if address, err := url.Parse(at); err != nil || address.Query().Get("reason") != "hopeless" {
		t.Errorf("the filter is not in the address: %s, %v", at, err)
	}
	if text := w.text("#letters"); !strings.Contains(text, markup) || strings.Contains(text, "paid-1") {
		t.Errorf("filtered, the list is %s", text)
	}
	w.do("opening the letter", press(`#letters tr[data-id="1"] a`), seen("#letter"))
	if got := w.text("#letter-error"); got != trouble {
		t.Errorf("the error is shown as %q, want %q", got, trouble)
	}
	if body := w.text("#letter-body"); !strings.Contains(body, `"big": 9007199254740993`) || !strings.Contains(body, markup) {
		t.Errorf("the body is shown as %s", body)
	}
	if text := w.text("#letter-order"); !strings.Contains(text, "pending") {
		t.Errorf("the order is shown as %s", text)
	}
	injected := ask(w, "looking for markup from outside", chromedp.Evaluate[int](`document.querySelectorAll("#letter b, #letter img, main script").length`))
	if injected != 0 {
		t.Errorf("%d elements come from what the letter says", injected)
	}

	if _, err := s.Pay(t.Context(), "paid-1", order.Payment{Reference: "p-1"}); err != nil {
		t.Fatal(err)
	}
	w.do("a dry run of two", w.visit("/letters?kind=order.payment_timeout"), tick(`#letters input[name=id][value="1"]`),
		tick(`#letters input[name=id][value="2"]`), press("#replay"), seen("#dry-run"))
	if said := w.text("#dry-run"); !strings.Contains(said, "1 already paid") && !strings.Contains(said, "1 not due yet") {
		t.Errorf("the dry run says %s", said)
	}
	w.do("starting it", fill("#replay-confirm input[name=why]", "the bug is mended"), press("#replay-confirm button"),
		says("#replay-state", "done"))
	if text := w.text("#replay-progress"); !strings.Contains(text, "2 of 2") {
		t.Errorf("it ended as %s", text)
	}
	w.do("a long one", w.visit("/letters?kind=mail"), tick("#letters input[name=scope][value=filter]"), press("#replay"),
		fill("#replay-confirm input[name=why]", "slowly"), fill("#replay-confirm input[name=rate]", "5"), press("#replay-confirm button"),
		// The page does not load again for that.
		says("#replay-progress", "of 40"), becomes("document.querySelector('#replay-progress progress')?.value > 0"))
	before := ask(w, "watching", chromedp.JavascriptAttribute[float64](chromedp.CSS("#replay-progress progress"), "value"))
	w.do("watching", becomes(fmt.Sprintf("document.querySelector('#replay-progress progress').value > %f", before)))
	w.do("cancelling", fill("#replay-cancel input[name=why]", "enough"), press("#replay-cancel button"), says("#replay-state", "cancelled"))
	if text := w.text("#replay-progress"); !strings.Contains(text, "left undone") {
		t.Errorf("cancelled, it is %s", text)
	}

	deadline := time.Now().UTC().Add(72 * time.Hour).Truncate(time.Second)
	w.do("extending an order", w.visit("/orders"), typeIn("#order-find input[name=id]", markup), press("#order-find button"),
		seen("#order"), fill("#order-extend input[name=deadline]", deadline.Format("2006-01-02T15:04:05")),
		fill("#order-extend input[name=why]", "asked for more time"), press("#order-extend button"), says("#order-timeline", "asked for more time"))
	if o, err := s.Get(t.Context(), markup); err != nil || !o.Deadline.Equal(deadline) {
		t.Errorf("the deadline is %s, %v, want %s", o.Deadline, err, deadline)
	}

	w.do("reading the audit", w.visit("/audit"), seen("#audit"))
	audit := w.text("#audit")
	for _, part := range []string{"operator-1", "replay", "the bug is mended", "replay.cancel", "enough", "order.extend", "asked for more time", markup} {
		if !strings.Contains(audit, part) {
			t.Errorf("the audit does not say %s: %s", part, audit)
		}
	}
	w.do("signing out", press("#sign-out button"), w.visit("/letters"), seen("#sign-in"))
	w.quiet("401", "Password forms should have") // a token has no name that it could be kept with
}
