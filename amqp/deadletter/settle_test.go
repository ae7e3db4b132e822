package deadletter

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/amqp/amqptest"
)

// books is a guard that asks a table which messages are settled.
type books struct {
	db    *gorm.DB
	asked func()
}

func (books) Subject(m amqp.Message) string { return m.ID }

func (b books) Ask(ctx context.Context, _ time.Time, batch []amqp.Message) ([]Verdict, error) {
	if b.asked != nil {
		b.asked()
	}
	ids := make([]string, len(batch))
	for i, m := range batch {
		ids[i] = m.ID
	}
	var settled []string
	if err := b.db.WithContext(ctx).Raw("SELECT id FROM books WHERE id IN ?", ids).Scan(&settled).Error; err != nil {
		return nil, err
	}
	verdicts := make([]Verdict, len(batch))
	for i := range batch {
		verdicts[i].Answer = "would be expired"
		for _, id := range settled {
			if id == ids[i] {
				verdicts[i] = Verdict{Answer: "already paid", Settled: true}
			}
		}
	}
	return verdicts, nil
}

// guarded is a desk with n letters, of which every third one's message is settled.
func guarded(t testing.TB, n int) *Desk {
	t.Helper()
	d := desk(t, nil)
	d.cfg.Guard = books{db: d.cfg.DB}
	put(t, d, n, Route{})
	run(t, d.cfg.DB, "CREATE TABLE books (id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin PRIMARY KEY)")
	run(t, d.cfg.DB, "INSERT INTO books SELECT message_id FROM lapse_dead_letters WHERE id MOD 3 = 0")
	return d
}

// Two processes look at the same time; each letter is resolved once.
func TestLettersAreFoundSettled(t *testing.T) {
	d := guarded(t, 3000)
	db := d.cfg.DB
	replaying(t, db, 3)
	run(t, db, "UPDATE lapse_dead_letters SET replay_id = 'one that ended' WHERE id = 15")
	run(t, db, "UPDATE lapse_dead_letters SET subject = '' WHERE id = 6")
	run(t, db, "UPDATE lapse_dead_letters SET headers = 'damaged' WHERE id = 9")
	if n, err := d.Discard(t.Context(), Selection{IDs: []int64{12}}, ann); n != 1 || err != nil {
		t.Fatalf("%d, %v", n, err)
	}
	var both sync.WaitGroup
	var found [2]int64
	for i := range found {
		both.Go(func() {
			_, n, err := d.settleRound(t.Context(), nil)
			if found[i] = n; err != nil {
				t.Error(err)
			}
		})
	}
	both.Wait()
	if found[0]+found[1] != 996 {
		t.Errorf("%v letters were resolved", found)
	}
	if n := number(t, db, countState+" AND resolved_by = 'lapse' AND resolution = 'already paid' AND resolved_at IS NOT NULL AND id MOD 3 = 0", Settled); n != 996 {
		t.Errorf("%d are settled", n)
	}
	for _, id := range []int64{3, 6, 9} {
		if l := number(t, db, "SELECT COUNT(*) FROM lapse_dead_letters WHERE id = ? AND state = 'open'", id); l != 1 {
			t.Errorf("letter %d is not open any more", id)
		}
	}
	audited(t, d, Entry{Actor: "ann", Action: "discard", Selection: `{"ids":[12]}`, Count: 1, Reason: "test data", Result: "done"})
}

// What is replayed or discarded while the guard is asked is left as it is.
func TestWhatChangesMeanwhileIsNotSettled(t *testing.T) {
	d := guarded(t, 9)
	d.cfg.Guard = books{db: d.cfg.DB, asked: func() {
		replaying(t, d.cfg.DB, 3)
		if _, err := d.Discard(t.Context(), Selection{IDs: []int64{6}}, ann); err != nil {
			t.Error(err)
		}
	}}
	if _, n, err := d.settleRound(t.Context(), nil); n != 1 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	if id := number(t, d.cfg.DB, "SELECT MAX(id) FROM lapse_dead_letters WHERE state = 'settled'"); id != 9 {
		t.Errorf("letter %d is settled", id)
	}
}

func TestSettlingGoesOnWhereItStopped(t *testing.T) {
	const n = settleBatches*settleBatch + 600
	d := guarded(t, n)
	next, found, err := d.settleRound(t.Context(), nil)
	if err != nil || next == nil || found == 0 {
		t.Fatalf("%v, %d, %v", next, found, err)
	}
	run(t, d.cfg.DB, "RENAME TABLE books TO away")
	stuck, none, err := d.settleRound(t.Context(), next)
	if err == nil || none != 0 || stuck == nil || *stuck != *next {
		t.Errorf("the guard is away: %v, %d, %v", stuck, none, err)
	}
	run(t, d.cfg.DB, "RENAME TABLE away TO books")
	end, more, err := d.settleRound(t.Context(), next)
	if err != nil || end != nil || found+more != n/3 {
		t.Errorf("%v, %d and %d letters, %v", end, found, more, err)
	}
}

func TestTheLoopsBeginAtOnceAndEnd(t *testing.T) {
	d := guarded(t, 30)
	run(t, d.cfg.DB, "UPDATE lapse_dead_letters SET state = 'discarded', died_at = UTC_TIMESTAMP(6) - INTERVAL 92 DAY, resolved_at = UTC_TIMESTAMP(6) - INTERVAL 91 DAY WHERE id = 1")
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- d.settle(ctx) }()
	go func() { ended <- d.prune(ctx) }()
	go func() { ended <- New(Config{DB: d.cfg.DB, Logger: amqptest.Logger(t)}).settle(ctx) }() // without a guard
	eventually(t, "settled and pruned", func() bool {
		return number(t, d.cfg.DB, countState, Settled) == 10 && number(t, d.cfg.DB, countState, Discarded) == 0
	})
	stop()
	for range 3 {
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
}
