package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"gorm.io/gorm"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/amqp/amqptest"
	"github.com/lapse-go/lapse/order"
	"github.com/lapse-go/lapse/order/checkout"
	"github.com/lapse-go/lapse/order/web"
)

// service is a database and a namespace for replicas of `lapse serve`.
type service struct {
	t        *testing.T
	db       *gorm.DB
	dsn      string
	topology amqp.Topology
}

func newService(t *testing.T) *service {
	t.Helper()
	db := amqptest.Database(t)
	s := &service{t: t, db: db, dsn: amqptest.DSN(t, db), topology: checkout.Config{Namespace: amqptest.Namespace()}.Topology()}
	amqptest.Declare(t, amqptest.Conn(t), s.topology)
	return s
}

// replica is a process of `lapse serve`, with a client of its API.
type replica struct {
	*web.Client
	t       *testing.T
	cmd     *exec.Cmd
	metrics string // address
	log     bytes.Buffer
	ended   chan struct{}
}

// start starts a replica and waits until it is ready.
func (s *service) start(args ...string) *replica {
	s.t.Helper()
	api, metrics := freeAddress(s.t), freeAddress(s.t)
	r := &replica{t: s.t, metrics: metrics, ended: make(chan struct{})}
	r.cmd = exec.Command("lapse", append([]string{"serve", "--listen", api, "--metrics-listen", metrics}, args...)...)
	r.cmd.Env = append(os.Environ(), "LAPSE_AMQP_URL="+amqptest.URL(s.t), "LAPSE_MYSQL_DSN="+s.dsn, "LAPSE_NAMESPACE="+s.topology.Namespace)
	r.cmd.Stderr = &r.log
	if err := r.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	go func() {
		defer close(r.ended)
		_ = r.cmd.Wait() // asked for its state below
	}()
	s.t.Cleanup(func() {
		_ = r.cmd.Process.Kill() // unless it has ended
		<-r.ended
		if s.t.Failed() {
			s.t.Logf("%s said:\n%s", api, &r.log)
		}
	})
	client, err := web.NewClient("http://"+api, "", nil)
	if err != nil {
		s.t.Fatal(err)
	}
	r.Client = client
	await(s.t, 30*time.Second, "the replica is ready", func() bool { return r.Check(s.t.Context()) == nil })
	return r
}

// stop tells the replica to end and returns how long it took.
func (r *replica) stop() time.Duration {
	r.t.Helper()
	begin := time.Now()
	if err := r.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		r.t.Fatal(err)
	}
	select {
	case <-r.ended:
	case <-time.After(time.Minute):
		r.t.Fatal("it has not ended within a minute")
	}
	if code := r.cmd.ProcessState.ExitCode(); code != 0 {
		r.t.Errorf("exit code %d", code)
	}
	return time.Since(begin)
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func await(t *testing.T, limit time.Duration, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(limit); !holds(); {
		if time.Now().After(end) {
			t.Fatalf("not within %s: %s", limit, what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (s *service) count(query string, args ...any) (n int) {
	s.t.Helper()
	if err := s.db.Raw("SELECT COUNT(*) FROM lapse_orders WHERE "+query, args...).Scan(&n).Error; err != nil {
		s.t.Fatal(err)
	}
	return n
}

func kettle(id string, window time.Duration) order.Draft {
	return order.Draft{ID: id, Window: window, Lines: []order.Line{{SKU: "kettle", Quantity: 1, Price: order.Money{Amount: 1999, Currency: "EUR"}}}}
}

// A pause stops the expiry of two replicas at once, with payment going on, and what is overdue is closed
// when it ends.
func TestPauseStopsAllReplicas(t *testing.T) {
	s := newService(t)
	one, two := s.start(), s.start()
	if _, err := one.SetStock(t.Context(), "kettle", 1000); err != nil {
		t.Fatal(err)
	}
	const orders = 200
	for i := range orders {
		if _, err := one.Place(t.Context(), kettle(fmt.Sprintf("o%03d", i), 500*time.Millisecond+time.Duration(i)*20*time.Millisecond)); err != nil {
			t.Fatal(err)
		}
	}
	await(t, 10*time.Second, "the first orders are expired", func() bool { return s.count("status = 'expired'") > 0 })
	if err := two.Pause(t.Context(), order.By{Why: "stocktaking"}); err != nil {
		t.Fatal(err)
	}
	expired := s.count("status = 'expired'")
	await(t, 10*time.Second, "all orders are overdue", func() bool { return s.count("deadline > UTC_TIMESTAMP(6)") == 0 })
	if now := s.count("status = 'expired'"); now != expired || now == orders {
		t.Fatalf("%d orders were expired before the pause, and %d after it", expired, now)
	}
	last := fmt.Sprintf("o%03d", orders-1)
	if o, err := one.Pay(t.Context(), last, order.Payment{Reference: "psp-1"}); err != nil || o.Status != order.Paid {
		t.Errorf("paying while expiry is paused: %v, %v", o.Status, err)
	}
	for _, r := range []*replica{one, two} {
		if err := r.Check(t.Context()); err != nil {
			t.Errorf("a replica is not ready because of the pause: %v", err)
		}
	}
	if err := one.Resume(t.Context(), order.By{}); err != nil {
		t.Fatal(err)
	}
	await(t, 10*time.Second, "what is overdue is closed", func() bool { return s.count("status = 'expired'") == orders-1 })
	for _, r := range []*replica{one, two} {
		if took := r.stop(); took > 11*time.Second {
			t.Errorf("it took %s to end", took)
		}
	}
}

// Replicas end one after the other while customers place orders, at once and by message. What was
// confirmed exists and is closed in the end.
func TestEndingUnderLoadLosesNothing(t *testing.T) {
	s := newService(t)
	replicas := []*replica{s.start(), s.start(), s.start()}
	if _, err := replicas[0].SetStock(t.Context(), "kettle", 1_000_000); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	confirmed := map[string]bool{}
	ctx, stop := context.WithCancel(t.Context())
	var customers sync.WaitGroup
	for i := range 8 {
		customers.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				r := replicas[(i+n)%len(replicas)]
				id := fmt.Sprintf("o%d-%d", i, n)
				var err error
				if i%2 == 0 {
					_, err = r.Place(t.Context(), kettle(id, 300*time.Millisecond))
				} else {
					_, err = r.PlaceAsync(t.Context(), kettle(id, 300*time.Millisecond))
				}
				mu.Lock()
				confirmed[id] = err == nil
				mu.Unlock()
			}
		})
	}
	placed := func() (n int) {
		mu.Lock()
		defer mu.Unlock()
		for _, yes := range confirmed {
			if yes {
				n++
			}
		}
		return n
	}
	for _, r := range replicas[:2] {
		before := placed()
		await(t, 20*time.Second, "some orders are placed", func() bool { return placed() >= before+200 })
		took := r.stop()
		t.Logf("ended after %s, having placed %d orders", took.Round(time.Millisecond), placed())
		if took > 12*time.Second {
			t.Errorf("it took %s to end, with a limit of 10s", took)
		}
	}
	stop()
	customers.Wait()
	await(t, 30*time.Second, "all orders are closed", func() bool { return s.count("status = 'pending'") == 0 })
	var ids []string
	await(t, 30*time.Second, "all orders that were taken in exist", func() bool {
		if err := s.db.Raw("SELECT id FROM lapse_orders WHERE status = 'expired'").Scan(&ids).Error; err != nil {
			t.Fatal(err)
		}
		return len(ids) >= placed()
	})
	exists := map[string]bool{}
	for _, id := range ids {
		exists[id] = true
	}
	for id, yes := range confirmed {
		if yes && !exists[id] {
			t.Errorf("order %s was confirmed, and is lost", id)
		}
	}
	if n := s.count("closed_at < deadline"); n > 0 {
		t.Errorf("%d orders were closed early", n)
	}
}

// A command that is interrupted says so by its exit code, and a login that is refused by another one.
func TestExitCodesOfTheBroker(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0") // takes connections and never answers
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	plan := func(url string) *exec.Cmd {
		cmd := exec.Command("lapse", "topology", "plan")
		cmd.Env = append(os.Environ(), "LAPSE_AMQP_URL="+url)
		return cmd
	}
	waiting := plan("amqp://guest:guest@" + silent.Addr().String() + "/")
	if err := waiting.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := silent.Accept(); err != nil {
		t.Fatal(err)
	}
	if err := waiting.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	_ = waiting.Wait() // asked for its state below
	if code := waiting.ProcessState.ExitCode(); code != exitInterrupted {
		t.Errorf("interrupted: exit code %d", code)
	}

	uri, err := amqp091.ParseURI(amqptest.URL(t))
	if err != nil {
		t.Fatal(err)
	}
	uri.Password = "wrong"
	refused := plan(uri.String())
	output, _ := refused.CombinedOutput() // asked for its state below
	if code := refused.ProcessState.ExitCode(); code != exitNotAllowed || bytes.Contains(output, []byte("wrong@")) {
		t.Errorf("with a wrong password: exit code %d\n%s", code, output)
	}
}

// Serve fails where waiting is senseless, and says what to do.
func TestServeFails(t *testing.T) {
	s := newService(t)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for _, test := range []struct {
		name string
		args []string
		code int
		want string
	}{
		{"a port that is taken", []string{"--listen", taken.Addr().String()}, exitConfig, "address already in use"},
		{"another port that is taken", []string{"--metrics-listen", taken.Addr().String()}, exitConfig, "address already in use"},
		{"queues of another type", []string{"--queue-type=classic"}, exitConfig, "exists with x-queue-type = quorum, but classic is wanted"},
		{"a login that is refused", []string{"--mysql-dsn", "nobody:secret@" + s.dsn[strings.LastIndex(s.dsn, "@")+1:]}, exitNotAllowed, "Access denied"},
	} {
		t.Run(test.name, func(t *testing.T) {
			cmd := exec.Command("lapse", append([]string{"serve", "--listen=127.0.0.1:0", "--metrics-listen="}, test.args...)...)
			cmd.Env = append(os.Environ(), "LAPSE_AMQP_URL="+amqptest.URL(t), "LAPSE_MYSQL_DSN="+s.dsn, "LAPSE_NAMESPACE="+s.topology.Namespace)
			output, err := cmd.CombinedOutput()
			exit, ok := errors.AsType[*exec.ExitError](err)
			if !ok || exit.ExitCode() != test.code || !bytes.Contains(output, []byte(test.want)) || bytes.Contains(output, []byte("secret")) {
				t.Errorf("%v\n%s", err, output)
			}
		})
	}
}
