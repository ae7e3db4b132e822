package orderdb

import (
	"context"
	"errors"
	"fmt"

	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/lapse-go/lapse/amqp/database"
	"github.com/lapse-go/lapse/order"
)

// Emit writes what has to be published into the transaction of the change that caused it. An error
// rolls the change back; unless it is the database's ([database.IsOutage], [database.IsConflict]), it
// is taken for the fault of one of the orders. It may be called several times in a transaction.
type Emit func(tx *gorm.DB, events []order.Event, timers []order.Timer) error

// Config says what a store does besides keeping orders. The zero value does nothing.
type Config struct {
	// Emit publishes. Nothing is published when nil.
	Emit Emit
	// Committed, if set, is called after each commit of the store's own that emitted something. It
	// must not block.
	Committed func()
}

// Store is an [order.Repository] on MySQL or MariaDB. It is safe for use by several goroutines.
type Store struct{ base }

// base is what [Store] and [Table] share.
type base struct {
	db  *gorm.DB
	cfg Config
}

var _ order.Repository = (*Store)(nil)

// New makes a store on a pool, which may be one that [database.Open] made or any other, whose tables
// are there (see package migrations).
func New(db *gorm.DB, cfg Config) *Store {
	return &Store{newBase(db, cfg)}
}

func newBase(db *gorm.DB, cfg Config) base {
	return base{db: session(db.Statement.Context, db), cfg: cfg}
}

// maxBatch is how many orders one transaction changes at most.
const maxBatch = 200

// maxEmitLines bounds, in order lines, the events that are emitted at once, and with them the size of
// the packet they make: about 2 MB.
const maxEmitLines = 10_000

// emit calls Emit, several times if the events are large.
func (s *base) emit(tx *gorm.DB, events []order.Event, timers []order.Timer) error {
	if s.cfg.Emit == nil {
		return nil
	}
	first, lines := 0, 0
	for i, e := range events {
		if lines += len(e.Order.Lines); lines > maxEmitLines {
			if err := s.cfg.Emit(tx, events[first:i], nil); err != nil {
				return fmt.Errorf("emitting events: %w", err)
			}
			first, lines = i, len(e.Order.Lines)
		}
	}
	if err := s.cfg.Emit(tx, events[first:], timers); err != nil {
		return fmt.Errorf("emitting events: %w", err)
	}
	return nil
}

func (s *base) committed() {
	if s.cfg.Committed != nil {
		s.cfg.Committed()
	}
}

// session is one of db's that prepares no statements, of which an IN list of each length would be
// another, and logs no errors, which are returned.
func session(ctx context.Context, db *gorm.DB) *gorm.DB {
	s := db.Session(&gorm.Session{NewDB: true, Context: ctx, SkipDefaultTransaction: true, Logger: logger.Discard})
	switch prepared := s.Statement.ConnPool.(type) {
	case *gorm.PreparedStmtDB:
		s.Statement.ConnPool = prepared.ConnPool
	case *gorm.PreparedStmtTX:
		s.Statement.ConnPool = prepared.Tx
	}
	return s
}

// settle runs a batch. If that fails for what may be the fault of one of its items, each half is run
// apart, until the culprits are alone; alone is told of them. If it keeps losing conflicts, each item is
// run alone at once: every further batch with the row that others have would take as long to lose again.
// Any other error ends it.
func settle[T any](items []T, run func([]T) error, alone func(T, error)) error {
	err := run(items)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, order.ErrPaused), errors.Is(err, order.ErrUnavailable), database.IsOutage(err):
		return unavailable(err)
	case len(items) == 1:
		alone(items[0], unavailable(err))
		return nil
	case database.IsConflict(err):
		for i := range items {
			if err := settle(items[i:i+1], run, alone); err != nil {
				return err
			}
		}
		return nil
	}
	half := len(items) / 2
	if err := settle(items[:half], run, alone); err != nil {
		return err
	}
	return settle(items[half:], run, alone)
}

// unavailable marks errors after which the same work may succeed.
func unavailable(err error) error {
	if database.IsOutage(err) || database.IsConflict(err) {
		return fmt.Errorf("%w: %w", order.ErrUnavailable, err)
	}
	return err
}
