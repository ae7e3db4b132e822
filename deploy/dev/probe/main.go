// Command probe tells deploy/dev/up whether a server can be used, with nothing but Go on the machine.
//
//	probe rabbitmq   asks the broker that LAPSE_AMQP_URL names
//	probe mysql      asks the server that LAPSE_MYSQL_DSN names
//	probe port N     prints N if nothing listens on that TCP port, else the next one that is free
//
// The answer is one line, without passwords: the server's product, version and address on standard
// output, or what is wrong on standard error. The exit code is 0 for a server that can be used, 1
// while none answers, and 3 for one that answers and cannot be used: it refuses the login, it is too
// old, or it is something else.
package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/go-sql-driver/mysql"
	amqp091 "github.com/rabbitmq/amqp091-go"
)

// patience is how long a server may take to answer a greeting.
const patience = 5 * time.Second

// errUnusable marks what waiting cannot mend.
var errUnusable = errors.New("cannot be used")

func main() {
	answer, err := run(os.Args[1:])
	switch {
	case err == nil:
		fmt.Println(answer)
	case errors.Is(err, errUnusable):
		fmt.Fprintln(os.Stderr, err)
		os.Exit(3)
	default:
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) (string, error) {
	switch {
	case len(args) == 1 && args[0] == "rabbitmq":
		return rabbitmq(os.Getenv("LAPSE_AMQP_URL"))
	case len(args) == 1 && args[0] == "mysql":
		return mySQL(os.Getenv("LAPSE_MYSQL_DSN"))
	case len(args) == 2 && args[0] == "port":
		return freePort(args[1])
	}
	return "", fmt.Errorf("%w: probe rabbitmq, probe mysql or probe port N", errUnusable)
}

// rabbitmq logs in to the broker and opens a channel. At-least-once dead-lettering came with 3.10.
func rabbitmq(url string) (string, error) {
	uri, err := amqp091.ParseURI(url)
	if err != nil { // whose text may hold the password
		return "", fmt.Errorf("LAPSE_AMQP_URL %w: it is no AMQP URI such as amqp://guest:guest@127.0.0.1:5672/", errUnusable)
	}
	address := net.JoinHostPort(uri.Host, strconv.Itoa(uri.Port))

	conn, err := amqp091.DialConfig(url, amqp091.Config{Dial: amqp091.DefaultDial(patience)})
	if err != nil {
		return "", explain("RabbitMQ", address, uri.Username, err)
	}
	defer conn.Close()

	product, _ := conn.Properties["product"].(string)
	version, _ := conn.Properties["version"].(string)
	if product != "RabbitMQ" || olderThan(version, 3, 10) {
		return "", fmt.Errorf("%s at %s %w: RabbitMQ 3.10 or newer is needed", strings.TrimSpace(product+" "+version), address, errUnusable)
	}
	if _, err := conn.Channel(); err != nil {
		return "", explain("RabbitMQ", address, uri.Username, err)
	}
	return fmt.Sprintf("%s %s at %s", product, version, address), nil
}

// mySQL logs in and asks for the version. SKIP LOCKED came with MySQL 8.0 and MariaDB 10.6.
func mySQL(dsn string) (string, error) {
	cfg, err := mysql.ParseDSN(dsn)
	if err != nil || dsn == "" { // whose text may hold the password
		return "", fmt.Errorf("LAPSE_MYSQL_DSN %w: it is no data source name such as root@tcp(127.0.0.1:3306)/", errUnusable)
	}
	cfg.Timeout, cfg.ReadTimeout, cfg.WriteTimeout = patience, patience, patience
	cfg.Logger = log.New(io.Discard, "", 0)
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		return "", fmt.Errorf("LAPSE_MYSQL_DSN %w: its parameters contradict each other", errUnusable)
	}
	db := sql.OpenDB(connector)
	defer db.Close()

	var version string
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := db.QueryRowContext(ctx, "SELECT VERSION()").Scan(&version); err != nil {
		return "", explain("MySQL", cfg.Addr, cfg.User, err)
	}
	product, major, minor := "MySQL", 8, 0
	if strings.Contains(version, "MariaDB") {
		product, major, minor = "MariaDB", 10, 6
	}
	version, _, _ = strings.Cut(version, "-")
	if olderThan(version, major, minor) {
		return "", fmt.Errorf("%s %s at %s %w: %[1]s %[5]d.%[6]d or newer is needed", product, version, cfg.Addr, errUnusable, major, minor)
	}
	return fmt.Sprintf("%s %s at %s", product, version, cfg.Addr), nil
}

// explain says in one line why the server at address cannot be talked to.
func explain(product, address, user string, err error) error {
	var (
		fromBroker *amqp091.Error
		fromMySQL  *mysql.MySQLError
		network    *net.OpError
	)
	errors.As(err, &fromBroker)
	errors.As(err, &fromMySQL)
	switch {
	case fromBroker != nil && (fromBroker.Code == amqp091.AccessRefused || fromBroker.Code == amqp091.NotAllowed):
		return fmt.Errorf("%s at %s %w: it refuses user %s: %s", product, address, errUnusable, user, fromBroker.Reason)
	case fromMySQL != nil && slices.Contains(refusals, fromMySQL.Number):
		return fmt.Errorf("%s at %s %w: it refuses user %s: %s", product, address, errUnusable, user, fromMySQL.Message)
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("nothing listens at %s", address)
	case errors.As(err, &network) && network.Op == "dial":
		return fmt.Errorf("%s cannot be reached: %w", address, err)
	}
	return fmt.Errorf("what listens at %s does not answer as %s: %w", address, product, err)
}

// refusals are the errors of MySQL and MariaDB that mean "not you" or "no such database".
var refusals = []uint16{1044, 1045, 1049, 1130, 1251, 1524, 1698}

func olderThan(version string, major, minor int) bool {
	var a, b int
	if _, err := fmt.Sscanf(version, "%d.%d", &a, &b); err != nil {
		return true
	}
	return a < major || a == major && b < minor
}

// freePort tries the hundred ports from first on. Listening on all addresses also finds a server that
// listens on one.
func freePort(first string) (string, error) {
	port, err := strconv.Atoi(first)
	if err != nil || port < 1 || port > 65435 {
		return "", fmt.Errorf("port %q %w: give 1 to 65435", first, errUnusable)
	}
	for p := port; p < port+100; p++ {
		if l, err := net.Listen("tcp", ":"+strconv.Itoa(p)); err == nil {
			return strconv.Itoa(p), l.Close()
		}
	}
	return "", fmt.Errorf("no free port from %d to %d", port, port+99)
}
