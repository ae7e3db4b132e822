package doctor

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/lapse-go/lapse/amqp"
)

// connectTimeout is longer than one attempt at one node may take.
const connectTimeout = 12 * time.Second

// brokerSide makes the checks of the broker.
type brokerSide struct {
	report
	clock offset
}

// examine returns why checks without a finding were not made.
func (b *brokerSide) examine(ctx context.Context, cfg Config) (why string) {
	if err := cfg.Topology.Validate(); err != nil {
		b.problem(Topology, err.Error(), "correct the configuration")
		return "the topology's configuration is not valid"
	}
	cfg.Broker.Name, cfg.Broker.Logger, cfg.Broker.Metrics = "lapse/doctor", slog.New(slog.DiscardHandler), nil
	// It outlives ctx: what the trial has made has still to be removed.
	conn, err := amqp.Open(context.WithoutCancel(ctx), cfg.Broker)
	if err != nil {
		b.problem(Broker, err.Error(), "correct the broker's URI")
		return "the broker's URI is not valid"
	}
	defer conn.Close()
	if err := connected(ctx, conn); err != nil {
		saw, cure := unconnected(err, conn.Vhost())
		b.problem(Broker, saw, cure)
		return "there is no connection to the broker"
	}
	b.version(conn.Server())

	prefix := strings.TrimSuffix(cfg.Topology.Due(), "due")
	base := prefix + "doctor." + strings.ToLower(rand.Text()[:12])
	// Before anything is published: a broker that blocks publishing then answers nothing on a connection.
	plan, err := b.plan(ctx, conn, cfg)
	permitted := b.permissions(ctx, conn, cfg, prefix, base)
	if permitted {
		b.try(ctx, conn, cfg.Topology, base)
	} else {
		b.skip(DeadLettering, "it takes the permissions, and a broker that accepts messages")
	}
	if conn.Blocked() {
		b.problem(Broker, conn.Ready().Error(), "see to the alarms that the broker shows (rabbitmq-diagnostics alarms): it blocks whoever publishes until it has memory and disk space again")
	} else {
		b.fine(Broker, "it can be reached, lets this user into its vhost, and accepts messages")
	}
	if err != nil {
		if permitted || !isRefused(err) { // else the permissions say so
			b.problem(Topology, err.Error(), "see to what the broker says")
		}
		return "the topology could not be compared"
	}
	b.drift(plan, permitted)
	b.queueType(plan, cfg.Topology)
	b.deliveryLimits(plan, cfg.Topology)
	b.oldRungs(plan)
	b.letters(plan, cfg.Topology)
	return ""
}

// connected waits for the first attempt to succeed or fail. What goes wrong is not tried again.
func connected(ctx context.Context, conn *amqp.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	changed := conn.Changed()
	if err := conn.Ready(); err == nil {
		return nil
	}
	select {
	case <-changed:
		return conn.Ready()
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", conn.Ready(), context.Cause(ctx))
	}
}

// unconnected tells the ways in which connecting fails from each other.
func unconnected(err error, vhost string) (saw, cure string) {
	text := strings.ReplaceAll(err.Error(), "\n", "; ")
	var refusal *amqp091.Error
	if !errors.As(err, &refusal) || refusal.Code != amqp091.AccessRefused && refusal.Code != amqp091.NotAllowed {
		return "it cannot be reached: " + text,
			"see that the broker runs, that host and port in its URI are right, that amqps:// is used where it wants TLS, and that no firewall is between"
	}
	switch {
	case refusal.Code == amqp091.AccessRefused:
		return "it refuses the login: " + text,
			"correct user name and password in the broker's URI (rabbitmqctl authenticate_user USER PASSWORD tries them on the broker). The user guest is let in from the broker's own host only"
	case strings.Contains(refusal.Reason, "not found"):
		return fmt.Sprintf("there is no vhost %q: %s", vhost, text),
			fmt.Sprintf("correct the vhost in the broker's URI, or make it (rabbitmqctl add_vhost %s) and permit the user to work there", vhost)
	}
	return fmt.Sprintf("it does not let this user into vhost %q: %s", vhost, text),
		fmt.Sprintf("permit the user to work there: rabbitmqctl set_permissions -p %s USER ..., see the permissions that this program checks next", vhost)
}

func (b *brokerSide) version(product, version string) {
	const cure = "use RabbitMQ 3.10 or newer: before that there is no dead-lettering at least once"
	saw := product + " " + version
	switch ok, known := atLeast(version, 3, 10); {
	case product != "RabbitMQ":
		b.problem(BrokerVersion, fmt.Sprintf("it says that it is %q, which Lapse is not made for", saw), cure)
	case !known:
		b.problem(BrokerVersion, fmt.Sprintf("it says that it is %q, which is no version that is known here", saw), cure)
	case !ok:
		b.problem(BrokerVersion, saw+" is too old", cure)
	default:
		b.fine(BrokerVersion, saw)
	}
}

// permissions asks for names that do not exist, because the broker looks at permissions first. It changes
// nothing.
func (b *brokerSide) permissions(ctx context.Context, conn *amqp.Conn, cfg Config, prefix, base string) bool {
	name := base + ".permission"
	var missing []string
	for _, permission := range []struct {
		name string
		use  func(*amqp091.Channel) error
	}{
		{"configure", func(ch *amqp091.Channel) error {
			_, err := ch.QueueDelete(name, false, false, false)
			return err
		}},
		{"read", func(ch *amqp091.Channel) error {
			_, _, err := ch.Get(name, false)
			return err
		}},
		{"write", func(ch *amqp091.Channel) error {
			closed := ch.NotifyClose(make(chan *amqp091.Error, 1))
			if err := ch.PublishWithContext(ctx, name, "", false, false, amqp091.Publishing{}); err != nil {
				return err
			}
			if e := <-closed; e != nil {
				return e
			}
			return nil
		}},
	} {
		err := ask(ctx, conn, permission.use)
		var refusal *amqp091.Error
		switch {
		case err == nil, errors.As(err, &refusal) && refusal.Code == amqp091.NotFound:
		case isRefused(err):
			missing = append(missing, permission.name)
		case conn.Blocked():
			b.skip(Permissions, "the broker accepts no messages")
			return false
		default:
			b.problem(Permissions, fmt.Sprintf("whether %s is permitted could not be found out: %v", permission.name, err), "see to what the broker says")
			return false
		}
	}
	if len(missing) == 0 {
		b.fine(Permissions, "configure, write and read are permitted on names that begin with "+prefix)
		return true
	}
	user := "USER"
	if uri, err := amqp091.ParseURI(cfg.Broker.URIs[0]); err == nil {
		user = uri.Username
	}
	pattern := "'^" + regexp.QuoteMeta(prefix) + "'"
	b.problem(Permissions, fmt.Sprintf("%s is not permitted on names that begin with %s", strings.Join(missing, " and "), prefix),
		fmt.Sprintf("permit configure, write and read by patterns that include these: rabbitmqctl set_permissions -p %s %s %s %s %s (which replaces the patterns that the user has there)",
			conn.Vhost(), user, pattern, pattern, pattern))
	return false
}

// ask puts a question to the broker on a channel of its own.
func ask(ctx context.Context, conn *amqp.Conn, question func(*amqp091.Channel) error) error {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	return conn.Do(ctx, question)
}

func isRefused(err error) bool {
	var refusal *amqp091.Error
	return errors.As(err, &refusal) && refusal.Code == amqp091.AccessRefused
}

// plan compares the topology, of which each thing is then reported under one check only.
func (b *brokerSide) plan(ctx context.Context, conn *amqp.Conn, cfg Config) (amqp.Plan, error) {
	if cfg.Management == nil {
		b.skip(ManagementAPI, "its URL is not given")
		return cfg.Topology.Plan(ctx, conn, nil)
	}
	plan, err := cfg.Topology.Plan(ctx, conn, cfg.Management)
	if err != nil {
		cure := "correct its URL; the plugin is enabled by rabbitmq-plugins enable rabbitmq_management"
		if errors.Is(err, amqp.ErrManagementRefused) {
			cure = "correct user and password in its URL; the user needs a tag: rabbitmqctl set_user_tags USER monitoring"
		}
		b.problem(ManagementAPI, err.Error(), cure)
		return cfg.Topology.Plan(ctx, conn, nil)
	}
	b.fine(ManagementAPI, "it answers at "+cfg.Management.String())
	return plan, nil
}

const (
	queueTypeArgument   = "x-queue-type"
	unknownToProbing    = "only the management API can tell, and its URL is not given or it does not answer"
	unbound             = "AMQP has no question for these. A due queue without its binding gets nothing: what is due then goes to the unrouted letters. `lapse topology apply` makes those that are missing"
	dependsOnTopology   = "see what is said of the topology: "
	classicPromisesLess = "classic, as configured: what is due is dead-lettered at most once, so that a broker that stops at the wrong moment loses it, and the sweep has to find these orders"
)

func ofDeliveryLimit(d amqp.Difference) bool {
	return strings.HasPrefix(strings.TrimPrefix(d.Argument, "x-"), "delivery-limit") // a policy has it without x-
}

func (b *brokerSide) drift(plan amqp.Plan, permitted bool) {
	before := len(b.findings)
	var missing []string
	bindings := 0
	for _, d := range plan.Items {
		switch {
		case d.State == amqp.Missing:
			missing = append(missing, d.Object+" "+d.Name)
		case d.State == amqp.Differs && d.Argument != queueTypeArgument && !ofDeliveryLimit(d):
			b.problem(Topology, d.String(), d.Advice)
		case d.State == amqp.Unknown && (permitted || plan.Via != "probing"):
			b.problem(Topology, fmt.Sprintf("%s %s could not be looked at", d.Object, d.Name), d.Advice)
		case d.State != amqp.NotChecked:
		case d.Object == "binding":
			bindings++
		case plan.Via != "probing":
			b.skip(Topology, d.Name+": "+d.Advice) // for want of statistics
		}
	}
	if len(missing) > 0 {
		b.problem(Topology, "missing: "+some(missing), "run `lapse topology apply`, which makes what is missing")
	}
	switch {
	case len(b.findings) > before:
	case !permitted && plan.Via == "probing":
		b.skip(Topology, "probing takes the permissions that are missing")
	case bindings > 0:
		b.fine(Topology, fmt.Sprintf("exchanges and queues are as configured; %d bindings are not checked: %s. %s", bindings, unknownToProbing, unbound))
	default:
		b.fine(Topology, "as configured")
	}
}

func (b *brokerSide) queueType(plan amqp.Plan, topology amqp.Topology) {
	before := len(b.findings)
	known := false
	for _, d := range plan.Items {
		if d.Object != "queue" {
			continue
		}
		known = known || d.State == amqp.Exists
		if d.Argument == queueTypeArgument {
			b.problem(QueueType, d.String(), d.Advice)
		}
	}
	switch {
	case len(b.findings) > before:
	case !known:
		b.skip(QueueType, dependsOnTopology+"of no queue is it known that it is as configured")
	case topology.Type == amqp.Classic:
		b.fine(QueueType, classicPromisesLess)
	default:
		b.fine(QueueType, "quorum, as configured")
	}
}

// deliveryLimits looks at the queues that have one. Unset, it is 20 since RabbitMQ 4.0, and connections that
// break use that up.
func (b *brokerSide) deliveryLimits(plan amqp.Plan, topology amqp.Topology) {
	if topology.Type == amqp.Classic {
		b.fine(DeliveryLimits, "classic queues have none")
		return
	}
	limited := map[string]bool{topology.Dead(): true, topology.Unrouted(): true, topology.Parked(): true}
	for _, kind := range topology.Kinds {
		limited[topology.DueQueue(kind)] = true
	}
	before := len(b.findings)
	var unknown []string
	for _, d := range plan.Items {
		if d.Object != "queue" || !limited[d.Name] {
			continue
		}
		switch {
		case ofDeliveryLimit(d):
			b.problem(DeliveryLimits, d.String()+". A message that was delivered that often is dead-lettered by the broker, or dropped; none means 20 since RabbitMQ 4.0, and −1 dead-letters at once before", d.Advice)
		case d.State == amqp.Missing, d.State == amqp.Unknown, d.State == amqp.Differs && (plan.Via == "probing" || d.Argument == queueTypeArgument):
			unknown = append(unknown, d.Name)
		}
	}
	switch {
	case len(b.findings) > before:
	case len(unknown) > 0:
		b.skip(DeliveryLimits, dependsOnTopology+"it is not known of "+strings.Join(unknown, ", "))
	default:
		b.fine(DeliveryLimits, fmt.Sprintf("as configured on %d queues", len(limited)))
	}
}

func (b *brokerSide) oldRungs(plan amqp.Plan) {
	if plan.Via == "probing" {
		b.skip(OldRungs, unknownToProbing)
		return
	}
	before := len(b.findings)
	var empty []string
	for _, d := range plan.Items {
		switch {
		case d.State != amqp.Unexpected || d.Object != "queue":
		case d.Messages == 0:
			empty = append(empty, d.Name)
		default:
			b.problem(OldRungs, fmt.Sprintf("%s is no longer configured and holds %d messages", d.Name, d.Messages), d.Advice)
		}
	}
	switch {
	case len(b.findings) > before:
	case len(empty) > 0:
		b.fine(OldRungs, "none with messages; empty ones, which can be deleted: "+strings.Join(empty, ", "))
	default:
		b.fine(OldRungs, "none")
	}
}

func (b *brokerSide) letters(plan amqp.Plan, topology amqp.Topology) {
	cures := map[string]string{
		topology.Dead():     notCollected,
		topology.Unrouted(): notCollected,
		topology.Parked():   "the database refused these dead letters, and the header lapse-parked says why: mend that, then move them back to the queue that the header lapse-parked-queue names",
	}
	before := len(b.findings)
	var unknown []string
	for _, d := range plan.Items {
		cure, ours := cures[d.Name]
		switch {
		case !ours || d.Object != "queue" || d.State == amqp.Missing:
		case d.Messages > 0:
			b.problem(Letters, fmt.Sprintf("%d wait in %s, not collected yet", d.Messages, d.Name), cure)
		case d.Messages < 0:
			unknown = append(unknown, d.Name)
		}
		if ours && d.Object == "queue" {
			delete(cures, d.Name) // it may be there again, for another argument
		}
	}
	switch {
	case len(b.findings) > before:
	case len(unknown) > 0:
		b.skip(Letters, "it is not known how many wait in "+strings.Join(unknown, ", "))
	default:
		b.fine(Letters, "none that is not collected yet")
	}
}

const notCollected = "nobody puts them on the desk: see that `lapse serve` runs with the role desk, and that it can write to the database"

// some is the first few of a list, and how many more there are.
func some(list []string) string {
	const most = 4
	if len(list) <= most+1 {
		return strings.Join(list, ", ")
	}
	return fmt.Sprintf("%s, and %d more", strings.Join(list[:most], ", "), len(list)-most)
}
