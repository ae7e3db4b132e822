package orderdb

import (
	"cmp"
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
	if err := t.mapping.Validate(); err != nil {
		return err
	}
	pool, err := t.db.DB()
	if err != nil {
		return err
	}
	if err := migrations.Check(ctx, pool, migrations.OwnTable...); err != nil {
		return unlessRefused(err)
	}
	conn, err := pool.Conn(ctx)
	if err != nil {
		return unlessRefused(fmt.Errorf("looking at table %s: %w", t.mapping.Table, err))
	}
	defer conn.Close()
	f := fitting{conn: conn, m: t.mapping}
	l, err := f.layout(ctx)
	if err != nil {
		return unlessRefused(fmt.Errorf("looking at table %s: %w", t.mapping.Table, err))
	}
	if len(f.misfits) > 0 {
		return &MisfitError{t.mapping.Table, f.misfits}
	}
	t.layout.Store(l)
	return nil
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

func (f *fitting) fitsID(c column) bool {
	switch {
	case !c.isInteger() && !c.isText():
		f.wrong("id: column %s is %s: it has to be a whole number, CHAR, VARCHAR or VARBINARY", c.name, c.full)
		return false
	case !c.isExact():
		f.wrong("id: column %s has the collation %s, to which order-a1 and ORDER-A1 are the same. With its default and comment, if it has any: %s",
			c.name, c.collation, c.modify(f.m.sql(), "ascii_bin", false))
	}
	return true
}

func (f *fitting) fitsStatus(c column) bool {
	if !c.isInteger() && !c.isText() && c.kind != "enum" {
		f.wrong("status: column %s is %s: it has to be a whole number, ENUM, CHAR or VARCHAR", c.name, c.full)
		return false
	}
	if strings.Contains(c.extra, " generated") { // and not DEFAULT_GENERATED
		f.wrong("status: column %s is computed from others, so that it cannot be set: name the one that it is computed from", c.name)
	}
	fits := true
	for _, s := range f.m.statuses() {
		_, possible := c.bind(s.value)
		switch {
		case !possible:
			f.wrong("%s: %q is no value of column %s, which is %s: write a whole number that it can hold, without leading zeros", s.key, s.value, c.name, c.full)
			fits = false
		case c.kind == "enum" && !slices.Contains(c.members(), s.value):
			f.wrong("%s: %q is none of the values of column %s, which is %s: write one of them, exactly", s.key, s.value, c.name, c.full)
		}
	}
	return fits
}

func (f *fitting) fitsDeadline(c column) bool {
	zone, _ := f.m.zone() // it was validated
	in := cmp.Or(f.m.DeadlineIn, UTC)
	if strings.Contains(c.extra, "on update") {
		f.wrong("deadline: column %s changes with every change of its row (ON UPDATE). Name another, or, with its default and comment, if it has any: %s",
			c.name, c.modify(f.m.sql(), "", c.nullable))
	}
	switch {
	case c.kind == "datetime" && zone == nil:
		f.wrong("deadline_in is %s, but column %s is %s: write UTC, or the offset that it is in, such as +08:00", in, c.name, c.full)
	case c.kind == "timestamp" && zone != time.UTC:
		f.wrong("deadline_in is %s, but column %s is %s, which is an instant whatever the time zone: leave deadline_in out", in, c.name, c.full)
	case c.isInteger() && zone != nil:
		f.wrong("deadline_in is %s, but column %s is %s: write seconds or milliseconds, whichever it counts since 1970", in, c.name, c.full)
	case f.m.DeadlineIn == Milliseconds && integers[c.kind] < 64:
		f.wrong("deadline_in is milliseconds, but column %s is %s, which cannot hold those of today: write seconds, if that is what it counts", c.name, c.full)
	case c.kind != "datetime" && c.kind != "timestamp" && !c.isInteger():
		f.wrong("deadline: column %s is %s: it has to be DATETIME, TIMESTAMP, or a whole number of seconds or milliseconds since 1970", c.name, c.full)
	default:
		return true
	}
	return false
}

// checkHolds has the server say which of the statuses a text column cannot have.
func (f *fitting) checkHolds(ctx context.Context, c column) error {
	for _, s := range f.m.statuses() {
		holds := true
		if charset, _, found := strings.Cut(c.collation, "_"); found {
			err := f.conn.QueryRowContext(ctx, fmt.Sprintf("SELECT CAST(CONVERT(CONVERT(? USING %s) USING utf8mb4) AS BINARY) = CAST(? AS BINARY)", charset), s.value, s.value).Scan(&holds)
			if err != nil {
				return err
			}
		}
		if length := c.length(); !holds || length > 0 && len([]rune(s.value)) > length {
			f.wrong("%s: column %s, which is %s, cannot hold %q: write what it has instead, or change the column", s.key, c.name, c.full, s.value)
		}
	}
	return nil
}

// checkDistinct has the server say which of the statuses are one to the column.
func (f *fitting) checkDistinct(ctx context.Context, c column) error {
	if c.isExact() {
		return nil
	}
	statuses := f.m.statuses()
	charset, _, _ := strings.Cut(c.collation, "_")
	for i, a := range statuses {
		for _, b := range statuses[:i] {
			var same bool
			err := f.conn.QueryRowContext(ctx, fmt.Sprintf("SELECT CONVERT(? USING %[1]s) COLLATE %[2]s = CONVERT(? USING %[1]s)", charset, c.collation), a.value, b.value).Scan(&same)
			if err != nil {
				return err
			}
			if same {
				f.wrong("%s and %s: to column %s, whose collation is %s, %q and %q are the same: write different ones, or give it one that ends in _bin",
					b.key, a.key, c.name, c.collation, b.value, a.value)
			}
		}
	}
	return nil
}

// checkTimeZone is about TIMESTAMP, which is read in that of the session.
func (f *fitting) checkTimeZone(ctx context.Context, c column) error {
	// In winter and in summer.
	var utc bool
	const ask = "SELECT UNIX_TIMESTAMP('2030-01-01') = 1893456000 AND UNIX_TIMESTAMP('2030-07-01') = 1909094400"
	if err := f.conn.QueryRowContext(ctx, ask).Scan(&utc); err != nil {
		return err
	}
	if !utc {
		f.wrong("deadline: column %s is %s, and the time zone of this program's sessions is not UTC: make the pool with database.Open, or set their time_zone to +00:00", c.name, c.full)
	}
	return nil
}

// index is one of the table's. A part that is no whole column has no name.
type index struct {
	name    string
	unique  bool // and not NULL
	columns []string
}

func (i index) begins(columns ...string) bool {
	return len(i.columns) >= len(columns) && slices.EqualFunc(i.columns[:len(columns)], columns, strings.EqualFold)
}

// indexes are the names of the unique one of the id, and of the one by which overdue orders are found. Both are
// asked for only if their columns are there.
func (f *fitting) indexes(ctx context.Context, l *layout) (id, due string, err error) {
	var all []index
	err = f.query(ctx, func(rows *sql.Rows) error {
		var name, column string
		var unique bool
		if err := rows.Scan(&name, &unique, &column); err != nil {
			return err
		}
		if n := len(all); n == 0 || all[n-1].name != name {
			all = append(all, index{name: name, unique: true})
		}
		last := &all[len(all)-1]
		last.unique = last.unique && unique
		last.columns = append(last.columns, column)
		return nil
	}, `SELECT INDEX_NAME, NON_UNIQUE = 0 AND NULLABLE <> 'YES', IF(SUB_PART IS NULL AND INDEX_TYPE = 'BTREE', COALESCE(COLUMN_NAME, ''), '')
		FROM information_schema.STATISTICS`+ofTheTable+"ORDER BY INDEX_NAME <> 'PRIMARY', INDEX_NAME, SEQ_IN_INDEX")
	if err != nil {
		return "", "", err
	}
	for _, i := range all {
		if id == "" && i.unique && len(i.columns) == 1 && i.begins(f.m.ID) {
			id = i.name
		}
		if due == "" && i.begins(f.m.Status, f.m.Deadline) {
			due = i.name
		}
	}
	if id == "" && l.id.name != "" {
		cure := "ALTER TABLE " + f.m.sql()
		if l.id.nullable {
			cure = "With its default and comment, if it has any: " + l.id.modify(f.m.sql(), l.id.collation, false) + ","
		}
		f.wrong("id: column %s is neither the primary key nor NOT NULL with a unique index of its own, so that it could stand for several orders. %s ADD UNIQUE INDEX (%s)",
			l.id.name, cure, quoted(l.id.name))
	}
	if due == "" && l.status.name != "" && l.deadline.name != "" {
		f.wrong("no index begins with %[2]s and %[3]s, by which overdue orders are found: ALTER TABLE %[1]s ADD INDEX (%[2]s, %[3]s, %[4]s)",
			f.m.sql(), quoted(f.m.Status), quoted(f.m.Deadline), quoted(f.m.ID))
	}
	return id, due, nil
}

// prepare has the server look at a statement, which shows what it takes for wrong, and what the login may not do.
// Params is how many parameters it has to have.
func (f *fitting) prepare(ctx context.Context, what, statement string, params int) error {
	found := 0
	err := f.conn.Raw(func(conn any) error {
		prepared, err := conn.(driver.ConnPrepareContext).PrepareContext(ctx, statement)
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
