package order_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lapse-go/lapse/order"
)

// overdueOnce is a store that fails once, and has one overdue order from then on until it is expired.
type overdueOnce struct {
	order.Store
	asked   []time.Time
	expired []string
}

func (s *overdueOnce) Paused(context.Context) (bool, error) { return false, nil }

func (s *overdueOnce) Overdue(context.Context, time.Duration, order.Cursor, int) ([]order.Overdue, error) {
	s.asked = append(s.asked, time.Now())
	time.Sleep(time.Second)
	switch {
	case len(s.asked) == 1:
		return nil, order.ErrUnavailable
	case len(s.expired) > 0:
		return nil, nil
	}
	return []order.Overdue{{ID: "o-1"}}, nil
}

func (s *overdueOnce) Expire(_ context.Context, ids []string) (order.Expiries, error) {
	s.expired = append(s.expired, ids...)
	now := time.Now()
	return order.Expiries{Now: now, Orders: []order.Expiry{{ID: ids[0], Outcome: order.OutcomeExpired, Deadline: now.Add(-45 * time.Second)}}}, nil
}

func TestSweepGoesOnAfterAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		var store overdueOnce
		var told []string
		sweep := order.Sweep{
			Store: &store, Logger: slog.New(slog.NewTextHandler(&log, nil)),
			OnExpired: func(e order.Expiry, now time.Time) { told = append(told, fmt.Sprint(e.ID, " ", now.Sub(e.Deadline))) },
			OnRound: func(took time.Duration, sum order.Summary, err error) {
				told = append(told, fmt.Sprint(took, sum.Expired, err))
			},
		}
		ctx, stop := context.WithTimeout(t.Context(), 150*time.Second)
		defer stop()
		begin := time.Now()
		if err := sweep.Run(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("it ended with %v", err)
		}
		if len(store.asked) != 3 || store.asked[2].Sub(begin) != 2*time.Minute || len(store.expired) != 1 {
			t.Errorf("asked at %v, expired %v", store.asked, store.expired)
		}
		want := []string{"1s 0 database unavailable", "o-1 45s", "1s 1 <nil>", "1s 0 <nil>"}
		if !slices.Equal(told, want) {
			t.Errorf("it told of the rounds %q, want %q", told, want)
		}
		if got := log.String(); strings.Count(got, "\n") != 2 || !strings.Contains(got, "database unavailable") {
			t.Errorf("the log says:\n%s", got)
		}
	})
}
