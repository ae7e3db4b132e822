package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"net"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"gorm.io/gorm"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/amqp/database"
	"github.com/lapse-go/lapse/order"
	"github.com/lapse-go/lapse/order/checkout"
	"github.com/lapse-go/lapse/order/orderamqp"
	"github.com/lapse-go/lapse/order/web"
)

type demo struct {
	databaseFlags
	brokerFlags
	outputFlag
}

const (
	demoOrders = 60
	demoStock  = 100 // of each article
	demoLimit  = time.Minute
)

var demoArticles = []string{"espresso", "filter", "grinder", "kettle"}

// Run shows the main job on the real servers, in a namespace and a database of its own, which are
// removed again.
func (d *demo) Run(ctx context.Context, to console) (err error) {
	ctx, cancel := context.WithTimeout(ctx, demoLimit)
	defer cancel()
	name := strings.ToLower(rand.Text()[:8])
	logger := newLogger(to.Err, slog.LevelWarn)

	db, drop, err := d.freshDatabase(ctx, "lapse_demo_"+name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, drop()) }()
	orders, err := tableFlag{}.keep(db, checkout.Config{
		Namespace: "lapse-demo-" + name,
		Retry:     amqp.RetryPolicy{Tries: 3},
		Logger:    logger,
	})
	if err != nil {
		return err
	}
	shop := orders.shop
	broker, err := d.connect(ctx)
	if err != nil {
		return err
	}
	defer broker.Close()
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		err = errors.Join(err, shop.Topology().Delete(ctx, broker))
	}()
	if err := shop.Topology().Declare(ctx, broker); err != nil {
		return err
	}

	fmt.Fprintf(to.Err, "Placing %d orders with 3 to 8 seconds to pay; %s/%s.\n", demoOrders, shop.Topology().Namespace, "lapse_demo_"+name)
	api, client, err := serveLocally(orders, logger)
	if err != nil {
		return err
	}
	defer api.close()
	serving, stop := context.WithCancel(ctx)
	defer stop()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return shop.Serve(serving, amqp.Config{URIs: d.AMQPURL}) })
	group.Go(func() error { return api.run(serving) })
	run := &demoRun{Client: client, topology: shop.Topology(), db: db, broker: broker, to: to}
	group.Go(func() error {
		defer stop()
		return run.run(ctx)
	})
	if err := group.Wait(); err != nil {
		return err
	}
	if err := run.report(d.outputFlag); err != nil {
		return err
	}
	if !run.result.OK {
		return errors.New("the demonstration does not add up")
	}
	return nil
}

// serveLocally makes a server of the API on a port of its own, and a client of it.
func serveLocally(orders kept, logger *slog.Logger) (server, *web.Client, error) {
	handler, err := web.New(apiConfig(orders, logger))
	if err != nil {
		return server{}, nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return server{}, nil, err
	}
	client, err := web.NewClient("http://"+l.Addr().String(), "", nil)
	return server{l, handler, time.Second, logger}, client, err
}

// freshDatabase returns a pool on a new database and the function that drops it.
func (f databaseFlags) freshDatabase(ctx context.Context, name string) (*gorm.DB, func() error, error) {
	f, err := f.named(name)
	if err != nil {
		return nil, nil, err
	}
	db, closing, err := f.open(database.Options{})
	if err != nil {
		return nil, nil, err
	}
	drop := func() error {
		defer closing()
		return db.Exec("DROP DATABASE `" + name + "`").Error
	}
	if err := f.migrate(ctx); err != nil {
		_ = drop() // if it is there at all
		return nil, nil, err
	}
	return db, drop, nil
}

// A plan is what will be done with one order of the demonstration.
type plan struct {
	id     string
	window time.Duration
	after  time.Duration // from placing to doing it
	do     func(context.Context, *demoRun, order.Order) error
	ends   order.Status
	late   bool // a payment comes when it is too late
}

// demoPlans pays a third, cancels and extends some, pays one too late, and leaves the rest alone.
func demoPlans() []plan {
	plans := make([]plan, demoOrders)
	for i := range plans {
		window := 3*time.Second + time.Duration(i)*5*time.Second/(demoOrders-1)
		p := plan{id: fmt.Sprintf("demo-%02d", i+1), window: window.Round(time.Millisecond), ends: order.Expired}
		p.after = mathrand.N(window - time.Second)
		switch {
		case i == 1:
			p.late, p.after, p.do = true, 0, payTooLate
		case i%3 == 0:
			p.ends, p.do = order.Paid, pay
		case i%10 == 4:
			p.ends, p.do = order.Cancelled, cancelOrder
		case i%10 == 5:
			p.do = extend
		}
		plans[i] = p
	}
	return plans
}

func pay(ctx context.Context, d *demoRun, o order.Order) error {
	_, err := d.Pay(ctx, o.ID, order.Payment{Reference: "pay-" + o.ID})
	return err
}

func cancelOrder(ctx context.Context, d *demoRun, o order.Order) error {
	_, err := d.Cancel(ctx, o.ID, order.By{Who: "demo", Why: "changed my mind"})
	return err
}

func extend(ctx context.Context, d *demoRun, o order.Order) error {
	_, err := d.Extend(ctx, o.ID, o.Deadline.Add(2*time.Second), order.By{Who: "demo", Why: "asked for more time"})
	return err
}

func payTooLate(ctx context.Context, d *demoRun, o order.Order) error {
	for {
		now, err := d.Get(ctx, o.ID)
		if err != nil {
			return err
		}
		if now.Status != order.Pending {
			break
		}
		if err := rest(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
	if err := pay(ctx, d, o); !errors.Is(err, order.ErrLatePayment) {
		return fmt.Errorf("a payment that was too late was answered: %w", err)
	}
	return nil
}

// demoRun is one demonstration on its way.
type demoRun struct {
	*web.Client
	topology amqp.Topology
	db       *gorm.DB
	broker   *amqp.Conn
	to       console

	mu      sync.Mutex
	letters []letter
	result  demoResult
}

// letter is a dead letter as the demonstration shows it.
type letter struct {
	Reason string `json:"reason"`
	Error  string `json:"error"`
}

func (d *demoRun) run(ctx context.Context) error {
	for _, sku := range demoArticles {
		if _, err := d.SetStock(ctx, sku, demoStock); err != nil {
			return err
		}
	}
	plans := demoPlans()
	customers, acting := errgroup.WithContext(ctx)
	for i, p := range plans {
		placed, err := d.Place(ctx, order.Draft{
			ID: p.id, Customer: "demo", Window: p.window,
			Lines: []order.Line{
				{SKU: demoArticles[i%4], Quantity: 1, Price: order.Money{Amount: 1999, Currency: "EUR"}},
				{SKU: demoArticles[(i+1)%4], Quantity: 2, Price: order.Money{Amount: 450, Currency: "EUR"}},
			},
		})
		if err != nil {
			return err
		}
		if p.do != nil {
			customers.Go(func() error {
				if err := rest(acting, p.after); err != nil {
					return err
				}
				return p.do(acting, d, placed)
			})
		}
	}
	if err := d.publishBad(ctx); err != nil {
		return err
	}
	watching, stop := context.WithCancel(ctx)
	defer stop()
	go d.collect(watching)
	if err := d.awaitEnd(ctx); err != nil {
		return err
	}
	if err := customers.Wait(); err != nil {
		return err
	}
	return d.judge(ctx, plans)
}

// bad are messages that no order stands behind: malformed ones, which are hopeless, and the timer of
// an order that does not exist, which runs out of tries.
var bad = []string{
	`not JSON`,
	`{"deadline": "2030-01-01T00:00:00Z"}`,
	`{"order_id": "with a space", "deadline": "2030-01-01T00:00:00Z"}`,
	`{"order_id": "demo-01"}`,
	`{"order_id": "nobody-placed-me", "deadline": "2020-01-01T00:00:00Z"}`,
}

func (d *demoRun) publishBad(ctx context.Context) error {
	publisher := amqp.NewPublisher(d.broker, amqp.PublisherConfig{})
	defer publisher.Close()
	messages := make([]amqp.Publishing, len(bad))
	for i, body := range bad {
		messages[i] = amqp.Publishing{
			Message:  amqp.Message{Kind: orderamqp.KindPaymentTimeout, Body: []byte(body)},
			Exchange: d.topology.Due(),
		}
	}
	return errors.Join(publisher.Publish(ctx, messages...)...)
}

// collect takes what arrives in the dead-letter queue.
func (d *demoRun) collect(ctx context.Context) {
	channel, err := d.broker.Channel(ctx)
	if err != nil {
		return
	}
	defer channel.Close()
	deliveries, err := channel.Consume(d.topology.Dead(), "", true, false, false, false, nil)
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
			reason, _ := delivery.Headers[amqp.HeaderReason].(string)
			text, _ := delivery.Headers[amqp.HeaderError].(string)
			d.mu.Lock()
			d.letters = append(d.letters, letter{reason, text})
			d.mu.Unlock()
		}
	}
}

// awaitEnd shows progress until no order is pending and all that cannot succeed is a dead letter.
func (d *demoRun) awaitEnd(ctx context.Context) error {
	start := time.Now()
	for {
		counts, err := d.counts(ctx)
		if err != nil {
			return err
		}
		d.mu.Lock()
		letters := len(d.letters)
		d.mu.Unlock()
		fmt.Fprintf(d.to.Err, "%4.0fs  pending %2d  paid %2d  cancelled %d  expired %2d  dead letters %d\n", time.Since(start).Seconds(),
			counts[order.Pending], counts[order.Paid], counts[order.Cancelled], counts[order.Expired], letters)
		if counts[order.Pending] == 0 && letters >= len(bad) {
			return nil
		}
		if err := rest(ctx, time.Second); err != nil {
			return fmt.Errorf("orders or dead letters are still missing: %w", context.Cause(ctx))
		}
	}
}

func (d *demoRun) counts(ctx context.Context) (map[order.Status]int, error) {
	var rows []struct {
		Status order.Status
		N      int
	}
	err := d.db.WithContext(ctx).Raw("SELECT status, COUNT(*) AS n FROM lapse_orders GROUP BY status").Scan(&rows).Error
	counts := map[order.Status]int{}
	for _, row := range rows {
		counts[row.Status] = row.N
	}
	return counts, err
}

func rest(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
