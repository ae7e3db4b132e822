package orderdb

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

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
