package orderdb

import (
	"cmp"
	"context"
	"database/sql"
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

// Check compares the table with the mapping. The error is a [*MisfitError], or wraps [migrations.ErrPending]
// while Lapse's own tables are not there, or [order.ErrUnavailable]. It changes nothing.
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
	if err := migrations.Check(ctx, pool, migrations.Transport, migrations.Closing); err != nil {
		return unavailableUnlessRefused(err)
	}
	f := fitting{pool: pool, m: t.mapping}
	l, err := f.layout(ctx)
	if err != nil {
		return unavailableUnlessRefused(fmt.Errorf("looking at table %s: %w", t.mapping.Table, err))
	}
	if len(f.misfits) > 0 {
		return &MisfitError{t.mapping.Table, f.misfits}
	}
	t.layout.Store(l)
	return nil
}

// unavailableUnlessRefused leaves a refused login as it is, which waiting does not mend.
func unavailableUnlessRefused(err error) error {
	if database.IsRefused(err) {
		return err
	}
	return unavailable(err)
}

// fitting looks at a table, and collects what does not fit.
type fitting struct {
	pool    *sql.DB
	m       Mapping
	misfits []string
}

func (f *fitting) wrong(format string, args ...any) {
	f.misfits = append(f.misfits, fmt.Sprintf(format, args...))
}

// layout is that of the table, if nothing is wrong.
func (f *fitting) layout(ctx context.Context) (*layout, error) {
	columns, err := f.columns(ctx)
	if err != nil || len(f.misfits) > 0 {
		return nil, err
	}
	column := func(key, name string) (c column, there bool) {
		i := slices.IndexFunc(columns, func(c columnOf) bool { return strings.EqualFold(c.name, name) })
		if i < 0 {
			f.wrong("there is no column %s, which %s names", name, key)
			return c, false
		}
		return columns[i].column, true
	}
	id, hasID := column("id", f.m.ID)
	status, hasStatus := column("status", f.m.Status)
	deadline, hasDeadline := column("deadline", f.m.Deadline)
	l := &layout{id: id, status: status}
	if hasID {
		f.checkID(id)
	}
	if hasStatus {
		f.checkStatus(status)
	}
	if hasDeadline {
		if l.deadline, err = f.checkDeadline(ctx, deadline); err != nil {
			return nil, err
		}
	}
	if !hasID || !hasStatus || !hasDeadline {
		return nil, nil
	}
	idIndex, dueIndex, err := f.indexes(ctx)
	if err != nil || len(f.misfits) > 0 {
		return nil, err
	}
	l.compose(f.m, idIndex, dueIndex)
	return l, f.prepare(ctx, l)
}

type columnOf struct{ column }

// columns are those of the table, if it is one.
func (f *fitting) columns(ctx context.Context) ([]columnOf, error) {
	schema, table := f.m.name()
	var kind, engine sql.NullString
	err := f.pool.QueryRowContext(ctx, `SELECT TABLE_TYPE, ENGINE FROM information_schema.TABLES
		WHERE TABLE_SCHEMA = COALESCE(NULLIF(?, ''), DATABASE()) AND TABLE_NAME = ?`, schema, table).Scan(&kind, &engine)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		f.wrong("there is no such table, or the login may not see it: name the table of the orders, as table or database.table, and grant SELECT and UPDATE on it")
		return nil, nil
	case err != nil:
		return nil, err
	case kind.String != "BASE TABLE":
		f.wrong("it is a %s: name the table itself", strings.ToLower(kind.String))
		return nil, nil
	case engine.String != "InnoDB":
		f.wrong("its engine is %s, which has no transactions: ALTER TABLE %s ENGINE = InnoDB", engine.String, f.m.sql())
	}
	rows, err := f.pool.QueryContext(ctx, `SELECT COLUMN_NAME, LOWER(DATA_TYPE), COLUMN_TYPE, COALESCE(COLLATION_NAME, ''), IS_NULLABLE = 'YES'
		FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = COALESCE(NULLIF(?, ''), DATABASE()) AND TABLE_NAME = ?`, schema, table)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var columns []columnOf
	for rows.Next() {
		var c columnOf
		if err := rows.Scan(&c.name, &c.kind, &c.full, &c.collation, &c.nullable); err != nil {
			return nil, err
		}
		columns = append(columns, c)
	}
	return columns, rows.Err()
}

func (f *fitting) checkID(c column) {
	switch {
	case !c.isInteger() && !c.isText():
		f.wrong("id: column %s is %s: it has to be a whole number, CHAR, VARCHAR or VARBINARY", c.name, c.full)
	case !c.isExact():
		f.wrong("id: column %s has the collation %s, for which order-a1 and ORDER-A1 are the same: ALTER TABLE %s MODIFY %s %s CHARACTER SET ascii COLLATE ascii_bin NOT NULL",
			c.name, c.collation, f.m.sql(), quoted(c.name), c.full)
	}
}

func (f *fitting) checkStatus(c column) {
	statuses := f.m.statuses()
	for i, s := range statuses {
		switch {
		case c.isInteger():
			if _, ok := c.bind(s.value); !ok {
				f.wrong("%s: %q is no value of column %s, which is %s: write a whole number that it can hold, without leading zeros", s.key, s.value, c.name, c.full)
			}
		case c.kind == "enum":
			if !slices.Contains(c.members(), s.value) {
				f.wrong("%s: %q is not a member of column %s, which is %s", s.key, s.value, c.name, c.full)
			}
		case !c.isText():
			f.wrong("status: column %s is %s: it has to be a whole number, ENUM, CHAR or VARCHAR", c.name, c.full)
			return
		}
		for _, other := range statuses[:i] {
			if s.value != other.value && c.same(s.value, other.value) {
				f.wrong("%s and %s: %q and %q are the same to column %s, whose collation is %s", other.key, s.key, other.value, s.value, c.name, c.collation)
			}
		}
	}
}

func (f *fitting) checkDeadline(ctx context.Context, c column) (deadlineColumn, error) {
	zone, _ := f.m.zone() // it was validated
	d := deadlineColumn{column: c, zone: zone}
	in := cmp.Or(f.m.DeadlineIn, UTC)
	switch {
	case c.kind == "datetime" && zone == nil:
		f.wrong("deadline_in is %s, but column %s is %s: write UTC, or the offset that it is in, such as +08:00", in, c.name, c.full)
	case c.kind == "timestamp" && zone != time.UTC:
		f.wrong("deadline_in is %s, but column %s is %s, which is an instant whatever the time zone: leave deadline_in out", in, c.name, c.full)
	case c.isInteger() && zone != nil:
		f.wrong("deadline_in is %s, but column %s is %s: write seconds or milliseconds, whichever it counts since 1970", in, c.name, c.full)
	case c.kind != "datetime" && c.kind != "timestamp" && !c.isInteger():
		f.wrong("deadline: column %s is %s: it has to be DATETIME, TIMESTAMP, or a whole number of seconds or milliseconds since 1970", c.name, c.full)
	case c.isInteger():
		d.unit = map[string]time.Duration{Seconds: time.Second, Milliseconds: time.Millisecond}[in]
	case c.kind == "timestamp":
		var ahead int
		if err := f.pool.QueryRowContext(ctx, "SELECT TIMESTAMPDIFF(SECOND, UTC_TIMESTAMP(), NOW())").Scan(&ahead); err != nil {
			return d, err
		}
		if ahead != 0 {
			f.wrong("deadline: column %s is %s, and the time zone of this program's sessions is not UTC: open the pool with database.Open, or set time_zone to +00:00", c.name, c.full)
		}
	}
	return d, nil
}

// indexes are the unique one of the id, and the one by which overdue orders are found.
func (f *fitting) indexes(ctx context.Context) (id, due string, err error) {
	schema, table := f.m.name()
	rows, err := f.pool.QueryContext(ctx, `SELECT INDEX_NAME, NON_UNIQUE = 0, COLUMN_NAME, SUB_PART IS NULL, NULLABLE = 'YES' FROM information_schema.STATISTICS
		WHERE TABLE_SCHEMA = COALESCE(NULLIF(?, ''), DATABASE()) AND TABLE_NAME = ? AND COLUMN_NAME IS NOT NULL
		ORDER BY INDEX_NAME = 'PRIMARY' DESC, INDEX_NAME, SEQ_IN_INDEX`, schema, table)
	if err != nil {
		return "", "", err
	}
	defer rows.Close()
	type index struct {
		name             string
		unique, nullable bool
		columns          []string
	}
	var all []index
	for rows.Next() {
		var part index
		var name string
		var whole bool
		if err := rows.Scan(&part.name, &part.unique, &name, &whole, &part.nullable); err != nil {
			return "", "", err
		}
		if !whole {
			name = "" // the beginning of a column serves neither
		}
		if n := len(all); n == 0 || all[n-1].name != part.name {
			all = append(all, part)
		}
		last := &all[len(all)-1]
		last.columns = append(last.columns, strings.ToLower(name))
		last.nullable = last.nullable || part.nullable
	}
	if err := rows.Err(); err != nil {
		return "", "", err
	}
	byID := []string{strings.ToLower(f.m.ID)}
	byDeadline := []string{strings.ToLower(f.m.Status), strings.ToLower(f.m.Deadline)}
	for _, i := range all {
		if id == "" && i.unique && !i.nullable && slices.Equal(i.columns, byID) {
			id = i.name
		}
		if due == "" && len(i.columns) >= 2 && slices.Equal(i.columns[:2], byDeadline) {
			due = i.name
		}
	}
	if id == "" {
		f.wrong("id: column %[2]s is neither the primary key nor NOT NULL with a unique index of its own, so that it could stand for several orders: ALTER TABLE %[1]s ADD UNIQUE INDEX (%[2]s)",
			f.m.sql(), quoted(f.m.ID))
	}
	if due == "" {
		f.wrong("no index begins with %[2]s, %[3]s, by which overdue orders are found: ALTER TABLE %[1]s ADD INDEX (%[2]s, %[3]s, %[4]s)",
			f.m.sql(), quoted(f.m.Status), quoted(f.m.Deadline), quoted(f.m.ID))
	}
	return id, due, nil
}

// prepare has the server look at every statement, which so shows what the login may not do.
func (f *fitting) prepare(ctx context.Context, l *layout) error {
	try := func(what, statement string) error {
		prepared, err := f.pool.PrepareContext(ctx, strings.NewReplacer(" IN ?", " IN (?)").Replace(statement))
		if refusal, ok := errors.AsType[*mysql.MySQLError](err); ok && strings.HasPrefix(string(refusal.SQLState[:]), "42") {
			f.wrong("%s: the server refuses it: %s", what, refusal.Message)
			return nil
		}
		if err != nil {
			return err
		}
		return prepared.Close()
	}
	if err := try("reading and locking orders", l.selectRows+forUpdate); err != nil {
		return err
	}
	if err := try("finding overdue orders", l.selectOverdue); err != nil {
		return err
	}
	if err := try("expiring orders", l.updateRows); err != nil {
		return err
	}
	for i, text := range f.m.OnExpiry {
		s := statement{idList.ReplaceAllString(text, "(?)"), len(idList.FindAllString(text, -1))}
		if err := try(fmt.Sprintf("on_expiry, statement %d", i+1), s.sql); err != nil {
			return err
		}
		l.onExpiry = append(l.onExpiry, s)
	}
	return nil
}
