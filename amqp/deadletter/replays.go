package deadletter

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"
	"gorm.io/gorm"
)

const replayColumns = `id, state, who, why, selection, rate, to_exchange, to_key, total, published, settled, failed,
	COALESCE(trouble, '') AS trouble, IF(leased_until > UTC_TIMESTAMP(6), owner, '') AS owner, created_at, started_at, updated_at, ended_at`

// replayRow is a row of lapse_replays.
type replayRow struct {
	ID, State, Who, Why, Selection    string
	Rate                              int
	ToExchange, ToKey                 *string
	Total, Published, Settled, Failed int64
	Trouble, Owner                    string
	CreatedAt, StartedAt              instant
	UpdatedAt, EndedAt                instant
}

func (row replayRow) replay() (Replay, error) {
	r := Replay{
		ID: row.ID, State: ReplayState(row.State), By: By{row.Who, row.Why}, Rate: row.Rate,
		Total: row.Total, Published: row.Published, Settled: row.Settled, Failed: row.Failed,
		Trouble: row.Trouble, CreatedAt: time.Time(row.CreatedAt), StartedAt: time.Time(row.StartedAt),
		UpdatedAt: time.Time(row.UpdatedAt), EndedAt: time.Time(row.EndedAt),
	}
	if row.ToExchange != nil && row.ToKey != nil {
		r.To = &Route{*row.ToExchange, *row.ToKey}
	}
	if !r.State.Ended() {
		r.Owner = row.Owner
	}
	if err := json.Unmarshal([]byte(row.Selection), &r.Selection); err != nil {
		return r, fmt.Errorf("replay %s: what was selected: %w", r.ID, err)
	}
	return r, nil
}

// Replay returns a replay as it is at present.
func (d *Desk) Replay(ctx context.Context, id string) (Replay, error) {
	r, err := replayIn(d.cfg.DB.WithContext(ctx), id)
	if err != nil {
		return Replay{}, fmt.Errorf("reading a replay: %w", err)
	}
	return r, nil
}

func replayIn(db *gorm.DB, id string) (Replay, error) {
	var rows []replayRow
	if uuid.Validate(id) == nil { // another could not be compared with what the column holds
		if err := db.Raw("SELECT "+replayColumns+" FROM lapse_replays WHERE id = ?", id).Scan(&rows).Error; err != nil {
			return Replay{}, err
		}
	}
	if len(rows) == 0 {
		return Replay{}, fmt.Errorf("%w: there is no replay %.80q", ErrNotFound, id)
	}
	return rows[0].replay()
}

// Replays lists them, the newest first unless the page says otherwise, and next as [Desk.List] does.
func (d *Desk) Replays(ctx context.Context, p Page) (replays []Replay, next string, err error) {
	limit, err := p.limit()
	if err != nil {
		return nil, "", err
	}
	after, err := p.place("replays")
	if err == nil && after != "" && uuid.Validate(after) != nil {
		err = p.strange()
	}
	if err != nil {
		return nil, "", err
	}
	// Ids begin with the time at which they were made.
	direction, beyond := p.order()
	var conditions []condition
	if after != "" {
		conditions = append(conditions, condition{"id " + beyond + " ?", []any{after}})
	}
	sql, args := where(conditions...)
	var rows []replayRow
	err = d.cfg.DB.WithContext(ctx).Raw("SELECT "+replayColumns+" FROM lapse_replays WHERE "+sql+" ORDER BY id "+direction+" LIMIT ?",
		append(args, limit+1)...).Scan(&rows).Error
	if err != nil {
		return nil, "", fmt.Errorf("listing replays: %w", err)
	}
	if len(rows) > limit {
		rows = rows[:limit]
		next = cursor("replays", rows[limit-1].ID)
	}
	for _, row := range rows {
		r, err := row.replay()
		if err != nil {
			return nil, "", err
		}
		replays = append(replays, r)
	}
	return replays, next, nil
}

// What can become of a letter in a replay.
const (
	resultPublished = "published"
	resultSettled   = "settled"
	resultFailed    = "failed"
)

// Results lists what became of the letters of a replay, by the letters' ids, the lowest first whatever the page says;
// only those with the result, if one is given: published, settled or failed.
func (d *Desk) Results(ctx context.Context, id, result string, p Page) (results []Result, next string, err error) {
	limit, err := p.limit()
	if err != nil {
		return nil, "", err
	}
	after, err := p.place("results")
	if err != nil {
		return nil, "", err
	}
	known := []string{resultPublished, resultSettled, resultFailed}
	if result != "" && !slices.Contains(known, result) {
		return nil, "", fmt.Errorf("%w: result %.80q: give %s", ErrInvalid, result, list(known))
	}
	letter := int64(0)
	if after != "" {
		if letter, err = strconv.ParseInt(after, 10, 64); err != nil {
			return nil, "", p.strange()
		}
	}
	db := d.cfg.DB.WithContext(ctx)
	if _, err := replayIn(db, id); err != nil {
		return nil, "", fmt.Errorf("listing results: %w", err)
	}
	conditions := []condition{{"replay_id = ? AND letter_id > ?", []any{id, letter}}}
	if result != "" {
		conditions = append(conditions, condition{"result = ?", []any{result}})
	}
	sql, args := where(conditions...)
	var rows []struct {
		Letter         int64
		Result, Detail string
		At             instant
	}
	err = db.Raw("SELECT letter_id AS letter, result, detail, at FROM lapse_replay_results WHERE "+sql+" ORDER BY letter_id LIMIT ?",
		append(args, limit+1)...).Scan(&rows).Error
	if err != nil {
		return nil, "", fmt.Errorf("listing results: %w", err)
	}
	for _, r := range rows {
		results = append(results, Result{r.Letter, r.Result, r.Detail, time.Time(r.At)})
	}
	if len(results) > limit {
		results = results[:limit]
		next = cursor("results", strconv.FormatInt(results[limit-1].Letter, 10))
	}
	return results, next, nil
}
