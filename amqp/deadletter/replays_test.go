package deadletter

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// Looking for replays costs next to nothing, and reading a replay's letters nothing for those of others.
func TestReplaysGoByIndexes(t *testing.T) {
	d := desk(t, nil)
	put(t, d, 20_000, Route{"", "x"})
	r := begin(t, d, Request{Selection: Selection{Filter: &Filter{Kind: "kind-3"}}})
	run(t, d.cfg.DB, "ANALYZE TABLE lapse_dead_letters, lapse_replays")
	asked := recordQueries(d)
	runner, err := d.lease(t.Context())
	if err != nil || runner == nil {
		t.Fatal(err)
	}
	letters, err := runner.next(t.Context(), 10_000, 100)
	if err != nil || len(letters) != 100 || letters[0].ID <= 10_000 {
		t.Errorf("%d letters, %v", len(letters), err)
	}
	if _, err := d.DryRun(t.Context(), Selection{Filter: &Filter{Kind: "kind-2"}}, false); err != nil {
		t.Error(err)
	}
	if _, err := d.DryRun(t.Context(), Selection{Filter: &Filter{Kind: "kind-3"}}, false); !errors.As(err, new(*BusyError)) {
		t.Errorf("a dry run of letters that are being replayed: %v", err)
	}
	if _, _, err := d.Results(t.Context(), r.ID, "failed", Page{}); err != nil {
		t.Error(err)
	}
	asked.check(t, time.Second)
}

func TestReplaysAreListed(t *testing.T) {
	d := desk(t, nil)
	put(t, d, 5, Route{"", "x"})
	var want []string
	for id := range int64(5) {
		want = append(want, begin(t, d, Request{Selection: Selection{IDs: []int64{id + 1}}, Rate: 7, To: &Route{"there", "key"}}).ID)
	}
	for _, oldest := range []bool{true, false} {
		var got []string
		for page := (Page{Limit: 2, Oldest: oldest}); ; {
			replays, next, err := d.Replays(t.Context(), page)
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range replays {
				got = append(got, r.ID)
				if r.Rate != 7 || r.Total != 1 || *r.To != (Route{"there", "key"}) || len(r.Selection.IDs) != 1 || r.CreatedAt.IsZero() || !r.StartedAt.IsZero() || r.Owner != "" {
					t.Errorf("%+v", r)
				}
			}
			if page.After = next; next == "" {
				break
			}
		}
		if !oldest {
			slices.Reverse(got)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	}
	_, letters, err := d.List(t.Context(), Filter{}, Page{Limit: 1})
	if err != nil {
		t.Fatal(err)
	}
	for _, after := range []string{"x", letters, cursor("replays", "1"), cursor("results", "x")} {
		if _, _, err := d.Replays(t.Context(), Page{After: after}); !errors.Is(err, ErrInvalid) {
			t.Errorf("replays after %q: %v", after, err)
		}
		if _, _, err := d.Results(t.Context(), want[0], "", Page{After: after}); !errors.Is(err, ErrInvalid) {
			t.Errorf("results after %q: %v", after, err)
		}
	}
	if _, _, err := d.Results(t.Context(), want[0], "lost", Page{}); !errors.Is(err, ErrInvalid) {
		t.Error(err)
	}
	if _, _, err := d.Results(t.Context(), "01890000-0000-7000-8000-000000000000", "", Page{}); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
}
