package orderdb

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lapse-go/lapse/order"
)

// column is one as information_schema describes it.
type column struct {
	name      string
	kind      string // bigint, varchar, …
	full      string // bigint(20) unsigned
	collation string // empty where values are no text
	extra     string // for instance auto_increment
	nullable  bool
}

// modify is SQL that defines the column again. What else its definition says has to be added: a default, a
// comment.
func (c column) modify(table, collation string, nullable bool) string {
	sql := "ALTER TABLE " + table + " MODIFY " + quoted(c.name) + " " + c.full
	if collation != "" {
		charset, _, _ := strings.Cut(collation, "_")
		sql += " CHARACTER SET " + charset + " COLLATE " + collation
	}
	if nullable {
		return sql + " NULL"
	}
	sql += " NOT NULL"
	if strings.Contains(c.extra, "auto_increment") {
		sql += " AUTO_INCREMENT"
	}
	return sql
}

// integers are the bits of the whole numbers.
var integers = map[string]int{"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "bigint": 64}

func (c column) isInteger() bool { return integers[c.kind] > 0 }
func (c column) isUnsigned() bool {
	return c.isInteger() && strings.Contains(c.full, "unsigned")
}
func (c column) isText() bool {
	return c.kind == "char" || c.kind == "varchar" || c.kind == "varbinary"
}

// exact are the collations that tell an a from an A
// (https://dev.mysql.com/doc/refman/8.4/en/charset-collation-names.html).
var exact = regexp.MustCompile(`^binary$|_(bin|cs)$`)

func (c column) isExact() bool { return c.collation == "" || exact.MatchString(c.collation) }

// value is SQL for the column's value: a time is read as text, so that no session's settings change it.
func (c column) value() string {
	if c.isInteger() || c.isText() || c.kind == "enum" {
		return quoted(c.name)
	}
	return "CAST(" + quoted(c.name) + " AS CHAR)"
}

// bind is a value as it is compared with the column, and false if no row can have it. Numbers are bound as
// numbers, for a text would be compared with a number as a floating-point number, which 7, 007 and 7.0 all
// are, and large ids that differ. So only their canonical form is a value.
func (c column) bind(text string) (any, bool) {
	bits := integers[c.kind]
	switch {
	case !c.isInteger():
		return text, true
	case c.isUnsigned():
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil || strconv.FormatUint(n, 10) != text || n > math.MaxUint64>>(64-bits) {
			return nil, false
		}
		return n, true
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || strconv.FormatInt(n, 10) != text || n > math.MaxInt64>>(64-bits) || n < math.MinInt64>>(64-bits) {
		return nil, false
	}
	return n, true
}

// beforeAll is what comes before every id.
func (c column) beforeAll() any {
	if c.isInteger() {
		return int64(math.MinInt64)
	}
	return ""
}

// length is how many characters a text may have, 0 if that is not known.
func (c column) length() int {
	_, rest, _ := strings.Cut(c.full, "(")
	digits, _, _ := strings.Cut(rest, ")")
	n, _ := strconv.Atoi(digits)
	return n
}

// members are those of an ENUM.
func (c column) members() []string {
	var members []string
	for _, quoted := range enumMember.FindAllString(c.full, -1) {
		members = append(members, strings.ReplaceAll(quoted[1:len(quoted)-1], "''", "'"))
	}
	return members
}

var enumMember = regexp.MustCompile(`'(?:[^']|'')*'`)

// same is whether a value that the column has is the one that the mapping names.
func (c column) same(mapped, found string) bool {
	return mapped == found || !c.isExact() && strings.EqualFold(mapped, found)
}

// deadlineColumn is how a deadline is kept.
type deadlineColumn struct {
	column
	unit time.Duration  // of a number since 1970, or zero
	zone *time.Location // of a DATETIME
}

// since1970 is SQL for the microseconds since 1970.
const since1970 = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"

// ago is SQL for the deadlines of a number of microseconds, a parameter, ago. It is the same for all rows, so
// that an index serves it.
func (c deadlineColumn) ago() string {
	if c.unit > 0 {
		return fmt.Sprintf("(%s - ?) DIV %d", since1970, c.unit.Microseconds())
	}
	_, offset := time.Unix(0, 0).In(c.zone).Zone()
	return fmt.Sprintf("UTC_TIMESTAMP(6) + INTERVAL %d SECOND - INTERVAL ? MICROSECOND", offset)
}

// bind is the time as it is compared with the column.
func (c deadlineColumn) bind(t time.Time) any {
	if c.unit > 0 {
		return t.UnixMicro() / c.unit.Microseconds()
	}
	return t.In(c.zone).Format(instantLayout)
}

// year2000 is the earliest deadline that is one. 0 and 0000-00-00 say that there is none, and any other before it is a
// mistake: seconds that are taken for milliseconds, for instance, would make every order overdue.
var year2000 = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// year9999 is the end of the years that a deadline may be in.
var year9999 = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)

// parse reads what the column has. Zero is none.
func (c deadlineColumn) parse(text *string) (time.Time, error) {
	if text == nil || *text == "0" && c.unit > 0 || strings.HasPrefix(*text, "0000-00-00") {
		return time.Time{}, nil
	}
	if c.unit > 0 {
		n, err := strconv.ParseInt(*text, 10, 64)
		if err != nil || n < year2000.UnixMicro()/c.unit.Microseconds() || n >= year9999.UnixMicro()/c.unit.Microseconds() {
			return time.Time{}, fmt.Errorf("its %s is %s, which in %s since 1970 is no time of this century", c.name, *text, c.unitName())
		}
		return time.UnixMicro(n * c.unit.Microseconds()).UTC(), nil
	}
	t, err := time.ParseInLocation("2006-01-02 15:04:05.999999", *text, c.zone)
	if err != nil || t.Before(year2000) {
		return time.Time{}, fmt.Errorf("its %s is %s, which is no time of this century", c.name, *text)
	}
	return t.UTC(), nil
}

// position is where a deadline stands among the others, also one that is none: 2025-00-00, for instance, comes before all
// others of its year.
func (c deadlineColumn) position(text string) (time.Time, error) {
	t, err := c.parse(&text)
	if err == nil || c.unit > 0 {
		return t, err
	}
	var year, month, day int
	if _, err := fmt.Sscanf(text, "%d-%d-%d", &year, &month, &day); err != nil {
		return t, fmt.Errorf("its %s is %s, which is no time of this century", c.name, text)
	}
	return time.Date(year, time.Month(max(month, 1)), max(day, 1), 0, 0, 0, 0, c.zone).UTC(), nil
}

func (c deadlineColumn) unitName() string {
	if c.unit == time.Second {
		return Seconds
	}
	return Milliseconds
}

// layout is the table as the statements see it.
type layout struct {
	id       column
	status   column
	deadline deadlineColumn
	statuses []mappedStatus
	pending  any
	expired  any

	selectRows, updateRows, countExpired, selectOverdue string
}

// compose makes the statements. Of the indexes, each is named if there is one.
func (l *layout) compose(m Mapping, idIndex, dueIndex string) {
	l.pending, _ = l.status.bind(m.Pending)
	l.expired, _ = l.status.bind(m.Expired)
	l.statuses = m.statuses()
	force := func(index string) string {
		if index == "" {
			return ""
		}
		return "FORCE INDEX (" + quoted(index) + ")"
	}
	table, id, status, deadline := m.sql(), quoted(l.id.name), quoted(l.status.name), quoted(l.deadline.name)
	l.selectRows = fmt.Sprintf("SELECT %s, %s, %s, CAST(UTC_TIMESTAMP(6) AS CHAR) FROM %s %s WHERE %s IN ? ORDER BY %[6]s",
		l.id.value(), l.status.value(), l.deadline.value(), table, force(idIndex), id)
	l.updateRows = fmt.Sprintf("UPDATE %s %s SET %s = ? WHERE %s IN ? AND %[3]s = ?", table, force(idIndex), status, id)
	l.countExpired = fmt.Sprintf("SELECT COUNT(*) FROM %s %s WHERE %s IN ? AND %s = ?", table, force(idIndex), id, status)
	l.selectOverdue = fmt.Sprintf(`SELECT %[1]s, %[2]s, CAST(UTC_TIMESTAMP(6) AS CHAR) FROM %[3]s %[4]s
		WHERE %[5]s = ? AND %[6]s <= %[7]s AND %[6]s >= ? AND (%[6]s > ? OR %[8]s > ?) ORDER BY %[6]s, %[8]s LIMIT ?`,
		l.id.value(), l.deadline.value(), table, force(dueIndex), status, deadline, l.deadline.ago(), id)
}

// known are the ids that the column can have, bound.
func (l *layout) known(ids []string) []any {
	known := make([]any, 0, len(ids))
	for _, id := range ids {
		if bound, ok := l.id.bind(id); ok {
			known = append(known, bound)
		}
	}
	return known
}

// read says what a row's status and deadline mean.
func (l *layout) read(status, deadline *string) (order.Status, time.Time, error) {
	if status == nil {
		return "", time.Time{}, fmt.Errorf("its %s is NULL", l.status.name)
	}
	i := slices.IndexFunc(l.statuses, func(s mappedStatus) bool { return l.status.same(s.value, *status) })
	if i < 0 {
		return "", time.Time{}, fmt.Errorf("its %s is %q, of which the mapping does not say whether it is pending, paid, cancelled or expired: add it", l.status.name, *status)
	}
	is := order.Status(l.statuses[i].key)
	due, err := l.deadline.parse(deadline)
	switch {
	case is != order.Pending: // whatever its deadline was
		return is, due, nil
	case err == nil && due.IsZero():
		err = fmt.Errorf("it is pending and has no deadline in %s", l.deadline.name)
	}
	return is, due, err
}
