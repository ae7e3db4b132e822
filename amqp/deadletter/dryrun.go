package deadletter

import (
	"context"
	"fmt"
	"math"
	"sort"
)

// Forecast is what a replay would come to, if it was started now.
type Forecast struct {
	Total   int64            // letters
	Settled int64            // that would not be published
	Answers map[string]int64 // how many letters, by the guard's answer
	// SettledBy is how many of each answer would not be published; nil if none of any.
	SettledBy map[string]int64
	// IDs are the letters by answer, if asked for: at most 10,000 of each.
	IDs map[string][]int64
}

// DryRun says what a replay would come to, and changes nothing. It fails with a [*BusyError] where [Desk.Start] would.
func (d *Desk) DryRun(ctx context.Context, s Selection, withIDs bool) (Forecast, error) {
	if err := s.Validate(); err != nil {
		return Forecast{}, err
	}
	f, err := d.forecast(ctx, s, withIDs)
	if err != nil {
		return Forecast{}, fmt.Errorf("dry run: %w", err)
	}
	return f, nil
}

func (d *Desk) forecast(ctx context.Context, s Selection, withIDs bool) (Forecast, error) {
	db := d.cfg.DB.WithContext(ctx)
	if err := idle(db, s); err != nil {
		return Forecast{}, err
	}
	f := Forecast{Answers: make(map[string]int64)}
	if withIDs {
		f.IDs = make(map[string][]int64)
	}
	if err := s.exist(db); err != nil {
		return f, err
	}
	ids, err := find(db, s, math.MaxInt64, Open)
	for err == nil && len(ids) > 0 {
		part := ids[:min(len(ids), maxBatch)]
		var letters []parcel
		if letters, err = batch(db, maxBatch, condition{"id IN ?", []any{part}}); err != nil {
			break
		}
		var verdicts []Verdict
		verdicts, err = d.ask(ctx, letters)
		for i, v := range verdicts {
			f.add(letters[i].ID, v)
		}
		last := part[len(part)-1]
		if len(letters) > 0 { // or else they have all been deleted
			last = letters[len(letters)-1].ID
		}
		ids = ids[sort.Search(len(ids), func(i int) bool { return ids[i] > last }):]
	}
	return f, err
}

func (f *Forecast) add(id int64, v Verdict) {
	f.Total++
	f.Answers[v.Answer]++
	if v.Settled {
		f.Settled++
		if f.SettledBy == nil {
			f.SettledBy = make(map[string]int64)
		}
		f.SettledBy[v.Answer]++
	}
	if f.IDs != nil && len(f.IDs[v.Answer]) < maxIDs {
		f.IDs[v.Answer] = append(f.IDs[v.Answer], id)
	}
}
