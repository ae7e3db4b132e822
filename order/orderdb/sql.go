package orderdb

import (
	"database/sql/driver"
	"fmt"
	"slices"
	"strings"
	"time"

	"gorm.io/gorm"

	"github.com/lapse-go/lapse/order"
)

// instant passes a time to and from the database as text in UTC. Unlike a time.Time it means the same
// under any parseTime, loc and time_zone, for PlaceIn runs in sessions that others have opened. Columns
// are read as CAST(… AS CHAR).
type instant time.Time

const instantLayout = "2006-01-02 15:04:05.000000"

func (t instant) Value() (driver.Value, error) {
	if time.Time(t).IsZero() {
		return nil, nil
	}
	return time.Time(t).UTC().Format(instantLayout), nil
}

func (t *instant) Scan(src any) error {
	var text string
	switch src := src.(type) {
	case nil:
		*t = instant{}
		return nil
	case []byte:
		text = string(src)
	case string:
		text = src
	default:
		return fmt.Errorf("a time came as %T", src)
	}
	parsed, err := time.ParseInLocation(instantLayout, text, time.UTC)
	*t = instant(parsed)
	return err
}

// query calls scan for each row of the answer.
func query(tx *gorm.DB, scan func(scan func(dest ...any) error) error, sql string, args ...any) error {
	rows, err := tx.Raw(sql, args...).Rows()
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := scan(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}

// maxRows keeps an INSERT well below 65,535 placeholders and 16 MB.
const maxRows = 2000

// insert adds rows to a table, all of them or, if it fails, some.
func insert(tx *gorm.DB, table string, columns []string, rows [][]any) error {
	row := "(" + strings.Repeat("?,", len(columns)-1) + "?)"
	for chunk := range slices.Chunk(rows, maxRows) {
		var sql strings.Builder
		fmt.Fprintf(&sql, "INSERT INTO %s (%s) VALUES ", table, strings.Join(columns, ", "))
		args := make([]any, 0, len(chunk)*len(columns))
		for i, values := range chunk {
			if i > 0 {
				sql.WriteByte(',')
			}
			sql.WriteString(row)
			args = append(args, values...)
		}
		if err := tx.Exec(sql.String(), args...).Error; err != nil {
			return fmt.Errorf("writing %s: %w", table, err)
		}
	}
	return nil
}

// distinct are the ids that can exist, in the order in which rows are locked, each once.
func distinct(ids []string) []string {
	valid := make([]string, 0, len(ids))
	for _, id := range ids {
		// The server would refuse to compare anything else with an ASCII column.
		if order.ValidateID("order id", id) == nil {
			valid = append(valid, id)
		}
	}
	slices.Sort(valid)
	return slices.Compact(valid)
}
