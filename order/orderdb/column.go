package orderdb

import (
	"fmt"
	"math"
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
	nullable  bool
}

// integers are the bits of the whole numbers.
var integers = map[string]int{"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "bigint": 64}

func (c column) isInteger() bool { return integers[c.kind] > 0 }
func (c column) isText() bool {
	return c.kind == "char" || c.kind == "varchar" || c.kind == "varbinary"
}

// isExact is whether values that differ in a byte are different. Of the server's collations those whose names end
// like this tell an a from an A (https://dev.mysql.com/doc/refman/8.4/en/charset-collation-names.html).
func (c column) isExact() bool {
	return c.collation == "" || c.collation == "binary" || strings.HasSuffix(c.collation, "_bin") || strings.HasSuffix(c.collation, "_cs")
}

// bind is a value as it is compared with the column, and false if no row can have it. Numbers are bound as
// numbers, for a text would be compared with a number as a floating-point number, which 7, 007 and 7.0 all
// are, and large ids that differ. So only their canonical form is a value.
func (c column) bind(text string) (any, bool) {
	if !c.isInteger() {
		return text, true
	}
	bits := integers[c.kind]
	if strings.Contains(c.full, "unsigned") {
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

// first is a bound value that no valid id comes before.
func (c column) first() any {
	if c.isInteger() {
		return int64(math.MinInt64)
	}
	return ""
}

// members are those of an ENUM.
func (c column) members() []string {
	list := strings.TrimSuffix(strings.TrimPrefix(c.full, "enum('"), "')")
	members := strings.Split(list, "','")
	for i := range members {
		members[i] = strings.ReplaceAll(members[i], "''", "'")
	}
	return members
}

// same is whether the column takes two values for one.
func (c column) same(a, b string) bool {
	return a == b || !c.isInteger() && !c.isExact() && strings.EqualFold(a, b)
}

// deadlineColumn is how a deadline is kept.
type deadlineColumn struct {
	column
	unit time.Duration  // of a number since 1970, or zero
	zone *time.Location // of a DATETIME
}

const seconds1970 = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"

// before is SQL for a number of microseconds, a parameter, ago.
func (c deadlineColumn) before() string {
	if c.unit > 0 {
		return fmt.Sprintf("(%s - ?) DIV %d", seconds1970, c.unit.Microseconds())
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

// parse reads what the column has, as text.
func (c deadlineColumn) parse(text string) (time.Time, error) {
	if c.unit > 0 {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < 0 || n > order9999/c.unit.Microseconds() {
			return time.Time{}, fmt.Errorf("its %s is %s, which is no number of %s since 1970", c.name, text, unitName(c.unit))
		}
		return time.UnixMicro(n * c.unit.Microseconds()).UTC(), nil
	}
	t, err := time.ParseInLocation("2006-01-02 15:04:05.999999", text, c.zone)
	if err != nil {
		return time.Time{}, fmt.Errorf("its %s is %s, which is no time", c.name, text)
	}
	return t.UTC(), nil
}

// order9999 is the end of the years that a deadline may be in, in microseconds since 1970.
const order9999 = 253370764800_000_000

func unitName(unit time.Duration) string {
	if unit == time.Second {
		return Seconds
	}
	return Milliseconds
}

// layout is what the statements are made of once the table was seen.
type layout struct {
	id       column
	status   column
	deadline deadlineColumn
	statuses []mappedStatus
	pending  any
	expired  any
	onExpiry []statement

	selectRows, updateRows, selectOverdue string
}

// statement is one of on_expiry, with so many lists of ids as parameters.
type statement struct {
	sql   string
	lists int
}

func (l *layout) compose(m Mapping, idIndex, dueIndex string) {
	l.pending, _ = l.status.bind(m.Pending)
	l.expired, _ = l.status.bind(m.Expired)
	l.statuses = m.statuses()
	table, id, status, deadline := m.sql(), quoted(m.ID), quoted(m.Status), quoted(m.Deadline)
	l.selectRows = fmt.Sprintf(`SELECT CAST(%[2]s AS CHAR), CAST(%[3]s AS CHAR), CAST(%[4]s AS CHAR), CAST(UTC_TIMESTAMP(6) AS CHAR)
		FROM %[1]s FORCE INDEX (%[5]s) WHERE %[2]s IN ? ORDER BY %[2]s`, table, id, status, deadline, quoted(idIndex))
	l.updateRows = fmt.Sprintf("UPDATE %[1]s FORCE INDEX (%[4]s) SET %[3]s = ? WHERE %[2]s IN ? AND %[3]s = ?", table, id, status, quoted(idIndex))
	l.selectOverdue = fmt.Sprintf(`SELECT CAST(%[2]s AS CHAR), CAST(%[4]s AS CHAR), CAST(UTC_TIMESTAMP(6) AS CHAR)
		FROM %[1]s FORCE INDEX (%[5]s) WHERE %[3]s = ? AND %[4]s <= %[6]s AND %[4]s >= ? AND (%[4]s > ? OR %[2]s > ?)
		ORDER BY %[4]s, %[2]s LIMIT ?`, table, id, status, deadline, quoted(dueIndex), l.deadline.before())
}

// known are the ids that the column can have, bound, in ascending order.
func (l *layout) known(ids []string) []any {
	known := make([]any, 0, len(ids))
	for _, id := range ids {
		if bound, ok := l.id.bind(id); ok && order.ValidateID("order id", id) == nil {
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
	if deadline == nil {
		if is == order.Pending {
			return "", time.Time{}, fmt.Errorf("it is pending and has no deadline: its %s is NULL", l.deadline.name)
		}
		return is, time.Unix(0, 0).UTC(), nil
	}
	due, err := l.deadline.parse(*deadline)
	return is, due, err
}
