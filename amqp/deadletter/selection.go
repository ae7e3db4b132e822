package deadletter

import (
	"context"
	"fmt"
	"strings"
	"time"

	"gorm.io/gorm"
)

// Selection is the letters with which something is to be done: exactly one of the three is given, so that a filter
// that got lost on the way is an error, and not everything.
type Selection struct {
	IDs    []int64 `json:"ids,omitempty"`    // at most 10,000
	Filter *Filter `json:"filter,omitempty"` // has a condition
	All    bool    `json:"all,omitempty"`
}

const maxIDs = 10_000

// Validate says what is wrong with the selection, as an error that wraps [ErrInvalid], or nil.
func (s Selection) Validate() error {
	given := 0
	for _, is := range []bool{len(s.IDs) > 0, s.Filter != nil, s.All} {
		if is {
			given++
		}
	}
	switch {
	case given == 0:
		return fmt.Errorf("%w: no letters are selected: give ids, a filter, or all", ErrInvalid)
	case given > 1:
		return fmt.Errorf("%w: give only one of ids, a filter, or all", ErrInvalid)
	case len(s.IDs) > maxIDs:
		return fmt.Errorf("%w: %d ids: give at most %d, or a filter", ErrInvalid, len(s.IDs), maxIDs)
	case s.Filter != nil && *s.Filter == Filter{}:
		return fmt.Errorf("%w: a filter without a condition: give one, or say all if all letters are meant", ErrInvalid)
	}
	for _, id := range s.IDs {
		if id < 1 {
			return fmt.Errorf("%w: id %d: ids of letters begin with 1", ErrInvalid, id)
		}
	}
	if s.Filter != nil {
		return s.Filter.Validate()
	}
	return nil
}

// Freeze ends the time of a filter, or of all, with the last letter that matches, so that what dies while somebody makes up
// his mind about the selection is not in it.
func (d *Desk) Freeze(ctx context.Context, s Selection) (Selection, error) {
	var f Filter
	if s.Filter != nil {
		f = *s.Filter
	}
	if len(s.IDs) > 0 || !f.To.IsZero() {
		return s, nil
	}
	last, _, err := d.List(ctx, f, Page{Limit: 1})
	if err != nil || len(last) == 0 {
		return s, err
	}
	f.To = last[0].DiedAt.Add(time.Microsecond)
	return Selection{Filter: &f}, nil
}

// conditions are the selection in SQL, about the table of letters.
func (s Selection) conditions() (all []condition) {
	switch {
	case len(s.IDs) > 0:
		return []condition{{"id IN ?", []any{s.IDs}}}
	case s.Filter != nil:
		all = s.Filter.conditions()
		if s.Filter.State != "" {
			all = append(all, condition{"state = ?", []any{s.Filter.State}})
		}
	}
	return all
}

// exist fails with an [ErrNotFound] that names those of the selection's ids that no letter has.
func (s Selection) exist(tx *gorm.DB) error {
	if len(s.IDs) == 0 {
		return nil
	}
	var there []int64
	if err := tx.Raw("SELECT id FROM lapse_dead_letters WHERE id IN ?", s.IDs).Scan(&there).Error; err != nil {
		return err
	}
	known := make(map[int64]bool, len(there))
	for _, id := range there {
		known[id] = true
	}
	var missing []string
	for _, id := range s.IDs {
		if !known[id] {
			missing = append(missing, fmt.Sprint(id))
		}
	}
	const most = 10
	switch {
	case len(missing) == 0:
		return nil
	case len(missing) > most:
		return fmt.Errorf("%w: there are no letters %s and %d more", ErrNotFound, strings.Join(missing[:most], ", "), len(missing)-most)
	}
	return fmt.Errorf("%w: there is no letter %s", ErrNotFound, strings.Join(missing, ", "))
}
