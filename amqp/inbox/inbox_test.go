package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	gormmysql "gorm.io/driver/mysql"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/lapse-go/lapse/amqp/amqptest"
	"github.com/lapse-go/lapse/amqp/database"
	"github.com/lapse-go/lapse/amqp/inbox"
)

var errRolledBack = errors.New("rolled back")

// once handles a message in a transaction of its own.
func once(t testing.TB, db *gorm.DB, consumer, id string) (first bool) {
	t.Helper()
	err := database.Transact(t.Context(), db, func(tx *gorm.DB) (err error) {
		first, err = inbox.Once(tx, consumer, id)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return first
}

func TestAMessageIsNewOncePerConsumer(t *testing.T) {
	db := amqptest.Database(t)
	for _, step := range []struct {
		consumer, id string
		first        bool
	}{
		{"mail", "A-1.2", true}, {"mail", "A-1.2", false}, {"stock", "A-1.2", true},
		{"mail", "a-1.2", true}, {"Mail", "A-1.2", true}, {"mail", "A-1.2", false},
		{"mail", strings.Repeat("~", 255), true},
	} {
		if got := once(t, db, step.consumer, step.id); got != step.first {
			t.Errorf("%s, message %s: first %t, want %t", step.consumer, step.id, got, step.first)
		}
	}
}

func TestWhatIsNoNameIsRefused(t *testing.T) {
	db := amqptest.Database(t)
	for _, bad := range []struct{ consumer, id, says string }{
		{"", "1", "no consumer"}, {"mail", "", "no message id"},
		{strings.Repeat("x", 65), "1", "at most 64"}, {"mail", strings.Repeat("x", 256), "at most 255"},
		{"a mail", "1", "without spaces"}, {"mail", "ordér", "printable ASCII"}, {"mail", "1\x00", "printable ASCII"},
	} {
		err := database.Transact(t.Context(), db, func(tx *gorm.DB) error {
			_, err := inbox.Once(tx, bad.consumer, bad.id)
			return err
		})
		if err == nil || !strings.Contains(err.Error(), bad.says) {
			t.Errorf("%q, %q: %v, want %s", bad.consumer, bad.id, err, bad.says)
		}
	}
	if _, err := inbox.Once(db, "mail", "1"); err == nil {
		t.Error("Once took a pool, in which nothing ties the note to any work")
	}
}

// The second waits for the first, and its answer is how that ended.
func TestTwoAtOnce(t *testing.T) {
	db := amqptest.Database(t)
	for _, end := range []error{nil, errRolledBack} {
		id := fmt.Sprintf("message-%v", end != nil)
		noted, other := make(chan struct{}), make(chan bool)
		go func() {
			<-noted
			other <- once(t, db, "mail", id)
		}()
		err := database.Transact(t.Context(), db, func(tx *gorm.DB) error {
			if first, err := inbox.Once(tx, "mail", id); !first || err != nil {
				t.Errorf("the first is told %t, %v", first, err)
			}
			close(noted)
			awaitLockWait(t, db)
			return end
		})
		if !errors.Is(err, end) {
			t.Error(err)
		}
		if first := <-other; first != (end != nil) {
			t.Errorf("the first one ended with %v, and the second is told first = %t", end, first)
		}
	}
}

// awaitLockWait returns once a transaction on the database waits for another. The server looks at most every
// tenth of a second, and not at all for whoever asks more often.
func awaitLockWait(t testing.TB, db *gorm.DB) {
	t.Helper()
	over := time.Now().Add(2 * time.Second)
	for waiting := 0; waiting == 0; time.Sleep(150 * time.Millisecond) {
		err := db.Raw(`SELECT COUNT(*) FROM information_schema.INNODB_TRX WHERE trx_state = 'LOCK WAIT'
			AND trx_query LIKE '%lapse_inbox%'`).Row().Scan(&waiting)
		if err != nil || time.Now().After(over) {
			t.Errorf("nobody waits: %v", err)
			return
		}
	}
}

// Many workers get the same messages, in sessions as subscribers have them. Each message is new once, and the
// work is there as often as that.
func TestAStorm(t *testing.T) {
	const workers, messages = 8, 250
	db := amqptest.Database(t)
	if err := db.Exec("CREATE TABLE work (id VARCHAR(64))").Error; err != nil {
		t.Fatal(err)
	}
	foreign, err := gorm.Open(gormmysql.Open(amqptest.DSN(t, db)), &gorm.Config{PrepareStmt: true, TranslateError: true, Logger: logger.Discard})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if pool, err := foreign.DB(); err == nil {
			pool.Close()
		}
	}()
	var firsts atomic.Int64
	var all sync.WaitGroup
	for worker := range workers {
		pool := db
		if worker%2 == 1 {
			pool = foreign // REPEATABLE READ, and other settings
		}
		all.Go(func() {
			for n := range messages {
				id := fmt.Sprintf("m%03d", n)
				first := false
				err := persist(t.Context(), pool, worker%2 == 1, func(tx *gorm.DB) (err error) {
					if first, err = inbox.Once(tx, "mail", id); err != nil || !first {
						return err
					}
					return tx.Exec("INSERT INTO work VALUES (?)", id).Error
				})
				if err != nil {
					t.Error(err)
					return
				}
				if first {
					firsts.Add(1)
				}
			}
		})
	}
	all.Wait()
	var work, different int64
	if err := db.Raw("SELECT COUNT(*), COUNT(DISTINCT id) FROM work").Row().Scan(&work, &different); err != nil {
		t.Fatal(err)
	}
	if firsts.Load() != messages || work != messages || different != messages {
		t.Errorf("%d messages were new %d times; the work was done %d times, for %d of them", messages, firsts.Load(), work, different)
	}
}

// persist runs a transaction, of the pool's own isolation if that is asked for.
func persist(ctx context.Context, db *gorm.DB, own bool, do func(tx *gorm.DB) error) error {
	if !own {
		return database.Transact(ctx, db, do)
	}
	for {
		err := db.WithContext(ctx).Transaction(do)
		if err == nil || !database.IsConflict(err) {
			return err
		}
	}
}

func TestOldNotesArePruned(t *testing.T) {
	db := amqptest.Database(t)
	for age, n := range map[int]int{29: 3, 31: 1100} {
		err := db.Exec(`INSERT INTO lapse_inbox SELECT 'mail', CONCAT(?, '-', seq.n), UTC_TIMESTAMP(6) - INTERVAL ? DAY FROM
			(SELECT a.d + 10 * b.d + 100 * c.d + 1000 * e.d AS n FROM `+digits+` a, `+digits+` b, `+digits+` c, `+digits+` e) seq WHERE seq.n < ?`, age, age, n).Error
		if err != nil {
			t.Fatal(err)
		}
	}
	pruner := inbox.Pruner{DB: db}
	for _, want := range []int64{1100, 0} {
		if got, err := pruner.Once(t.Context()); got != want || err != nil {
			t.Errorf("pruned %d, %v, want %d", got, err, want)
		}
	}
	pruner.Keep = time.Hour
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- pruner.Run(ctx) }()
	left := func() (n int64) {
		if err := db.Raw("SELECT COUNT(*) FROM lapse_inbox").Row().Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	for over := time.Now().Add(5 * time.Second); left() > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(over) {
			t.Fatalf("%d notes are left", left())
		}
	}
	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("Run ended with %v", err)
	}
	if !once(t, db, "mail", "29-1") {
		t.Error("a message that was forgotten is not new")
	}
}

const digits = "(SELECT 0 d UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4 UNION ALL SELECT 5 UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9)"
