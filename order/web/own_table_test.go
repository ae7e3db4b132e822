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

// Where the shop keeps its orders itself, there is what is left: pause, resume, sweep, and what the documents say.
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
	want := strings.Fields("/asyncapi.json /healthz /readyz /schemas/event.json /schemas/order.payment_timeout.json /schemas/order.place.json /v1/pause /v1/resume /v1/sweep")
	if !slices.Equal(paths, want) {
		t.Errorf("the document has %v", paths)
	}

	for _, incomplete := range []web.Config{{}, {Sweep: s.shop.Sweeper().Once, Check: s.shop.Check}, {Orders: s.shop.Service, Sweep: s.shop.Sweeper().Once, Check: s.shop.Check}} {
		if _, err := web.New(incomplete); err == nil {
			t.Errorf("an API of %+v", incomplete)
		}
	}
}
