package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-sql-driver/mysql"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/amqp/database"
	"github.com/lapse-go/lapse/amqp/deadletter"
	"github.com/lapse-go/lapse/migrations"
	"github.com/lapse-go/lapse/order"
	"github.com/lapse-go/lapse/order/checkout"
	"github.com/lapse-go/lapse/order/orderdb"
)

// Exit codes, the same for every command. Those from 64 on are the ones of sysexits(3), and 130 is what
// shells report of a program that was interrupted.
const (
	exitOK          = 0
	exitFailed      = 1   // it was tried, and the answer is no
	exitUsage       = 2   // a command, flag, argument or value that makes no sense
	exitPartly      = 3   // some of it was done, and the rest was not
	exitUnavailable = 69  // the database or the broker is away
	exitTryLater    = 75  // paused, or others hold what it needs
	exitNotAllowed  = 77  // a server refuses the login, or what it asked for
	exitConfig      = 78  // a file, a table or a queue is not as it has to be
	exitInterrupted = 130 // before it was done
)

var (
	// errUsage, errPartly and errConfig are wrapped by errors that stand for the exit code of that name.
	errUsage  = errors.New("usage")
	errPartly = errors.New("partly done")
	errConfig = errors.New("configuration")
	// errAway is wrapped by errors about a broker that does not answer.
	errAway = errors.New("broker unavailable")
)

// exitCode is what the error of a command comes to.
func exitCode(ctx context.Context, err error) int {
	var mismatch *amqp.MismatchError
	var misfit *orderdb.MisfitError
	var busy *deadletter.BusyError
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, errPartly) && !errors.Is(err, context.Canceled): // also of a replay that was interrupted, and stopped
		return exitPartly
	case ctx.Err() != nil:
		return exitInterrupted
	case errors.Is(err, errUsage), errors.Is(err, order.ErrInvalid), errors.Is(err, deadletter.ErrInvalid):
		return exitUsage
	case errors.Is(err, errConfig), errors.Is(err, migrations.ErrPending), errors.As(err, &mismatch), errors.As(err, &misfit),
		isMySQL(err, noSuchDatabase, noSuchTable), isAMQP(err, amqp091.NotAllowed): // no such vhost
		return exitConfig
	case database.IsRefused(err), isMySQL(err, noGrant), isAMQP(err, amqp091.AccessRefused), errors.Is(err, amqp.ErrManagementRefused):
		return exitNotAllowed
	case errors.Is(err, order.ErrPaused), errors.As(err, &busy), database.IsConflict(err):
		return exitTryLater
	case errors.Is(err, order.ErrUnavailable), errors.Is(err, errAway), errors.Is(err, checkout.ErrBroker), errors.Is(err, amqp.ErrManagementAway), database.IsOutage(err):
		return exitUnavailable
	}
	return exitFailed
}

// Of https://dev.mysql.com/doc/mysql-errors/8.0/en/server-error-reference.html.
const (
	noSuchDatabase = 1049
	noGrant        = 1142 // for this statement
	noSuchTable    = 1146
)

// advised is the error with what cures it, where a database has not been made for Lapse yet.
func advised(err error) error {
	const cure = "`lapse migrate up`"
	e, ok := errors.AsType[*mysql.MySQLError](err)
	ofLapse := ok && (e.Number == noSuchDatabase || e.Number == noSuchTable && strings.Contains(e.Message, ".lapse_"))
	if !ofLapse || strings.Contains(err.Error(), cure) { // a table of the shop's own is the shop's to make
		return err
	}
	return fmt.Errorf("%w: run %s first", err, cure)
}

func isMySQL(err error, numbers ...uint16) bool {
	e, ok := errors.AsType[*mysql.MySQLError](err)
	return ok && slices.Contains(numbers, e.Number)
}

func isAMQP(err error, code int) bool {
	e, ok := errors.AsType[*amqp091.Error](err)
	return ok && e.Code == code
}
