// Package migrations holds the tables of Lapse and brings a database up to date with them.
//
// Every table begins with lapse_, so that they can live in a shop's own schema. They are three [Set]s, so
// that a shop that keeps its orders in a table of its own has no empty one of Lapse's beside it.
package migrations

import (
	"cmp"
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	"github.com/lapse-go/lapse/amqp/database"
)

//go:embed transport/*.sql closing/*.sql orders/*.sql
var files embed.FS

// A Set is migrations that are applied, and whose versions are counted, together.
type Set struct {
	name string
}

// Name is that of the set: transport, closing or orders.
func (s Set) Name() string { return s.name }

func (s Set) versionTable() string { return "lapse_schema_" + s.name }

var (
	// Transport is the tables that sending and receiving messages needs.
	Transport = Set{"transport"}
	// Closing is what closing orders needs, wherever they are: the switch that pauses it, and the procedure
	// lapse_timer.
	Closing = Set{"closing"}
	// Orders is the tables in which orderdb keeps orders.
	Orders = Set{"orders"}
	// All is every set, in the order in which they are applied.
	All = []Set{Transport, Closing, Orders}
	// OwnTable is those that a shop needs which keeps its orders in a table of its own.
	OwnTable = []Set{Transport, Closing}
)

const lockTable = "lapse_schema_lock"

// Up applies what is pending of the sets, All if none are named. Any number of processes may do so at
// once, on an empty database too: they take turns, by a row in lapse_schema_lock that is free again
// half a minute after its holder died. One that has to wait gives up after five minutes, or when ctx
// ends.
//
// The pool needs parseTime, which those of package database have, and no read time-out that is
// shorter than a migration takes. A migration that fails is left as far as it came, because MySQL
// cannot roll back a change of a table; each may be run again.
func Up(ctx context.Context, db *sql.DB, sets ...Set) (err error) {
	locker, err := lock.NewMySQLTableLocker(
		lock.WithTableName(lockTable),
		lock.WithTableLockTimeout(200*time.Millisecond, 5*60*5),
		lock.WithTableUnlockTimeout(200*time.Millisecond, 5*60),
		lock.WithTableRetryPolicy(func(err error) bool { return !database.IsOutage(err) }),
		lock.WithTableLogger(slog.New(slog.DiscardHandler)), // what it logs it returns, too
	)
	if err != nil {
		return err
	}
	// The lock is taken here and not by goose, which creates its version table before it locks and
	// fails in a process that finds that table still empty.
	if err := locker.Lock(ctx, db); err != nil {
		return fmt.Errorf("waiting for other migrations to end: %w", err)
	}
	defer func() { err = errors.Join(err, locker.Unlock(ctx, db)) }()
	for _, set := range orAll(sets) {
		if err := set.up(ctx, db); err != nil {
			return fmt.Errorf("migrating the %s tables: %w", set.name, err)
		}
	}
	return nil
}

func (s Set) up(ctx context.Context, db *sql.DB) error {
	dir, err := fs.Sub(files, s.name)
	if err != nil {
		return err
	}
	if err := s.dropEmptyVersionTable(ctx, db); err != nil {
		return err
	}
	provider, err := goose.NewProvider(goose.DialectMySQL, db, dir,
		goose.WithTableName(s.versionTable()), goose.WithDisableGlobalRegistry(true))
	if errors.Is(err, goose.ErrNoMigrations) {
		return nil
	}
	if err != nil {
		return err
	}
	_, err = provider.Up(ctx)
	return err
}

// dropEmptyVersionTable undoes what a process left that died between creating the version table and
// writing its first row: goose would refuse it from then on.
func (s Set) dropEmptyVersionTable(ctx context.Context, db *sql.DB) error {
	var n int
	err := db.QueryRowContext(ctx, "SELECT COUNT(*) FROM "+s.versionTable()).Scan(&n)
	if noSuchTable(err) || err == nil && n > 0 {
		return nil
	}
	if err == nil {
		_, err = db.ExecContext(ctx, "DROP TABLE "+s.versionTable())
	}
	return err
}

// Migration is one step of a set.
type Migration struct {
	Set     Set
	Version int64
	// Name is that of its file, for instance 00001_outbox.sql.
	Name    string
	Applied bool
}

// Status lists the migrations of the sets, All if none are named, in the order in which they are
// applied. It changes nothing in the database.
func Status(ctx context.Context, db *sql.DB, sets ...Set) ([]Migration, error) {
	var all []Migration
	for _, set := range orAll(sets) {
		applied, err := set.applied(ctx, db)
		if err != nil {
			return nil, fmt.Errorf("reading which %s migrations are applied: %w", set.name, err)
		}
		entries, err := files.ReadDir(set.name)
		if err != nil {
			return nil, err
		}
		for _, entry := range entries {
			version, err := goose.NumericComponent(entry.Name())
			if err != nil {
				return nil, fmt.Errorf("migration %s: %w", entry.Name(), err)
			}
			all = append(all, Migration{set, version, entry.Name(), applied[version]})
		}
	}
	return all, nil
}

func (s Set) applied(ctx context.Context, db *sql.DB) (map[int64]bool, error) {
	rows, err := db.QueryContext(ctx, "SELECT version_id, is_applied FROM "+s.versionTable()+" ORDER BY id")
	if noSuchTable(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	applied := map[int64]bool{}
	for rows.Next() {
		var version int64
		var is bool
		if err := rows.Scan(&version, &is); err != nil {
			return nil, err
		}
		applied[version] = is
	}
	return applied, rows.Err()
}

// ErrPending is what the error of [Check] wraps when the database is behind.
var ErrPending = errors.New("the database is behind this program: run `lapse migrate up` first")

// Check returns nil if nothing of the sets, All if none are named, is pending; an error that wraps
// ErrPending and names what is; or why it could not find out.
func Check(ctx context.Context, db *sql.DB, sets ...Set) error {
	pending, err := Pending(ctx, db, sets...)
	if err != nil || len(pending) == 0 {
		return err
	}
	names := make([]string, len(pending))
	for i, m := range pending {
		names[i] = m.Set.name + "/" + m.Name
	}
	return fmt.Errorf("%w (pending: %s)", ErrPending, strings.Join(names, ", "))
}

// Pending is what of [Status] is not applied.
func Pending(ctx context.Context, db *sql.DB, sets ...Set) ([]Migration, error) {
	all, err := Status(ctx, db, sets...)
	return slices.DeleteFunc(all, func(m Migration) bool { return m.Applied }), err
}

// CreateDatabase creates the database that the DSN names, with utf8mb4 as its character set, unless
// it exists.
func CreateDatabase(ctx context.Context, dsn string) (err error) {
	pool, name, err := database.OpenServer(dsn, database.Options{MaxOpen: 1})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, pool.Close()) }()
	if name == "" {
		return errors.New("the DSN names no database to create")
	}
	quoted := "`" + strings.ReplaceAll(name, "`", "``") + "`"
	// A login that may use the database but create none is fine as long as it exists.
	var exists int
	err = pool.QueryRowContext(ctx, "SELECT COUNT(*) FROM information_schema.schemata WHERE schema_name = ?", name).Scan(&exists)
	if err == nil && exists == 0 {
		_, err = pool.ExecContext(ctx, "CREATE DATABASE IF NOT EXISTS "+quoted+" CHARACTER SET utf8mb4")
	}
	if err != nil {
		return fmt.Errorf("creating database %s: %w", name, err)
	}
	return nil
}

func orAll(sets []Set) []Set {
	if len(sets) == 0 {
		return All
	}
	return slices.SortedFunc(slices.Values(sets), func(a, b Set) int {
		return cmp.Compare(slices.Index(All, a), slices.Index(All, b))
	})
}

func noSuchTable(err error) bool {
	e, ok := errors.AsType[*mysql.MySQLError](err)
	return ok && e.Number == 1146
}
