package orderdb

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"
)

// Mapping describes the table in which a shop keeps its orders: which columns say what Lapse has to know, and
// how. Lapse changes nothing but the status, and only from Pending to Expired.
type Mapping struct {
	// Table is its name, with that of its database before it if that is another one: shop.orders.
	Table string
	// ID, Status and Deadline are the names of columns. The id is a whole number, or a text of up to 64 printable
	// ASCII characters without spaces: an order with any other id is never expired.
	ID, Status, Deadline string
	// DeadlineIn says what a deadline's value means: [UTC] when empty, or an offset from it such as +08:00, for a
	// DATETIME; [UTC] for a TIMESTAMP; [Seconds] or [Milliseconds] since 1970 for a whole number.
	DeadlineIn string

	// Pending is the status of an order that waits for its payment.
	Pending string
	// Paid is every status that an order may have once it was paid.
	Paid []string
	// Cancelled is every status of an order that was closed before it was paid, other than Expired. May be
	// empty.
	Cancelled []string
	// Expired is the status that an order gets when it was not paid by its deadline. It may be one that the
	// shop gives for other reasons, too.
	Expired string

	// OnExpiry are statements to run in the transaction that expires orders, in their order, for instance to
	// give back the stock. In each, (:ids) is the list of the orders' ids.
	OnExpiry []string
}

// What a deadline is in, beside offsets from UTC.
const (
	UTC          = "UTC"
	Seconds      = "seconds"
	Milliseconds = "milliseconds"
)

// field is one of a mapping: a text, or a list of them.
type field struct {
	key  string
	text *string
	list *[]string
	such string // an example
}

func (m *Mapping) fields() []field {
	return []field{
		{"table", &m.Table, nil, "orders"},
		{"id", &m.ID, nil, "id"},
		{"status", &m.Status, nil, "status"},
		{"deadline", &m.Deadline, nil, "pay_until"},
		{"deadline_in", &m.DeadlineIn, nil, "UTC"},
		{"pending", &m.Pending, nil, "0"},
		{"paid", nil, &m.Paid, "[1, 2]"},
		{"cancelled", nil, &m.Cancelled, "[3]"},
		{"expired", &m.Expired, nil, "4"},
		{"on_expiry", nil, &m.OnExpiry, "[UPDATE … WHERE order_id IN (:ids)]"},
	}
}

// flaw is something that is wrong with the field of a mapping, or with one value of its list.
type flaw struct {
	key  string
	item int
	text string
}

// Validate says what is wrong with the mapping as far as that can be known without the database, all of it at
// once, or nil.
func (m Mapping) Validate() error {
	var errs []error
	for _, flaw := range m.flaws() {
		errs = append(errs, errors.New(flaw.text))
	}
	return errors.Join(errs...)
}

func (m Mapping) flaws() (flaws []flaw) {
	wrong := func(key string, item int, format string, args ...any) {
		flaws = append(flaws, flaw{key, item, fmt.Sprintf(format, args...)})
	}
	for _, f := range m.fields() {
		optional := f.key == "deadline_in" || f.key == "cancelled" || f.key == "on_expiry"
		if !optional && (f.text != nil && *f.text == "" || f.list != nil && len(*f.list) == 0) {
			wrong(f.key, 0, "%[1]s is missing: write for instance %[1]s: %[2]s", f.key, f.such)
		}
		name := f.key == "table" || f.key == "id" || f.key == "status" || f.key == "deadline"
		if name && strings.ContainsAny(*f.text, "?\x00") {
			wrong(f.key, 0, "%s: %q: a name with a question mark cannot be used", f.key, *f.text)
		}
	}
	if database, table := m.name(); strings.Contains(table, ".") || m.Table != "" && table == "" || database == "" && strings.Contains(m.Table, ".") {
		wrong("table", 0, "table: %s: write table or database.table", m.Table)
	}
	if _, err := m.zone(); err != nil {
		wrong("deadline_in", 0, "%s", err)
	}
	seen := make(map[string]string)
	for _, s := range m.statuses() {
		if other, twice := seen[s.value]; twice {
			wrong(s.key, s.item, "status %q is both %s and %s: each has one meaning. Where a shop has one status for all that was closed unpaid, it is expired",
				s.value, other, s.key)
		}
		seen[s.value] = s.key
	}
	for i, statement := range m.OnExpiry {
		lists, open := idList.FindAllString(statement, -1), strings.Count(statement, ":ids")
		switch {
		case !changes.MatchString(statement):
			wrong("on_expiry", i, "on_expiry, statement %d: write one that begins with INSERT, UPDATE, DELETE, REPLACE or WITH: others may end the transaction, or change nothing in it", i+1)
		case strings.Contains(statement, "?"):
			wrong("on_expiry", i, "on_expiry, statement %d: it has a question mark, which would be taken for a parameter: write CHAR(63) in a text", i+1)
		case open == 0:
			wrong("on_expiry", i, "on_expiry, statement %d: it has no (:ids), so it would be about all orders: write for instance WHERE order_id IN (:ids)", i+1)
		case open != len(lists):
			wrong("on_expiry", i, "on_expiry, statement %d: write :ids in brackets, as in WHERE order_id IN (:ids)", i+1)
		}
	}
	return flaws
}

var (
	idList  = regexp.MustCompile(`\(\s*:ids\s*\)`)
	changes = regexp.MustCompile(`(?i)^\s*(INSERT|UPDATE|DELETE|REPLACE|WITH)\b`)
)

// mappedStatus is a value of the status column, and the key of the mapping that has it.
type mappedStatus struct {
	key   string
	item  int
	value string
}

func (m Mapping) statuses() []mappedStatus {
	var all []mappedStatus
	if m.Pending != "" {
		all = append(all, mappedStatus{"pending", 0, m.Pending})
	}
	for i, v := range m.Paid {
		all = append(all, mappedStatus{"paid", i, v})
	}
	for i, v := range m.Cancelled {
		all = append(all, mappedStatus{"cancelled", i, v})
	}
	if m.Expired != "" {
		all = append(all, mappedStatus{"expired", 0, m.Expired})
	}
	return all
}

var offset = regexp.MustCompile(`^[+-](0\d|1[0-4]):[0-5]\d$`)

// zone is that of the deadlines, and nil where they are numbers.
func (m Mapping) zone() (*time.Location, error) {
	switch {
	case m.DeadlineIn == Seconds || m.DeadlineIn == Milliseconds:
		return nil, nil
	case m.DeadlineIn == "" || m.DeadlineIn == UTC:
		return time.UTC, nil
	case offset.MatchString(m.DeadlineIn):
		at, err := time.Parse("-07:00", m.DeadlineIn)
		if err != nil {
			return nil, err
		}
		_, seconds := at.Zone()
		return time.FixedZone(m.DeadlineIn, seconds), nil
	}
	return nil, fmt.Errorf("deadline_in: %s: write UTC, an offset such as +08:00, seconds or milliseconds", m.DeadlineIn)
}

// name is the two parts of the table's name; the database may be empty.
func (m Mapping) name() (database, table string) {
	if database, table, ok := strings.Cut(m.Table, "."); ok {
		return database, table
	}
	return "", m.Table
}

// quoted is an identifier as SQL.
func quoted(name string) string { return "`" + strings.ReplaceAll(name, "`", "``") + "`" }

// sql is the table's name as SQL.
func (m Mapping) sql() string {
	database, table := m.name()
	if database != "" {
		return quoted(database) + "." + quoted(table)
	}
	return quoted(table)
}
