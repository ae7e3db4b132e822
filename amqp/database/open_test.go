package database_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"gorm.io/gorm"

	"github.com/lapse-go/lapse/amqp/amqptest"
	"github.com/lapse-go/lapse/amqp/database"
)

func TestMain(m *testing.M) {
	// What gorm starts for a pool with prepared statements, it never ends.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("gorm.io/gorm/internal/lru.NewLRU[...].func1"))
}

func open(t *testing.T, dsn string, opts database.Options) *gorm.DB {
	t.Helper()
	db, err := database.Open(dsn, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closePool(t, db) })
	return db
}

func closePool(t *testing.T, db *gorm.DB) {
	t.Helper()
	pool, err := db.DB()
	if err == nil {
		err = pool.Close()
	}
	if err != nil {
		t.Error(err)
	}
}

func exec(t *testing.T, db *gorm.DB, statement string, args ...any) {
	t.Helper()
	if err := db.Exec(statement, args...).Error; err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

func number(t *testing.T, db *gorm.DB, query string) (n int) {
	t.Helper()
	if err := db.Raw(query).Row().Scan(&n); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return n
}

// dsnWith is the DSN with further parameters.
func dsnWith(dsn string, params ...string) string {
	separator := "?"
	if strings.Contains(dsn, "?") {
		separator = "&"
	}
	return dsn + separator + strings.Join(params, "&")
}

func TestSessionsAreTheSameWhateverTheDSNSays(t *testing.T) {
	dsn := amqptest.DSN(t, amqptest.Database(t))
	db := open(t, dsnWith(dsn,
		"loc=Asia%2FTokyo", "time_zone=%27%2B09%3A00%27", "parseTime=false", "clientFoundRows=false", "interpolateParams=false",
		"sql_mode=%27ANSI_QUOTES%27", "autocommit=0", "wait_timeout=1", "charset=latin1", "transaction_isolation=%27SERIALIZABLE%27",
	), database.Options{MaxOpen: 1})

	var zone, mode, charset string
	var wait int
	if err := db.Raw("SELECT @@time_zone, @@sql_mode, @@character_set_connection, @@wait_timeout").Row().
		Scan(&zone, &mode, &charset, &wait); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]any{"+00:00", "STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION", "utf8mb4", 300}, []any{zone, mode, charset, wait}); diff != "" {
		t.Errorf("session (-want +got):\n%s", diff)
	}
	if got := isolation(t, db); got != "READ-COMMITTED" {
		t.Errorf("isolation level %s", got)
	}

	exec(t, db, "CREATE TABLE times (id INT PRIMARY KEY, at DATETIME(6) NOT NULL)")
	at := time.Date(2026, 3, 29, 1, 30, 0, 123456000, time.UTC)
	exec(t, db, "INSERT INTO times VALUES (1, ?)", at.In(time.FixedZone("", 7200)))
	var got time.Time
	if err := db.Raw("SELECT at FROM times").Row().Scan(&got); err != nil || !got.Equal(at) {
		t.Errorf("time stored as %v, %v; want %v", got, err, at)
	}
	if n := number(t, db, "SELECT COUNT(*) FROM times WHERE CAST(at AS CHAR) = '2026-03-29 01:30:00.123456'"); n != 1 {
		t.Error("the time is not stored in UTC")
	}
	if found := db.Exec("UPDATE times SET id = 1 WHERE id = 1").RowsAffected; found != 1 {
		t.Errorf("an update to the same value reports %d rows, want the one that it found", found)
	}
}

// isolation is the session's level; the variable that holds it has two names.
func isolation(t *testing.T, db *gorm.DB) string {
	t.Helper()
	var name, level string
	err := db.Raw("SHOW VARIABLES WHERE Variable_name IN ('transaction_isolation', 'tx_isolation')").Row().Scan(&name, &level)
	if err != nil {
		t.Fatal(err)
	}
	return level
}

func TestABadDSNIsAnErrorThatHidesThePassword(t *testing.T) {
	for _, dsn := range []string{
		"", "s3cret", "root:s3cret", "root:s3cret@127.0.0.1:3306/shop", "mysql://root:s3cret@host/shop", "root:s3cret@tcp(host:3306)",
		"root:s3cret@tcp(host:3306)/", "root:s3@s3cret@tcp(host/shop", "root:s3cret@tcp(host:3306)/shop?strict=true",
		"root:s3cret@tcp(host:3306)/shop?parseTime=s3cret", "root:s3cret@tcp(host:3306)/shop?loc=Nowhere", "host/s3cret%",
	} {
		_, err := database.Open(dsn, database.Options{})
		if err == nil || strings.Contains(err.Error(), "s3cret") || strings.Contains(err.Error(), "s3@") {
			t.Errorf("Open(%q): %v", dsn, err)
		}
	}
}

func TestOpenDoesNotNeedTheServer(t *testing.T) {
	db := open(t, "root@tcp(127.0.0.1:1)/shop", database.Options{})
	if err := db.Exec("DO 1").Error; !database.IsOutage(err) {
		t.Errorf("a dead port is an outage, got %v", err)
	}
}

// https://github.com/go-sql-driver/mysql/issues/871: connections that the server has closed are not
// handed to the next statement.
func TestIdleConnectionsOutliveTheServersTimeout(t *testing.T) {
	server := amqptest.NewMySQL(t)
	admin := server.Database(t)
	exec(t, admin, "SET GLOBAL wait_timeout = 2")
	db := open(t, amqptest.DSN(t, admin), database.Options{MaxOpen: 4})
	together := func() {
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				err := database.Transact(t.Context(), db, func(tx *gorm.DB) error { return tx.Exec("DO SLEEP(0.1)").Error })
				if err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
	}
	together()
	time.Sleep(5 * time.Second) // what the server is to find too long
	together()

	// And if an operator or a proxy cuts them all the same, nobody notices.
	rows, err := admin.Raw("SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()").Rows()
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var ids []int
	for rows.Next() {
		var id int
		if err := rows.Scan(&id); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	if len(ids) < 4 {
		t.Fatalf("%d connections to cut, want 4", len(ids))
	}
	for _, id := range ids {
		admin.Exec("KILL ?", id)
	}
	for number(t, admin, "SELECT COUNT(*) FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()") > 0 {
	}
	together()
}

func TestAPoolLeavesAServerThatIsReadOnly(t *testing.T) {
	server := amqptest.NewMySQL(t)
	admin := server.Database(t)
	exec(t, admin, "CREATE TABLE t (id INT PRIMARY KEY AUTO_INCREMENT)")
	exec(t, admin, "CREATE USER shop IDENTIFIED BY 'shop'")
	exec(t, admin, "GRANT SELECT, INSERT ON *.* TO shop")
	config, err := mysql.ParseDSN(amqptest.DSN(t, admin))
	if err != nil {
		t.Fatal(err)
	}
	config.User, config.Passwd = "shop", "shop"
	db := open(t, config.FormatDSN(), database.Options{MaxOpen: 1})
	insert := func() error {
		return database.Transact(t.Context(), db, func(tx *gorm.DB) error { return tx.Exec("INSERT INTO t VALUES ()").Error })
	}
	if err := insert(); err != nil {
		t.Fatal(err)
	}
	connection := number(t, db, "SELECT CONNECTION_ID()")
	exec(t, admin, "SET GLOBAL read_only = 1")
	if err := insert(); !database.IsOutage(err) {
		t.Errorf("a read-only server is an outage, got %v", err)
	}
	if connection == number(t, db, "SELECT CONNECTION_ID()") {
		t.Error("the connection was kept, so after a failover it would lead to the replica for ever")
	}
	exec(t, admin, "SET GLOBAL read_only = 0")
	if err := insert(); err != nil {
		t.Errorf("after the server is writable again: %v", err)
	}
	if n := number(t, admin, "SELECT COUNT(*) FROM t"); n != 2 {
		t.Errorf("%d rows, want 2", n)
	}
}

func TestAServerThatHangsIsAnOutageWithinTheContext(t *testing.T) {
	server := amqptest.NewMySQL(t)
	db := server.Database(t)
	exec(t, db, "DO 1")
	server.Pause()
	defer server.Unpause()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	start := time.Now()
	err := database.Transact(ctx, db, func(tx *gorm.DB) error { return tx.Exec("DO 1").Error })
	if !database.IsOutage(err) || time.Since(start) > 3*time.Second {
		t.Errorf("after %s: %v", time.Since(start), err)
	}
}
