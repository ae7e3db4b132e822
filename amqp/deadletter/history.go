package deadletter

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"gorm.io/gorm"
)

// Event is something that happened to a letter, or to another letter of the same message.
type Event struct {
	At     time.Time
	Letter int64  // which letter
	What   string // for people: "died: out-of-tries", "published by a replay", "found settled by a replay", "a replay could not publish it", "discarded", "settled"
	Who    string // "" if nobody did it
	Detail string // the error, the reason that was given, or the guard's answer
	Replay string // the job, if there was one
}

const maxEvents = 1000

// History is what happened to a letter and to the others of the same message, from the first on. At most 1000 events,
// those of the newest letters.
func (d *Desk) History(ctx context.Context, id int64) (events []Event, err error) {
	letter, err := d.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	db := d.cfg.DB.WithContext(ctx)
	letters := []Letter{letter}
	if letter.MessageID != "" {
		if letters, err = d.sameMessage(ctx, letter.MessageID); err != nil {
			return nil, fmt.Errorf("the history of letter %d: %w", id, err)
		}
	}
	ids := make([]int64, len(letters))
	for i, l := range letters {
		ids[i] = l.ID
		events = append(events, Event{At: l.DiedAt, Letter: l.ID, What: "died: " + string(l.Reason), Detail: l.Error})
		// What a replay resolved is among its results.
		if l.State != Open && l.Replay == "" {
			events = append(events, Event{At: l.ResolvedAt, Letter: l.ID, What: string(l.State), Who: l.ResolvedBy, Detail: l.Resolution})
		}
	}
	replays, err := replayed(db, ids)
	if err != nil {
		return nil, fmt.Errorf("the history of letter %d: %w", id, err)
	}
	events = append(events, replays...)
	slices.SortStableFunc(events, func(a, b Event) int { return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.Letter, b.Letter)) })
	return events[max(0, len(events)-maxEvents):], nil
}

// sameMessage lists the letters of a message, the newest first.
func (d *Desk) sameMessage(ctx context.Context, messageID string) (letters []Letter, err error) {
	var rows []row
	err = d.cfg.DB.WithContext(ctx).Raw("SELECT "+listed+" FROM lapse_dead_letters WHERE message_id = ? ORDER BY died_at DESC, id DESC LIMIT ?",
		[]byte(messageID), maxEvents).Scan(&rows).Error
	if err != nil {
		return nil, err
	}
	for _, row := range rows {
		letter, err := row.letter()
		if err != nil {
			return nil, err
		}
		letters = append(letters, letter)
	}
	return letters, nil
}

// replayed is what became of the letters in replays.
func replayed(db *gorm.DB, letters []int64) (events []Event, err error) {
	var rows []struct {
		At                               instant
		Letter                           int64
		Result, Detail, Who, Why, Replay string
	}
	err = db.Raw(`SELECT s.at, s.letter_id AS letter, s.result, s.detail, r.who, r.why, r.id AS replay
		FROM lapse_replay_results s JOIN lapse_replays r ON r.id = s.replay_id
		WHERE s.letter_id IN ? ORDER BY s.at DESC LIMIT ?`, letters, maxEvents).Scan(&rows).Error
	for _, r := range rows {
		what := map[string]string{
			resultPublished: "published by a replay", resultSettled: "found settled by a replay", resultFailed: "a replay could not publish it",
		}[r.Result]
		events = append(events, Event{At: time.Time(r.At), Letter: r.Letter, What: what, Who: r.Who, Detail: strings.TrimSuffix(r.Why+": "+r.Detail, ": "), Replay: r.Replay})
	}
	return events, err
}
