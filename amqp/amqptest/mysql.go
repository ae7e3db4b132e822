package amqptest

import (
	"cmp"
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"gorm.io/gorm"

	"github.com/lapse-go/lapse/amqp/database"
	"github.com/lapse-go/lapse/migrations"
)

func serverDSN() string {
	return cmp.Or(os.Getenv("LAPSE_MYSQL_DSN"), "root@tcp(127.0.0.1:3306)/")
}

// Database is a fresh database with all of Lapse's tables, on the server that LAPSE_MYSQL_DSN names
// (root@tcp(127.0.0.1:3306)/ by default). It is dropped when the test ends.
func Database(t testing.TB) *gorm.DB {
	t.Helper()
	return freshDatabase(t, serverDSN())
}

// DSN is that of a database that [Database] or [MySQL.Database] made, for further pools and processes.
func DSN(t testing.TB, db *gorm.DB) string {
	t.Helper()
	dsn, ok := db.Config.Plugins[dsnPlugin("").Name()].(dsnPlugin)
	if !ok {
		t.Fatal("not a pool that amqptest made")
	}
	return string(dsn)
}

// dsnPlugin remembers the DSN of a pool in the pool.
type dsnPlugin string

func (dsnPlugin) Name() string              { return "amqptest:dsn" }
func (dsnPlugin) Initialize(*gorm.DB) error { return nil }

func freshDatabase(t testing.TB, server string) *gorm.DB {
	t.Helper()
	config, err := mysql.ParseDSN(server)
	if err != nil {
		t.Fatalf("the DSN of the test server: %v", err)
	}
	config.DBName = "lapse_test_" + strings.ToLower(rand.Text()[:12])
	dsn := config.FormatDSN()

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := migrations.CreateDatabase(ctx, dsn); err != nil {
		t.Fatalf("this test needs MySQL or MariaDB at %s (set LAPSE_MYSQL_DSN to use another): %v", config.Addr, err)
	}
	db, err := database.Open(dsn, database.Options{})
	if err != nil {
		t.Fatal(err)
	}
	pool, err := db.DB()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// The server may be one that the test has broken.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 10*time.Second)
		defer cancel()
		_, err := pool.ExecContext(ctx, "DROP DATABASE `"+config.DBName+"`")
		if err := errors.Join(err, pool.Close()); err != nil {
			t.Logf("dropping %s: %v", config.DBName, err)
		}
	})
	if err := migrations.Up(ctx, pool); err != nil {
		t.Fatal(err)
	}
	if err := db.Use(dsnPlugin(dsn)); err != nil {
		t.Fatal(err)
	}
	return db
}

// MySQL is a database server of the test's own, to be broken as it likes.
type MySQL struct{ *server }

// NewMySQL starts a server with a folder, port and socket of its own: mariadbd or mysqld from the PATH
// or /usr/sbin, or what LAPSE_MYSQLD names. Without a binary it is a container, if a Docker engine
// answers. It ends with the test.
func NewMySQL(t testing.TB) *MySQL {
	t.Helper()
	m := &MySQL{newServer(t)}
	m.answers = m.ping
	if binary := find(t, "LAPSE_MYSQLD", "mariadbd", "/usr/sbin/mariadbd", "mysqld", "/usr/sbin/mysqld"); binary != "" {
		m.install(binary)
	} else {
		m.contain("mariadb-server", 3306, "--env", "MYSQL_ALLOW_EMPTY_PASSWORD=yes",
			"mysql:8.4", // as in deploy/dev/compose.yaml
			"--mysqlx=OFF", bufferPool)
	}
	m.Start()
	return m
}

const bufferPool = "--innodb-buffer-pool-size=64M"

// install makes the server a child process, and its data.
func (m *MySQL) install(binary string) {
	m.t.Helper()
	version, err := exec.Command(binary, "--version").Output()
	if err != nil {
		m.t.Fatalf("%s --version: %v", binary, err)
	}
	flags := []string{"--no-defaults", "--datadir=" + filepath.Join(m.dir, "data")}
	if os.Geteuid() == 0 {
		flags = append(flags, "--user=root") // or it does not run
	}
	m.command = append(append([]string{binary}, flags...),
		"--bind-address=127.0.0.1", "--port="+strconv.Itoa(m.port),
		"--socket="+filepath.Join(m.dir, "sock"), "--pid-file="+filepath.Join(m.dir, "pid"), bufferPool)
	// The test database would come with a user without a name, whom a server on this machine prefers to
	// those of any host.
	installer, how := "mariadb-install-db", []string{"--auth-root-authentication-method=normal", "--skip-test-db"}
	if !strings.Contains(string(version), "MariaDB") {
		installer, how = binary, []string{"--initialize-insecure"}
		m.command = append(m.command, "--mysqlx=OFF")
	}
	command := exec.Command(installer, append(flags, how...)...)
	if out, err := command.CombinedOutput(); err != nil {
		m.t.Fatalf("%s: %v\n%s", command, err, out)
	}
}

// ping keeps to itself that the driver cannot connect while the server starts.
func (m *MySQL) ping() error {
	config, err := mysql.ParseDSN(m.DSN())
	if err != nil {
		return err
	}
	config.Logger = &mysql.NopLogger{}
	config.Timeout, config.ReadTimeout = patience, patience
	connector, err := mysql.NewConnector(config)
	if err != nil {
		return err
	}
	pool := sql.OpenDB(connector)
	defer pool.Close()
	return pool.Ping()
}

// DSN is that of the server's root, without a database.
func (m *MySQL) DSN() string { return fmt.Sprintf("root@tcp(127.0.0.1:%d)/", m.port) }

// Database is a fresh database with all of Lapse's tables on this server.
func (m *MySQL) Database(t testing.TB) *gorm.DB {
	t.Helper()
	return freshDatabase(t, m.DSN())
}
