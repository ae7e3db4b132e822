package amqp_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/amqp/amqptest"
)

// logbook is a log that a test reads.
type logbook struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logbook) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logbook) count(words string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), words)
}

func (l *logbook) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

func open(t *testing.T, cfg amqp.Config) *amqp.Conn {
	t.Helper()
	conn, err := amqp.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// until waits for the connection's state to be as the test wants it.
func until(t *testing.T, conn *amqp.Conn, what string, holds func() bool) {
	t.Helper()
	timeout := time.After(30 * time.Second)
	for {
		changed := conn.Changed()
		if holds() {
			return
		}
		select {
		case <-changed:
		case <-timeout:
			t.Fatalf("%s: not within 30s; the connection says: %v", what, conn.Ready())
		}
	}
}

// deadAddress is one where nobody listens.
func deadAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

func TestConfigErrorsDoNotShowThePassword(t *testing.T) {
	for _, uri := range []string{
		"amqp://user:hush@host:port/", "amqp://user:hu/sh@host/", "amqp://user:123/hush@host/", "amqp://user:1?hush@host/",
		"amqp://user:12#hush@host/", "amqp://us er:hush@host/", "http://user:hush@host/", "amqp://user:hush%zz@host/",
		"amqp://user:hush@host:99999/", "amqp://user:hush@host?heartbeat=hush", "hush", "",
	} {
		_, err := amqp.Open(t.Context(), amqp.Config{URIs: []string{uri}})
		if err == nil {
			t.Errorf("%s is accepted", uri)
		} else if strings.Contains(err.Error(), "hush") || strings.Contains(err.Error(), "123") {
			t.Errorf("%s: the error tells the password: %v", uri, err)
		}
	}
	for name, cfg := range map[string]amqp.Config{
		"no URI":          {},
		"short heartbeat": {URIs: []string{"amqp://host"}, Heartbeat: time.Millisecond},
		"backoff":         {URIs: []string{"amqp://host"}, MinBackoff: time.Minute, MaxBackoff: time.Second},
	} {
		if _, err := amqp.Open(t.Context(), cfg); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}

func TestConnTriesTheClustersNodesInTurn(t *testing.T) {
	var log logbook
	dead := "amqp://guest:guest@" + deadAddress(t) + "/"
	conn := open(t, amqp.Config{URIs: []string{dead, amqptest.URL(t)}, Logger: log.logger()})
	if _, err := conn.Channel(within(t, 10*time.Second)); err != nil {
		t.Fatal(err)
	}
	if err := conn.Ready(); err != nil {
		t.Error(err)
	}
	if log.count("level=WARN") != 0 || log.count("connected to the broker") != 1 {
		t.Errorf("one node of two is enough, so only the connection is worth a line:\n%s", log.text.String())
	}
}

func TestConnSaysWhyThereIsNone(t *testing.T) {
	u, err := url.Parse(amqptest.URL(t))
	if err != nil {
		t.Fatal(err)
	}
	wrong := func(change func(*url.URL)) string {
		v := *u
		change(&v)
		return v.String()
	}
	for name, test := range map[string]struct{ uri, says string }{
		"password": {wrong(func(u *url.URL) { u.User = url.UserPassword("guest", "hush") }), "wrong user name or password"},
		"vhost":    {wrong(func(u *url.URL) { u.Path = "/nowhere" }), "nowhere"},
		"nobody":   {wrong(func(u *url.URL) { u.Host = deadAddress(t) }), "refused"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var log logbook
			conn := open(t, amqp.Config{URIs: []string{test.uri}, MinBackoff: 10 * time.Millisecond, MaxBackoff: 20 * time.Millisecond, Logger: log.logger()})
			started := time.Now()
			_, err := conn.Channel(within(t, 5*time.Second)) // the broker takes 3s over a wrong password
			if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), test.says) {
				t.Errorf("got %v; want it to say %q", err, test.says)
			}
			if took := time.Since(started); took > 6*time.Second {
				t.Errorf("Channel took %s", took)
			}
			if err := conn.Ready(); err == nil || !strings.Contains(err.Error(), test.says) {
				t.Errorf("Ready: %v", err)
			}
			if n := log.count("\n"); n != 1 || log.count(test.says) == 0 || log.count("hush") != 0 {
				t.Errorf("%d lines for one outage:\n%s", n, log.text.String())
			}
		})
	}
}

func TestConnComesBack(t *testing.T) {
	proxy, uri := amqptest.NewBrokerProxy(t, amqptest.URL(t))
	var log logbook
	metrics := amqp.NewMetrics(nil)
	conn := open(t, amqp.Config{URIs: []string{uri}, Name: "back", MinBackoff: 10 * time.Millisecond, MaxBackoff: 20 * time.Millisecond, Metrics: metrics, Logger: log.logger()})
	up := func() bool { return conn.Ready() == nil }
	down := func() bool { return conn.Ready() != nil }
	until(t, conn, "up", up)
	for i, fail := range []func(){proxy.Reset, proxy.Refuse, func() { conn.Reset(errors.New("found dead")) }} {
		fail()
		until(t, conn, "down", down)
		if i == 1 {
			time.Sleep(200 * time.Millisecond) // a storm of dialling that is to be quiet
		}
		proxy.Restore()
		until(t, conn, "up", up)
	}
	if got := testutil.ToFloat64(metrics.Reconnections.WithLabelValues("back")); got != 3 {
		t.Errorf("%v reconnections", got)
	}
	if lost, again, failed := log.count("lost the connection"), log.count("again"), log.count("cannot connect"); lost != 3 || again != 3 || failed != 1 || log.count("found dead") != 1 {
		t.Errorf("%d losses, %d recoveries, %d failures in the log:\n%s", lost, again, failed, log.text.String())
	}
}

// A half-open peer is found by its silence, and neither Channel nor Close waits for it.
func TestConnOnASilentNetwork(t *testing.T) {
	proxy, uri := amqptest.NewBrokerProxy(t, amqptest.URL(t))
	conn := open(t, amqp.Config{URIs: []string{uri}, Heartbeat: 2 * time.Second, Logger: amqptest.Logger(t)})
	if _, err := conn.Channel(within(t, 10*time.Second)); err != nil {
		t.Fatal(err)
	}
	var used *amqp091.Channel
	wrong := errors.New("wrong")
	if err := conn.Do(within(t, 10*time.Second), func(ch *amqp091.Channel) error { used = ch; return wrong }); !errors.Is(err, wrong) || !used.IsClosed() {
		t.Errorf("%v, and the channel is closed: %v", err, used.IsClosed())
	}
	started := time.Now()
	err := conn.Do(within(t, 500*time.Millisecond), func(ch *amqp091.Channel) error {
		proxy.Stall()
		return ch.ExchangeDeclarePassive("amq.direct", "direct", true, false, false, false, nil)
	})
	if !errors.Is(err, context.DeadlineExceeded) || time.Since(started) > time.Second {
		t.Errorf("after %s: %v", time.Since(started), err)
	}
	started = time.Now()
	if _, err := conn.Channel(within(t, 500*time.Millisecond)); !errors.Is(err, context.DeadlineExceeded) || time.Since(started) > time.Second {
		t.Errorf("after %s: %v", time.Since(started), err)
	}
	until(t, conn, "found dead", func() bool { return conn.Ready() != nil })
	if took := time.Since(started); took > 6*time.Second {
		t.Errorf("found dead only after %s", took)
	}
	proxy.Restore()
	until(t, conn, "up", func() bool { return conn.Ready() == nil })
	proxy.Stall()
	started = time.Now()
	conn.Close()
	if took := time.Since(started); took > 4*time.Second {
		t.Errorf("Close took %s", took)
	}
	if _, err := conn.Channel(t.Context()); !errors.Is(err, amqp.ErrClosed) {
		t.Errorf("a channel of a closed connection: %v", err)
	}
	if err := conn.Ready(); !errors.Is(err, amqp.ErrClosed) {
		t.Errorf("a closed connection is ready: %v", err)
	}
}
