package migrations_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/google/go-cmp/cmp"

	"github.com/lapse-go/lapse/amqp/amqptest"
	"github.com/lapse-go/lapse/amqp/database"
	"github.com/lapse-go/lapse/migrations"
)

// migrateDSN makes a process of this test binary migrate and exit.
const migrateDSN = "LAPSE_TEST_MIGRATE_DSN"

func TestMain(m *testing.M) {
	if dsn := os.Getenv(migrateDSN); dsn != "" {
		if err := migrate(dsn); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func migrate(dsn string) error {
	if err := migrations.CreateDatabase(context.Background(), dsn); err != nil {
		return err
	}
	db, err := database.Open(dsn, database.Options{})
	if err != nil {
		return err
	}
	pool, err := db.DB()
	if err != nil {
		return err
	}
	defer pool.Close()
	return migrations.Up(context.Background(), pool)
}

// absent is the DSN of a database that is not there; it is dropped when the test ends.
func absent(t *testing.T, suffix string) string {
	t.Helper()
	db := amqptest.Database(t)
	config, err := mysql.ParseDSN(amqptest.DSN(t, db))
	if err != nil {
		t.Fatal(err)
	}
	config.DBName += suffix
	t.Cleanup(func() {
		if err := db.Exec("DROP DATABASE IF EXISTS `" + strings.ReplaceAll(config.DBName, "`", "``") + "`").Error; err != nil {
			t.Error(err)
		}
	})
	return config.FormatDSN()
}

// empty is a pool on a database without tables.
func empty(t *testing.T) *sql.DB {
	t.Helper()
	dsn := absent(t, "_empty")
	if err := migrations.CreateDatabase(t.Context(), dsn); err != nil {
		t.Fatal(err)
	}
	db, err := database.Open(dsn, database.Options{})
	if err != nil {
		t.Fatal(err)
	}
	pool, err := db.DB()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pool.Close() })
	return pool
}

func strs(t *testing.T, db *sql.DB, query string) (all []string) {
	t.Helper()
	rows, err := db.Query(query)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var s string
		if err := rows.Scan(&s); err != nil {
			t.Fatal(err)
		}
		all = append(all, s)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return all
}

func TestSixProcessesAtOnceMigrateADatabaseThatDoesNotExist(t *testing.T) {
	dsn := absent(t, "_six")
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	errs := make(chan error)
	for range 6 {
		go func() {
			process := exec.Command(binary)
			process.Env = append(os.Environ(), migrateDSN+"="+dsn)
			out, err := process.CombinedOutput()
			if err != nil {
				err = fmt.Errorf("%w: %s", err, out)
			}
			errs <- err
		}()
	}
	for range 6 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	db, err := database.Open(dsn, database.Options{})
	if err != nil {
		t.Fatal(err)
	}
	pool, err := db.DB()
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if err := migrations.Check(t.Context(), pool); err != nil {
		t.Error(err)
	}
	for _, set := range migrations.All {
		if twice := strs(t, pool, "SELECT version_id FROM lapse_schema_"+set.Name()+" GROUP BY version_id HAVING COUNT(*) > 1"); twice != nil {
			t.Errorf("%s: versions %v were recorded twice", set.Name(), twice)
		}
	}
}

func TestADatabaseThatIsBehindIsToldFromOneThatIsNot(t *testing.T) {
	db := empty(t)
	err := migrations.Check(t.Context(), db)
	if !errors.Is(err, migrations.ErrPending) || !strings.Contains(err.Error(), "run `lapse migrate up`") || !strings.Contains(err.Error(), "transport/00001_outbox.sql") {
		t.Errorf("an empty database: %v", err)
	}
	if tables := strs(t, db, "SHOW TABLES"); tables != nil {
		t.Errorf("asking has created %v", tables)
	}
	if err := migrations.Up(t.Context(), db, migrations.Transport); err != nil {
		t.Fatal(err)
	}
	if err := migrations.Check(t.Context(), db, migrations.Transport); err != nil {
		t.Error(err)
	}
	if err := migrations.Check(t.Context(), db); !errors.Is(err, migrations.ErrPending) || strings.Contains(err.Error(), "transport/") {
		t.Errorf("without the orders: %v", err)
	}
	for _, table := range strs(t, db, "SHOW TABLES") {
		if !strings.HasPrefix(table, "lapse_") || strings.Contains(table, "order") {
			t.Errorf("migrating the transport has created table %s", table)
		}
	}
	if err := migrations.Up(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	pending, err := migrations.Pending(t.Context(), db)
	if err != nil || len(pending) > 0 {
		t.Errorf("pending %v, %v", pending, err)
	}
	if err := migrations.Up(t.Context(), db); err != nil {
		t.Errorf("migrating again: %v", err)
	}
}

// Each step of a migration is committed by itself, so a process can die after any of them.
func TestAMigrationThatWasCutOffIsDoneAgain(t *testing.T) {
	db := empty(t)
	if err := migrations.Up(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	before := strs(t, db, "SHOW TABLES")
	for _, set := range migrations.All {
		// All tables are there and nothing says so, not even goose's first row.
		if _, err := db.Exec("DELETE FROM lapse_schema_" + set.Name()); err != nil {
			t.Fatal(err)
		}
	}
	if err := migrations.Up(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	if err := migrations.Check(t.Context(), db); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(before, strs(t, db, "SHOW TABLES")); diff != "" {
		t.Errorf("tables (-before +after):\n%s", diff)
	}
}

func TestCreateDatabase(t *testing.T) {
	dsn := absent(t, "-` ü")
	for range 2 {
		if err := migrations.CreateDatabase(t.Context(), dsn); err != nil {
			t.Fatal(err)
		}
	}
	if err := migrate(dsn); err != nil {
		t.Fatal(err)
	}
	if err := migrations.CreateDatabase(t.Context(), "root:s3cret@tcp(127.0.0.1:1)/shop"); err == nil || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("a server that is away: %v", err)
	}
	config, err := mysql.ParseDSN(dsn)
	if err != nil {
		t.Fatal(err)
	}
	config.DBName = ""
	if err := migrations.CreateDatabase(t.Context(), config.FormatDSN()); err == nil {
		t.Error("no name, and no error")
	}
}
