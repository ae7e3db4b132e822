package orderdb

import (
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"
)

// Mapping describes the table in which a shop keeps its orders: which columns say what Lapse has to know, and
// how. It changes nothing but the status, and only from Pending to Expired.
type Mapping struct {
	// Table is its name, with that of its database before it if that is another one: shop.orders.
	Table string `yaml:"table"`
	// ID, Status and Deadline are the names of columns. The id is a whole number or a text.
	ID       string `yaml:"id"`
	Status   string `yaml:"status"`
	Deadline string `yaml:"deadline"`
	// DeadlineIn says what a deadline's value means: [UTC] when empty, or an offset from it such as +08:00, for a
	// DATETIME; [UTC] for a TIMESTAMP; [Seconds] or [Milliseconds] since 1970 for a whole number.
	DeadlineIn string `yaml:"deadline_in"`

	// Pending is the status of an order that waits for its payment.
	Pending string `yaml:"pending"`
	// Paid is every status that an order may have once it was paid.
	Paid Values `yaml:"paid"`
	// Cancelled is every status of an order that was closed before it was paid, other than Expired. May be
	// empty.
	Cancelled Values `yaml:"cancelled"`
	// Expired is the status that an order gets when it was not paid by its deadline. It may be one that the
	// shop gives for other reasons, too.
	Expired string `yaml:"expired"`

	// OnExpiry are statements to run in the transaction that expires orders, in their order, for instance to
	// give back the stock. In each, (:ids) is the list of the orders' ids.
	OnExpiry []string `yaml:"on_expiry"`
}

// What a deadline is in, beside offsets from UTC.
const (
	UTC          = "UTC"
	Seconds      = "seconds"
	Milliseconds = "milliseconds"
)

// Values are those of a status, in YAML one or a list.
type Values []string

// UnmarshalYAML takes one value for a list of one.
func (v *Values) UnmarshalYAML(node *yaml.Node) error {
	if node.Kind == yaml.ScalarNode {
		var one string
		if err := node.Decode(&one); err != nil {
			return err
		}
		*v = Values{one}
		return nil
	}
	return node.Decode((*[]string)(v))
}

// ReadMapping reads a mapping in YAML, of which the keys are table, id, status, deadline, deadline_in, pending,
// paid, cancelled, expired and on_expiry. The error says what is wrong and what to write.
func ReadMapping(r io.Reader) (Mapping, error) {
	var m Mapping
	decoder := yaml.NewDecoder(r)
	decoder.KnownFields(true)
	if err := decoder.Decode(&m); errors.Is(err, io.EOF) {
		return m, errors.New("it is empty: describe the table, beginning with table: and its name")
	} else if err != nil {
		return m, err
	}
	if err := decoder.Decode(new(Mapping)); !errors.Is(err, io.EOF) {
		return m, errors.New("it has more than one document: describe one table")
	}
	return m, m.Validate()
}

// Validate says what is wrong with the mapping as far as that can be known without the database, all of it at
// once, or nil.
func (m Mapping) Validate() error {
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	for _, required := range []struct{ key, value, such string }{
		{"table", m.Table, "orders"}, {"id", m.ID, "id"}, {"status", m.Status, "status"}, {"deadline", m.Deadline, "pay_until"},
		{"pending", m.Pending, "0"}, {"expired", m.Expired, "4"},
	} {
		if required.value == "" {
			wrong("%s is missing: write for instance %s: %s", required.key, required.key, required.such)
		}
	}
	if len(m.Paid) == 0 {
		wrong("paid is missing: list every status of an order that was paid, for instance paid: [1, 2]")
	}
	if strings.Count(m.Table, ".") > 1 {
		wrong("table: %s: write table or database.table", m.Table)
	}
	if _, err := m.zone(); err != nil {
		errs = append(errs, err)
	}
	seen := make(map[string]string)
	for _, s := range m.statuses() {
		if other, twice := seen[s.value]; twice {
			wrong("status %q is both %s and %s: each has one meaning. Where a shop has one status for all closed orders, name it as expired", s.value, other, s.key)
		}
		seen[s.value] = s.key
	}
	for i, statement := range m.OnExpiry {
		switch {
		case strings.Contains(statement, "?"):
			wrong("on_expiry, statement %d: it has a question mark, which is taken for a parameter: only (:ids) is one", i+1)
		case !idList.MatchString(statement):
			wrong("on_expiry, statement %d: it has no (:ids), so it would be about all orders: write for instance WHERE order_id IN (:ids)", i+1)
		case strings.Count(statement, ":ids") != len(idList.FindAllString(statement, -1)):
			wrong("on_expiry, statement %d: write :ids in brackets, as in WHERE order_id IN (:ids)", i+1)
		}
	}
	return errors.Join(errs...)
}

var idList = regexp.MustCompile(`\(\s*:ids\s*\)`)

// status is a value of the status column, and the key of the mapping that has it.
type mappedStatus struct{ key, value string }

func (m Mapping) statuses() []mappedStatus {
	all := []mappedStatus{{"pending", m.Pending}, {"expired", m.Expired}}
	for _, v := range m.Paid {
		all = append(all, mappedStatus{"paid", v})
	}
	for _, v := range m.Cancelled {
		all = append(all, mappedStatus{"cancelled", v})
	}
	return slices.DeleteFunc(all, func(s mappedStatus) bool { return s.value == "" && s.key != "paid" && s.key != "cancelled" })
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

// database and table are the two parts of the table's name; the first may be empty.
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
