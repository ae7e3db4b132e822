package orderdb

import (
	"context"
	"database/sql"
	"slices"
	"strings"
)

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
	// One that is switched off serves nobody, and cannot be named in a statement.
	serves := "IS_VISIBLE = 'YES'"
	var mariaDB bool
	if err := f.conn.QueryRowContext(ctx, "SELECT VERSION() LIKE '%MariaDB%'").Scan(&mariaDB); err != nil {
		return "", "", err
	}
	if mariaDB {
		serves = "IGNORED = 'NO'"
	}
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
		FROM information_schema.STATISTICS`+ofTheTable+"AND "+serves+" ORDER BY INDEX_NAME <> 'PRIMARY', INDEX_NAME, SEQ_IN_INDEX")
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
