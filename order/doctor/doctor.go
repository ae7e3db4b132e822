// Package doctor looks for what is wrong with the servers of a service, and says how it is cured. It leaves
// everything as it was; only a broker that hangs keeps what dead-lettering was tried on for up to a minute.
package doctor

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/order/orderdb"
)

// timeout bounds the whole, cleanupTimeout what has then still to be removed, and answerTimeout one
// question.
const (
	timeout        = 20 * time.Second
	cleanupTimeout = 5 * time.Second
	answerTimeout  = 5 * time.Second
)

// State is the outcome of a check.
type State string

const (
	Fine       State = "ok"
	Problem    State = "problem"
	NotChecked State = "not checked" // Saw says why
)

// The checks, in the order in which [Run] reports them: those of the broker, those of the database, and that
// of the clocks.
const (
	Broker          = "broker"
	BrokerVersion   = "broker version"
	Permissions     = "permissions"
	DeadLettering   = "dead-lettering"
	ManagementAPI   = "management API"
	Topology        = "topology"
	QueueType       = "queue type"
	DeliveryLimits  = "delivery limits"
	OldRungs        = "rungs no longer configured"
	Letters         = "letters"
	Database        = "database"
	DatabaseVersion = "database version"
	Migrations      = "migrations"
	OwnTable        = "table"
	Isolation       = "isolation"
	TimeZone        = "time zone"
	Outbox          = "outbox"
	Desk            = "desk"
	Pause           = "pause"
	Clocks          = "clocks"
)

// Checks is all of them in that order.
var Checks = []string{
	Broker, BrokerVersion, Permissions, DeadLettering, ManagementAPI, Topology, QueueType, DeliveryLimits, OldRungs, Letters,
	Database, DatabaseVersion, Migrations, OwnTable, Isolation, TimeZone, Outbox, Desk, Pause, Clocks,
}

// Finding is what a check saw.
type Finding struct {
	Check string `json:"check"`
	State State  `json:"state"`
	Saw   string `json:"saw"`
	// Cure says what to do about a problem. Empty if there is none.
	Cure string `json:"cure,omitempty"`
}

// Config says what to look at.
type Config struct {
	// Broker is how the service reaches it. Its Logger and Metrics are not used.
	Broker amqp.Config
	// Management tells what AMQP does not. May be nil: what only it can tell is then not checked.
	Management *amqp.Management
	// DSN is the service's, see [database.Open].
	//
	// [database.Open]: https://pkg.go.dev/github.com/lapse-go/lapse/amqp/database#Open
	DSN string
	// Topology is the service's, with all its kinds.
	Topology amqp.Topology
	// Table describes the table of the shop's own in which the orders are. Nil if they are in Lapse's tables.
	Table *orderdb.Mapping
}

// OK is whether there is no problem. What was not checked for want of the management API does not count.
func OK(findings []Finding) bool {
	return !slices.ContainsFunc(findings, func(f Finding) bool { return f.State == Problem })
}

// Run makes all checks, those of the broker and those of the database at the same time, within 20 s, or
// until ctx ends and 5 s more to remove the objects on which dead-lettering is tried. Every check has at
// least one finding, and one for each problem. A check is not made if one fails that it needs.
func Run(ctx context.Context, cfg Config) []Finding {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var broker brokerSide
	var db databaseSide
	var sides sync.WaitGroup
	sides.Go(func() { broker.complete(broker.examine(ctx, cfg), Broker, Database) })
	sides.Go(func() { db.complete(db.examine(ctx, cfg.DSN, cfg.Table), Database, Clocks) })
	sides.Wait()

	all := slices.Concat(broker.findings, db.findings)
	all = append(all, compareClocks(db.clock, broker.clock))
	slices.SortStableFunc(all, func(a, b Finding) int {
		return slices.Index(Checks, a.Check) - slices.Index(Checks, b.Check)
	})
	return all
}

// report collects findings.
type report struct{ findings []Finding }

func (r *report) fine(check, saw string) {
	r.findings = append(r.findings, Finding{check, Fine, saw, ""})
}

func (r *report) problem(check, saw, cure string) {
	r.findings = append(r.findings, Finding{check, Problem, saw, cure})
}

func (r *report) skip(check, why string) {
	r.findings = append(r.findings, Finding{check, NotChecked, why, ""})
}

// complete reports why the checks from the first one until another that have no finding were not made.
func (r *report) complete(why, first, until string) {
	for _, check := range Checks[slices.Index(Checks, first):slices.Index(Checks, until)] {
		if !slices.ContainsFunc(r.findings, func(f Finding) bool { return f.Check == check }) {
			r.skip(check, why)
		}
	}
}
