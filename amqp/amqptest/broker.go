// Package amqptest gives tests real servers: the broker and the database that everybody shares, with a
// corner of its own for each test, and private ones that a test may break.
//
// A test that cannot reach its server fails; it is never skipped.
package amqptest

import (
	"cmp"
	"context"
	"crypto/rand"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/lapse-go/lapse/amqp"
)

// patience is how long a server that should be there may take to answer.
const patience = 20 * time.Second

// URL is that of the shared broker: LAPSE_AMQP_URL, or else amqp://guest:guest@127.0.0.1:5672/.
func URL(testing.TB) string {
	return cmp.Or(os.Getenv("LAPSE_AMQP_URL"), "amqp://guest:guest@127.0.0.1:5672/")
}

// Conn is a connection to the shared broker, closed when the test ends.
func Conn(t testing.TB) *amqp.Conn {
	t.Helper()
	return Dial(t, URL(t))
}

// Dial is a connection to the broker at url, closed when the test ends.
func Dial(t testing.TB, url string) *amqp.Conn {
	t.Helper()
	conn, err := amqp.Open(context.WithoutCancel(t.Context()), amqp.Config{
		URIs:       []string{url},
		Name:       t.Name(),
		MaxBackoff: time.Second,
		Logger:     Logger(t),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	channel, err := conn.Channel(ctx)
	if err != nil {
		t.Fatalf("this test needs a RabbitMQ broker (set LAPSE_AMQP_URL to use another): %v", err)
	}
	channel.Close()
	return conn
}

// Topology is one with a namespace that no other test uses, declared on the shared broker, and
// deleted when the test ends. The ladder may be nil.
func Topology(t testing.TB, ladder amqp.Ladder, kinds ...string) amqp.Topology {
	t.Helper()
	topology := amqp.Topology{Namespace: Namespace(), Ladder: ladder, Kinds: kinds}
	Declare(t, Conn(t), topology)
	return topology
}

// Declare declares the topology, and deletes it when the test ends.
func Declare(t testing.TB, conn *amqp.Conn, topology amqp.Topology) {
	t.Helper()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := topology.Delete(ctx, conn); err != nil {
			t.Error(err)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := topology.Declare(ctx, conn); err != nil {
		t.Fatal(err)
	}
}

// Tap is the bodies of what is published to the exchange with that key from now on, as they come, until the test ends.
func Tap(t testing.TB, conn *amqp.Conn, exchange, key string) <-chan []byte {
	t.Helper()
	channel, err := conn.Channel(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { channel.Close() })
	queue, err := channel.QueueDeclare("", false, true, true, false, nil)
	if err == nil {
		err = channel.QueueBind(queue.Name, key, exchange, false, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	deliveries, err := channel.Consume(queue.Name, "", true, true, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	bodies := make(chan []byte, 10_000)
	go func() {
		for d := range deliveries {
			bodies <- d.Body
		}
	}()
	return bodies
}

// Namespace is one that no other test uses.
func Namespace() string { return "lapse-test-" + strings.ToLower(rand.Text()[:12]) }

// Logger writes to the test's log.
func Logger(t testing.TB) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
}
