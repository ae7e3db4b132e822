package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
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
	"github.com/lapse-go/lapse/order/orderamqp"
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

// deliver publishes timers to the due exchange, as any program may.
func (s *service) deliver(bodies ...string) {
	s.t.Helper()
	publisher := amqp.NewPublisher(amqptest.Conn(s.t), amqp.PublisherConfig{Logger: amqptest.Logger(s.t)})
	defer publisher.Close()
	for _, body := range bodies {
		m := amqp.Publishing{Message: amqp.Message{Kind: orderamqp.KindPaymentTimeout, Body: []byte(body)}, Exchange: s.topology.Due()}
		if err := publisher.Publish(s.t.Context(), m)[0]; err != nil {
			s.t.Fatal(err)
		}
	}
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
	r := s.launch(args...)
	await(s.t, 30*time.Second, "the replica is ready", func() bool { return r.ask(s.t.Context(), "/readyz", nil) == http.StatusOK })
	return r
}

func (s *service) launch(args ...string) *replica {
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
	uri.Vhost = "there-is-none"
	missing := plan(uri.String())
	_ = missing.Run() // asked for its state below
	if code := missing.ProcessState.ExitCode(); code != exitConfig {
		t.Errorf("without its vhost: exit code %d", code)
	}
	uri.Password = "wrong"
	refused := plan(uri.String())
	output, _ := refused.CombinedOutput() // asked for its state below
	if code := refused.ProcessState.ExitCode(); code != exitNotAllowed || bytes.Contains(output, []byte("wrong@")) {
		t.Errorf("with a wrong password: exit code %d\n%s", code, output)
	}
}

// Without tokens the API is on loopback, whatever its address says. With tokens it is where it is told to be,
// and each may do what its role says.
func TestWhoMayUseTheAPI(t *testing.T) {
	s := newService(t)
	_, port, err := net.SplitHostPort(freeAddress(t))
	if err != nil {
		t.Fatal(err)
	}
	// An address of this machine other than the one of localhost.
	elsewhere := func(scheme, token string, hc *http.Client) *web.Client {
		c, err := web.NewClient(scheme+"://"+net.JoinHostPort("127.0.0.2", port), token, hc)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	local := s.start("--listen=0.0.0.0:" + port)
	if err := elsewhere("http", "", nil).Check(t.Context()); err == nil || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("asked for from elsewhere: %v", err)
	}
	local.stop()
	if !strings.Contains(local.log.String(), "on loopback only") {
		t.Error("it does not say that it is on loopback only")
	}

	tokens := map[web.Role]string{}
	var file strings.Builder
	for _, role := range web.Roles {
		token, line, err := web.NewToken(string(role), role)
		if err != nil {
			t.Fatal(err)
		}
		tokens[role] = token
		fmt.Fprintln(&file, line)
	}
	dir := t.TempDir()
	cert, key, roots := certificate(t, dir)
	if err := os.WriteFile(dir+"/tokens", []byte(file.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	encrypted := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}}
	defer encrypted.CloseIdleConnections()
	r := s.launch("--listen=0.0.0.0:"+port, "--tokens-file", dir+"/tokens", "--tls-cert", cert, "--tls-key", key)
	operator, viewer := elsewhere("https", tokens[web.Operator], encrypted), elsewhere("https", tokens[web.Viewer], encrypted)
	await(t, 30*time.Second, "it is ready", func() bool { return operator.Check(t.Context()) == nil })
	if _, err := operator.SetStock(t.Context(), "kettle", 1); err != nil {
		t.Error(err)
	}
	if _, err := viewer.SetStock(t.Context(), "kettle", 1); !errors.Is(err, web.ErrForbidden) {
		t.Errorf("a viewer sets stock: %v", err)
	}
	if _, err := elsewhere("https", "lapse_nonsense", encrypted).Paused(t.Context()); !errors.Is(err, web.ErrUnauthorized) {
		t.Errorf("a stranger asks: %v", err)
	}
	if _, err := elsewhere("https", tokens[web.Checkout], encrypted).Place(t.Context(), kettle("A-1", time.Minute)); err != nil {
		t.Error(err)
	}
	if _, err := operator.Cancel(t.Context(), "A-1", order.By{Why: "a test"}); err != nil {
		t.Error(err)
	}
	timeline, err := viewer.Timeline(t.Context(), "A-1")
	if err != nil || len(timeline) != 2 || timeline[1].By.Who != "operator" {
		t.Errorf("%v, %v", timeline, err)
	}
	r.stop()
	for _, token := range tokens {
		if strings.Contains(r.log.String(), token) {
			t.Error("the log has a token in it")
		}
	}
}

// certificate makes one for 127.0.0.2, which signs itself.
func certificate(t *testing.T, dir string) (cert, key string, roots *x509.CertPool) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 2)},
		IsCA: true, BasicConstraintsValid: true,
	}
	public, err := x509.CreateCertificate(rand.Reader, &template, &template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	cert, key = dir+"/cert.pem", dir+"/key.pem"
	certPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: public})
	if err := errors.Join(os.WriteFile(cert, certPEM, 0o600),
		os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), 0o600)); err != nil {
		t.Fatal(err)
	}
	roots = x509.NewCertPool()
	roots.AppendCertsFromPEM(certPEM)
	return cert, key, roots
}

// An order that another transaction keeps locked can be tried again later.
func TestTryLater(t *testing.T) {
	s := newService(t)
	if err := s.db.Exec("INSERT INTO lapse_stock VALUES ('kettle', 1, 0, 0)").Error; err != nil {
		t.Fatal(err)
	}
	dsn := s.dsn + "?innodb_lock_wait_timeout=1"
	if strings.Contains(s.dsn, "?") {
		dsn = s.dsn + "&innodb_lock_wait_timeout=1"
	}
	command := func(args ...string) (code int, output []byte) {
		cmd := exec.Command("lapse", args...)
		cmd.Env = append(os.Environ(), "LAPSE_MYSQL_DSN="+dsn, "LAPSE_NAMESPACE="+s.topology.Namespace)
		output, _ = cmd.CombinedOutput() // asked for its state
		return cmd.ProcessState.ExitCode(), output
	}
	if code, output := command("order", "place", "A-1", "--line=kettle:1:1999EUR"); code != 0 {
		t.Fatalf("exit code %d\n%s", code, output)
	}
	tx := s.db.Begin()
	defer tx.Rollback()
	if err := tx.Exec("SELECT * FROM lapse_orders WHERE id = 'A-1' FOR UPDATE").Error; err != nil {
		t.Fatal(err)
	}
	if code, output := command("order", "cancel", "A-1"); code != exitTryLater {
		t.Errorf("exit code %d\n%s", code, output)
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
