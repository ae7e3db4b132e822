package orderdb_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lapse-go/lapse/order"
)

// deadlines are those of all orders.
func (s *shop) deadlines() map[string]time.Time {
	s.t.Helper()
	var rows []struct {
		ID       string
		Deadline time.Time
	}
	if err := s.db.Raw("SELECT id, deadline FROM lapse_orders").Scan(&rows).Error; err != nil {
		s.t.Fatal(err)
	}
	deadlines := make(map[string]time.Time, len(rows))
	for _, r := range rows {
		deadlines[r.ID] = r.Deadline
	}
	return deadlines
}

func (s *shop) placeMany(ids []string, tags ...string) {
	s.t.Helper()
	drafts := make([]order.Draft, len(ids))
	for i, id := range ids {
		drafts[i] = draft(id, "shoe")
		drafts[i].Tags = tags
	}
	placed, err := s.PlaceAll(s.t.Context(), drafts)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, p := range placed {
		if p.Err != nil {
			s.t.Fatal(p.Err)
		}
	}
}

func TestExtendAll(t *testing.T) {
	s := newShop(t)
	s.setStock(10_000, "shoe")
	s.placeMany([]string{"a", "b", "paid"}, "vip", "web")
	s.placeMany([]string{"c", "d"}, "web")
	s.placeMany([]string{"e"})
	if err := s.pay(t.Context(), "paid"); err != nil {
		t.Fatal(err)
	}
	by := order.By{Who: "ann", Why: "the payment provider is down"}
	want := s.deadlines()
	for _, test := range []struct {
		key, tag string
		more     time.Duration
		ids      []string
	}{
		{"k-1", "vip", time.Minute, []string{"a", "b"}},
		{"k-2", "", time.Hour, []string{"a", "b", "c", "d", "e"}},
		{"k-3", "none", time.Hour, nil},
		{"k-4", "web", time.Second, []string{"a", "b", "c", "d"}},
	} {
		r := order.ExtendRequest{Key: test.key, Tag: test.tag, More: test.more, By: by}
		first, err := s.ExtendAll(t.Context(), r)
		if err != nil || !first.Done || first.Extended != int64(len(test.ids)) || first.Key != test.key || first.StartedAt.IsZero() {
			t.Errorf("%s: %+v, %v", test.key, first, err)
		}
		// What is placed later, and asking again, changes nothing.
		s.placeMany([]string{"later-" + test.key}, "vip", "web")
		want["later-"+test.key] = s.deadlines()["later-"+test.key]
		again, err := s.ExtendAll(t.Context(), r)
		if diff := cmp.Diff(first, again); err != nil || diff != "" {
			t.Errorf("%s again: %v (-first +again):\n%s", test.key, err, diff)
		}
		if _, err := s.Cancel(t.Context(), "later-"+test.key, order.By{}); err != nil {
			t.Fatal(err)
		}
		for _, id := range test.ids {
			want[id] = want[id].Add(test.more)
		}
		if diff := cmp.Diff(want, s.deadlines()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.key, diff)
		}
		r.More++
		r.More *= 2
		if _, err := s.ExtendAll(t.Context(), r); !errors.Is(err, order.ErrConflict) {
			t.Errorf("the key %s for another request: %v", test.key, err)
		}
	}
	s.wantEvents("a", "order.placed", "order.extended", "order.extended", "order.extended")
	if e := s.lastEvent("a"); e.By != by || len(e.Order.Tags) != 2 || !e.Order.Deadline.Equal(want["a"]) || e.Order.Version != 4 {
		t.Errorf("%+v", e)
	}
	s.wantTimers("a", 1)
	for _, wrong := range []order.ExtendRequest{{More: time.Hour}, {Key: "k"}, {Key: "k", More: -1}, {Key: "k", More: time.Hour, Tag: "two words"}} {
		if _, err := s.ExtendAll(t.Context(), wrong); !errors.Is(err, order.ErrInvalid) {
			t.Errorf("%+v: %v", wrong, err)
		}
	}
}

// A request that is interrupted again and again, and made by several callers at once while orders are
// being placed and paid, gives each order that was there at its start its time once.
func TestExtendAllIsDoneOnce(t *testing.T) {
	t.Run("all orders", func(t *testing.T) { extendOnce(t, "") })
	t.Run("those with a tag", func(t *testing.T) { extendOnce(t, "vip") })
}

func extendOnce(t *testing.T, tag string) {
	s := newShop(t)
	s.setStock(10_000, "shoe")
	ids := names("o-", 1500)
	s.placeMany(ids, "vip")
	before := s.deadlines()
	r := order.ExtendRequest{Key: "k-1", More: 20 * time.Minute, Tag: tag}
	if _, err := s.store.ExtendSome(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for range 3 {
		all.Go(func() {
			for {
				// Cut off in the middle of whatever it is doing.
				ctx, cancel := context.WithTimeout(t.Context(), 15*time.Millisecond)
				progress, err := s.ExtendAll(ctx, r)
				cancel()
				if err == nil {
					if !progress.Done {
						t.Errorf("it ended with %+v", progress)
					}
					return
				}
				if !errors.Is(err, context.DeadlineExceeded) {
					t.Error(err)
					return
				}
				if _, err := s.store.ExtendSome(t.Context(), r); err != nil { // so that it comes to an end
					t.Error(err)
				}
			}
		})
	}
	all.Go(func() { s.placeMany(names("p-", 300), "vip") })
	all.Go(func() {
		for _, id := range ids[1400:] {
			if err := s.pay(t.Context(), id); err != nil {
				t.Error(err)
			}
		}
	})
	all.Wait()
	progress, err := s.ExtendAll(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	after := s.deadlines()
	extended := int64(0)
	for id := range after {
		old, there := before[id]
		switch moved := after[id].Sub(old); {
		case !there:
			if got := s.events(id); len(got) != 1 {
				t.Errorf("%s was placed after the start of the request, and has %v", id, got)
			}
		case moved == r.More:
			extended++
		case moved == 0 && id >= ids[1400]: // paid before its turn came
		default:
			t.Errorf("the deadline of %s moved by %s", id, moved)
		}
	}
	if progress.Extended != extended || extended < 1400 {
		t.Errorf("it says that it extended %d; %d deadlines moved", progress.Extended, extended)
	}
}
