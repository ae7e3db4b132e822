package amqptest

import (
	"cmp"
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
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
type MySQL struct {
	t      testing.TB
	binary string
	dir    string
	port   int
	maria  bool
	child  *exec.Cmd
	ended  chan struct{} // closed when the child has ended
}

// NewMySQL starts a server with a folder, port and socket of its own: mariadbd or mysqld from the
// PATH or /usr/sbin, or what LAPSE_MYSQLD names. It ends with the test.
func NewMySQL(t testing.TB) *MySQL {
	t.Helper()
	// The path of a socket has to be shorter than t.TempDir makes it.
	dir, err := os.MkdirTemp("", "mysql")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	m := &MySQL{t: t, binary: mysqldBinary(t), dir: dir, port: freePort(t)}
	version, err := exec.Command(m.binary, "--version").Output()
	if err != nil {
		t.Fatalf("%s --version: %v", m.binary, err)
	}
	m.maria = strings.Contains(string(version), "MariaDB")
	m.install()
	m.Start()
	t.Cleanup(m.Kill)
	return m
}

func mysqldBinary(t testing.TB) string {
	t.Helper()
	if binary := os.Getenv("LAPSE_MYSQLD"); binary != "" {
		return binary
	}
	for _, name := range []string{"mariadbd", "/usr/sbin/mariadbd", "mysqld", "/usr/sbin/mysqld"} {
		if binary, err := exec.LookPath(name); err == nil {
			return binary
		}
	}
	t.Fatal("this test needs a database server of its own: install mariadb-server (Debian) or set LAPSE_MYSQLD to a mysqld")
	return ""
}

func (m *MySQL) install() {
	m.t.Helper()
	installer, how := m.binary, "--initialize-insecure"
	if m.maria {
		installer, how = "mariadb-install-db", "--auth-root-authentication-method=normal"
	}
	args := append([]string{"--no-defaults", how, "--datadir=" + m.data()}, m.account()...)
	command := exec.Command(installer, args...)
	if out, err := command.CombinedOutput(); err != nil {
		m.t.Fatalf("%s: %v\n%s", command, err, out)
	}
}

func (m *MySQL) data() string { return filepath.Join(m.dir, "data") }

// account is the flag without which a server does not run as root.
func (m *MySQL) account() []string {
	if os.Geteuid() == 0 {
		return []string{"--user=root"}
	}
	return nil
}

// DSN is that of the server's root, without a database.
func (m *MySQL) DSN() string { return fmt.Sprintf("root@tcp(127.0.0.1:%d)/", m.port) }

// Database is a fresh database with all of Lapse's tables on this server.
func (m *MySQL) Database(t testing.TB) *gorm.DB {
	t.Helper()
	return freshDatabase(t, m.DSN())
}

// Start starts the server, after [MySQL.Stop] or [MySQL.Kill] on the same port with the same data, and
// returns once it answers.
func (m *MySQL) Start() {
	m.t.Helper()
	errorLog := filepath.Join(m.dir, "error.log")
	args := append([]string{"--no-defaults",
		"--datadir=" + m.data(),
		"--bind-address=127.0.0.1", "--port=" + strconv.Itoa(m.port),
		"--socket=" + filepath.Join(m.dir, "sock"), "--pid-file=" + filepath.Join(m.dir, "pid"),
		"--log-error=" + errorLog, "--innodb-buffer-pool-size=64M",
	}, m.account()...)
	if !m.maria {
		args = append(args, "--mysqlx=OFF")
	}
	child, ended := exec.Command(m.binary, args...), make(chan struct{})
	if err := child.Start(); err != nil {
		m.t.Fatal(err)
	}
	go func() {
		child.Wait() // how it ended is in its log
		close(ended)
	}()
	m.child, m.ended = child, ended

	pool, err := sql.Open("mysql", m.DSN())
	if err != nil {
		m.t.Fatal(err)
	}
	defer pool.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for pool.PingContext(ctx) != nil {
		select {
		case <-ended:
			text, _ := os.ReadFile(errorLog)
			m.t.Fatalf("%s ended:\n%s", m.binary, text)
		case <-ctx.Done():
			m.Kill()
			m.t.Fatalf("%s did not answer within a minute", m.binary)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// Stop shuts the server down in good order.
func (m *MySQL) Stop() { m.end(syscall.SIGTERM) }

// Kill ends it as a power cut would. It does nothing if the server has ended.
func (m *MySQL) Kill() { m.end(syscall.SIGKILL) }

// Pause stops the server without closing its connections, as a machine that hangs does.
func (m *MySQL) Pause() { m.signal(syscall.SIGSTOP) }

// Unpause lets it go on.
func (m *MySQL) Unpause() { m.signal(syscall.SIGCONT) }

func (m *MySQL) end(s syscall.Signal) {
	m.signal(s)
	select {
	case <-m.ended:
	case <-time.After(time.Minute):
		m.child.Process.Kill()
		<-m.ended
		m.t.Errorf("%s did not end within a minute after signal %s", m.binary, s)
	}
}

func (m *MySQL) signal(s syscall.Signal) {
	if err := m.child.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		m.t.Errorf("signal %s to %s: %v", s, m.binary, err)
	}
}

func freePort(t testing.TB) int {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port
}
