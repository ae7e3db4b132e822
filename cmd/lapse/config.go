package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/go-sql-driver/mysql"
	"gorm.io/gorm"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/amqp/database"
	"github.com/lapse-go/lapse/migrations"
	"github.com/lapse-go/lapse/order/checkout"
)

// errUsage is wrapped by errors about what the user gave.
var errUsage = errors.New("usage")

// databaseFlags name the database.
type databaseFlags struct {
	MySQLDSN string `name:"mysql-dsn" default:"root@tcp(127.0.0.1:3306)/lapse" help:"Data source name: user:password@tcp(host:port)/database. The database is lapse if none is named."`
}

// brokerFlags name the broker.
type brokerFlags struct {
	AMQPURL []string `name:"amqp-url" default:"amqp://guest:guest@127.0.0.1:5672/" help:"URI of the broker; those of a cluster's nodes, separated by commas, are tried in turn."`
}

// serviceFlags say how orders are held to their deadlines. Every process of a service needs the
// same ones.
type serviceFlags struct {
	Namespace  string         `default:"lapse" help:"Begins the name of every exchange and queue."`
	QueueType  amqp.QueueType `default:"quorum" enum:"quorum,classic" help:"quorum, or classic with its weaker promise."`
	Rungs      string         `default:"${rungs}" help:"Delays for which there is a queue each."`
	Window     time.Duration  `default:"30m" help:"Time to pay of an order that does not say."`
	Tries      int            `default:"8" help:"How often a timer is tried before it is a dead letter."`
	RetryDelay time.Duration  `default:"1s" help:"Delay before the second try; it doubles from then on."`
	RetryMax   time.Duration  `default:"5m" help:"Longest delay between two tries."`
	Workers    int            `default:"2" help:"Batches of timers handled at the same time."`
	Batch      int            `default:"200" help:"Most timers in a batch."`
	SweepEvery time.Duration  `default:"1m" help:"How often overdue orders are looked for."`
	SweepGrace time.Duration  `default:"30s" help:"How long a timer may be late before the sweep closes its order."`
	Hold       time.Duration  `default:"10m" help:"How long messages are held through an outage: well below the broker's consumer_timeout."`
	Shutdown   time.Duration  `default:"10s" help:"How long to finish what is in hand on SIGTERM."`
}

func (f serviceFlags) config(logger *slog.Logger) (checkout.Config, error) {
	ladder, err := amqp.ParseLadder(f.Rungs)
	if err != nil {
		return checkout.Config{}, fmt.Errorf("%w: --rungs: %w", errUsage, err)
	}
	for _, d := range []struct {
		flag  string
		value time.Duration
	}{
		{"window", f.Window}, {"retry-delay", f.RetryDelay}, {"retry-max", f.RetryMax}, {"sweep-every", f.SweepEvery},
		{"sweep-grace", f.SweepGrace}, {"hold", f.Hold}, {"shutdown", f.Shutdown},
	} {
		if d.value <= 0 {
			return checkout.Config{}, fmt.Errorf("%w: --%s=%s: give a duration above zero, such as 30s or 5m", errUsage, d.flag, d.value)
		}
	}
	if f.Workers < 1 || f.Workers > 1000 || f.Batch < 1 || f.Batch > 10_000 || f.Tries < 1 {
		return checkout.Config{}, fmt.Errorf("%w: --workers=%d, --batch=%d, --tries=%d: give 1 to 1000 workers, batches of 1 to 10000, and at least one try", errUsage, f.Workers, f.Batch, f.Tries)
	}
	return checkout.Config{
		Namespace: f.Namespace, QueueType: f.QueueType, Ladder: ladder, Window: f.Window,
		Retry:   amqp.RetryPolicy{Tries: f.Tries, Initial: f.RetryDelay, Max: f.RetryMax},
		Workers: f.Workers, Batch: f.Batch, SweepEvery: f.SweepEvery, SweepGrace: f.SweepGrace,
		Hold: f.Hold, Shutdown: f.Shutdown, Logger: logger,
	}, nil
}

// dsn names the database lapse if the flag names none.
func (f databaseFlags) dsn() (string, error) {
	cfg, err := f.parse()
	if err != nil {
		return "", err
	}
	cfg.DBName = cmp.Or(cfg.DBName, "lapse")
	return cfg.FormatDSN(), nil
}

// named is the flag with another database on the same server.
func (f databaseFlags) named(database string) (databaseFlags, error) {
	cfg, err := f.parse()
	if err != nil {
		return f, err
	}
	cfg.DBName = database
	return databaseFlags{cfg.FormatDSN()}, nil
}

func (f databaseFlags) parse() (*mysql.Config, error) {
	cfg, err := mysql.ParseDSN(f.MySQLDSN)
	if err != nil {
		// The parser's error may quote a password.
		return nil, fmt.Errorf("%w: --mysql-dsn cannot be read: give user:password@tcp(host:port)/database", errUsage)
	}
	return cfg, nil
}

func (f databaseFlags) open(logger *slog.Logger) (*gorm.DB, error) {
	dsn, err := f.dsn()
	if err != nil {
		return nil, err
	}
	return database.Open(dsn, database.Options{Logger: logger})
}

// migrate creates the database and its tables where they are missing.
func (f databaseFlags) migrate(ctx context.Context) error {
	dsn, err := f.dsn()
	if err != nil {
		return err
	}
	if err := migrations.CreateDatabase(ctx, dsn); err != nil {
		return err
	}
	db, err := database.Open(dsn, database.Options{ReadTimeout: database.NoTimeout})
	if err != nil {
		return err
	}
	pool, err := db.DB()
	if err != nil {
		return err
	}
	return errors.Join(migrations.Up(ctx, pool), pool.Close())
}

// newLogger writes text to a terminal and JSON elsewhere.
func newLogger(w io.Writer, level slog.Level) *slog.Logger {
	options := &slog.HandlerOptions{Level: level}
	if f, ok := w.(*os.File); ok {
		if info, err := f.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 {
			return slog.New(slog.NewTextHandler(w, options))
		}
	}
	return slog.New(slog.NewJSONHandler(w, options))
}
