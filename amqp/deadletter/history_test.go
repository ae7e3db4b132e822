package deadletter

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// The history of a letter is that of its message: how it died, each time, and what was done about it.
func TestHistory(t *testing.T) {
	d := desk(t, nil)
	start := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	at := func(minute int) time.Time { return start.Add(time.Duration(minute) * time.Minute) }
	letter := func(message string, minute int, reason Reason, err string) int64 {
		return add(t, d, row{
			MessageID: []byte(message), Kind: []byte("k"), Reason: string(reason), Error: []byte(err),
			DiedAt: instant(at(minute)), CollectedAt: instant(at(minute)),
		})[0].ID
	}
	first := letter("\xff%", 0, OutOfTries, "no stock")
	second := letter("\xff%", 10, Hopeless, "no such order")
	third := letter("\xff%", 20, Unroutable, "")
	letter("other", 5, Hopeless, "not of this message")
	nameless, another := letter("", 1, Hopeless, "a"), letter("", 2, Hopeless, "b")

	replay := func(id string, letter int64, minute int, result, detail string, state State) {
		run(t, d.cfg.DB, `INSERT INTO lapse_replays (id, state, who, why, selection, high_water, rate, total, created_at, updated_at)
			VALUES (?, 'done', 'jo', 'stock came', '{}', 9, 50, 1, ?, ?)`, id, instant(at(minute)), instant(at(minute)))
		run(t, d.cfg.DB, "INSERT INTO lapse_replay_results (replay_id, letter_id, result, detail, at) VALUES (?, ?, ?, ?, ?)", id, letter, result, detail, instant(at(minute)))
		if state != Open {
			run(t, d.cfg.DB, "UPDATE lapse_dead_letters SET state = ?, resolved_at = ?, resolved_by = 'jo', resolution = 'stock came', replay_id = ? WHERE id = ?",
				state, instant(at(minute)), id, letter)
		}
	}
	replay("replay-1", first, 3, resultFailed, "no queue", Open)
	replay("replay-2", first, 8, resultPublished, "", Replayed)
	replay("replay-3", second, 15, resultSettled, "already paid", Settled)
	run(t, d.cfg.DB, "UPDATE lapse_dead_letters SET state = 'discarded', resolved_at = ?, resolved_by = 'ann', resolution = 'a test' WHERE id = ?", instant(at(30)), third)
	run(t, d.cfg.DB, "UPDATE lapse_dead_letters SET state = 'settled', resolved_at = ?, resolved_by = 'lapse', resolution = 'already expired' WHERE id = ?", instant(at(4)), another)

	want := []Event{
		{At: at(0), Letter: first, What: "died: out-of-tries", Detail: "no stock"},
		{At: at(3), Letter: first, What: "a replay could not publish it", Who: "jo", Detail: "stock came: no queue", Replay: "replay-1"},
		{At: at(8), Letter: first, What: "published by a replay", Who: "jo", Detail: "stock came", Replay: "replay-2"},
		{At: at(10), Letter: second, What: "died: hopeless", Detail: "no such order"},
		{At: at(15), Letter: second, What: "found settled by a replay", Who: "jo", Detail: "stock came: already paid", Replay: "replay-3"},
		{At: at(20), Letter: third, What: "died: unroutable"},
		{At: at(30), Letter: third, What: "discarded", Who: "ann", Detail: "a test"},
	}
	for _, id := range []int64{first, second, third} {
		got, err := d.History(t.Context(), id)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("letter %d: %v, (-want +got)\n%s", id, err, diff)
		}
	}
	// Letters without a message id have nothing to do with each other.
	for id, want := range map[int64][]Event{
		nameless: {{At: at(1), Letter: nameless, What: "died: hopeless", Detail: "a"}},
		another: {
			{At: at(2), Letter: another, What: "died: hopeless", Detail: "b"},
			{At: at(4), Letter: another, What: "settled", Who: "lapse", Detail: "already expired"},
		},
	} {
		got, err := d.History(t.Context(), id)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("letter %d: %v, (-want +got)\n%s", id, err, diff)
		}
	}
	if _, err := d.History(t.Context(), 1<<40); !errors.Is(err, ErrNotFound) {
		t.Errorf("%v", err)
	}
}
