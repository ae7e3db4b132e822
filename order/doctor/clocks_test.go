package doctor_test

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/amqp/amqptest"
	"github.com/lapse-go/lapse/order/doctor"
)

// fake gives another clock to servers that are started from now on. libfaketime moves that of C programs,
// and so not of this one.
func fake(t *testing.T, by string) {
	t.Helper()
	for _, pattern := range []string{"/usr/lib/*/faketime/libfaketimeMT.so.1", "/usr/lib*/faketime/libfaketimeMT.so.1", "/usr/local/lib/faketime/libfaketimeMT.so.1"} {
		if found, _ := filepath.Glob(pattern); len(found) > 0 {
			t.Setenv("LD_PRELOAD", found[0])
			t.Setenv("FAKETIME", by)
			t.Setenv("FAKETIME_DONT_FAKE_MONOTONIC", "1")
			return
		}
	}
	t.Fatal("this test needs libfaketime: install faketime (Debian)")
}

func TestDatabasesClockIsOff(t *testing.T) {
	p := newPair(t)
	fake(t, "+2m")
	p.DSN = amqptest.DSN(t, amqptest.NewMySQL(t).Database(t))
	want(t, examine(t, p.Config), doctor.Clocks, "database 2m0s ahead of this program")

	p.Broker = deadBroker(t)
	want(t, examine(t, p.Config), doctor.Clocks, "Either may be off", doctor.Broker, away)
}

func TestBrokersClockIsOff(t *testing.T) {
	p := newPair(t)
	fake(t, "-90s")
	node := amqptest.NewNode(t)
	p.Topology = amqp.Topology{Namespace: "shop", Ladder: amqp.Ladder{time.Second}}
	if err := p.Topology.Declare(t.Context(), amqptest.Dial(t, node.URL())); err != nil {
		t.Fatal(err)
	}
	p.Broker.URIs = []string{node.URL()}
	want(t, examine(t, p.Config), doctor.Clocks, "The broker's is off")
}
