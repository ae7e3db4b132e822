package web_test

import (
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/lapse-go/lapse/order"
	"github.com/lapse-go/lapse/order/web"
)

// Where the shop keeps its orders itself, there is what is left: pause, resume, sweep, the desk, and what the documents say.
func TestWithoutOrders(t *testing.T) {
	s := start(t, nil, func(cfg *web.Config) {
		cfg.Switch, cfg.Orders, cfg.Submit = order.Switch{PauseSwitch: cfg.Orders.Repository}, nil, nil
	})
	if err := s.Pause(t.Context(), order.By{Why: "stocktaking"}); err != nil {
		t.Error(err)
	}
	if p, err := s.Paused(t.Context()); err != nil || !p.Paused || p.By.Why != "stocktaking" {
		t.Errorf("paused: %+v, %v", p, err)
	}
	if _, err := s.Sweep(t.Context()); !errors.Is(err, order.ErrPaused) {
		t.Errorf("sweeping during a pause: %v", err)
	}
	if err := s.Resume(t.Context(), order.By{}); err != nil {
		t.Error(err)
	}
	if sum, err := s.Sweep(t.Context()); err != nil || sum.Found != 0 {
		t.Errorf("swept %+v, %v", sum, err)
	}
	if _, err := s.Get(t.Context(), "A-1"); err == nil || !strings.Contains(err.Error(), "the shop's own table") {
		t.Errorf("asking for an order says %v", err)
	}
	var document struct{ Paths map[string]any }
	if err := json.Unmarshal(s.document(), &document); err != nil {
		t.Fatal(err)
	}
	paths := slices.Sorted(maps.Keys(document.Paths))
	want := strings.Fields("/asyncapi.json /healthz /readyz /schemas/event.json /schemas/order.payment_timeout.json /schemas/order.place.json " +
		"/v1/audit /v1/dead-letters /v1/dead-letters/discard /v1/dead-letters/export /v1/dead-letters/groups /v1/dead-letters/restore /v1/dead-letters/{id} " +
		"/v1/overview /v1/pause /v1/replays /v1/replays/{id} /v1/replays/{id}/cancel /v1/replays/{id}/results /v1/resume /v1/sweep")
	if !slices.Equal(paths, want) {
		t.Errorf("the document has %v", paths)
	}

	for _, incomplete := range []web.Config{{}, {Sweep: s.shop.Sweeper().Once, Check: s.shop.Check}, {Orders: s.shop.Service, Sweep: s.shop.Sweeper().Once, Check: s.shop.Check}} {
		if _, err := web.New(incomplete); err == nil {
			t.Errorf("an API of %+v", incomplete)
		}
	}
}

// Without a desk nothing of it is served.
func TestWithoutADesk(t *testing.T) {
	s := start(t, nil, func(cfg *web.Config) { cfg.Desk = nil })
	for _, op := range s.server.Operations() {
		if strings.Contains(op.Path, "dead-letters") || strings.Contains(op.Path, "replays") || strings.Contains(op.Path, "audit") {
			t.Errorf("there is %s", op.ID)
		}
	}
	if status, _, p := s.send("GET", "/v1/dead-letters", ""); status != 404 || p.Type != "urn:lapse:problem:no-such-path" {
		t.Errorf("%d %v", status, &p)
	}
}
