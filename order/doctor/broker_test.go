package doctor_test

import (
	"context"
	"strings"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/amqp/amqptest"
	"github.com/lapse-go/lapse/order/doctor"
)

const away = "cannot be reached"

func TestLoginAndVhost(t *testing.T) {
	t.Parallel() // mostly it waits
	guest := amqptest.URL(t)
	for name, test := range map[string]struct{ uri, saw, cure string }{
		"wrong password": {strings.Replace(guest, ":guest@", ":hush@", 1), "refuses the login", "password"},
		"no vhost":       {guest + "nowhere", `no vhost "nowhere"`, "add_vhost nowhere"},
	} {
		t.Run(name, func(t *testing.T) {
			started := time.Now()
			findings := examine(t, doctor.Config{Broker: amqp.Config{URIs: []string{test.uri}}, DSN: deadDSN(t)})
			want(t, findings, doctor.Broker, test.saw, doctor.Database, away)
			if !strings.Contains(about(findings, doctor.Broker, doctor.Problem)[0].Cure, test.cure) {
				t.Errorf("the cure does not say %q", test.cure)
			}
			if took := time.Since(started); took > 5*time.Second {
				t.Errorf("it took %s", took)
			}
		})
	}
}

func TestTopologyMissing(t *testing.T) {
	p := newPair(t)
	p.Topology.Namespace = amqptest.Namespace()
	want(t, examine(t, p.Config), doctor.Topology, "missing: exchange "+p.Topology.Parked())
}

// redeclare has a queue of the topology with other arguments.
func redeclare(t *testing.T, p pair, name string, change func(amqp091.Table)) {
	t.Helper()
	do(t, p.conn, func(ch *amqp091.Channel) error {
		if _, err := ch.QueueDelete(name, false, false, false); err != nil {
			return err
		}
		for _, q := range p.Topology.Objects().Queues {
			if q.Name == name {
				change(q.Arguments)
				if _, err := ch.QueueDeclare(name, true, false, false, false, q.Arguments); err != nil {
					return err
				}
				// As it was bound: a fanout does not look at the key.
				return ch.QueueBind(name, strings.TrimPrefix(name, p.Topology.Due()+"."), exchangeOf(p.Topology, name), false, nil)
			}
		}
		t.Fatalf("no queue %s", name)
		return nil
	})
}

func exchangeOf(topology amqp.Topology, queue string) string {
	for _, b := range topology.Objects().Bindings {
		if b.Queue == queue {
			return b.Exchange
		}
	}
	return ""
}

func TestTopologyDrift(t *testing.T) {
	p := newPair(t)
	redeclare(t, p, p.Topology.Delay(time.Minute), func(a amqp091.Table) { a["x-message-ttl"] = int64(59_000) })
	redeclare(t, p, p.Topology.DueQueue("order.place"), func(a amqp091.Table) { delete(a, "x-delivery-limit") })
	redeclare(t, p, p.Topology.Parked(), func(a amqp091.Table) { a["x-delivery-limit"] = int64(20) })
	redeclare(t, p, p.Topology.Dead(), func(a amqp091.Table) { clear(a) })
	findings := examine(t, p.Config)
	want(t, findings,
		doctor.Topology, p.Topology.Delay(time.Minute)+": differs: x-message-ttl is 59000, 60000 is wanted",
		doctor.DeliveryLimits, p.Topology.DueQueue("order.place")+": differs: x-delivery-limit is none, 1000 is wanted",
		doctor.DeliveryLimits, p.Topology.Parked()+": differs: x-delivery-limit is 20, 1000000 is wanted",
		doctor.QueueType, p.Topology.Dead()+": differs: x-queue-type is",
	)
}

func TestLettersWait(t *testing.T) {
	p := newPair(t)
	do(t, p.conn, func(ch *amqp091.Channel) error {
		if err := ch.Confirm(false); err != nil {
			return err
		}
		for _, to := range []struct {
			exchange, key string
			n             int
		}{{p.Topology.Dead(), "a", 1}, {p.Topology.Due(), "mistyped", 2}, {p.Topology.Parked(), "a", 3}} {
			for range to.n {
				confirm, err := ch.PublishWithDeferredConfirm(to.exchange, to.key, false, false, amqp091.Publishing{})
				if err != nil {
					return err
				}
				if _, err := confirm.WaitContext(t.Context()); err != nil {
					return err
				}
			}
		}
		return nil
	})
	want(t, examine(t, p.Config),
		doctor.Letters, "1 wait in "+p.Topology.Dead(), doctor.Letters, "2 wait in "+p.Topology.Unrouted(), doctor.Letters, "3 wait in "+p.Topology.Parked())
}

func TestClassicQueues(t *testing.T) {
	p := newPair(t)
	p.Topology = amqp.Topology{Namespace: amqptest.Namespace(), Type: amqp.Classic, Ladder: amqp.Ladder{time.Second}, Kinds: []string{"a"}}
	amqptest.Declare(t, p.conn, p.Topology)
	findings := examine(t, p.Config)
	want(t, findings)
	if f := about(findings, doctor.QueueType, doctor.Fine); len(f) != 1 || !strings.Contains(f[0].Saw, "at most once") {
		t.Errorf("%v", f)
	}
}

func TestWithTheManagementAPI(t *testing.T) {
	t.Parallel() // mostly it waits
	node := amqptest.NewManagedNode(t)
	conn := amqptest.Dial(t, node.URL())
	topology := amqp.Topology{Namespace: "shop", Ladder: amqp.Ladder{time.Second, time.Minute}, Kinds: []string{"a"}}
	declare := func(topology amqp.Topology) {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		if err := topology.Declare(ctx, conn); err != nil {
			t.Fatal(err)
		}
	}
	declare(topology)
	cfg := doctor.Config{Broker: amqp.Config{URIs: []string{node.URL()}}, DSN: deadDSN(t), Topology: topology}
	var err error
	if cfg.Management, err = amqp.NewManagement(node.ManagementURL()); err != nil {
		t.Fatal(err)
	}
	// The statistics, with what policies do, come some seconds late.
	settled := func(cfg doctor.Config) (findings []doctor.Finding) {
		for range 30 {
			findings = doctor.Run(t.Context(), cfg)
			if len(about(findings, doctor.Topology, doctor.NotChecked)) == 0 {
				break
			}
			time.Sleep(time.Second)
		}
		return examine(t, cfg)
	}
	findings := settled(cfg)
	want(t, findings, doctor.Database, away)
	for _, check := range doctor.Checks[:10] {
		if len(about(findings, check, doctor.Fine)) != 1 {
			t.Errorf("%s is not said to be fine", check)
		}
	}

	once := topology
	once.Ladder = amqp.Ladder{time.Second, time.Hour}
	declare(once)
	if f := about(settled(cfg), doctor.OldRungs, doctor.Fine); len(f) != 1 || !strings.Contains(f[0].Saw, "shop.delay.1h") {
		t.Errorf("%v", f)
	}
	do(t, conn, func(ch *amqp091.Channel) error {
		return ch.PublishWithContext(t.Context(), once.Delay(time.Hour), "a", false, false, amqp091.Publishing{})
	})
	node.Ctl("set_policy", "low", `^shop\.due\.a$`, `{"delivery-limit": 20}`, "--apply-to", "queues")
	node.Ctl("set_policy", "short", `^shop\.delay\.1m$`, `{"message-ttl": 1000}`, "--apply-to", "queues")
	wanted := []string{
		doctor.Database, away,
		doctor.OldRungs, "shop.delay.1h is no longer configured and holds 1 messages",
		doctor.DeliveryLimits, `shop.due.a: differs: delivery-limit by policy "low" is 20, 1000 is wanted`,
		doctor.Topology, `shop.delay.1m: differs: message-ttl by policy "short" is 1000, 60000 is wanted`,
	}
	for range 30 {
		if f := doctor.Run(t.Context(), cfg); len(about(f, doctor.DeliveryLimits, doctor.Problem))*len(about(f, doctor.Topology, doctor.Problem)) > 0 {
			break
		}
		time.Sleep(time.Second)
	}
	want(t, examine(t, cfg), wanted...)

	if cfg.Management, err = amqp.NewManagement(strings.Replace(node.ManagementURL(), ":guest@", ":hush@", 1)); err != nil {
		t.Fatal(err)
	}
	want(t, examine(t, cfg), doctor.Database, away, doctor.ManagementAPI, "refuses the login")

	nothingIsLeft(t, node)
}

// nothingIsLeft sees that a node has nothing of a trial.
func nothingIsLeft(t *testing.T, node *amqptest.Node) {
	t.Helper()
	if left := node.Ctl("list_queues", "name", "--quiet") + node.Ctl("list_exchanges", "name", "--quiet"); strings.Contains(left, ".doctor.") {
		t.Errorf("of its trials there is left:\n%s", left)
	}
}

// Whenever a trial is broken off, it takes away what it has made.
func TestTrialThatIsBrokenOff(t *testing.T) {
	t.Parallel() // mostly it waits
	node := amqptest.NewNode(t)
	proxy, uri := amqptest.NewBrokerProxy(t, node.URL())
	cfg := doctor.Config{DSN: deadDSN(t), Topology: amqp.Topology{Namespace: "shop", Ladder: amqp.Ladder{time.Second}}}
	begun := 0
	for _, after := range []time.Duration{30 * time.Millisecond, 60 * time.Millisecond, 120 * time.Millisecond, 300 * time.Millisecond} {
		cfg.Broker.URIs = []string{node.URL()}
		ctx, cancel := context.WithTimeout(t.Context(), after)
		findings := doctor.Run(ctx, cfg)
		cancel()
		nothingIsLeft(t, node)
		if f := about(findings, doctor.DeadLettering, doctor.Problem); len(f) == 1 && strings.Contains(f[0].Saw, "could not be tried") {
			begun++
		} else {
			t.Logf("after %s: %v", after, findings)
		}

		cfg.Broker.URIs = []string{uri}
		cut := time.AfterFunc(after, proxy.Reset)
		findings = doctor.Run(t.Context(), cfg)
		if !cut.Stop() && len(about(findings, doctor.DeadLettering, doctor.Problem)) > 0 {
			begun++
		}
		nothingIsLeft(t, node)
	}
	if begun < 3 {
		t.Errorf("%d of 8 trials were broken off", begun)
	}
}

func TestPermissions(t *testing.T) {
	t.Parallel() // mostly it waits
	node := amqptest.NewNode(t)
	topology := amqp.Topology{Namespace: "shop", Ladder: amqp.Ladder{time.Second}, Kinds: []string{"a"}}
	if err := topology.Declare(t.Context(), amqptest.Dial(t, node.URL())); err != nil {
		t.Fatal(err)
	}
	node.Ctl("add_user", "clerk", "hush")
	cfg := doctor.Config{
		Broker: amqp.Config{URIs: []string{strings.Replace(node.URL(), "guest:guest", "clerk:hush", 1)}}, DSN: deadDSN(t), Topology: topology,
	}
	want(t, examine(t, cfg), doctor.Broker, "does not let this user into vhost", doctor.Database, away)
	for _, test := range []struct{ configure, write, read, missing string }{
		{"^$", ".*", ".*", "configure is not permitted"},
		{".*", "^other", ".*", "write is not permitted"},
		{".*", ".*", "^other", "read is not permitted"},
		{"^$", "^$", "^$", "configure and read and write is not permitted"},
	} {
		node.Ctl("set_permissions", "clerk", test.configure, test.write, test.read)
		findings := examine(t, cfg)
		want(t, findings, doctor.Permissions, test.missing, doctor.Database, away)
		if f := about(findings, doctor.Permissions, doctor.Problem); len(f) == 1 && !strings.Contains(f[0].Cure, `set_permissions -p / clerk '^shop\.' '^shop\.' '^shop\.'`) {
			t.Error(f[0].Cure)
		}
	}
	// As the cure says.
	node.Ctl("set_permissions", "-p", "/", "clerk", `^shop\.`, `^shop\.`, `^shop\.`)
	want(t, examine(t, cfg), doctor.Database, away)
	nothingIsLeft(t, node)
}

// A node without the feature flag stream_queue takes every argument of dead-lettering at least once, and
// does it at most once.
func TestDeadLetteringAtMostOnce(t *testing.T) {
	t.Setenv("RABBITMQ_FEATURE_FLAGS", "quorum_queue,implicit_default_bindings,virtual_host_metadata,maintenance_mode_status,user_limits")
	node := amqptest.NewNode(t)
	if flags := node.Ctl("list_feature_flags", "--quiet"); !strings.Contains(flags, "stream_queue\tdisabled") {
		t.Skip("in this version the flag cannot be off")
	}
	topology := amqp.Topology{Namespace: "shop", Ladder: amqp.Ladder{time.Second}}
	cfg := doctor.Config{Broker: amqp.Config{URIs: []string{node.URL()}}, DSN: deadDSN(t), Topology: topology}
	findings := examine(t, cfg)
	want(t, findings, doctor.DeadLettering, "at most once", doctor.Topology, "missing", doctor.Database, away)

	// What is wrong is cured as it says. The stream can be declared then, too.
	node.Ctl("enable_feature_flag", "all")
	if err := topology.Declare(t.Context(), amqptest.Dial(t, node.URL())); err != nil {
		t.Fatal(err)
	}
	want(t, examine(t, cfg), doctor.Database, away)
}

func TestBrokerBlocks(t *testing.T) {
	t.Parallel() // mostly it waits
	node := amqptest.NewNode(t)
	topology := amqp.Topology{Namespace: "shop", Ladder: amqp.Ladder{time.Second}}
	if err := topology.Declare(t.Context(), amqptest.Dial(t, node.URL())); err != nil {
		t.Fatal(err)
	}
	node.Ctl("set_vm_memory_high_watermark", "absolute", "1")
	want(t, examine(t, doctor.Config{Broker: amqp.Config{URIs: []string{node.URL()}}, DSN: deadDSN(t), Topology: topology}),
		doctor.Broker, "accepts no messages", doctor.Database, away)
	node.Ctl("set_vm_memory_high_watermark", "0.6")
	nothingIsLeft(t, node)
}
