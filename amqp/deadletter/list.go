package deadletter

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"gorm.io/gorm"
)

// List returns the letters that match, without properties, headers and bodies, and next, which is [Page.After] of
// the following page, or "" if this is the last.
func (d *Desk) List(ctx context.Context, f Filter, p Page) (letters []Letter, next string, err error) {
	if err := f.Validate(); err != nil {
		return nil, "", err
	}
	limit, err := p.limit()
	if err != nil {
		return nil, "", err
	}
	from, err := p.death()
	if err != nil {
		return nil, "", err
	}
	rows, err := page(d.cfg.DB.WithContext(ctx), listed, f, from, p.Oldest, limit+1)
	if err != nil {
		return nil, "", fmt.Errorf("listing dead letters: %w", err)
	}
	if len(rows) > limit {
		rows = rows[:limit]
		last := rows[limit-1]
		next = cursor("letters", fmt.Sprintf("%s/%d", time.Time(last.DiedAt).Format(instantLayout), last.ID))
	}
	for _, row := range rows {
		letter, err := row.letter()
		if err != nil {
			return nil, "", err
		}
		letters = append(letters, letter)
	}
	return letters, next, nil
}

// death is a place in the list of letters.
type death struct {
	at time.Time
	id int64
}

// death is where the page begins; nil for the first.
func (p Page) death() (*death, error) {
	place, err := p.place("letters")
	if err != nil || place == "" {
		return nil, err
	}
	at, id, _ := strings.Cut(place, "/")
	var from death
	if from.at, err = time.Parse(instantLayout, at); err == nil {
		from.id, err = strconv.ParseInt(id, 10, 64)
	}
	if err != nil {
		return nil, p.strange()
	}
	return &from, nil
}

// page reads up to limit rows beyond a place, in the order of their deaths. Each state is looked up by itself, since only
// within one does an index have that order; all in one statement, so that a letter that changes its state is there
// once. Only then are the letters of the page read.
func page(db *gorm.DB, columns string, f Filter, from *death, oldest bool, limit int) (rows []row, err error) {
	direction, beyond := Page{Oldest: oldest}.order()
	order := " ORDER BY died_at " + direction + ", id " + direction
	var parts []string
	var all []any
	for _, state := range f.states() {
		conditions := append([]condition{{"state = ?", []any{state}}}, f.conditions()...)
		if from != nil {
			// The first comparison says nothing new, but an index can begin there.
			at := instant(from.at)
			conditions = append(conditions, condition{"died_at " + beyond + "= ? AND (died_at " + beyond + " ? OR id " + beyond + " ?)", []any{at, at, from.id}})
		}
		sql, args := where(conditions...)
		parts = append(parts, "(SELECT id, died_at FROM "+f.table()+" WHERE "+sql+order+" LIMIT ?)")
		all = append(append(all, args...), limit)
	}
	places := strings.Join(parts, " UNION ALL ") + order + " LIMIT ?"
	err = db.Raw("SELECT STRAIGHT_JOIN "+columns+" FROM ("+places+") places JOIN lapse_dead_letters FORCE INDEX (PRIMARY) USING (id, died_at)"+order,
		append(all, limit)...).Scan(&rows).Error
	return rows, err
}

func (f Filter) states() []State {
	if f.State != "" {
		return []State{f.State}
	}
	return States
}

// Count returns how many letters match.
func (d *Desk) Count(ctx context.Context, f Filter) (n int64, err error) {
	if err := f.Validate(); err != nil {
		return 0, err
	}
	sql, args := where(f.whole()...)
	if err := d.cfg.DB.WithContext(ctx).Raw("SELECT COUNT(*) FROM "+f.table()+" WHERE "+sql, args...).Scan(&n).Error; err != nil {
		return 0, fmt.Errorf("counting dead letters: %w", err)
	}
	return n, nil
}

// whole are the filter's conditions with its state. All states are named, so that the indexes that begin with one
// can be used.
func (f Filter) whole() []condition {
	return append([]condition{{"state IN ?", []any{f.states()}}}, f.conditions()...)
}

// Get returns one letter, whole.
func (d *Desk) Get(ctx context.Context, id int64) (Letter, error) {
	var rows []row
	if err := d.cfg.DB.WithContext(ctx).Raw("SELECT "+whole+" FROM lapse_dead_letters WHERE id = ?", id).Scan(&rows).Error; err != nil {
		return Letter{}, fmt.Errorf("reading letter %d: %w", id, err)
	}
	if len(rows) == 0 {
		return Letter{}, fmt.Errorf("%w: there is no letter %d: it may have been deleted when its retention was over", ErrNotFound, id)
	}
	return rows[0].letter()
}

// Each calls do with every letter that matches, whole, the oldest first, until it fails.
func (d *Desk) Each(ctx context.Context, f Filter, do func(Letter) error) error {
	if err := f.Validate(); err != nil {
		return err
	}
	db := d.cfg.DB.WithContext(ctx)
	for from := (*death)(nil); ; {
		places, err := page(db, "id, died_at, size + LENGTH(headers) + LENGTH(error) + LENGTH(first_error) AS size", f, from, true, maxLimit)
		if err != nil {
			return fmt.Errorf("reading dead letters: %w", err)
		}
		if len(places) == 0 {
			return nil
		}
		for len(places) > 0 {
			part := places[:portion(places)]
			places = places[len(part):]
			if err := eachOf(db, f, part, do); err != nil {
				return err
			}
			last := part[len(part)-1]
			from = &death{time.Time(last.DiedAt), last.ID}
		}
	}
}

// portion is how many rows have about batchBytes together, at least one.
func portion(rows []row) (n int) {
	for bytes := 0; n < len(rows) && (n == 0 || bytes < batchBytes); n++ {
		bytes += rows[n].Size
	}
	return n
}

// eachOf passes those on that are still in the state that is asked for.
func eachOf(db *gorm.DB, f Filter, places []row, do func(Letter) error) error {
	ids := make([]int64, len(places))
	for i, place := range places {
		ids[i] = place.ID
	}
	var rows []row
	if err := db.Raw("SELECT "+whole+" FROM lapse_dead_letters WHERE id IN ? ORDER BY died_at, id", ids).Scan(&rows).Error; err != nil {
		return fmt.Errorf("reading dead letters: %w", err)
	}
	for _, row := range rows {
		letter, err := row.letter()
		if err != nil {
			return err
		}
		if !slices.Contains(f.states(), letter.State) {
			continue
		}
		if err := do(letter); err != nil {
			return err
		}
	}
	return nil
}
