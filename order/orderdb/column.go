package orderdb

import (
	"math"
	"regexp"
	"strconv"
	"strings"
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
