package checkout_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"gorm.io/gorm"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/amqp/amqptest"
	"github.com/lapse-go/lapse/amqp/database"
	"github.com/lapse-go/lapse/order"
	"github.com/lapse-go/lapse/order/checkout"
	"github.com/lapse-go/lapse/order/ordertest"
)

// shop is a Checkout that runs no loops, on real servers, with a ledger to which a subscriber tells all
// events. Each process of the service is a replica of its own.
type shop struct {
	*checkout.Checkout
	t       testing.TB
	url     string
	db      *gorm.DB
	cfg     checkout.Config
	metrics *prometheus.Registry
	broker  *amqp.Conn
	ledger  *ordertest.Ledger
	keeps   keeping
	login   string // of replicas, whose password is the same; that of the shop when empty
}

// keeping is how a shop keeps its orders.
type keeping struct {
	open            func(db *gorm.DB, cfg checkout.Config) (*checkout.Checkout, error)
	books           ordertest.Books
	pending, events string // SQL that counts the orders that are pending, and the events that there should be
}

// place is where a shop is; what is empty is on the shared servers.
type place struct {
	url string
	db  *gorm.DB
}

const pieces = 1_000_000 // of each article, at first

// articles are many, so that it is not their rows in the stock that all customers queue for.
var articles = func() []string {
	skus := make([]string, 100)
	for i := range skus {
		skus[i] = fmt.Sprintf("article-%02d", i)
	}
	return skus
}()

func newShop(t testing.TB, at place, cfg checkout.Config) *shop {
	t.Helper()
	s := openShop(t, at, cfg)
	s.subscribe()
	return s
}

// openShop leaves the ledger without events.
func openShop(t testing.TB, at place, cfg checkout.Config) *shop {
	t.Helper()
	if at.url == "" {
		at.url = amqptest.URL(t)
	}
	if at.db == nil {
		at.db = amqptest.Database(t)
	}
	if cfg.Logger == nil {
		cfg.Logger = amqptest.Logger(t)
	}
	cfg.Namespace = amqptest.Namespace()
	s := &shop{t: t, url: at.url, db: at.db, cfg: cfg, metrics: prometheus.NewRegistry(), broker: amqptest.Dial(t, at.url)}
	var err error
	cfg.Registerer = s.metrics
	if s.Checkout, err = checkout.New(s.db, cfg); err != nil {
		t.Fatal(err)
	}
	s.keeps = keeping{
		open: checkout.New, books: s.Checkout,
		pending: "SELECT COUNT(*) FROM lapse_orders WHERE status = 'pending'", events: "SELECT COUNT(*) FROM lapse_timeline",
	}
	amqptest.Declare(t, s.broker, s.Topology())
	stock := make([]order.Stock, len(articles))
	var setting errgroup.Group
	for i, sku := range articles {
		setting.Go(func() (err error) {
			stock[i], err = s.SetStock(t.Context(), sku, pieces)
			return err
		})
	}
	if err := setting.Wait(); err != nil {
		t.Fatal(err)
	}
	s.ledger = ordertest.NewLedger(stock...)
	return s
}

// subscribe tells the ledger of all events, through a queue of the test's own and whatever happens to
// the broker.
func (s *shop) subscribe() {
	s.t.Helper()
	queue := s.Topology().Namespace + ".subscriber"
	channel, err := s.broker.Channel(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	_, err = channel.QueueDeclare(queue, true, false, false, false, nil)
	if err == nil {
		err = channel.QueueBind(queue, "#", s.Topology().Events(), false, nil)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	channel.Close()

	ctx, stop := context.WithCancel(context.WithoutCancel(s.t.Context()))
	var over sync.WaitGroup
	over.Go(func() {
		for ctx.Err() == nil {
			s.receive(ctx, queue)
		}
	})
	s.t.Cleanup(func() {
		stop()
		over.Wait()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		channel, err := s.broker.Channel(ctx)
		if err == nil {
			_, err = channel.QueueDelete(queue, false, false, false)
			channel.Close()
		}
		if err != nil {
			s.t.Error(err)
		}
	})
}

func (s *shop) receive(ctx context.Context, queue string) {
	channel, err := s.broker.Channel(ctx)
	if err != nil {
		return
	}
	defer channel.Close()
	if channel.Qos(1000, 0, false) != nil {
		return
	}
	deliveries, err := channel.Consume(queue, "", false, false, false, false, nil)
	if err != nil {
		return
	}
	for {
		select {
		case <-ctx.Done():
			return
		case delivery, ok := <-deliveries:
			if !ok {
				return
			}
			s.ledger.Received(delivery.Body)
			if delivery.Ack(false) != nil {
				return
			}
		}
	}
}

// replica is one process of the service: a Checkout with pool, connections and metrics of its own,
// that serves.
type replica struct {
	*checkout.Checkout
	t       testing.TB
	metrics *prometheus.Registry
	stop    context.CancelFunc
	done    chan struct{}
	err     error // of Serve, when done
}

// start has a new replica serve roles on the broker at url. It ends with the test.
func (s *shop) start(url string, roles ...checkout.Role) *replica {
	s.t.Helper()
	config, err := mysql.ParseDSN(amqptest.DSN(s.t, s.db))
	if err != nil {
		s.t.Fatal(err)
	}
	if s.login != "" {
		config.User, config.Passwd = s.login, s.login
	}
	db, err := database.Open(config.FormatDSN(), database.Options{Logger: s.cfg.Logger})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		if pool, err := db.DB(); err == nil {
			pool.Close()
		}
	})
	cfg, metrics := s.cfg, prometheus.NewRegistry()
	cfg.Registerer = metrics
	c, err := s.keeps.open(db, cfg)
	if err != nil {
		s.t.Fatal(err)
	}
	return serve(s.t, c, metrics, url, roles...)
}

// startHere has the process that places orders serve as well, so that its relay is woken by them.
func (s *shop) startHere(url string, roles ...checkout.Role) *replica {
	s.t.Helper()
	return serve(s.t, s.Checkout, s.metrics, url, roles...)
}

func serve(t testing.TB, c *checkout.Checkout, metrics *prometheus.Registry, url string, roles ...checkout.Role) *replica {
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	r := &replica{Checkout: c, t: t, metrics: metrics, stop: stop, done: make(chan struct{})}
	go func() {
		defer close(r.done)
		r.err = r.Serve(ctx, amqp.Config{URIs: []string{url}, MaxBackoff: time.Second}, roles...)
	}()
	t.Cleanup(r.end)
	return r
}

// end ends a replica as SIGTERM does, and expects that it ends well.
func (r *replica) end() {
	r.stop()
	<-r.done
	if r.err != nil {
		r.t.Errorf("Serve ended with %v", r.err)
		r.err = nil
	}
}

func (r *replica) awaitReady() {
	r.t.Helper()
	await(r.t, 30*time.Second, "a replica is ready", func() bool { return r.Ready() == nil })
}

// metric is the sum of a metric over all its labels but those given, as name, value, …. Of a histogram it
// is the number of observations.
func (r *replica) metric(name string, labels ...string) (sum float64) {
	r.t.Helper()
	families, err := r.metrics.Gather()
	if err != nil {
		r.t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
	next:
		for _, m := range family.GetMetric() {
			have := make(map[string]string)
			for _, pair := range m.GetLabel() {
				have[pair.GetName()] = pair.GetValue()
			}
			for i := 0; i < len(labels); i += 2 {
				if have[labels[i]] != labels[i+1] {
					continue next
				}
			}
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return sum
}

// await polls, since neither a database nor a broker tells when something has become so.
func await(t testing.TB, patience time.Duration, what string, so func() bool) {
	t.Helper()
	if !within(patience, so) {
		t.Fatalf("waited %s in vain: %s", patience, what)
	}
}

// within is whether it became so.
func within(patience time.Duration, so func() bool) bool {
	for over := time.Now().Add(patience); !so(); {
		if time.Now().After(over) {
			return false
		}
		time.Sleep(20 * time.Millisecond)
	}
	return true
}

// sql reads one number.
func (s *shop) sql(query string, args ...any) (n int64) {
	s.t.Helper()
	if err := s.db.WithContext(s.t.Context()).Raw(query, args...).Row().Scan(&n); err != nil {
		s.t.Fatal(err)
	}
	return n
}

func (s *shop) exec(query string, args ...any) {
	s.t.Helper()
	if err := s.db.WithContext(s.t.Context()).Exec(query, args...).Error; err != nil {
		s.t.Fatal(err)
	}
}

// queued is how many messages of a queue wait to be delivered.
func (s *shop) queued(queue string) int {
	s.t.Helper()
	channel, err := s.broker.Channel(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	defer channel.Close()
	q, err := channel.QueueDeclarePassive(queue, true, false, false, false, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	return q.Messages
}

// judge waits until no order is pending and all events were relayed and received, and then wants the
// ledger to say that all is well. When the patience is over, the ledger says what is missing.
func (s *shop) judge(patience time.Duration) *ordertest.Verdict {
	s.t.Helper()
	within(patience, func() bool {
		return s.sql(s.keeps.pending) == 0 && s.sql("SELECT COUNT(*) FROM lapse_outbox") == 0 &&
			int64(s.ledger.Events()) >= s.sql(s.keeps.events)
	})
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.t.Context()), time.Minute)
	defer cancel()
	v, err := s.ledger.Judge(ctx, s.keeps.books)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Logf("the ledger says:\n%s", v)
	if !v.OK {
		s.t.Error("it does not add up")
	}
	return v
}

// draft is an order of two lines, of articles that depend on n.
func draft(id string, n int, window time.Duration) order.Draft {
	return order.Draft{
		ID: id, Customer: "customer-1", Region: "eu", Window: window,
		Lines: []order.Line{
			{SKU: articles[n%len(articles)], Quantity: 1, Price: order.Money{Amount: 1999, Currency: "EUR"}},
			{SKU: articles[(n+7)%len(articles)], Quantity: 2, Price: order.Money{Amount: 450, Currency: "EUR"}},
		},
	}
}

func (s *shop) draft(id string, n int, window time.Duration) order.Draft { return draft(id, n, window) }

// order places an order, tells the ledger, and fails the test if that fails.
func (s *shop) order(id string, window time.Duration) order.Order {
	s.t.Helper()
	d := draft(id, 0, window)
	o, err := s.Place(s.t.Context(), d)
	s.ledger.Placed(d, o, err)
	if err != nil {
		s.t.Fatal(err)
	}
	return o
}

// orders places n orders, by batches.
func (s *shop) orders(prefix string, n int, window time.Duration) (ids []string) {
	s.t.Helper()
	drafts := make([]order.Draft, n)
	for i := range drafts {
		drafts[i] = draft(fmt.Sprintf("%s%05d", prefix, i), i, window)
		ids = append(ids, drafts[i].ID)
	}
	placed, err := s.PlaceAll(s.t.Context(), drafts)
	if err != nil {
		s.t.Fatal(err)
	}
	for i, p := range placed {
		s.ledger.Placed(drafts[i], p.Order, p.Err)
		if p.Err != nil {
			s.t.Fatal(p.Err)
		}
	}
	return ids
}

func (s *shop) pay(ctx context.Context, id, reference string) (order.Order, error) {
	o, err := s.Pay(ctx, id, order.Payment{Reference: reference})
	s.ledger.Paid(id, reference, o, err)
	return o, err
}

func (s *shop) extend(ctx context.Context, id string, to time.Time) (order.Order, error) {
	o, err := s.Extend(ctx, id, to, order.By{Who: "test"})
	s.ledger.Extended(id, o, err)
	return o, err
}

func (s *shop) cancel(ctx context.Context, id string) (order.Order, error) {
	o, err := s.Cancel(ctx, id, order.By{Who: "test"})
	s.ledger.Cancelled(id, o, err)
	return o, err
}

func (s *shop) get(id string) order.Order {
	s.t.Helper()
	o, err := s.Get(s.t.Context(), id)
	if err != nil {
		s.t.Fatal(err)
	}
	return o
}

// clock is the database's clock as seen from here: what has to be added to time.Now.
func (s *shop) clock() time.Duration {
	s.t.Helper()
	before := time.Now()
	micros := s.sql("SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))")
	return time.UnixMicro(micros).Sub(before.Add(time.Since(before) / 2))
}
