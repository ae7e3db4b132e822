package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/go-sql-driver/mysql"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"gorm.io/gorm"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/amqp/database"
	"github.com/lapse-go/lapse/migrations"
)

// databaseFlags name the database.
type databaseFlags struct {
	MySQLDSN string `name:"mysql-dsn" secret:"" default:"root@tcp(127.0.0.1:3306)/lapse" help:"Data source name: user:password@tcp(host:port)/database. The database is lapse if none is named."`
}

// brokerFlags name the broker.
type brokerFlags struct {
	AMQPURL []string `name:"amqp-url" secret:"" default:"amqp://guest:guest@127.0.0.1:5672/" help:"URI of the broker; those of a cluster's nodes, separated by commas, are tried in turn."`
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
	if f.MySQLDSN == "" {
		return nil, fmt.Errorf("%w: --mysql-dsn is empty: give user:password@tcp(host:port)/database", errUsage)
	}
	cfg, err := mysql.ParseDSN(f.MySQLDSN)
	if err != nil {
		// The parser's error may quote a password.
		return nil, fmt.Errorf("%w: --mysql-dsn cannot be read: give user:password@tcp(host:port)/database", errUsage)
	}
	return cfg, nil
}

// open makes the pool, and the function that closes it. It does not connect.
func (f databaseFlags) open(opts database.Options) (db *gorm.DB, closing func(), err error) {
	dsn, err := f.dsn()
	if err != nil {
		return nil, nil, err
	}
	if db, err = database.Open(dsn, opts); err != nil {
		return nil, nil, fmt.Errorf("%w: --mysql-dsn: %w", errUsage, err)
	}
	pool, err := db.DB()
	if err != nil {
		return nil, nil, err
	}
	return db, func() { pool.Close() }, nil
}

// migrate creates the database and the tables of the sets, all if none are named, where they are missing.
func (f databaseFlags) migrate(ctx context.Context, sets ...migrations.Set) error {
	dsn, err := f.dsn()
	if err != nil {
		return err
	}
	if err := migrations.CreateDatabase(ctx, dsn); err != nil {
		return err
	}
	db, closing, err := f.open(database.Options{ReadTimeout: database.NoTimeout})
	if err != nil {
		return err
	}
	defer closing()
	pool, err := db.DB()
	if err != nil {
		return err
	}
	return migrations.Up(ctx, pool, sets...)
}

func (f brokerFlags) config(name string, logger *slog.Logger) (amqp.Config, error) {
	cfg := amqp.Config{URIs: f.AMQPURL, Name: name, Logger: logger}
	if err := cfg.Validate(); err != nil {
		return cfg, fmt.Errorf("%w: --amqp-url: %w", errUsage, err)
	}
	return cfg, nil
}

// patience is how long a command that is not a service waits for the broker.
const patience = 5 * time.Second

// connect waits until the broker is there, but not for long, and not at all where it refuses the login.
func (f brokerFlags) connect(ctx context.Context) (*amqp.Conn, error) {
	cfg, err := f.config("lapse", slog.New(slog.DiscardHandler)) // what it logs is returned, too
	if err != nil {
		return nil, err
	}
	conn, err := amqp.Open(context.WithoutCancel(ctx), cfg) // cleaning up after an interruption needs it
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		changed := conn.Changed()
		err := conn.Ready()
		refusal, refused := errors.AsType[*amqp091.Error](err)
		switch {
		case err == nil, conn.Blocked():
			return conn, nil
		case refused && (refusal.Code == amqp091.AccessRefused || refusal.Code == amqp091.NotAllowed): // login, vhost
			conn.Close()
			return nil, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			conn.Close()
			return nil, fmt.Errorf("%w: %w", errAway, err)
		}
	}
}
