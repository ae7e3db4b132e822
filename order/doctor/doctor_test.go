package doctor_test

import (
	"context"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"gorm.io/gorm"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/amqp/amqptest"
	"github.com/lapse-go/lapse/order/doctor"
)

// pair is a topology on the shared broker and a database on the shared server, both as they should be.
type pair struct {
	doctor.Config
	conn *amqp.Conn
	db   *gorm.DB
}

func newPair(t *testing.T) pair {
	t.Helper()
	p := pair{conn: amqptest.Conn(t), db: amqptest.Database(t)}
	p.Topology = amqptest.Topology(t, amqp.Ladder{time.Second, time.Minute}, "order.payment_timeout", "order.place")
	p.Broker = amqp.Config{URIs: []string{amqptest.URL(t)}}
	p.DSN = amqptest.DSN(t, p.db)
	return p
}

// deadDSN is of a server that is not there. What is to be seen of the broker does not need one.
func deadDSN(t *testing.T) string { return "root@tcp(" + deadAddress(t) + ")/lapse" }

// deadBroker is one that is not there.
func deadBroker(t *testing.T) amqp.Config {
	return amqp.Config{URIs: []string{"amqp://guest:guest@" + deadAddress(t) + "/"}}
}

func deadAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

// examine makes the checks, and sees that each has a finding, and each problem a cure.
func examine(t *testing.T, cfg doctor.Config) []doctor.Finding {
	t.Helper()
	started := time.Now()
	findings := doctor.Run(t.Context(), cfg)
	took := time.Since(started)
	if took > 22*time.Second {
		t.Errorf("it took %s", took)
	}
	t.Logf("after %s:", took.Round(time.Millisecond))
	for _, check := range doctor.Checks {
		if !slices.ContainsFunc(findings, func(f doctor.Finding) bool { return f.Check == check }) {
			t.Errorf("there is no finding about: %s", check)
		}
	}
	for _, f := range findings {
		t.Logf("%s: %s: %s | %s", f.Check, f.State, f.Saw, f.Cure)
		if f.Saw == "" || (f.Cure != "") != (f.State == doctor.Problem) || strings.Contains(f.Saw+f.Cure, "hush") {
			t.Errorf("%+v", f)
		}
	}
	return findings
}

// about lists what was found under a check with a state.
func about(findings []doctor.Finding, check string, state doctor.State) (all []doctor.Finding) {
	for _, f := range findings {
		if f.Check == check && f.State == state {
			all = append(all, f)
		}
	}
	return all
}

// want sees that these are the problems, and no others: pairs of a check and of words that what was seen
// has.
func want(t *testing.T, findings []doctor.Finding, problems ...string) {
	t.Helper()
	left := slices.DeleteFunc(slices.Clone(findings), func(f doctor.Finding) bool { return f.State != doctor.Problem })
	if doctor.OK(findings) != (len(left) == 0) {
		t.Error("OK is otherwise")
	}
	for pair := range slices.Chunk(problems, 2) {
		i := slices.IndexFunc(left, func(f doctor.Finding) bool { return f.Check == pair[0] && strings.Contains(f.Saw, pair[1]) })
		if i < 0 {
			t.Errorf("not found: %s: %s", pair[0], pair[1])
			continue
		}
		left = slices.Delete(left, i, i+1)
	}
	for _, f := range left {
		t.Errorf("a problem that was not planted: %s: %s", f.Check, f.Saw)
	}
}

// do asks the broker on a channel of its own.
func do(t *testing.T, conn *amqp.Conn, ask func(*amqp091.Channel) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	ch, err := conn.Channel(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer ch.Close()
	if err := ask(ch); err != nil {
		t.Fatal(err)
	}
}

func TestHealthy(t *testing.T) {
	p := newPair(t)
	findings := examine(t, p.Config)
	want(t, findings)
	for _, f := range findings {
		needsAPI := f.Check == doctor.ManagementAPI || f.Check == doctor.OldRungs
		if needsAPI != (f.State == doctor.NotChecked) {
			t.Errorf("%s is %s", f.Check, f.State)
		}
		if f.Check == doctor.Topology && !strings.Contains(f.Saw, "due queue without its binding") {
			t.Errorf("it does not say that bindings matter: %s", f.Saw)
		}
	}
}

func TestBothAway(t *testing.T) {
	findings := examine(t, doctor.Config{Broker: deadBroker(t), DSN: deadDSN(t)})
	want(t, findings, doctor.Broker, "cannot be reached", doctor.Database, "cannot be reached")
	if n := len(findings); n != len(doctor.Checks) {
		t.Errorf("%d findings", n)
	}
}

func TestConfigurationThatIsNotValid(t *testing.T) {
	want(t, examine(t, doctor.Config{Broker: amqp.Config{URIs: []string{"http://user:hush@host"}}, DSN: "user:hush@host/x"}),
		doctor.Broker, "amqp://", doctor.Database, "not valid")
	want(t, examine(t, doctor.Config{Topology: amqp.Topology{Namespace: "a b"}, DSN: deadDSN(t)}),
		doctor.Topology, "a b", doctor.Database, "cannot be reached")
}

// Neither server answers, and nothing tells that they are away.
func TestServersThatHang(t *testing.T) {
	t.Parallel() // mostly it waits
	p := newPair(t)
	broker, uri := amqptest.NewBrokerProxy(t, amqptest.URL(t))
	broker.Stall()
	stalled, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer stalled.Close()
	p.Broker.URIs, p.DSN = []string{uri}, "root@tcp("+stalled.Addr().String()+")/lapse"
	want(t, examine(t, p.Config), doctor.Broker, "cannot be reached", doctor.Database, "cannot be reached")
	broker.Restore()
}

func TestInterrupted(t *testing.T) {
	p := newPair(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	started := time.Now()
	findings := doctor.Run(ctx, p.Config)
	if doctor.OK(findings) || time.Since(started) > 8*time.Second {
		t.Errorf("after %s: %v", time.Since(started), findings)
	}
}
