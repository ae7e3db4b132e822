package orderdb

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

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
