package deadletter

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"gorm.io/gorm"

	"github.com/lapse-go/lapse/amqp/database"
)

var ann = By{Who: "ann", Why: "test data"}

const (
	theReplay  = "0193b5a0-0000-7000-8000-000000000001"
	countState = "SELECT COUNT(*) FROM lapse_dead_letters WHERE state = ?"
)

// arrives adds one more letter.
func arrives(t testing.TB, d *Desk, identity string) {
	t.Helper()
	run(t, d.cfg.DB, `INSERT INTO lapse_dead_letters (identity, message_id, kind, subject, queue, exchange, routing_key, reason, attempts, error, first_error,
		fingerprint, properties, headers, body, size, died_at, collected_at, replays, replayed_by, state)
		VALUES (?, 'm', 'kind-1', '', 'lapse.dead', '', 'x', 'hopeless', 1, '', '', '0000000000000000', '{}', '{}', '', 0,
		UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), 0, '', 'open')`, identity)
}

// audited wants these entries, the oldest first, and nothing else.
func audited(t testing.TB, d *Desk, want ...Entry) {
	t.Helper()
	got, _, err := d.Audit(t.Context(), AuditFilter{}, Page{Oldest: true, Limit: maxLimit})
	if err != nil {
		t.Fatal(err)
	}
	for i := range got {
		if i < len(want) && strings.HasSuffix(want[i].Result, "…") && strings.HasPrefix(got[i].Result, strings.TrimSuffix(want[i].Result, "…")) {
			got[i].Result = want[i].Result
		}
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(Entry{}, "ID", "At")); diff != "" {
		t.Errorf("audit (-want +got):\n%s", diff)
	}
}

// replaying has a letter belong to a running replay.
func replaying(t testing.TB, db *gorm.DB, id int64) {
	t.Helper()
	if err := replayingIn(db, id); err != nil {
		t.Fatal(err)
	}
}

func replayingIn(tx *gorm.DB, id int64) error {
	err := tx.Exec(`INSERT INTO lapse_replays (id, state, who, why, selection, high_water, rate, total, created_at, updated_at)
		VALUES (?, 'running', 'bob', 'x', '', 0, 0, 1, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6))`, theReplay).Error
	if err != nil {
		return err
	}
	return tx.Exec("UPDATE lapse_dead_letters SET replay_id = ? WHERE id = ?", theReplay, id).Error
}

func TestDiscardWhileLettersArrive(t *testing.T) {
	d := desk(t, nil)
	put(t, d, 5000, Route{})
	arriving, stop := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(arriving)
		for {
			select {
			case <-stop:
				return
			default:
				arrives(t, d, "late-"+time.Now().Format(time.RFC3339Nano))
			}
		}
	}()
	n, err := d.Discard(t.Context(), Selection{All: true}, ann)
	close(stop)
	<-arriving
	arrives(t, d, "later")
	if err != nil || n < 5000 {
		t.Fatalf("%d, %v", n, err)
	}
	db := d.cfg.DB
	last := number(t, db, "SELECT MAX(id) FROM lapse_dead_letters WHERE state = 'discarded'")
	if open := number(t, db, "SELECT COUNT(*) FROM lapse_dead_letters WHERE state = 'open' AND id < ?", last); open != 0 {
		t.Errorf("%d letters were left out", open)
	}
	if of := number(t, db, `SELECT COUNT(*) FROM lapse_dead_letters WHERE state = 'discarded' AND resolved_by = 'ann' AND resolution = 'test data'
		AND resolved_at > UTC_TIMESTAMP(6) - INTERVAL 5 MINUTE`); of != n {
		t.Errorf("%d letters are as they should be, and %d were discarded", of, n)
	}
	audited(t, d, Entry{Actor: "ann", Action: "discard", Selection: `{"all":true}`, Count: n, Reason: "test data", Result: "done"})
	if n, err = d.Discard(t.Context(), Selection{IDs: []int64{last}}, ann); n != 0 || err != nil {
		t.Errorf("what was discarded before: %d, %v", n, err)
	}
}

func TestRestore(t *testing.T) {
	d := desk(t, nil)
	put(t, d, 60, Route{})
	run(t, d.cfg.DB, "UPDATE lapse_dead_letters SET state = 'replayed', resolved_at = UTC_TIMESTAMP(6), resolved_by = 'bob', replay_id = ? WHERE message_id < 'm-2'", theReplay)
	of := func(kind string) Selection { return Selection{Filter: &Filter{Kind: kind}} }
	if n, err := d.Discard(t.Context(), of("kind-1"), ann); n != 7 || err != nil {
		t.Fatalf("%d, %v", n, err)
	}
	if n, err := d.Restore(t.Context(), Selection{Filter: &Filter{Kind: "kind-1", State: Discarded}}, By{Who: "bob", Why: "too hasty"}); n != 7 || err != nil {
		t.Fatalf("%d, %v", n, err)
	}
	if n, err := d.Restore(t.Context(), Selection{All: true}, By{Who: "bob", Why: "all"}); n != 12 || err != nil {
		t.Fatalf("%d, %v", n, err)
	}
	if n := number(t, d.cfg.DB, countState+" AND resolved_at IS NULL AND resolved_by = '' AND resolution = '' AND replay_id IS NULL", Open); n != 60 {
		t.Errorf("%d letters are open again", n)
	}
	audited(t, d,
		Entry{Actor: "ann", Action: "discard", Selection: `{"filter":{"kind":"kind-1"}}`, Count: 7, Reason: "test data", Result: "done"},
		Entry{Actor: "bob", Action: "restore", Selection: `{"filter":{"state":"discarded","kind":"kind-1"}}`, Count: 7, Reason: "too hasty", Result: "done"},
		Entry{Actor: "bob", Action: "restore", Selection: `{"all":true}`, Count: 12, Reason: "all", Result: "done"})
}

func TestWhatCannotBeDiscarded(t *testing.T) {
	d := desk(t, nil)
	put(t, d, 20, Route{})
	some := []int64{1, 2, 101, 102, 103, 104, 105, 106, 107, 108, 109, 110, 111}
	for _, bad := range []struct {
		selection Selection
		by        By
		is        error
		says      string
	}{
		{Selection{All: true}, By{Who: "ann"}, ErrInvalid, "reason"},
		{Selection{All: true}, By{Why: "x"}, ErrInvalid, "who"},
		{Selection{}, ann, ErrInvalid, "selected"},
		{Selection{Filter: &Filter{}}, ann, ErrInvalid, "condition"},
		{Selection{IDs: some}, ann, ErrNotFound, "101, 102, 103, 104, 105, 106, 107, 108, 109, 110 and 1 more"},
	} {
		n, err := d.Discard(t.Context(), bad.selection, bad.by)
		if n != 0 || !errors.Is(err, bad.is) || !strings.Contains(err.Error(), bad.says) {
			t.Errorf("%+v: %d, %v", bad, n, err)
		}
	}
	replaying(t, d.cfg.DB, 7)
	seventh := fmt.Sprintf("m-%d", number(t, d.cfg.DB, "SELECT CAST(SUBSTRING(message_id, 3) AS SIGNED) FROM lapse_dead_letters WHERE id = 7"))
	for _, s := range []Selection{{All: true}, {IDs: []int64{6, 7}}, {Filter: &Filter{MessageID: seventh}}} {
		n, err := d.Discard(t.Context(), s, ann)
		if busy, ok := errors.AsType[*BusyError](err); n != 0 || !ok || busy.Replay != theReplay {
			t.Errorf("%+v: %d, %v", s, n, err)
		}
	}
	if open := number(t, d.cfg.DB, countState, Open); open != 20 {
		t.Errorf("%d letters are open", open)
	}
	if n, err := d.Discard(t.Context(), Selection{IDs: []int64{5, 6, 6}}, ann); n != 2 || err != nil {
		t.Errorf("others: %d, %v", n, err)
	}
	busy := Entry{Actor: "ann", Action: "discard", Reason: "test data", Result: (&BusyError{theReplay}).Error()}
	with := func(e Entry, selection string) Entry { e.Selection = selection; return e }
	audited(t, d,
		Entry{Actor: "ann", Action: "discard", Selection: `{"ids":[1,2,101,102,103,104,105,106,107,108,109,110,111]}`, Reason: "test data", Result: "not found: …"},
		with(busy, `{"all":true}`), with(busy, `{"ids":[6,7]}`), with(busy, `{"filter":{"message_id":"`+seventh+`"}}`),
		Entry{Actor: "ann", Action: "discard", Selection: `{"ids":[5,6,6]}`, Count: 2, Reason: "test data", Result: "done"})
}

// What stops it half-way is told with how far it came.
func TestAReplayBeginsWhileLettersAreDiscarded(t *testing.T) {
	d := desk(t, nil)
	put(t, d, 10_000, Route{})
	answers := discarding(t.Context(), d)
	eventually(t, "1000 letters are discarded", func() bool { return number(t, d.cfg.DB, countState, Discarded) >= 1000 })
	var before int64
	err := database.Transact(t.Context(), d.cfg.DB, func(tx *gorm.DB) error {
		if err := tx.Exec("SELECT id FROM lapse_desk WHERE id = 1 FOR UPDATE").Error; err != nil { // as Start does
			return err
		}
		before = number(t, tx, countState, Discarded)
		return replayingIn(tx, 10_000)
	})
	if err != nil || before == 10_000 {
		t.Fatalf("%d are discarded, %v", before, err)
	}
	got := <-answers
	// The letters that the replay has are in the last batch.
	if _, busy := errors.AsType[*BusyError](got.err); got.n != 9000 || !busy {
		t.Errorf("%d, %v", got.n, got.err)
	}
	stoppedAfter(t, d, 9000, got.err)
}

func TestNobodyWaitsWhileLettersAreDiscarded(t *testing.T) {
	d := desk(t, nil)
	put(t, d, 5000, Route{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var answers <-chan answer
	err := database.Transact(t.Context(), d.cfg.DB, func(tx *gorm.DB) error {
		if err := tx.Exec("SELECT id FROM lapse_dead_letters WHERE id = 3500 FOR UPDATE").Error; err != nil {
			return err
		}
		answers = discarding(ctx, d)
		eventually(t, "3000 letters are discarded", func() bool { return number(t, d.cfg.DB, countState, Discarded) == 3000 })
		cancel()
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	got := <-answers
	if got.n != 3000 {
		t.Errorf("%d, %v", got.n, got.err)
	}
	stoppedAfter(t, d, 3000, got.err)
}

type answer struct {
	n   int64
	err error
}

// discarding discards all letters, and answers when it has ended.
func discarding(ctx context.Context, d *Desk) <-chan answer {
	answers := make(chan answer, 1)
	go func() {
		n, err := d.Discard(ctx, Selection{All: true}, ann)
		answers <- answer{n, err}
	}()
	return answers
}

func stoppedAfter(t testing.TB, d *Desk, n int64, err error) {
	t.Helper()
	text := fmt.Sprintf("stopped after %d: ", n)
	if err == nil || !strings.Contains(err.Error(), text) {
		t.Errorf("%v, want %s", err, text)
	}
	if discarded := number(t, d.cfg.DB, countState, Discarded); discarded != n {
		t.Errorf("%d are discarded", discarded)
	}
	audited(t, d, Entry{Actor: "ann", Action: "discard", Selection: `{"all":true}`, Count: n, Reason: "test data", Result: text + "…"})
}
