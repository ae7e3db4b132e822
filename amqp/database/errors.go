package database

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"net"
	"net/url"
	"slices"
	"strings"

	"github.com/go-sql-driver/mysql"
)

// Numbers of server errors (https://dev.mysql.com/doc/mysql-errors/8.0/en/server-error-reference.html,
// https://mariadb.com/kb/en/mariadb-error-code-reference/).
const (
	errCheckRead       = 1020 // MariaDB with innodb_snapshot_isolation, the default since 11.6.2
	errDuplicateEntry  = 1062
	errUnknown         = 1105
	errPacketTooLarge  = 1153
	errLockWaitTimeout = 1205
	errDeadlock        = 1213
	errLockNowait      = 3572 // MySQL's answer to NOWAIT; MariaDB's is errLockWaitTimeout
)

// About the data, although their SQLSTATE is the general one.
var dataErrors = []uint16{
	errPacketTooLarge,
	1172, // SELECT … INTO of a trigger or procedure found more than one row
	1260, // a GROUP_CONCAT was cut
	1267, // illegal mix of collations: text that the column's character set cannot hold
	1300, // invalid character string
	1366, // incorrect value for a column
	1369, // check option of a view
	1411, // incorrect value for a function
	1525, // incorrect value for a type
	1526, // no partition for the value
	1644, // SIGNAL, of a trigger or procedure, whatever its SQLSTATE
	3819, // check constraint
	3988, // character set conversion
	4078, // MariaDB: a list where one value has to be
}

// IsConflict reports whether a transaction lost against another one (deadlock, lock wait time-out, a
// row changed under its snapshot, or a cluster that refused the commit) and may succeed when it is
// run again as a whole.
func IsConflict(err error) bool {
	e, ok := errors.AsType[*mysql.MySQLError](err)
	if !ok {
		return false
	}
	return slices.Contains([]uint16{errDeadlock, errLockWaitTimeout, errLockNowait, errCheckRead}, e.Number) || class(e) == "40"
}

func isLockWait(err error) bool {
	e, ok := errors.AsType[*mysql.MySQLError](err)
	return ok && (e.Number == errLockWaitTimeout || e.Number == errLockNowait)
}

// IsDuplicate reports whether a unique key has the value already.
func IsDuplicate(err error) bool {
	e, ok := errors.AsType[*mysql.MySQLError](err)
	return ok && e.Number == errDuplicateEntry
}

// IsOutage reports whether the database could not do its work for a reason that has nothing to do
// with the data: it is away, full, read-only, overloaded, lacks a table, or refuses the login. The
// same work may succeed, unchanged, once that is mended.
//
// What the server answers is an outage, unless it is a conflict ([IsConflict]) or about the data:
// SQLSTATE class 01 (warning, in strict mode an error), 02 (no data), 21 (number of values or rows), 22 (value), 23
// (constraint) or 45 (a trigger's own), a packet that is too large, and a few like them. So is what the driver and the
// network say of a connection, and the end of a context under a statement. Anything else (nil, an application's own error,
// gorm.ErrRecordNotFound, a failed HTTP request) did not come from a database and is not an outage. A network or
// context error does not tell whose it is, so ask only about an error that a call to the database returned.
func IsOutage(err error) bool {
	if err == nil {
		return false
	}
	if e, ok := errors.AsType[*mysql.MySQLError](err); ok {
		if IsConflict(e) || slices.Contains(dataErrors, e.Number) || isParameterTooLarge(e) {
			return false
		}
		return !slices.Contains([]string{"01", "02", "21", "22", "23", "45"}, class(e))
	}
	if _, http := errors.AsType[*url.Error](err); http {
		return false
	}
	for _, target := range []error{
		driver.ErrBadConn, sql.ErrConnDone, sql.ErrTxDone,
		mysql.ErrInvalidConn, mysql.ErrMalformPkt, mysql.ErrPktSync, mysql.ErrPktSyncMul, mysql.ErrBusyBuffer,
		mysql.ErrNoTLS, mysql.ErrCleartextPassword, mysql.ErrNativePassword, mysql.ErrOldPassword,
		mysql.ErrUnknownPlugin, mysql.ErrOldProtocol,
		io.EOF, io.ErrUnexpectedEOF, io.ErrClosedPipe, net.ErrClosed,
		context.DeadlineExceeded, context.Canceled,
	} {
		if errors.Is(err, target) {
			return true
		}
	}
	_, network := errors.AsType[net.Error](err)
	return network
}

// isParameterTooLarge knows a value larger than the server's packets, which the driver sends in pieces.
// The server has no number of its own for it.
func isParameterTooLarge(e *mysql.MySQLError) bool {
	return e.Number == errUnknown && strings.Contains(e.Message, "max_allowed_packet")
}

// IsRefused reports whether the server lets this login into no such database, which waiting rarely
// mends: a wrong password, a missing grant, or a database that does not exist.
func IsRefused(err error) bool {
	e, ok := errors.AsType[*mysql.MySQLError](err)
	return ok && slices.Contains([]uint16{1044, 1045, 1049, 1698}, e.Number)
}

func class(e *mysql.MySQLError) string { return string(e.SQLState[:2]) }
