package deadletter

import (
	"errors"
	"strings"
	"testing"
	"time"
)

// Each error says what to do.
func TestInvalidFilters(t *testing.T) {
	now := time.Now()
	for says, f := range map[string]Filter{
		"give open, replayed, settled or discarded": {State: "closed"},
		"give hopeless, out-of-tries,":              {Reason: "HOPELESS"},
		"give the 16 hexadecimal digits":            {Group: "0123456789ABCDEF"},
		"give one that begins before it ends":       {From: now, To: now},
		"say from when on":                          {Text: "x", To: now},
		"give at most 200":                          {Text: strings.Repeat("é", 101), From: now},
		"give one that a database knows":            {From: time.Date(10_000, 1, 1, 0, 0, 0, 0, time.UTC)},
	} {
		for _, err := range []error{f.Validate(), Selection{Filter: &f}.Validate()} {
			if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), says) {
				t.Errorf("%+v: %v, and not: %s", f, err, says)
			}
		}
	}
	for _, f := range []Filter{
		{}, {State: Discarded, Reason: Unknown, Group: "0123456789abcdef", Kind: "\xff", Text: strings.Repeat("é", 100), From: now, To: now.Add(1)},
		{From: time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC)}, // none
	} {
		if err := f.Validate(); err != nil {
			t.Errorf("%+v: %v", f, err)
		}
	}
}

func TestInvalidSelections(t *testing.T) {
	open := &Filter{State: Open}
	for says, all := range map[string][]Selection{
		"give ids, a filter, or all":      {{}, {IDs: []int64{}}},
		"give only one of":                {{IDs: []int64{1}, All: true}, {IDs: []int64{1}, Filter: open}, {Filter: open, All: true}},
		"give at most 10000":              {{IDs: make([]int64, maxIDs+1)}},
		"say all if all letters":          {{Filter: &Filter{}}},
		"ids of letters begin with 1":     {{IDs: []int64{7, 0}}, {IDs: []int64{-1}}},
		"give open, replayed, settled or": {{Filter: &Filter{State: "x"}}},
	} {
		for _, s := range all {
			if err := s.Validate(); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), says) {
				t.Errorf("%+v: %v, and not: %s", s, err, says)
			}
		}
	}
	for _, s := range []Selection{{All: true}, {IDs: []int64{1}}, {Filter: open}} {
		if err := s.Validate(); err != nil {
			t.Errorf("%+v: %v", s, err)
		}
	}
}
