package doctor

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
	"gorm.io/gorm"

	"github.com/lapse-go/lapse/amqp/database"
	"github.com/lapse-go/lapse/amqp/deadletter"
	"github.com/lapse-go/lapse/amqp/outbox"
	"github.com/lapse-go/lapse/migrations"
	"github.com/lapse-go/lapse/order"
	"github.com/lapse-go/lapse/order/orderdb"
)

// maxWait is how long a row may wait in the outbox. A relay that runs publishes it within about a second.
const maxWait = time.Minute

// databaseSide makes the checks of the database.
type databaseSide struct {
	report
	clock offset
}

// examine returns why checks without a finding were not made.
func (d *databaseSide) examine(ctx context.Context, dsn string, own *orderdb.Mapping) (why string) {
	const notValid = "the DSN is not valid"
	db, err := database.Open(dsn, database.Options{MaxOpen: 2, ReadTimeout: answerTimeout, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		d.problem(Database, err.Error(), "correct the DSN")
		return notValid
	}
	pool, err := db.DB()
	if err != nil {
		d.problem(Database, err.Error(), "correct the DSN")
		return notValid
	}
	defer pool.Close()
	version, err := answered(ctx, pool)
	if err != nil {
		saw, cure := unanswered(err)
		d.problem(Database, saw, cure)
		return "there is no connection to the database"
	}
	d.fine(Database, "it can be reached, and lets this user into its database")
	d.version(version)
	d.timeZone(ctx, pool)
	d.readClock(ctx, pool)
	if d.migrations(ctx, pool, own) {
		d.ownTable(ctx, db, own)
		d.isolation(ctx, db)
		d.outbox(ctx, db)
		d.desk(ctx, db)
		d.pause(ctx, db)
	}
	return "it takes the tables"
}

// answered connects, and returns the server's version.
func answered(ctx context.Context, pool *sql.DB) (version string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*answerTimeout)
	defer cancel()
	err = pool.QueryRowContext(ctx, "SELECT VERSION()").Scan(&version)
	return version, err
}

// unanswered tells the ways in which connecting fails from each other.
func unanswered(err error) (saw, cure string) {
	refusal, ok := errors.AsType[*mysql.MySQLError](err)
	switch {
	case !ok:
		return fmt.Sprintf("it cannot be reached: %v", err),
			"see that the database runs, that host and port in the DSN are right, and that no firewall is between"
	case refusal.Number == 1049:
		return fmt.Sprintf("there is no such database: %v", err),
			"correct the database's name in the DSN, or run `lapse migrate up`, which makes it with its tables"
	case refusal.Number == 1044:
		return fmt.Sprintf("it does not let this user into the database: %v", err),
			"grant the user what it needs: GRANT ALL ON DATABASE.* TO USER"
	case database.IsRefused(err):
		return fmt.Sprintf("it refuses the login: %v", err), "correct user name and password in the DSN"
	}
	return fmt.Sprintf("it refuses to answer: %v", err), "see to what the database says"
}

func (d *databaseSide) version(version string) {
	const cure = "use MySQL 8.0 or MariaDB 10.6, or newer: before that there is no SKIP LOCKED"
	product, major, minor := "MySQL", 8, 0
	if strings.Contains(version, "MariaDB") {
		product, major, minor = "MariaDB", 10, 6
	}
	saw := product + " " + version
	switch ok, known := atLeast(version, major, minor); {
	case !known:
		d.problem(DatabaseVersion, fmt.Sprintf("it says that it is %q, which is no version that is known here", version), cure)
	case !ok:
		d.problem(DatabaseVersion, saw+" is too old", cure)
	default:
		d.fine(DatabaseVersion, saw)
	}
}

func (d *databaseSide) timeZone(ctx context.Context, pool *sql.DB) {
	var off int64
	err := pool.QueryRowContext(ctx, "SELECT TIMESTAMPDIFF(SECOND, UTC_TIMESTAMP(), NOW())").Scan(&off)
	switch {
	case err != nil:
		d.problem(TimeZone, fmt.Sprintf("it could not be read: %v", err), "see to what the database says")
	case off < -1 || off > 1:
		d.problem(TimeZone, fmt.Sprintf("sessions are not in UTC, but %s off", time.Duration(off)*time.Second),
			"something between (a proxy, a pooler) sets time_zone after Lapse has set it to +00:00: have it not do so")
	default:
		d.fine(TimeZone, "sessions are in UTC")
	}
}

// readClock takes what the database says to be of the middle of the time that asking took.
func (d *databaseSide) readClock(ctx context.Context, pool *sql.DB) {
	for range 3 { // the first answer may be slow
		var micros int64
		asked := time.Now()
		if err := pool.QueryRowContext(ctx, "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))").Scan(&micros); err != nil {
			return // the clocks' finding says that it is not known
		}
		answered := time.Now()
		now := time.UnixMicro(micros)
		seen := offset{true, now.Sub(answered), now.Sub(asked)}
		if !d.clock.known || seen.high-seen.low < d.clock.high-d.clock.low {
			d.clock = seen
		}
	}
}

func (d *databaseSide) migrations(ctx context.Context, pool *sql.DB, own *orderdb.Mapping) bool {
	sets := migrations.All
	if own != nil {
		sets = migrations.OwnTable
	}
	err := migrations.Check(ctx, pool, sets...)
	switch {
	case errors.Is(err, migrations.ErrPending):
		d.problem(Migrations, err.Error(), "run `lapse migrate up`")
	case err != nil:
		d.problem(Migrations, err.Error(), "see to what the database says")
	default:
		d.fine(Migrations, "none is pending")
	}
	return err == nil
}

// ownTable compares the shop's own table, if it has one, with its description.
func (d *databaseSide) ownTable(ctx context.Context, db *gorm.DB, own *orderdb.Mapping) {
	if own == nil {
		d.fine(OwnTable, "the orders are in Lapse's tables")
		return
	}
	table := orderdb.NewTable(db, *own, orderdb.Config{})
	err := table.Check(ctx)
	misfits, ok := errors.AsType[*orderdb.MisfitError](err)
	switch {
	case ok:
		for _, misfit := range misfits.Misfits {
			d.problem(OwnTable, misfit, "as it says: change the table, or its description")
		}
	case err != nil:
		d.problem(OwnTable, err.Error(), "see to what the database says")
	default:
		d.fine(OwnTable, fmt.Sprintf("the orders are in %s, which is as it is described", own.Table))
		d.overdue(ctx, table, own)
	}
}

// overdue tells of orders that nothing closes. Where timers come, none is: not even the sweep finds any.
func (d *databaseSide) overdue(ctx context.Context, table *orderdb.Table, own *orderdb.Mapping) {
	const most = 1000
	orders, err := table.Overdue(ctx, longOverdue, order.Cursor{}, most)
	switch {
	case err != nil:
		d.problem(OwnTable, err.Error(), "see to what the database says")
	case len(orders) > 0:
		count := fmt.Sprint(len(orders))
		if len(orders) == most {
			count += " or more"
		}
		d.problem(OwnTable, fmt.Sprintf("%s orders of %s are overdue, order %s for %s", count, own.Table, orders[0].ID, orders[0].Late.Round(time.Second)),
			"see that `lapse serve` runs with the roles timer and sweep and this description, what it logs, and that expiry is not paused")
	}
}

// longOverdue is what no order is while a sweep runs: that waits half a minute for the timer and looks once a minute.
const longOverdue = 3 * time.Minute

// pause tells of one that somebody may have forgotten.
func (d *databaseSide) pause(ctx context.Context, db *gorm.DB) {
	p, err := orderdb.New(db, orderdb.Config{}).Pause(ctx)
	switch {
	case err != nil:
		d.problem(Pause, fmt.Sprintf("it could not be read: %v", err), "see to what the database says")
	case p.Paused:
		d.problem(Pause, fmt.Sprintf("expiry is paused since %s by %q: %s", p.Since.Format(time.RFC3339), p.By.Who, p.By.Why),
			"run `lapse resume` when the reason is gone: no unpaid order is closed before")
	default:
		d.fine(Pause, "expiry is not paused")
	}
}

// isolation looks at a transaction as Lapse makes them.
func (d *databaseSide) isolation(ctx context.Context, db *gorm.DB) {
	var level string
	err := database.Transact(ctx, db, func(tx *gorm.DB) (err error) {
		level, err = isolationOf(tx)
		return err
	})
	switch {
	case err != nil:
		d.problem(Isolation, fmt.Sprintf("it could not be read: %v", err), "see to what the database says")
	case !strings.HasPrefix(level, readCommitted):
		d.problem(Isolation, fmt.Sprintf("transactions are %s, not %s", level, readCommitted),
			"something between (a proxy, a pooler) sets another isolation level after Lapse has set it: have it not do so, because under another one transactions block each other and deadlock")
	default:
		d.fine(Isolation, "transactions are "+level)
	}
}

const readCommitted = "READ COMMITTED"

// isolationOf asks the storage engine, where the user may, and else the session, which does not know of a
// level that was set for one transaction.
func isolationOf(tx *gorm.DB) (string, error) {
	// The engine knows a transaction once that has read.
	var ids []int64
	if err := tx.Raw("SELECT id FROM lapse_outbox LIMIT 1").Scan(&ids).Error; err != nil {
		return "", err
	}
	for range 3 {
		var levels []string
		err := tx.Raw("SELECT trx_isolation_level FROM information_schema.innodb_trx WHERE trx_mysql_thread_id = CONNECTION_ID()").Scan(&levels).Error
		if err != nil {
			break // 1227 without the privilege PROCESS
		}
		if len(levels) > 0 {
			return levels[0], nil
		}
		time.Sleep(150 * time.Millisecond) // the engine renews what it tells ten times a second at most
	}
	var name, level string
	if err := tx.Raw("SHOW VARIABLES WHERE Variable_name IN ('transaction_isolation', 'tx_isolation')").Row().Scan(&name, &level); err != nil {
		return "", err
	}
	return strings.ReplaceAll(level, "-", " ") + " by the session's setting (the privilege PROCESS would show more)", nil
}

func (d *databaseSide) desk(ctx context.Context, db *gorm.DB) {
	open, err := deadletter.New(deadletter.Config{DB: db}).Open(ctx)
	var all int64
	var some []string
	for _, reason := range deadletter.Reasons {
		if n := open[reason]; n > 0 {
			all += n
			some = append(some, fmt.Sprintf("%d %s", n, reason))
		}
	}
	switch {
	case err != nil:
		d.problem(Desk, err.Error(), "see to what the database says")
	case all > 0:
		d.problem(Desk, fmt.Sprintf("%d dead letters are open: %s", all, strings.Join(some, ", ")),
			"see why with `lapse dead groups`, mend that, and replay or discard them")
	default:
		d.fine(Desk, "no dead letter is open")
	}
}

func (d *databaseSide) outbox(ctx context.Context, db *gorm.DB) {
	backlog, err := outbox.Stats(ctx, db)
	if err != nil {
		d.problem(Outbox, err.Error(), "see to what the database says")
		return
	}
	waiting := backlog.Rows - backlog.SetAside
	if backlog.Oldest > maxWait {
		d.problem(Outbox, fmt.Sprintf("%d rows wait to be published, the oldest for %s", waiting, backlog.Oldest.Round(time.Second)),
			"see that `lapse serve` runs with the role relay, and what it logs: the broker may be away or block publishing")
	}
	if backlog.SetAside > 0 {
		var why string
		err := db.WithContext(ctx).Raw("SELECT error FROM lapse_outbox WHERE error IS NOT NULL ORDER BY id DESC LIMIT 1").Row().Scan(&why)
		if err != nil {
			why = err.Error()
		}
		d.problem(Outbox, fmt.Sprintf("%d rows are set aside because they could not be published, the latest one for: %s", backlog.SetAside, why),
			"mend that: an exchange that does not exist is made by `lapse topology apply`, or the namespace of who placed the orders is another one than that of `lapse serve`. They are tried again from time to time")
	}
	if backlog.Oldest <= maxWait && backlog.SetAside == 0 {
		d.fine(Outbox, fmt.Sprintf("%d rows wait, the oldest for %s; none is set aside", waiting, backlog.Oldest.Round(time.Millisecond)))
	}
}
