package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"gorm.io/gorm"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/amqp/database"
	"github.com/lapse-go/lapse/order/checkout"
	"github.com/lapse-go/lapse/order/web"
)

type demo struct {
	databaseFlags
	brokerFlags
	outputFlag
	Keep bool `env:"-" help:"Leave the service up afterwards, and print the address of its page and a token, until interrupted."`
}

const (
	demoOrders = 60
	demoStock  = 100 // of each article
	demoLimit  = time.Minute
)

var demoArticles = []string{"espresso", "filter", "grinder", "kettle"}

// Run shows the main job and the desk on the real servers, in a namespace and a database of its own, which are
// removed again.
func (d *demo) Run(ctx context.Context, to console) (err error) {
	kept := ctx // until it ends; the demonstration has less time
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
	api, err := serveLocally(orders, logger)
	if err != nil {
		return err
	}
	defer api.close()
	serving, stop := context.WithCancel(kept)
	defer stop()
	group, serving := errgroup.WithContext(serving)
	group.Go(func() error { return shop.Serve(serving, amqp.Config{URIs: d.AMQPURL}) })
	group.Go(func() error { return api.run(serving) })
	run := &demoRun{Client: api.client, topology: shop.Topology(), db: db, broker: broker, to: to}
	group.Go(func() error {
		defer stop()
		showing, cancel := context.WithTimeout(serving, demoLimit)
		defer cancel()
		if err := run.run(showing); err != nil {
			return err
		}
		if err := run.report(d.outputFlag); err != nil {
			return err
		}
		if d.Keep {
			fmt.Fprintf(to.Err, "The page is at %s/ and its token is %s\nIt is there until you interrupt this.\n", api.address, api.token)
			<-serving.Done()
		}
		return nil
	})
	if err := group.Wait(); err != nil {
		return err
	}
	if !run.result.OK {
		return errors.New("the demonstration does not add up")
	}
	return nil
}

// localServer is a server on this machine that an operator may use.
type localServer struct {
	server
	client         *web.Client
	address, token string
}

// serveLocally makes a server of the API and the page on a port of its own, with a token of its own.
func serveLocally(orders kept, logger *slog.Logger) (localServer, error) {
	token, line, err := web.NewToken("demo", web.Operator)
	if err != nil {
		return localServer{}, err
	}
	cfg := apiConfig(orders, logger)
	if cfg.Tokens, err = web.ReadTokens(strings.NewReader(line)); err != nil {
		return localServer{}, err
	}
	handler, err := web.New(cfg)
	if err != nil {
		return localServer{}, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return localServer{}, err
	}
	address := "http://" + l.Addr().String()
	client, err := web.NewClient(address, token, nil)
	return localServer{server{l, handler, time.Second, logger}, client, address, token}, err
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
