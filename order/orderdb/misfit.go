package orderdb

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/lapse-go/lapse/amqp/database"
	"github.com/lapse-go/lapse/migrations"
)

// MisfitError says in what a table is not as its mapping says, or not as Lapse needs it.
type MisfitError struct {
	Table   string
	Misfits []string // each with its cure
}

func (e *MisfitError) Error() string {
	return fmt.Sprintf("table %s does not fit its description:\n  - %s", e.Table, strings.Join(e.Misfits, "\n  - "))
}

// Check compares the table with the mapping. The error is that of [Mapping.Validate], a [*MisfitError] with all
// that does not fit, or wraps [migrations.ErrPending] while Lapse's own tables are not there, or
// [order.ErrUnavailable]. It changes nothing, and looks at no order.
//
// [order.ErrUnavailable]: https://pkg.go.dev/github.com/lapse-go/lapse/order#ErrUnavailable
func (t *Table) Check(ctx context.Context) error {
	_, err := t.check(ctx)
	return err
}

// check returns the layout that it has stored.
func (t *Table) check(ctx context.Context) (*layout, error) {
	if err := t.mapping.Validate(); err != nil {
		return nil, err
	}
	pool, err := t.db.DB()
	if err != nil {
		return nil, err
	}
	if err := migrations.Check(ctx, pool, migrations.OwnTable...); err != nil {
		return nil, unlessRefused(err)
	}
	conn, err := pool.Conn(ctx)
	if err != nil {
		return nil, unlessRefused(fmt.Errorf("looking at table %s: %w", t.mapping.Table, err))
	}
	defer conn.Close()
	f := fitting{conn: conn, m: t.mapping}
	l, err := f.layout(ctx)
	if err != nil {
		return nil, unlessRefused(fmt.Errorf("looking at table %s: %w", t.mapping.Table, err))
	}
	if len(f.misfits) > 0 {
		return nil, &MisfitError{t.mapping.Table, f.misfits}
	}
	t.layout.Store(l)
	return l, nil
}

// unlessRefused is unavailable, but leaves a refused login as it is, which waiting does not mend.
func unlessRefused(err error) error {
	if database.IsRefused(err) {
		return err
	}
	return unavailable(err)
}

// fitting looks at a table, and collects what does not fit.
type fitting struct {
	conn    *sql.Conn
	m       Mapping
	misfits []string
}

func (f *fitting) wrong(format string, args ...any) {
	f.misfits = append(f.misfits, fmt.Sprintf(format, args...))
}

// layout is that of the table, if nothing is wrong.
func (f *fitting) layout(ctx context.Context) (*layout, error) {
	l, err := f.table(ctx)
	if err != nil {
		return nil, err
	}
	own := []struct{ what, sql string }{{"reading the pause switch", selectPause + forShare}}
	if l != nil {
		own = append(own, []struct{ what, sql string }{
			{"reading and locking orders", l.selectRows + forUpdate},
			{"finding overdue orders", l.selectOverdue},
			{"expiring orders", l.updateRows},
		}...)
	}
	for _, s := range own {
		if err := f.prepare(ctx, s.what, strings.ReplaceAll(s.sql, "IN ?", "IN (?)"), strings.Count(s.sql, "?")); err != nil {
			return nil, err
		}
	}
	for i, text := range f.m.OnExpiry {
		lists := len(idList.FindAllString(text, -1))
		if err := f.prepare(ctx, fmt.Sprintf("on_expiry, statement %d", i+1), idList.ReplaceAllString(text, "(?,?)"), 2*lists); err != nil {
			return nil, err
		}
	}
	return l, nil
}

// table compares the columns and indexes. The layout is nil if no statement can be made.
func (f *fitting) table(ctx context.Context) (*layout, error) {
	columns, err := f.columns(ctx)
	if err != nil || columns == nil {
		return nil, err
	}
	l := new(layout)
	complete := true
	for _, named := range []struct {
		key, name string
		column    *column
		fits      func(column) bool
	}{
		{"id", f.m.ID, &l.id, f.fitsID},
		{"status", f.m.Status, &l.status, f.fitsStatus},
		{"deadline", f.m.Deadline, &l.deadline.column, f.fitsDeadline},
	} {
		i := slices.IndexFunc(columns, func(c column) bool { return strings.EqualFold(c.name, named.name) })
		if i < 0 {
			f.wrong("%s: there is no column %s: name one of %s", named.key, named.name, namesOf(columns))
			complete = false
			continue
		}
		*named.column = columns[i]
		complete = named.fits(columns[i]) && complete
	}
	if l.status.isText() {
		if err := f.checkHolds(ctx, l.status); err != nil {
			return nil, err
		}
	}
	if l.status.name != "" {
		if err := f.checkDistinct(ctx, l.status); err != nil {
			return nil, err
		}
	}
	if l.deadline.kind == "timestamp" {
		if err := f.checkTimeZone(ctx, l.deadline.column); err != nil {
			return nil, err
		}
	}
	idIndex, dueIndex, err := f.indexes(ctx, l)
	if err != nil || !complete {
		return nil, err
	}
	l.deadline.zone, _ = f.m.zone() // it was validated
	l.deadline.unit = map[string]time.Duration{Seconds: time.Second, Milliseconds: time.Millisecond}[f.m.DeadlineIn]
	l.compose(f.m, idIndex, dueIndex)
	return l, nil
}

func namesOf(columns []column) string {
	names := make([]string, len(columns))
	for i, c := range columns {
		names[i] = c.name
	}
	return strings.Join(names, ", ")
}

// query calls scan for each row of the answer. The first two parameters are the database, which may be empty,
// and the table.
func (f *fitting) query(ctx context.Context, scan func(*sql.Rows) error, sql string) error {
	database, table := f.m.name()
	rows, err := f.conn.QueryContext(ctx, sql, database, table)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := scan(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

const ofTheTable = " WHERE TABLE_SCHEMA = COALESCE(NULLIF(?, ''), DATABASE()) AND TABLE_NAME = ? "

// columns are those of the table, if it is one.
func (f *fitting) columns(ctx context.Context) ([]column, error) {
	found := false
	var kind, engine string
	err := f.query(ctx, func(rows *sql.Rows) error {
		found = true
		return rows.Scan(&kind, &engine)
	}, "SELECT TABLE_TYPE, COALESCE(ENGINE, '') FROM information_schema.TABLES"+ofTheTable)
	switch {
	case err != nil:
		return nil, err
	case !found:
		f.wrong("there is no such table, or the login may not see it: name that of the orders, as table or database.table, and grant SELECT and UPDATE on it")
		return nil, nil
	case kind != "BASE TABLE":
		f.wrong("it is a %s, and not a plain table: name one that has the orders", strings.ToLower(kind))
		return nil, nil
	case engine != "InnoDB":
		f.wrong("its engine is %s, which has no transactions: ALTER TABLE %s ENGINE = InnoDB", engine, f.m.sql())
	}
	var columns []column
	err = f.query(ctx, func(rows *sql.Rows) error {
		var c column
		err := rows.Scan(&c.name, &c.kind, &c.full, &c.collation, &c.extra, &c.nullable)
		columns = append(columns, c)
		return err
	}, `SELECT COLUMN_NAME, LOWER(DATA_TYPE), COLUMN_TYPE, COALESCE(COLLATION_NAME, ''), LOWER(EXTRA), IS_NULLABLE = 'YES'
		FROM information_schema.COLUMNS`+ofTheTable+"ORDER BY ORDINAL_POSITION")
	return columns, err
}

// prepare has the server look at a statement, which shows what it takes for wrong, and what the login may not do.
// Params is how many parameters it has to have.
func (f *fitting) prepare(ctx context.Context, what, statement string, params int) error {
	found := 0
	err := f.conn.Raw(func(conn any) error {
		preparer, ok := conn.(driver.ConnPrepareContext)
		if !ok {
			return fmt.Errorf("the driver of the pool, %T, prepares nothing with a context: make the pool with database.Open", conn)
		}
		prepared, err := preparer.PrepareContext(ctx, statement)
		if err != nil {
			return err
		}
		found = prepared.NumInput()
		return prepared.Close()
	})
	refusal, refused := errors.AsType[*mysql.MySQLError](err)
	switch {
	case refused && isRefusal(refusal):
		f.wrong("%s: the server refuses %.60q: %s", what, strings.Join(strings.Fields(statement), " "), refusal.Message)
	case err != nil:
		return err
	case found != params:
		f.wrong("%s: write (:ids) outside of quotes and comments", what)
	}
	return nil
}

// isRefusal reports whether an error is about the statement, and not about the server's state.
func isRefusal(err *mysql.MySQLError) bool {
	class := string(err.SQLState[:2])
	tooMany := err.Number == 1226 || err.Number == 1461 // statements, of this login or of all
	return class != "08" && class != "53" && class != "70" && !tooMany && !database.IsConflict(err)
}
