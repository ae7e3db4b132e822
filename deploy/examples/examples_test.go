// Package examples_test runs the shops in other languages on real servers.
package examples_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"go.uber.org/goleak"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/amqp/amqptest"
	"github.com/lapse-go/lapse/order"
	"github.com/lapse-go/lapse/order/checkout"
	"github.com/lapse-go/lapse/order/web"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	patience = 20 * time.Second
	reminder = "order.pickup_reminder"
)

// service is Lapse as it serves a shop. Without a sweep, it is timers that expire orders.
type service struct {
	*checkout.Checkout
	t      *testing.T
	broker *amqp.Conn
}

func serve(t *testing.T, pieces int64) *service {
	t.Helper()
	c, err := checkout.New(amqptest.Database(t), checkout.Config{
		Namespace: amqptest.Namespace(), SweepEvery: 24 * time.Hour, Logger: amqptest.Logger(t),
		Kinds: []checkout.Kind{{Name: reminder}}, // as lapse serve --kinds order.pickup_reminder
	})
	if err != nil {
		t.Fatal(err)
	}
	s := &service{Checkout: c, t: t, broker: amqptest.Conn(t)}
	amqptest.Declare(t, s.broker, c.Topology())
	if _, err := c.SetStock(t.Context(), "kettle", pieces); err != nil {
		t.Fatal(err)
	}
	s.until(func(ctx context.Context) error {
		return c.Serve(ctx, amqp.Config{URIs: []string{amqptest.URL(t)}, MaxBackoff: time.Second})
	})
	await(t, "the service is ready", func() bool { return c.Ready() == nil })
	return s
}

// until has it run until the test ends.
func (s *service) until(run func(context.Context) error) {
	ctx, stop := context.WithCancel(context.WithoutCancel(s.t.Context()))
	var over sync.WaitGroup
	over.Go(func() {
		if err := run(ctx); err != nil {
			s.t.Errorf("it ended with %v", err)
		}
	})
	s.t.Cleanup(func() { stop(); over.Wait() })
}

func (s *service) on(do func(*amqp091.Channel) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.t.Context()), patience)
	defer cancel()
	return s.broker.Do(ctx, do)
}

// served is whether the queue is there and somebody consumes from it.
func (s *service) served(queue string) bool {
	var consumers int
	err := s.on(func(ch *amqp091.Channel) error {
		q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
		consumers = q.Consumers
		return err
	})
	return err == nil && consumers > 0
}

func (s *service) wantStatus(id string, want order.Status) {
	s.t.Helper()
	if o, err := s.Get(s.t.Context(), id); err != nil || o.Status != want {
		s.t.Errorf("%s is %s, %v; want %s", id, o.Status, err, want)
	}
}

func await(t *testing.T, what string, so func() bool) {
	t.Helper()
	for over := time.Now().Add(patience); !so(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(over) {
			t.Fatalf("waited %s in vain: %s", patience, what)
		}
	}
}

// program is a shop in another language.
type program struct {
	t       *testing.T
	command []string
	env     []string
}

// run has it do one thing, with its standard input, and returns what it printed.
func (p program) run(input string, args ...string) (stdout, stderr string, err error) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	args = slices.Concat(p.command[1:], args)
	command := exec.CommandContext(ctx, p.command[0], args...)
	var out, complaints bytes.Buffer
	command.Env, command.Stdin, command.Stdout, command.Stderr = append(os.Environ(), p.env...), strings.NewReader(input), &out, &complaints
	err = command.Run()
	p.t.Logf("%s: %v\n%s%s", strings.Join(args, " "), err, &out, &complaints)
	return out.String(), complaints.String(), err
}

// printed is what a program prints while it runs.
type printed struct {
	t     *testing.T
	who   string
	lines chan string
	seen  []string
}

// start has it do one thing until the test ends.
func (p program) start(args ...string) *printed {
	p.t.Helper()
	args = slices.Concat(p.command[1:], args)
	command := exec.Command(p.command[0], args...)
	command.Env, command.Stderr = append(os.Environ(), p.env...), p.t.Output()
	pipe, err := command.StdoutPipe()
	if err == nil {
		err = command.Start()
	}
	if err != nil {
		p.t.Fatal(err)
	}
	out := &printed{t: p.t, who: strings.Join(args, " "), lines: make(chan string, 100)}
	var over sync.WaitGroup
	over.Go(func() {
		defer close(out.lines)
		for s := bufio.NewScanner(pipe); s.Scan(); {
			out.lines <- strings.TrimSpace(s.Text())
		}
	})
	p.t.Cleanup(func() {
		_ = command.Process.Kill() // what it had not acknowledged would come again
		over.Wait()
		_ = command.Wait() // it was killed
	})
	return out
}

// want waits for lines that it has not printed before, in any order.
func (p *printed) want(want ...string) {
	p.t.Helper()
	var got []string
	timeout := time.After(patience)
	for len(got) < len(want) {
		select {
		case line, ok := <-p.lines:
			if !ok {
				p.t.Fatalf("%s ended after %q", p.who, got)
			}
			// What was acknowledged when the connection was lost comes again.
			if !slices.Contains(p.seen, line) {
				got, p.seen = append(got, line), append(p.seen, line)
			}
		case <-timeout:
			p.t.Fatalf("%s printed no more than %q, want %q", p.who, got, want)
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		p.t.Errorf("%s printed %q, want %q", p.who, got, want)
	}
}

func (p *printed) wantNoMore() {
	p.t.Helper()
	for {
		select {
		case line, ok := <-p.lines:
			if !ok {
				p.t.Errorf("%s ended", p.who)
				return
			}
			if !slices.Contains(p.seen, line) {
				p.t.Errorf("%s printed %q as well", p.who, line)
			}
		default:
			return
		}
	}
}

func kettles(id string, quantity int, window string) string {
	return fmt.Sprintf(`{"id": %q, "customer": "c-9", "lines": [{"sku": "kettle", "quantity": %d, "price": {"amount": 1999, "currency": "EUR"}}], "window": %q}`+"\n", id, quantity, window)
}

func TestPython(t *testing.T) {
	for _, python := range []string{"python3", "/usr/bin/python3"} {
		if exec.Command(python, "-c", "import pika").Run() == nil {
			testLanguage(t, python, "python/shop.py")
			return
		}
	}
	t.Fatal("this test needs Python with pika: run deploy/dev/up --tests as root, or install python3-pika (Debian)")
}

func TestNode(t *testing.T) {
	if _, err := exec.LookPath("node"); err != nil {
		t.Fatalf("this test needs Node: run deploy/dev/up --tests as root, or install nodejs and npm: %v", err)
	}
	if _, err := os.Stat("node/node_modules/amqplib"); err != nil {
		t.Fatalf("this test needs amqplib: run deploy/dev/up --tests, or 'npm ci' in deploy/examples/node: %v", err)
	}
	testLanguage(t, "node", "node/shop.js")
}

// testLanguage has a shop that speaks AMQP do all that it can, once through an outage.
func testLanguage(t *testing.T, command ...string) {
	s := serve(t, 10)
	proxy, url := amqptest.NewBrokerProxy(t, amqptest.URL(t))
	lapse := s.Topology().Namespace
	shop := lapse + "." + filepath.Base(command[1])
	p := program{t, command, []string{"LAPSE_AMQP_URL=" + url, "LAPSE_NAMESPACE=" + lapse, "SHOP=" + shop}}
	t.Cleanup(func() {
		err := s.on(func(ch *amqp091.Channel) error {
			for _, suffix := range []string{".order.expired", ".order.refused", ".dead"} {
				if _, err := ch.QueueDelete(shop+suffix, false, false, false); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	})
	expired, refused, reminders := p.start("expired"), p.start("refused"), p.start("reminders")
	queues := []string{shop + ".order.expired", shop + ".order.refused", s.Topology().DueQueue(reminder)}
	served := func() bool { return !slices.ContainsFunc(queues, func(queue string) bool { return !s.served(queue) }) }
	await(t, "it subscribes", served)

	out, _, err := p.run(kettles("A-1", 1, "1s")+kettles("A-2", 2, "1500ms")+kettles("A-3", 1, "1h")+kettles("A-4", 100, "1s")+kettles("A-1", 1, "1s"), "place")
	if want := "accepted A-1\naccepted A-2\naccepted A-3\naccepted A-4\naccepted A-1\n"; err != nil || out != want {
		t.Fatalf("place: %v, %q", err, out)
	}
	if _, _, err := p.run("", "remind", "A-3", "1s"); err != nil {
		t.Fatal(err)
	}
	refused.want("order.refused A-4 out_of_stock")
	expired.want("order.expired A-1", "order.expired A-2")
	reminders.want("remind A-3")

	// The connections are lost, while orders are placed.
	proxy.Refuse()
	placed := make(chan error, 1)
	go func() {
		_, complaints, err := p.run(kettles("B-1", 1, "250ms"), "place")
		if !strings.Contains(complaints, "no connection") {
			err = fmt.Errorf("%w, and it did not say that there is no connection: %s", err, complaints)
		}
		placed <- err
	}()
	await(t, "it lost its connections", func() bool { return !s.served(queues[0]) })
	time.Sleep(500 * time.Millisecond) // so that it tries in vain
	proxy.Restore()
	if err := <-placed; err != nil {
		t.Error(err)
	}
	expired.want("order.expired B-1")
	await(t, "it subscribes again", served)

	// What makes no sense stands in nobody's way.
	if err := s.on(func(ch *amqp091.Channel) error {
		return ch.PublishWithContext(t.Context(), "", queues[0], true, false, amqp091.Publishing{Body: []byte("no JSON")})
	}); err != nil {
		t.Fatal(err)
	}
	await(t, "it is a dead letter", func() (dead bool) {
		err := s.on(func(ch *amqp091.Channel) error {
			letter, ok, err := ch.Get(shop+".dead", true)
			dead = ok && string(letter.Body) == "no JSON"
			return err
		})
		return dead && err == nil
	})
	expired.wantNoMore()
	refused.wantNoMore()
	reminders.wantNoMore()
	s.wantStatus("A-1", order.Expired)
	s.wantStatus("A-2", order.Expired)
	s.wantStatus("A-3", order.Pending)
	s.wantStatus("B-1", order.Expired)

	s.wantErrors(p)
}

// wantErrors has the shop fail, and say why.
func (s *service) wantErrors(p program) {
	s.t.Helper()
	nowhere, unbound := amqptest.Namespace(), amqptest.Namespace()
	err := s.on(func(ch *amqp091.Channel) error {
		_, err := ch.QueueDeclare(unbound+".due.order.place", false, true, false, false, nil)
		if err == nil {
			err = ch.ExchangeDeclare(unbound+".due", "direct", false, false, false, false, nil)
		}
		return err
	})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		err := s.on(func(ch *amqp091.Channel) error {
			_, err := ch.QueueDelete(unbound+".due.order.place", false, false, false)
			if err == nil {
				err = ch.ExchangeDelete(unbound+".due", false, false)
			}
			return err
		})
		if err != nil {
			s.t.Error(err)
		}
	})
	for _, test := range []struct {
		namespace, input, says string
		args                   []string
	}{
		{nowhere, kettles("A-1", 1, "1s"), "no queue '" + nowhere + ".due.order.place'", []string{"place"}},
		{unbound, kettles("A-1", 1, "1s"), "unroutable", []string{"place"}},
		{s.Topology().Namespace, "", "no exchange", []string{"remind", "A-1", "31m"}},
		{s.Topology().Namespace, "{", "JSON", []string{"place"}},
		{s.Topology().Namespace, "", "remind ID RUNG", []string{"remind", "A-1"}},
		{nowhere, "", "no exchange", []string{"expired"}},
	} {
		q := p
		q.env = append(slices.Clone(p.env), "LAPSE_NAMESPACE="+test.namespace)
		if out, complaints, err := q.run(test.input, test.args...); err == nil || out != "" || !strings.Contains(complaints, test.says) {
			s.t.Errorf("%q: %v, %q, says %s; want %s", test.args, err, out, complaints, test.says)
		}
	}
}

func TestShell(t *testing.T) {
	if _, err := exec.LookPath("curl"); err != nil {
		t.Fatalf("this test needs curl: %v", err)
	}
	s := serve(t, 10)
	token, line, err := web.NewToken("shop", web.Checkout)
	if err != nil {
		t.Fatal(err)
	}
	tokens, err := web.ReadTokens(strings.NewReader(line))
	if err != nil {
		t.Fatal(err)
	}
	server, err := web.New(web.Config{
		Orders: s.Service, Submit: s.Submit, Sweep: s.Sweeper().Once, Check: s.Check, Tokens: tokens, Logger: amqptest.Logger(t),
	})
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.until(func(ctx context.Context) error {
		return web.Serve(ctx, listener, server, time.Second, amqptest.Logger(t))
	})
	p := program{t, []string{"sh", "shell/shop.sh"}, []string{"LAPSE_URL=http://" + listener.Addr().String(), "LAPSE_TOKEN=" + token}}

	// The same order again is the order that there is; the last has no end of its line.
	out, complaints, err := p.run(kettles("A-1", 1, "1s")+kettles("A-2", 1, "1s")+kettles("A-9", 100, "1s")+strings.TrimSpace(kettles("A-1", 1, "1s")), "place")
	if want := "placed A-1\nplaced A-2\nplaced A-1\n"; err == nil || out != want || !strings.Contains(complaints, "out-of-stock") {
		t.Errorf("place: %v, %q, %s", err, out, complaints)
	}
	if out, _, err := p.run("", "pay", "A-2", "psp-1"); err != nil || out != "paid A-2\n" {
		t.Errorf("pay: %v, %q", err, out)
	}
	if out, _, err := p.run("", "expired", "A-1", "A-2"); err != nil || out != "expired A-1\n" {
		t.Errorf("expired: %v, %q", err, out)
	}
	s.wantStatus("A-1", order.Expired)
	s.wantStatus("A-2", order.Paid)
	if out, _, err := p.run("", "show", "A-1"); err != nil || !strings.Contains(out, `"type":"order.expired"`) {
		t.Errorf("show: %v, %s", err, out)
	}
	for says, args := range map[string][]string{
		"payment-late": {"pay", "A-1", "psp-2"}, "not-found": {"show", "A-7"}, "usage": {"pay"}, "no such order": {"expired", "A-7"},
	} {
		if _, complaints, err := p.run("", args...); err == nil || !strings.Contains(complaints, says) {
			t.Errorf("%q: %v, %s; want %s", args, err, complaints, says)
		}
	}
	p.env = append(p.env, "LAPSE_TOKEN=")
	if _, complaints, err := p.run("", "show", "A-1"); err == nil || !strings.Contains(complaints, "unauthorized") {
		t.Errorf("without a token: %v, %s", err, complaints)
	}
}
