package database_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/prometheus/client_golang/prometheus/testutil"
	gormmysql "gorm.io/driver/mysql"
	"gorm.io/gorm"

	"github.com/lapse-go/lapse/amqp/amqptest"
	"github.com/lapse-go/lapse/amqp/database"
)

// counters has rows 1 and 2, both 0.
func counters(t *testing.T, params ...string) (db *gorm.DB, metrics *database.Metrics) {
	t.Helper()
	metrics = database.NewMetrics(nil)
	db = open(t, dsnWith(amqptest.DSN(t, amqptest.Database(t)), params...), database.Options{Metrics: metrics})
	exec(t, db, "CREATE TABLE counters (id INT PRIMARY KEY, n INT NOT NULL)")
	exec(t, db, "INSERT INTO counters VALUES (1, 0), (2, 0)")
	return db, metrics
}

func increment(tx *gorm.DB, id int) error {
	return tx.Exec("UPDATE counters SET n = n + 1 WHERE id = ?", id).Error
}

func TestADeadlockRerunsTheWholeTransaction(t *testing.T) {
	db, metrics := counters(t)
	var met, done sync.WaitGroup
	met.Add(2)
	for _, order := range [][2]int{{1, 2}, {2, 1}} {
		done.Go(func() {
			runs := 0
			err := database.Transact(t.Context(), db, func(tx *gorm.DB) error {
				if err := increment(tx, order[0]); err != nil {
					return err
				}
				if runs++; runs == 1 { // both hold their first row before either asks for its second
					met.Done()
					met.Wait()
				}
				return increment(tx, order[1])
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	done.Wait()
	if n := number(t, db, "SELECT 10 * MIN(n) + MAX(n) FROM counters"); n != 22 {
		t.Errorf("counters at %d (lowest, highest), want 22", n)
	}
	if n := testutil.ToFloat64(metrics.Reruns.WithLabelValues("1213")); n < 1 {
		t.Error("no rerun was counted")
	}
}

// A lock wait time-out undoes only its statement: what came before it must not be committed alone,
// nor twice.
func TestALockWaitTimeoutOnTheSecondStatementIsNeverHalf(t *testing.T) {
	db, metrics := counters(t, "innodb_lock_wait_timeout=1")
	blocker := db.Begin()
	if err := increment(blocker, 2); err != nil {
		t.Fatal(err)
	}
	runs := 0
	err := database.Transact(t.Context(), db, func(tx *gorm.DB) error {
		if runs++; runs == 2 {
			blocker.Rollback()
		}
		if err := increment(tx, 1); err != nil {
			return err
		}
		return increment(tx, 2)
	})
	if err != nil || runs != 2 {
		t.Errorf("%d runs: %v", runs, err)
	}
	if n := number(t, db, "SELECT 10 * MIN(n) + MAX(n) FROM counters"); n != 11 {
		t.Errorf("counters at %d (lowest, highest), want 11", n)
	}
	if n := testutil.ToFloat64(metrics.Reruns.WithLabelValues("1205")); n != 1 {
		t.Errorf("%v reruns counted, want 1", n)
	}
}

func TestATransactionEndsWithItsContextAndItsTries(t *testing.T) {
	db, _ := counters(t)
	conflict := &mysql.MySQLError{Number: 1213, SQLState: [5]byte([]byte("40001"))}

	runs := 0
	always := func(*gorm.DB) error { runs++; return fmt.Errorf("wrapped: %w", conflict) }
	if err := database.Transact(t.Context(), db, always); !database.IsConflict(err) || runs != 11 {
		t.Errorf("%d runs: %v", runs, err)
	}

	ctx, cancel := context.WithCancel(t.Context())
	runs = 0
	err := database.Transact(ctx, db, func(*gorm.DB) error { runs++; cancel(); return conflict })
	if !database.IsConflict(err) || !errors.Is(err, context.Canceled) || runs != 1 {
		t.Errorf("%d runs: %v", runs, err)
	}
}

func TestAnErrorOrAPanicRollsBack(t *testing.T) {
	db, _ := counters(t)
	sentinel := errors.New("sold out")
	err := database.Transact(t.Context(), db, func(tx *gorm.DB) error {
		return errors.Join(increment(tx, 1), sentinel)
	})
	if !errors.Is(err, sentinel) {
		t.Error(err)
	}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic was swallowed")
			}
		}()
		_ = database.Transact(t.Context(), db, func(tx *gorm.DB) error {
			if err := increment(tx, 1); err != nil {
				t.Error(err)
			}
			panic("oh")
		})
	}()
	if n := number(t, db, "SELECT SUM(n) FROM counters"); n != 0 {
		t.Errorf("%d, want 0", n)
	}
	err = database.Transact(t.Context(), db, func(tx *gorm.DB) error {
		return database.Transact(t.Context(), tx, func(*gorm.DB) error { return nil })
	})
	if err == nil {
		t.Error("a transaction inside a transaction could not be rerun alone, and has to be refused")
	}
}

// A checkout may hand over a pool of its own, with the driver's and gorm's defaults, or with prepared
// statements.
func TestAForeignPoolGetsReadCommittedAndNoPreparedStatements(t *testing.T) {
	dsn := amqptest.DSN(t, amqptest.Database(t))
	db, err := gorm.Open(gormmysql.Open(dsn), &gorm.Config{PrepareStmt: true})
	if err != nil {
		t.Fatal(err)
	}
	defer closePool(t, db)
	exec(t, db, "CREATE TABLE t (id INT PRIMARY KEY)")
	prepared := func(tx *gorm.DB) (n int) {
		var name string
		if err := tx.Raw("SHOW SESSION STATUS LIKE 'Com_stmt_prepare'").Row().Scan(&name, &n); err != nil {
			t.Error(err)
		}
		return n
	}
	err = database.Transact(t.Context(), db, func(tx *gorm.DB) error {
		before := prepared(tx)
		// Under REPEATABLE READ the second read would not see what was committed after the first one.
		if n := number(t, tx, "SELECT COUNT(*) FROM t"); n != 0 {
			t.Errorf("%d rows before", n)
		}
		exec(t, db, "INSERT INTO t VALUES (1)")
		if n := number(t, tx, "SELECT COUNT(*) FROM t"); n != 1 {
			t.Errorf("%d rows after another transaction committed one", n)
		}
		if n := prepared(tx) - before; n != 0 {
			t.Errorf("%d prepared statements", n)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if level := isolation(t, db); level != "REPEATABLE-READ" {
		t.Errorf("the checkout's own session was left in %s", level)
	}
}

func TestWhoseFaultAnErrorIs(t *testing.T) {
	db, _ := counters(t)
	exec(t, db, "CREATE TABLE texts (id INT PRIMARY KEY, a VARCHAR(3) CHARACTER SET ascii, n TINYINT, CHECK (n < 100))")
	exec(t, db, "INSERT INTO texts VALUES (1, 'a', 1)")
	exec(t, db, "CREATE TABLE words (w ENUM ('a'))")
	exec(t, db, "CREATE TABLE parts (n INT) PARTITION BY LIST (n) (PARTITION p VALUES IN (1))")
	exec(t, db, "CREATE TABLE refused (n INT)")
	exec(t, db, "CREATE TRIGGER refuse BEFORE INSERT ON refused FOR EACH ROW SIGNAL SQLSTATE 'HY000' SET MESSAGE_TEXT = 'no'")
	dsn := amqptest.DSN(t, amqptest.Database(t))
	config, err := mysql.ParseDSN(dsn)
	if err != nil {
		t.Fatal(err)
	}
	config.User, config.Passwd = "nobody_at_all", "wrong"
	stranger := open(t, config.FormatDSN(), database.Options{})
	config, _ = mysql.ParseDSN(dsn)
	config.DBName = "lapse_test_that_is_not_there"
	nowhere := open(t, config.FormatDSN(), database.Options{})
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	slow, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	httpErr := &url.Error{Op: "Get", URL: "http://127.0.0.1:1/", Err: &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}}

	const (
		outage = iota
		conflict
		data // neither
	)
	cases := []struct {
		name string
		err  error
		want int
	}{
		{"no error", nil, data},
		{"an application's error", errors.New("out of stock"), data},
		{"a row that is not there", gorm.ErrRecordNotFound, data},
		{"another server's failure", httpErr, data},
		{"duplicate key", db.Exec("INSERT INTO texts VALUES (1, 'a', 1)").Error, data},
		{"text too long", db.Exec("INSERT INTO texts VALUES (2, 'abcd', 1)").Error, data},
		{"text of another character set", db.Exec("INSERT INTO texts VALUES (2, '\U0001F600', 1)").Error, data},
		{"key of another character set", db.Exec("UPDATE texts SET n = 1 WHERE a = '\U0001F600' COLLATE utf8mb4_bin AND a = 'é' COLLATE utf8mb4_general_ci").Error, data},
		{"number too large", db.Exec("INSERT INTO texts VALUES (2, 'a', 1000)").Error, data},
		{"not a number", db.Exec("INSERT INTO texts VALUES (2, 'a', 'x')").Error, data},
		{"check constraint", db.Exec("INSERT INTO texts VALUES (2, 'a', 101)").Error, data},
		{"packet too large", db.Exec("DO LENGTH(?)", strings.Repeat("x", 65<<20)).Error, data},
		{"more rows than one", db.Exec("INSERT INTO texts VALUES (2, 'a', (SELECT 1 UNION SELECT 2))").Error, data},
		{"no member of an ENUM", db.Exec("INSERT INTO words VALUES ('b')").Error, data},
		{"no partition", db.Exec("INSERT INTO parts VALUES (2)").Error, data},
		{"a trigger's own", db.Exec("INSERT INTO refused VALUES (1)").Error, data},
		{"missing table", db.Exec("DO (SELECT 1 FROM missing)").Error, outage},
		{"missing column", db.Exec("UPDATE texts SET missing = 1").Error, outage},
		{"wrong password", stranger.Exec("DO 1").Error, outage},
		{"missing database", nowhere.Exec("DO 1").Error, outage},
		{"too many connections", &mysql.MySQLError{Number: 1040, SQLState: [5]byte([]byte("08004"))}, outage},
		{"shutting down", &mysql.MySQLError{Number: 1053, SQLState: [5]byte([]byte("08S01"))}, outage},
		{"read-only", &mysql.MySQLError{Number: 1290, SQLState: [5]byte([]byte("HY000"))}, outage},
		{"disk full", &mysql.MySQLError{Number: 1114, SQLState: [5]byte([]byte("HY000"))}, outage},
		{"connection lost", fmt.Errorf("committing: %w", mysql.ErrInvalidConn), outage},
		{"context ended", db.WithContext(ended).Exec("DO 1").Error, outage},
		{"too slow", db.WithContext(slow).Exec("DO SLEEP(2)").Error, outage},
		{"row changed under a snapshot", &mysql.MySQLError{Number: 1020, SQLState: [5]byte([]byte("HY000"))}, conflict},
		{"a cluster refused the commit", &mysql.MySQLError{Number: 3101, SQLState: [5]byte([]byte("40000"))}, conflict},
	}
	for _, c := range cases {
		if got := database.IsOutage(c.err); got != (c.want == outage) {
			t.Errorf("%s: outage %v (%v)", c.name, got, c.err)
		}
		if got := database.IsConflict(c.err); got != (c.want == conflict) {
			t.Errorf("%s: conflict %v (%v)", c.name, got, c.err)
		}
		if got := database.IsDuplicate(c.err); got != (c.name == "duplicate key") {
			t.Errorf("%s: duplicate %v (%v)", c.name, got, c.err)
		}
	}
}
