package orderdb

import (
	"fmt"
	"slices"
	"time"

	"github.com/lapse-go/lapse/order"
)

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
