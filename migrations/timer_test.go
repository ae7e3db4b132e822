package migrations_test

import (
	"database/sql"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/google/go-cmp/cmp"
	"gorm.io/gorm"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/amqp/amqptest"
	"github.com/lapse-go/lapse/amqp/database"
	"github.com/lapse-go/lapse/amqp/outbox"
	owntable "github.com/lapse-go/lapse/deploy/examples/own-table"
	"github.com/lapse-go/lapse/order"
	"github.com/lapse-go/lapse/order/orderamqp"
)

// sessions are those of checkouts in any language.
var sessions = []string{
	"SET NAMES utf8mb4",
	"SET NAMES utf8mb4 COLLATE utf8mb4_unicode_ci, SESSION time_zone = '+08:00', SESSION sql_mode = ''",
	"SET NAMES latin1, SESSION time_zone = '-05:00', SESSION sql_mode = 'ANSI,NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT'",
	"SET NAMES utf8mb4, SESSION sql_mode = 'TRADITIONAL', SESSION tx_isolation = 'SERIALIZABLE'",
}

// session is a connection of a checkout's.
func session(t *testing.T, db *gorm.DB, set string) *sql.Conn {
	t.Helper()
	pool, err := db.DB()
	if err != nil {
		t.Fatal(err)
	}
	conn, err := pool.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Raw(func(any) error { return sql.ErrConnDone }) // its settings are no other's
		conn.Close()
	})
	_, err = conn.ExecContext(t.Context(), set)
	if mysqlError, ok := errors.AsType[*mysql.MySQLError](err); ok && mysqlError.Number == 1193 { // the one's name or the other's
		_, err = conn.ExecContext(t.Context(), strings.Replace(set, "tx_isolation", "transaction_isolation", 1))
	}
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

// outboxRow is a row without its body, its message's id and when it was written.
type outboxRow struct {
	Exchange, Headers, MadeAt *string
	Kind, ContentType, DueAt  string
	WindowMs                  *int64
	ClaimedUntil              string
	Attempts                  int
	Error                     *string
}

// outboxRows are the rows of the outbox, and the timers in them. They are removed.
func outboxRows(t *testing.T, db *gorm.DB) (rows []outboxRow, timers []order.Timer) {
	t.Helper()
	if err := db.Raw(`SELECT exchange, headers, CAST(made_at AS CHAR) made_at, kind, content_type, CAST(due_at AS CHAR) due_at, window_ms,
		CAST(claimed_until AS CHAR) claimed_until, attempts, error FROM lapse_outbox ORDER BY id`).Scan(&rows).Error; err != nil {
		t.Fatal(err)
	}
	var messages []struct {
		MessageID, Kind string
		Body            []byte
		Size            int
		Late            bool
	}
	if err := db.Raw("SELECT message_id, kind, body, size, ABS(TIMESTAMPDIFF(SECOND, created_at, UTC_TIMESTAMP(6))) > 60 late FROM lapse_outbox ORDER BY id").Scan(&messages).Error; err != nil {
		t.Fatal(err)
	}
	for _, m := range messages {
		if m.Size != len(m.Body) || m.MessageID == "" || m.Late {
			t.Errorf("the row is %+v", m)
		}
		timer, err := orderamqp.DecodeTimer(amqp.Message{Kind: m.Kind, Body: m.Body})
		if err != nil {
			t.Errorf("%s: %v", m.Body, err)
		}
		timers = append(timers, timer)
	}
	if err := db.Exec("DELETE FROM lapse_outbox").Error; err != nil {
		t.Fatal(err)
	}
	return rows, timers
}

// A checkout in any language sets a timer, in a session of any kind, and the row is as the library writes it.
func TestTimerProcedure(t *testing.T) {
	db := amqptest.Database(t)
	conns := make(map[string]*sql.Conn)
	for _, set := range sessions {
		conns[set] = session(t, db, set)
	}
	deadline := time.Date(2031, 5, 6, 7, 8, 9, 123_456_000, time.UTC)
	for _, test := range []struct {
		call   string // the parameters
		id     string
		window time.Duration
	}{
		{"'order.payment_timeout', 'A-1', '2031-05-06 07:08:09.123456', 1800", "A-1", 30 * time.Minute},
		{"'order.payment_timeout', 18446744073709551615, '2031-05-06 07:08:09.123456', NULL", "18446744073709551615", 0},
		{"'order.payment_timeout', @id, CAST('2031-05-06 07:08:09.123456' AS DATETIME(6)), 0.25", "9007199254740993", 250 * time.Millisecond},
		{`'order.payment_timeout', '!"#$%&''()*+,-./:;<=>?@[]^_{|}~A1', '2031-05-06T07:08:09.123456', 1800.0`, `!"#$%&'()*+,-./:;<=>?@[]^_{|}~A1`, 30 * time.Minute},
		{"'order.payment_timeout', REPEAT('x', 64), '2031-05-06 07:08:09.123456', 315360000", strings.Repeat("x", 64), 315360000 * time.Second},
	} {
		message, err := orderamqp.EncodeTimer(order.Timer{OrderID: test.id, Deadline: deadline})
		if err != nil {
			t.Fatal(err)
		}
		message.ContentType = "application/json" // as the publisher sends one that has none
		err = database.Transact(t.Context(), db, func(tx *gorm.DB) error {
			return outbox.Add(tx, outbox.Message{Message: message, Deadline: deadline, Window: test.window})
		})
		if err != nil {
			t.Fatal(err)
		}
		want, wantTimers := outboxRows(t, db)
		for set, conn := range conns {
			for _, end := range []string{"ROLLBACK", "COMMIT"} {
				for _, statement := range []string{"SET @id = 9007199254740993", "START TRANSACTION", "CALL lapse_timer(" + test.call + ")", end} {
					if _, err := conn.ExecContext(t.Context(), statement); err != nil {
						t.Fatalf("%s: %s: %v", set, statement, err)
					}
				}
				got, timers := outboxRows(t, db)
				if end == "ROLLBACK" {
					if len(got) != 0 {
						t.Errorf("%s: rolled back, and there is %+v", set, got)
					}
					continue
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("%s: %s: the row (-want +got):\n%s", set, test.call, diff)
				}
				if diff := cmp.Diff(wantTimers, timers); diff != "" {
					t.Errorf("%s: %s: the timer (-want +got):\n%s", set, test.call, diff)
				}
			}
		}
	}
}

// What the guide has a checkout run sets timers that agree with the row.
func TestTimersOfTheGuide(t *testing.T) {
	guide, err := os.ReadFile("../deploy/examples/own-table/README.md")
	if err != nil {
		t.Fatal(err)
	}
	var blocks []string // of SQL
	for _, part := range strings.Split(string(guide), "\n```sql\n")[1:] {
		block, _, _ := strings.Cut(part, "```")
		blocks = append(blocks, block)
	}
	if len(blocks) != 3 {
		t.Fatalf("the guide has %d blocks of SQL", len(blocks))
	}
	db := amqptest.Database(t)
	owntable.Open(t, db, "auto-increment")
	run := func(block string) (changed int64) {
		err := db.Connection(func(tx *gorm.DB) error { // the session that the transaction is of
			for statement := range strings.SplitSeq(block, ";\n") {
				if strings.TrimSpace(statement) == "" || strings.HasPrefix(statement, "--") {
					continue
				}
				ran := tx.Exec(statement)
				if ran.Error != nil {
					return fmt.Errorf("%s: %w", statement, ran.Error)
				}
				changed = ran.RowsAffected
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return changed
	}
	run(blocks[0])
	rows, timers := outboxRows(t, db)
	var deadline string
	if err := db.Raw("SELECT CAST(CAST(pay_until AS DATETIME(6)) AS CHAR) FROM orders WHERE id = 1 AND status = 0").Scan(&deadline).Error; err != nil {
		t.Fatal(err)
	}
	if len(rows) != 1 || rows[0].DueAt != deadline || timers[0].OrderID != "1" || timers[0].Deadline.Format("2006-01-02 15:04:05.000000") != deadline {
		t.Errorf("by the procedure: %+v, %+v, want %s", rows, timers, deadline)
	}
	run(blocks[1])
	rows, timers = outboxRows(t, db)
	if len(rows) != 1 || timers[0].OrderID != "7" || rows[0].DueAt != timers[0].Deadline.Format("2006-01-02 15:04:05.000000") || *rows[0].WindowMs != 1_800_000 {
		t.Errorf("by the INSERT: %+v, %+v", rows, timers)
	}
	if err := db.Exec("UPDATE orders SET id = 7").Error; err != nil {
		t.Fatal(err)
	}
	for _, want := range []int64{1, 0} {
		if n := run(blocks[2]); n != want {
			t.Errorf("paying changed %d orders, want %d", n, want)
		}
	}
}

// What is no timer is refused, and nothing is written, however lenient the session.
func TestTimerProcedureRefuses(t *testing.T) {
	db := amqptest.Database(t)
	const good = "'2031-05-06 07:08:09'"
	for _, set := range sessions {
		conn := session(t, db, set)
		for _, call := range []struct{ parameters, says string }{
			{"NULL, 'A-1', " + good + ", NULL", "the kind"},
			{"'', 'A-1', " + good + ", NULL", "the kind"},
			{"'order payment', 'A-1', " + good + ", NULL", "the kind"},
			{"'.order', 'A-1', " + good + ", NULL", "the kind"},
			{"CONCAT('order', CHAR(10)), 'A-1', " + good + ", NULL", "the kind"},
			{"REPEAT('k', 101), 'A-1', " + good + ", NULL", "the kind"},
			{"'k', NULL, " + good + ", NULL", "the order id"},
			{"'k', '', " + good + ", NULL", "the order id"},
			{"'k', 'A 1', " + good + ", NULL", "the order id"},
			{"'k', 'A-1 ', " + good + ", NULL", "the order id"},
			{"'k', CONCAT('A-1', CHAR(10)), " + good + ", NULL", "the order id"},
			{"'k', CONCAT('A-1', CHAR(0)), " + good + ", NULL", "the order id"},
			{"'k', _latin1 0xE9, " + good + ", NULL", "the order id"},
			{"'k', REPEAT('x', 65), " + good + ", NULL", "the order id"},
			{"'k', 'A-1', NULL, NULL", "the deadline"},
			{"'k', 'A-1', '1969-12-31 23:59:59', NULL", "the deadline"},
			{"'k', 'A-1', UTC_TIMESTAMP(6) + INTERVAL 11 YEAR, NULL", "the deadline"},
			{"'k', 'A-1', " + good + ", 0", "the window"},
			{"'k', 'A-1', " + good + ", -1", "the window"},
			{"'k', 'A-1', " + good + ", 315360001", "the window"},
			// What a strict session refuses itself.
			{"'k', 'A-1', 'tomorrow', NULL", ""},
			{"'k', 'A-1', 1764547200123, NULL", ""},
			{"'k', REPEAT('x', 256), " + good + ", NULL", ""},
			{"'k', 'A-1', " + good + ", 'soon'", ""},
		} {
			_, err := conn.ExecContext(t.Context(), "CALL lapse_timer("+call.parameters+")")
			refusal, ok := errors.AsType[*mysql.MySQLError](err)
			if !ok || call.says != "" && (refusal.SQLState != [5]byte([]byte("45000")) || !strings.HasPrefix(refusal.Message, "lapse_timer: "+call.says+" has to be")) {
				t.Errorf("%s: %s: %v", set, call.parameters, err)
			}
		}
	}
	if rows, _ := outboxRows(t, db); len(rows) != 0 {
		t.Errorf("there is %+v", rows)
	}
}

// A checkout's login needs two rights.
func TestTimerProcedureRights(t *testing.T) {
	db := amqptest.NewMySQL(t).Database(t)
	for _, statement := range []string{"CREATE USER checkout@'%'", "GRANT EXECUTE ON PROCEDURE lapse_timer TO checkout@'%'"} {
		if err := db.Exec(statement).Error; err != nil {
			t.Fatal(err)
		}
	}
	checkout, err := database.Open(strings.Replace(amqptest.DSN(t, db), "root@", "checkout@", 1), database.Options{})
	if err != nil {
		t.Fatal(err)
	}
	call := func() error {
		return checkout.Exec("CALL lapse_timer('order.payment_timeout', 7, UTC_TIMESTAMP(6) + INTERVAL 30 MINUTE, 1800)").Error
	}
	if err := call(); err == nil || !strings.Contains(err.Error(), "INSERT command denied") {
		t.Errorf("without INSERT: %v", err)
	}
	if err := db.Exec("GRANT INSERT ON lapse_outbox TO checkout@'%'").Error; err != nil {
		t.Fatal(err)
	}
	if err := call(); err != nil {
		t.Error(err)
	}
}

// A checkout goes on with the id of the order that it has just inserted.
func TestTimerProcedureKeepsTheLastInsertID(t *testing.T) {
	db := amqptest.Database(t)
	conn := session(t, db, "SET SESSION sql_mode = ''")
	var before, after int64
	for _, statement := range []string{
		"CREATE TABLE shop (id BIGINT AUTO_INCREMENT PRIMARY KEY)", "INSERT INTO shop VALUES (), ()", "INSERT INTO shop VALUES ()",
		"SET @before = LAST_INSERT_ID()", "CALL lapse_timer('order.payment_timeout', LAST_INSERT_ID(), '2031-05-06', NULL)",
	} {
		if _, err := conn.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	if err := conn.QueryRowContext(t.Context(), "SELECT @before, LAST_INSERT_ID()").Scan(&before, &after); err != nil || before != 3 || after != 3 {
		t.Errorf("the last id was %d and is %d, %v", before, after, err)
	}
	// A date that is none would never be due.
	if _, err := conn.ExecContext(t.Context(), "CALL lapse_timer('order.payment_timeout', 1, '2031-05-00', NULL)"); err == nil || !strings.Contains(err.Error(), "lapse_timer: the deadline") {
		t.Errorf("a partial date: %v", err)
	}
}
