package checkout_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lapse-go/lapse/amqp/amqptest"
	"github.com/lapse-go/lapse/order"
	"github.com/lapse-go/lapse/order/checkout"
	"github.com/lapse-go/lapse/order/orderdb"
)

// foreignStore is a store that a shop has written itself, for all that the closer knows.
type foreignStore struct {
	order.Store
	check  func() error
	checks atomic.Int64
}

func (f *foreignStore) Check(context.Context) error {
	f.checks.Add(1)
	return f.check()
}

// The closer of a store that the shop has written itself waits for its database, and then closes orders, by timers
// and by the sweep, without any table of Lapse's.
func TestAStoreOfTheShopsOwn(t *testing.T) {
	s := newShop(t, place{}, checkout.Config{Logger: quiet(t)})
	s.startHere(s.url, checkout.Relay).awaitReady()
	var away atomic.Bool
	away.Store(true)
	store := &foreignStore{Store: s.Repository, check: func() error {
		if away.Load() {
			return fmt.Errorf("connection refused: %w", order.ErrUnavailable)
		}
		return nil
	}}
	closer, err := checkout.NewCloser(nil, store, checkout.Config{
		Namespace: s.cfg.Namespace, SweepEvery: 100 * time.Millisecond, SweepGrace: time.Second, Logger: quiet(t),
	})
	if err != nil {
		t.Fatal(err)
	}
	r := serve(t, &checkout.Checkout{Closer: closer}, nil, s.url)
	s.orders("o", 100, 250*time.Millisecond)
	await(t, 10*time.Second, "the store was asked twice", func() bool { return store.checks.Load() >= 2 })
	if r.Ready() == nil {
		t.Error("ready without a store")
	}
	if n := s.sql("SELECT COUNT(*) FROM lapse_orders WHERE status = 'pending'"); n != 100 {
		t.Errorf("%d orders are pending", n)
	}
	away.Store(false)
	if v := s.judge(20 * time.Second); v.Expired != 100 {
		t.Errorf("%d orders expired", v.Expired)
	}
	r.awaitReady()
	if err := r.Check(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestAStoreThatCannotWork(t *testing.T) {
	misfit := errors.New("there is no column status")
	store := &foreignStore{
		Store: orderdb.New(amqptest.Database(t), orderdb.Config{}),
		check: func() error { return misfit },
	}
	closer, err := checkout.NewCloser(nil, store, checkout.Config{Namespace: amqptest.Namespace(), Logger: quiet(t)})
	if err != nil {
		t.Fatal(err)
	}
	r := &checkout.Checkout{Closer: closer}
	amqptest.Declare(t, amqptest.Conn(t), closer.Topology())
	if err := serveUntil(t, r, amqptest.URL(t), 10*time.Second); !errors.Is(err, misfit) {
		t.Errorf("Serve ended with %v", err)
	}
}
