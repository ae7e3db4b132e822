package web_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/lapse-go/lapse/order"
)

func TestPauseAndSweep(t *testing.T) {
	ctx, s := t.Context(), start(t, nil)
	if p, err := s.Paused(ctx); err != nil || p.Paused {
		t.Fatal(p, err)
	}
	if err := s.Pause(ctx, order.By{Why: "the bank is away"}); err != nil {
		t.Fatal(err)
	}
	p, err := s.Paused(ctx)
	if err != nil || !p.Paused || p.By != (order.By{Who: "local", Why: "the bank is away"}) || time.Since(p.Since).Abs() > time.Hour {
		t.Errorf("%+v, %v", p, err)
	}
	sum, err := s.Sweep(ctx)
	wantProblem(t, err, "paused", http.StatusConflict, order.ErrPaused)
	if !sum.Paused {
		t.Errorf("%+v", sum)
	}
	if err := s.Resume(ctx, order.By{}); err != nil {
		t.Fatal(err)
	}
	if sum, err := s.Sweep(ctx); err != nil || sum != (order.Summary{}) {
		t.Errorf("%+v, %v", sum, err)
	}
	if p, err := s.Paused(ctx); err != nil || p.Paused {
		t.Errorf("%+v, %v", p, err)
	}
}
