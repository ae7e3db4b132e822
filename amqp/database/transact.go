package database

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/go-sql-driver/mysql"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"gorm.io/gorm"
)

// How often, and for how long, a transaction that loses conflicts is run again.
const (
	maxReruns    = 10
	maxRerunTime = 30 * time.Second
	// maxWaitTime bounds it for one that waits for a row of which somebody else does not let go.
	maxWaitTime = 5 * time.Second
)

// Transact runs fn in a READ COMMITTED transaction of a pool, and commits unless fn returns an error
// or panics. The pool may be any *gorm.DB, with any settings, but not a transaction.
//
// A transaction that loses a conflict is rolled back and fn is run again from its start, so fn has
// to be free of effects outside the database. After ten reruns or 30 s, with short random pauses
// between the runs, the conflict is returned, and [IsConflict] is true of it; so it is after 5 s if a row is
// locked by somebody else all the time. No rerun begins after ctx ended.
//
// If the answer to the commit is lost, the error says so and whether the transaction took place is
// unknown.
func Transact(ctx context.Context, db *gorm.DB, fn func(tx *gorm.DB) error) error {
	if _, inside := db.Statement.ConnPool.(gorm.TxCommitter); inside {
		return errors.New("a transaction cannot be rerun inside another one: give Transact a pool")
	}
	pause := backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(2*time.Millisecond),
		backoff.WithMaxInterval(200*time.Millisecond),
		backoff.WithRandomizationFactor(0.8),
		backoff.WithMaxElapsedTime(maxRerunTime),
	)
	begin := time.Now()
	for reruns := 0; ; reruns++ {
		err := transactOnce(ctx, db, fn)
		if err == nil || !IsConflict(err) {
			return err
		}
		wait := pause.NextBackOff()
		if reruns == maxReruns || wait == backoff.Stop || isLockWait(err) && time.Since(begin) > maxWaitTime {
			return fmt.Errorf("transaction still in conflict after %d reruns: %w", reruns, err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w, and then: %w", err, ctx.Err())
		case <-time.After(wait):
		}
		count(db, err)
	}
}

func transactOnce(ctx context.Context, db *gorm.DB, fn func(tx *gorm.DB) error) (err error) {
	session := db.Session(&gorm.Session{NewDB: true, Context: ctx, SkipDefaultTransaction: true})
	if prepared, ok := session.Statement.ConnPool.(*gorm.PreparedStmtDB); ok {
		// Statements with IN lists would each be prepared on every connection and kept there.
		session.Statement.ConnPool = prepared.ConnPool
	}
	tx := session.Begin(&sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if tx.Error != nil {
		return fmt.Errorf("beginning a transaction: %w", tx.Error)
	}
	done := false
	defer func() {
		// Also after a panic. Nothing is left to do if it fails: the connection is given up.
		if !done {
			tx.Rollback()
		}
	}()
	if err := fn(tx); err != nil {
		return err
	}
	done = true
	if err := tx.Commit().Error; err != nil {
		// When the context ends just before, database/sql only says that the transaction is over.
		return fmt.Errorf("committing: %w", errors.Join(err, context.Cause(ctx)))
	}
	return nil
}

// Metrics count what [Transact] does. They are a gorm plugin: [Open] uses them, and db.Use(metrics)
// does so for a pool that was opened elsewhere.
type Metrics struct {
	// Reruns counts transactions run again, by the server's error number.
	Reruns *prometheus.CounterVec
}

// NewMetrics makes the counters and registers them with r, unless r is nil.
func NewMetrics(r prometheus.Registerer) *Metrics {
	return &Metrics{Reruns: promauto.With(r).NewCounterVec(prometheus.CounterOpts{
		Name: "lapse_database_reruns_total",
		Help: "Transactions run again after a conflict, by the server's error number.",
	}, []string{"code"})}
}

const pluginName = "lapse:database"

// Name is that of the gorm plugin.
func (*Metrics) Name() string { return pluginName }

// Initialize does nothing; it makes Metrics a gorm plugin.
func (*Metrics) Initialize(*gorm.DB) error { return nil }

func count(db *gorm.DB, err error) {
	metrics, ok := db.Config.Plugins[pluginName].(*Metrics)
	if !ok {
		return
	}
	if e, ok := errors.AsType[*mysql.MySQLError](err); ok {
		metrics.Reruns.WithLabelValues(strconv.Itoa(int(e.Number))).Inc()
	}
}
