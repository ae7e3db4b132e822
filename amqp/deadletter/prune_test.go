package deadletter

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"
)

// Two processes delete at the same time what was resolved 91 days ago, and nothing else.
func TestRetention(t *testing.T) {
	d := desk(t, nil)
	db := d.cfg.DB
	var log bytes.Buffer
	d.cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
	put(t, d, 5000, Route{})
	run(t, db, `UPDATE lapse_dead_letters SET state = ELT(1 + id MOD 3, 'replayed', 'settled', 'discarded'),
		resolved_at = UTC_TIMESTAMP(6) - INTERVAL IF(id <= 2500, 91, 89) DAY WHERE id <= 4000`)
	run(t, db, "UPDATE lapse_dead_letters SET died_at = UTC_TIMESTAMP(6) - INTERVAL 300 DAY")
	run(t, db, "UPDATE lapse_dead_letters SET replay_id = ? WHERE id = 3", theReplay)
	// Rows that make no sense: open is open.
	run(t, db, "UPDATE lapse_dead_letters SET state = 'open' WHERE id <= 2")
	run(t, db, "INSERT INTO lapse_replay_results SELECT ?, id, 'published', '', UTC_TIMESTAMP(6) FROM lapse_dead_letters", theReplay)
	var both sync.WaitGroup
	var pruned [2]int64
	for i := range pruned {
		both.Go(func() {
			n, err := d.pruneRound(t.Context())
			if pruned[i] = n; err != nil {
				t.Error(err)
			}
		})
	}
	both.Wait()
	if pruned[0]+pruned[1] != 2498 {
		t.Errorf("%v letters were deleted", pruned)
	}
	for _, table := range []struct{ name, id string }{{"lapse_dead_letters", "id"}, {"lapse_replay_results", "letter_id"}} {
		if n := number(t, db, "SELECT COUNT(*) FROM "+table.name); n != 2502 {
			t.Errorf("%d rows are left in %s", n, table.name)
		}
		if n := number(t, db, "SELECT COUNT(*) FROM "+table.name+" WHERE "+table.id+" <= 2500 AND "+table.id+" > 2"); n != 0 {
			t.Errorf("%d old rows are left in %s", n, table.name)
		}
	}
	entries, _, err := d.Audit(t.Context(), AuditFilter{Actor: "lapse", Action: "prune"}, Page{})
	if err != nil {
		t.Fatal(err)
	}
	var told int64
	for _, e := range entries {
		if told += e.Count; e.Result != "done" || e.Reason != "resolved longer ago than 2160h0m0s" {
			t.Errorf("%+v", e)
		}
	}
	if told != 2498 || strings.Count(log.String(), "dead letters were deleted") != len(entries) {
		t.Errorf("the audit tells of %d letters, and the log\n%s", told, &log)
	}
	if n, err := d.pruneRound(t.Context()); n != 0 || err != nil {
		t.Errorf("once more: %d, %v", n, err)
	}
	if again, _, _ := d.Audit(t.Context(), AuditFilter{Action: "prune"}, Page{}); len(again) != len(entries) {
		t.Error("a round that deleted nothing is in the audit")
	}
	d.cfg.Keep = -time.Hour
	if n, err := d.pruneRound(t.Context()); n != 0 || err == nil {
		t.Errorf("keeping them for less than nothing: %d, %v", n, err)
	}
}

func TestSettlingGoesByAnIndex(t *testing.T) {
	d := desk(t, nil)
	put(t, d, 20_000, Route{})
	run(t, d.cfg.DB, "UPDATE lapse_dead_letters SET state = 'replayed', resolved_at = UTC_TIMESTAMP(6) - INTERVAL id MINUTE WHERE id MOD 4 > 0")
	run(t, d.cfg.DB, "ANALYZE TABLE lapse_dead_letters")
	for query, want := range map[string]string{
		"SELECT id, died_at, subject, replay_id FROM lapse_dead_letters WHERE state = 'open' AND died_at >= UTC_TIMESTAMP(6) - INTERVAL 1 HOUR AND (died_at > UTC_TIMESTAMP(6) OR id > 7) ORDER BY died_at, id LIMIT 500": "lapse_dead_letters_state",
	} {
		if key := explain(t, d.cfg.DB, query); key != want {
			t.Errorf("by %q, not %s: %s", key, want, query)
		}
	}
}
