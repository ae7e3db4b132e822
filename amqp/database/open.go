// Package database holds what all of Lapse needs of MySQL and MariaDB: pools whose sessions are the
// same whatever their DSN says, transactions that are rerun when they lose a conflict, and answers
// to whose fault an error is.
package database

import (
	"cmp"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
	gormmysql "gorm.io/driver/mysql"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"
)

// Options say how a pool is kept. The zero value is the default pool.
type Options struct {
	// MaxOpen is how many connections there may be at once. 16 when zero.
	MaxOpen int
	// MaxIdle is how many of them are kept while nothing needs them. MaxOpen when zero.
	MaxIdle int
	// ReadTimeout bounds the wait for the answer to one statement, unless the DSN has a readTimeout.
	// 30 s when zero; NoTimeout for none, as a long migration needs it.
	ReadTimeout time.Duration
	// Logger is told of what the driver finds odd. slog.Default() when nil.
	Logger *slog.Logger
	// Metrics, if there are any, count what [Transact] does on this pool.
	Metrics *Metrics
}

// NoTimeout as Options.ReadTimeout waits for an answer as long as it takes.
const NoTimeout = -1

const (
	// A session that has been silent for this many seconds is ended by the server, and what it had
	// locked becomes free. Connections are given up well before, so the pool never holds a dead one.
	waitTimeout     = "300"
	maxConnLifetime = 3 * time.Minute
	maxConnIdleTime = time.Minute
	// A statement waits this many seconds for a row, and for a table that is being altered: less than
	// the read time-out, so that it ends with an error that says why.
	rowWaitTimeout   = "3"
	tableWaitTimeout = "10"
)

// Open makes the pool for a DSN such as
//
//	user:password@tcp(host:3306)/shop
//
// (https://github.com/go-sql-driver/mysql#dsn-data-source-name). It does not connect: a database
// that is away is found out by the first statement. An error is about the DSN, and does not repeat
// its password.
//
// Whatever the DSN says, sessions speak utf8mb4, count time in UTC, run in READ COMMITTED and strict
// mode, report the rows that an UPDATE found rather than those it changed, and leave a server that
// has become read-only. Time-outs, innodb_lock_wait_timeout and lock_wait_timeout are the DSN's, where
// it has them.
func Open(dsn string, opts Options) (*gorm.DB, error) {
	config, err := parse(dsn)
	if err != nil {
		return nil, err
	}
	if config.DBName == "" {
		return nil, fmt.Errorf("the DSN %s names no database: %s", redact(dsn), dsnForm)
	}
	pool, err := open(config, opts)
	if err != nil {
		return nil, err
	}
	db, err := gorm.Open(
		// Asking for the server's version would need the server.
		gormmysql.New(gormmysql.Config{Conn: pool, SkipInitializeWithVersion: true}),
		&gorm.Config{
			SkipDefaultTransaction: true,
			DisableAutomaticPing:   true,
			Logger:                 logger.Discard,
			NowFunc:                func() time.Time { return time.Now().UTC().Truncate(time.Microsecond) },
		},
	)
	if err != nil {
		return nil, errors.Join(err, pool.Close())
	}
	if opts.Metrics != nil {
		if err := db.Use(opts.Metrics); err != nil {
			return nil, errors.Join(err, pool.Close())
		}
	}
	return db, nil
}

// OpenServer makes a pool like [Open] does, but of sessions in which no database is selected, and
// returns it with the name of the one in the DSN, which may be empty.
func OpenServer(dsn string, opts Options) (pool *sql.DB, name string, err error) {
	config, err := parse(dsn)
	if err != nil {
		return nil, "", err
	}
	name, config.DBName = config.DBName, ""
	pool, err = open(config, opts)
	return pool, name, err
}

func open(config *mysql.Config, opts Options) (*sql.DB, error) {
	if err := config.Apply(mysql.Charset("utf8mb4", ""), mysql.TimeTruncate(time.Microsecond)); err != nil {
		return nil, err
	}
	config.Loc = time.UTC
	config.ParseTime = true
	config.ClientFoundRows = true
	config.InterpolateParams = true
	config.RejectReadOnly = true
	config.CheckConnLiveness = true
	config.MultiStatements = false
	// Zero asks the server for its own limit, so that a packet that is too large is told from a
	// connection that broke.
	config.MaxAllowedPacket = 0
	config.Timeout = cmp.Or(config.Timeout, 5*time.Second)
	config.ReadTimeout = cmp.Or(config.ReadTimeout, max(0, cmp.Or(opts.ReadTimeout, 30*time.Second)))
	config.WriteTimeout = cmp.Or(config.WriteTimeout, 30*time.Second)
	config.Logger = driverLog{cmp.Or(opts.Logger, slog.Default())}

	params := map[string]string{
		"innodb_lock_wait_timeout": rowWaitTimeout,
		"lock_wait_timeout":        tableWaitTimeout,
	}
	for name, value := range config.Params {
		params[strings.ToLower(name)] = value
	}
	// The isolation level is set apart: MySQL and MariaDB disagree about the variable's name.
	delete(params, "transaction_isolation")
	delete(params, "tx_isolation")
	params["time_zone"] = "'+00:00'"
	params["autocommit"] = "1"
	params["wait_timeout"] = waitTimeout
	params["sql_mode"] = "'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION'"
	config.Params = params

	base, err := mysql.NewConnector(config)
	if err != nil {
		return nil, err
	}
	pool := sql.OpenDB(connector{base})
	maxOpen := cmp.Or(opts.MaxOpen, 16)
	pool.SetMaxOpenConns(maxOpen)
	pool.SetMaxIdleConns(cmp.Or(opts.MaxIdle, maxOpen))
	pool.SetConnMaxLifetime(maxConnLifetime)
	pool.SetConnMaxIdleTime(maxConnIdleTime)
	return pool, nil
}

// connector makes sessions READ COMMITTED.
type connector struct{ driver.Connector }

func (c connector) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	_, err = conn.(driver.ExecerContext).ExecContext(ctx, "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED", nil)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

const dsnForm = "it has to be like user:password@tcp(host:3306)/database"

func parse(dsn string) (config *mysql.Config, err error) {
	if strings.TrimSpace(dsn) == "" {
		return nil, errors.New("no DSN: " + dsnForm)
	}
	defer func() {
		// The driver panics at a parameter that it once had.
		if p := recover(); p != nil {
			config, err = nil, fmt.Errorf("the DSN %s is not valid: %v", redact(dsn), p)
		}
	}()
	config, err = mysql.ParseDSN(dsn)
	if err != nil {
		// The driver's own text may quote what it took for another part of the DSN.
		return nil, fmt.Errorf("the DSN %s is not valid: %s", redact(dsn), dsnForm)
	}
	return config, nil
}

// redact is the DSN without its password, which is what stands between the first colon and the last
// at sign; if there is no at sign, nothing is known to be safe.
func redact(dsn string) string {
	at := strings.LastIndexByte(dsn, '@')
	if at < 0 {
		return "(not shown)"
	}
	user, _, _ := strings.Cut(dsn[:at], ":")
	rest, _, _ := strings.Cut(dsn[at:], "?")
	return fmt.Sprintf("%q", user+":***"+rest)
}

// driverLog hands to slog what the driver would print to standard error.
type driverLog struct{ log *slog.Logger }

func (l driverLog) Print(v ...any) {
	l.log.Debug("database driver", "message", strings.TrimSpace(fmt.Sprint(v...)))
}
