package orderdb_test

import (
	"errors"
	"regexp"
	"strings"
	"testing"

	"gorm.io/gorm"

	"github.com/lapse-go/lapse/amqp/amqptest"
	"github.com/lapse-go/lapse/amqp/database"
	"github.com/lapse-go/lapse/migrations"
	"github.com/lapse-go/lapse/order"
	"github.com/lapse-go/lapse/order/orderdb"
)

// fits is a description of the table that the tests of misfits begin with.
var fits = orderdb.Mapping{
	Table: "orders", ID: "id", Status: "status", Deadline: "due",
	Pending: "0", Paid: []string{"1"}, Cancelled: []string{"2"}, Expired: "3",
	OnExpiry: []string{"DELETE FROM holds WHERE order_id IN (:ids)"},
}

const fitting = "CREATE TABLE orders (id BIGINT NOT NULL PRIMARY KEY, status TINYINT NOT NULL, due DATETIME(6) NULL, KEY by_due (status, due)) ENGINE = InnoDB"

var alter = regexp.MustCompile(`ALTER TABLE .*$`)

// Each kind of mistake is found, and where the error says how to alter the table, that mends it.
func TestMisfits(t *testing.T) {
	db := amqptest.Database(t)
	exec(t, db, "CREATE TABLE holds (order_id BIGINT PRIMARY KEY)")
	off := "INVISIBLE"
	var mariaDB bool
	if err := db.Raw("SELECT VERSION() LIKE '%MariaDB%'").Scan(&mariaDB).Error; err != nil {
		t.Fatal(err)
	}
	if mariaDB {
		off = "IGNORED"
	}
	for _, test := range []struct {
		name string
		// Changes to what fits: from and to in the table, and the mapping.
		from, to string
		describe func(*orderdb.Mapping)
		says     []string
	}{
		{name: "nothing"},
		{"a computed default fits", "status TINYINT NOT NULL", "status TINYINT NOT NULL DEFAULT (1 - 1)", nil, nil},
		{"a computed deadline fits", "due DATETIME(6) NULL", "made DATETIME NOT NULL, due DATETIME AS (made + INTERVAL 30 MINUTE) STORED", nil, nil},
		{"no such table", "", "", func(m *orderdb.Mapping) { m.Table = "order" }, []string{"there is no such table"}},
		{"no such database", "", "", func(m *orderdb.Mapping) { m.Table = "nowhere.orders" }, []string{"there is no such table"}},
		{"a view", "", "", func(m *orderdb.Mapping) { m.Table = "seen" }, []string{"it is a view, and not a plain table"}},
		{"no transactions", "ENGINE = InnoDB", "ENGINE = MyISAM", nil, []string{"its engine is MyISAM, which has no transactions: ALTER TABLE"}},
		{"no such columns", "", "", func(m *orderdb.Mapping) { m.ID, m.Status, m.Deadline = "no", "state", "pay_until" },
			[]string{"id: there is no column no: name one of id, status, due", "status: there is no column state", "deadline: there is no column pay_until"}},
		{"an id that is no id", "id BIGINT", "id DATE", nil, []string{"id: column id is date: it has to be a whole number, CHAR"}},
		{"a fraction as an id", "id BIGINT", "id DECIMAL(20)", nil, []string{"id: column id is decimal(20,0)"}},
		{"a binary id", "id BIGINT", "id BINARY(16)", nil, []string{"id: column id is binary(16)"}},
		{"an id that is not unique", "PRIMARY KEY", ", KEY (id)", nil, []string{"id: column id is neither the primary key nor NOT NULL with a unique index of its own, so that it could stand for several orders. ALTER TABLE"}},
		{"an id that may be NULL", "NOT NULL PRIMARY KEY", "NULL UNIQUE", nil, []string{"id: column id is neither"}},
		{"an id that is unique with another", "id BIGINT NOT NULL PRIMARY KEY", "id BIGINT NOT NULL, shop INT NOT NULL, PRIMARY KEY (id, shop)", nil, []string{"id: column id is neither"}},
		{"an id whose beginning is unique", "id BIGINT NOT NULL PRIMARY KEY", "id VARCHAR(20) CHARACTER SET ascii COLLATE ascii_bin NOT NULL, UNIQUE KEY (id(10))", nil, []string{"id: column id is neither"}},
		{"an id that is blind to case", "id BIGINT", "id VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci", nil, []string{"id: column id has the collation utf8mb4_general_ci, to which order-a1 and ORDER-A1 are the same. With"}},
		{"a status that is no status", "status TINYINT", "status DATE", nil, []string{"status: column status is date: it has to be a whole number, ENUM"}},
		{"a computed status", "status TINYINT NOT NULL", "paid BOOLEAN, status TINYINT AS (paid + 0) STORED", nil, []string{"status: column status is computed from others"}},
		{"statuses out of range", "", "", func(m *orderdb.Mapping) {
			m.Pending, m.Paid, m.Expired = "128", []string{"01", "+1", "1.0", "paid", " 1"}, "-129"
		},
			[]string{`pending: "128" is no value of column status, which is tinyint`, `paid: "01"`, `paid: "+1"`, `paid: "1.0"`, `paid: "paid"`, `paid: " 1"`, `expired: "-129"`}},
		{"statuses that are not members", "status TINYINT", "status ENUM ('0', '1', 'it''s 2', 'drei')", func(m *orderdb.Mapping) { m.Cancelled, m.Expired = []string{"it's 2", "2"}, "Drei" },
			[]string{`cancelled: "2" is none of the values of column status, which is enum('0','1','it''s 2','drei')`, `expired: "Drei" is none of the values`}},
		{"statuses that are one", "status TINYINT", "status VARCHAR(9) CHARACTER SET utf8mb4 COLLATE utf8mb4_unicode_ci", func(m *orderdb.Mapping) { m.Pending, m.Paid = "open", []string{"OPEN", "öpen"} },
			[]string{`pending and paid: to column status, whose collation is utf8mb4_unicode_ci, "open" and "OPEN" are the same`, `"open" and "öpen" are the same`, `"OPEN" and "öpen" are the same`}},
		{"members with quotes and commas", "status TINYINT", "status ENUM ('0', '1', '2', 'a'',''b')", func(m *orderdb.Mapping) { m.Expired = "a','b" }, nil},
		{"statuses that are too long", "status TINYINT", "status VARCHAR(5) CHARACTER SET ascii COLLATE ascii_bin", func(m *orderdb.Mapping) { m.Cancelled, m.Expired = []string{"ÜBER"}, "expired" },
			[]string{`cancelled: column status, which is varchar(5), cannot hold "ÜBER"`, `expired: column status, which is varchar(5), cannot hold "expired"`}},
		{"an accent-blind status of a language", "status TINYINT", "status VARCHAR(9) CHARACTER SET latin2 COLLATE latin2_czech_cs", func(m *orderdb.Mapping) { m.Pending, m.Paid = "open", []string{"OPEN"} }, nil},
		{"a deadline that is no deadline", "due DATETIME(6)", "due VARCHAR(30)", nil, []string{"deadline: column due is varchar(30): it has to be DATETIME"}},
		{"a day as a deadline", "due DATETIME(6)", "due DATE", nil, []string{"deadline: column due is date"}},
		{"a number without its unit", "due DATETIME(6)", "due BIGINT", nil, []string{"deadline_in is UTC, but column due is bigint"}},
		{"milliseconds that do not fit", "due DATETIME(6)", "due INT UNSIGNED", func(m *orderdb.Mapping) { m.DeadlineIn = orderdb.Milliseconds }, []string{"deadline_in is milliseconds, but column due is int"}},
		{"a unit without a number", "", "", func(m *orderdb.Mapping) { m.DeadlineIn = orderdb.Seconds }, []string{"deadline_in is seconds, but column due is datetime(6): write UTC, or the offset"}},
		{"an instant with an offset", "due DATETIME(6)", "due TIMESTAMP", func(m *orderdb.Mapping) { m.DeadlineIn = "+08:00" }, []string{"deadline_in is +08:00, but column due is timestamp, which is an instant"}},
		{"a deadline that moves by itself", "due DATETIME(6) NULL", "due DATETIME(6) NULL ON UPDATE CURRENT_TIMESTAMP(6)", nil, []string{"deadline: column due changes with every change of its row"}},
		{"no index at all", ", KEY by_due (status, due)", "", nil, []string{"no index begins with `status` and `due`, by which overdue orders are found: ALTER TABLE `orders` ADD INDEX (`status`, `due`, `id`)"}},
		{"an index by the deadline only", "KEY by_due (status, due)", "KEY (due, status), KEY (status)", nil, []string{"no index begins with"}},
		{"an index that is switched off beside another", "KEY by_due (status, due)", "KEY a_due (status, due) " + off + ", KEY by_due (status, due)", nil, nil},
		{"an index that is switched off", "KEY by_due (status, due)", "KEY by_due (status, due) " + off, nil, []string{"no index begins with"}},
		{"a statement with a mistake", "", "", func(m *orderdb.Mapping) {
			m.OnExpiry = []string{"UPDATE holds SET x = 1 WHERE order_id IN (:ids)", "DELETE FORM holds WHERE order_id IN (:ids)", "DELETE FROM nothing WHERE id IN (:ids)", "DELETE FROM holds WHERE '(:ids)' <> ''",
				"DELETE FROM holds WHERE order_id IN (:ids); DELETE FROM holds"}
		}, []string{"on_expiry, statement 1: the server refuses \"UPDATE holds SET x = 1", "Unknown column 'x'", "on_expiry, statement 2: the server refuses", "on_expiry, statement 3: the server refuses", "nothing' doesn't exist",
			"on_expiry, statement 4: write (:ids) outside of quotes", "on_expiry, statement 5: the server refuses"}},
		{"much at once", fitting, "CREATE TABLE orders (id VARCHAR(9) CHARACTER SET latin1 COLLATE latin1_swedish_ci, status ENUM ('0', '1', '2'), due INT) ENGINE = MyISAM",
			func(m *orderdb.Mapping) { m.OnExpiry = []string{"DELETE FROM nothing WHERE id IN (:ids)"} },
			[]string{"its engine is MyISAM", "id: column id has the collation", `expired: "3"`, "deadline_in is UTC", "id: column id is neither", "no index begins with", "on_expiry, statement 1"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			exec(t, db, "DROP VIEW IF EXISTS seen")
			exec(t, db, "DROP TABLE IF EXISTS orders")
			if !strings.Contains(fitting, test.from) {
				t.Fatalf("the table has no %s", test.from)
			}
			exec(t, db, strings.Replace(fitting, test.from, test.to, 1))
			exec(t, db, "CREATE VIEW seen AS SELECT * FROM orders")
			m := fits
			if test.describe != nil {
				test.describe(&m)
			}
			misfits := misfitsOf(t, db, m)
			all := strings.Join(misfits, "\n")
			for _, text := range test.says {
				if !strings.Contains(all, text) {
					t.Errorf("nothing says %s", text)
				}
			}
			if len(misfits) > 0 && len(test.says) == 0 || len(misfits) == 0 && len(test.says) > 0 {
				t.Errorf("misfits: %q", misfits)
			}
			t.Log(all)
			if len(misfits) != 1 || !alter.MatchString(all) {
				return
			}
			exec(t, db, alter.FindString(all))
			if misfits := misfitsOf(t, db, m); misfits != nil {
				t.Errorf("after its cure: %q", misfits)
			}
		})
	}
}

// misfitsOf are those of a table, which is not used while there are any.
func misfitsOf(t *testing.T, db *gorm.DB, m orderdb.Mapping) []string {
	t.Helper()
	table := orderdb.NewTable(db, m, orderdb.Config{})
	err := table.Check(t.Context())
	_, used := table.Expire(t.Context(), []string{"1"})
	if err == nil {
		if used != nil {
			t.Error(used)
		}
		return nil
	}
	misfit, ok := errors.AsType[*orderdb.MisfitError](err)
	if !ok || errors.Is(err, order.ErrUnavailable) {
		t.Fatal(err)
	}
	if !errors.As(used, &misfit) || !errors.Is(used, order.ErrUnavailable) {
		t.Errorf("expiring said %v", used)
	}
	return misfit.Misfits
}

// A TIMESTAMP means another instant in a session with another time zone.
func TestMisfitOfTheTimeZone(t *testing.T) {
	db := amqptest.Database(t)
	exec(t, db, strings.Replace(fitting, "due DATETIME(6)", "due TIMESTAMP(6)", 1))
	exec(t, db, "CREATE TABLE holds (order_id BIGINT PRIMARY KEY)")
	if misfits := misfitsOf(t, db, fits); misfits != nil {
		t.Errorf("in UTC: %q", misfits)
	}
	if misfits := misfitsOf(t, foreign(t, db), fits); len(misfits) != 1 || !strings.Contains(misfits[0], "is not UTC") {
		t.Errorf("elsewhere: %q", misfits)
	}
}

func TestMisfitWithoutLapsesTables(t *testing.T) {
	db := amqptest.Database(t)
	exec(t, db, fitting)
	exec(t, db, "DROP TABLE lapse_schema_closing")
	err := orderdb.NewTable(db, fits, orderdb.Config{}).Check(t.Context())
	if !errors.Is(err, migrations.ErrPending) || errors.Is(err, order.ErrUnavailable) {
		t.Error(err)
	}
}

// A login that lacks a right is told which.
func TestMisfitOfRights(t *testing.T) {
	server := amqptest.NewMySQL(t)
	db := server.Database(t)
	exec(t, db, fitting)
	exec(t, db, "CREATE TABLE holds (order_id BIGINT PRIMARY KEY)")
	exec(t, db, "CREATE USER shop@'%'")
	dsn := strings.Replace(amqptest.DSN(t, db), "root@", "shop@", 1)
	for _, grant := range []struct{ rights, says string }{
		{"SELECT ON lapse_schema_transport", ""},
		{"SELECT ON lapse_schema_closing", "there is no such table, or the login may not see it"},
		{"SELECT ON orders", "expiring orders: the server refuses"},
		{"UPDATE ON orders", "on_expiry, statement 1: the server refuses"},
		{"SELECT, DELETE ON holds", "the pause switch: the server refuses"},
		{"SELECT, UPDATE ON lapse_control", "nothing"},
	} {
		exec(t, db, "GRANT "+grant.rights+" TO shop@'%'")
		pool, err := database.Open(dsn, database.Options{MaxOpen: 1})
		if err != nil {
			t.Fatal(err)
		}
		err = orderdb.NewTable(pool, fits, orderdb.Config{}).Check(t.Context())
		switch misfit, ok := errors.AsType[*orderdb.MisfitError](err); {
		case grant.says == "nothing" && err != nil, grant.says == "" && !errors.Is(err, order.ErrUnavailable):
			t.Errorf("with %s: %v", grant.rights, err)
		case len(grant.says) > len("nothing") && (!ok || !strings.Contains(misfit.Error(), grant.says)):
			t.Errorf("with %s: %v", grant.rights, err)
		}
		t.Logf("with %s: %v", grant.rights, err)
		if sqlDB, err := pool.DB(); err == nil {
			sqlDB.Close()
		}
	}
}
