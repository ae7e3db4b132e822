package checkout_test

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/amqp/amqptest"
	"github.com/lapse-go/lapse/order"
	"github.com/lapse-go/lapse/order/checkout"
	"github.com/lapse-go/lapse/order/orderamqp"
)

// Far more customers than pieces want one article at once, by message and some of them twice. Those who get it are
// as many as there are pieces, everybody else is refused once, and nobody hears of a lock.
func TestFlashSale(t *testing.T) {
	const pieces, connections = 500, 4
	customers := orders(20_000)
	var log lines
	s := openShop(t, place{}, checkout.Config{
		SweepEvery: noSweep, Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if _, err := s.SetStock(t.Context(), "console", pieces); err != nil {
		t.Fatal(err)
	}
	refusals := s.bindRefusals()
	replicas := []*replica{s.start(s.url, checkout.Place, checkout.Relay), s.start(s.url, checkout.Place, checkout.Relay)}
	for _, r := range replicas {
		r.awaitReady()
	}

	messages := make([]amqp.Publishing, customers)
	for i := range messages {
		d := order.Draft{
			ID: fmt.Sprintf("o%05d", i), Customer: "customer", Window: time.Hour,
			Lines: []order.Line{{SKU: "console", Quantity: 1, Price: order.Money{Amount: 49900, Currency: "EUR"}}},
		}
		m, err := orderamqp.EncodePlace(d)
		if err != nil {
			t.Fatal(err)
		}
		m.ID = "request-" + d.ID
		messages[i] = amqp.Publishing{Message: m, Exchange: s.Topology().Due()}
	}
	begin := time.Now()
	var all sync.WaitGroup
	for mine := range slices.Chunk(messages, (customers+connections-1)/connections) {
		all.Go(func() {
			publisher := amqp.NewPublisher(amqptest.Dial(t, s.url), amqp.PublisherConfig{})
			defer publisher.Close()
			for batch := range slices.Chunk(mine, 500) {
				// Some come a second time, at once or at any other moment.
				again := slices.Clone(batch[:50])
				for range 50 {
					again = append(again, mine[rand.N(len(mine))])
				}
				for _, err := range publisher.Publish(t.Context(), append(again, batch...)...) {
					if err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	all.Wait()
	published := time.Since(begin)

	sent := float64(customers + customers/500*100)
	await(t, time.Minute, "everything is decided", func() bool { return total(replicas, "lapse_placements_total") >= sent })
	decided := time.Since(begin)
	t.Logf("%d orders in %.0f messages: published in %s, %.0f a second; decided in %s, %.0f messages a second",
		customers, sent, published.Round(time.Millisecond), sent/published.Seconds(), decided.Round(time.Millisecond), sent/decided.Seconds())

	await(t, 30*time.Second, "everybody was told", func() bool { return s.sql("SELECT COUNT(*) FROM lapse_outbox WHERE due_at IS NULL") == 0 })
	placed := s.sql("SELECT COUNT(*) FROM lapse_orders")
	times, last := s.refusals(refusals)
	if placed != pieces || len(times) != customers-pieces {
		t.Errorf("%d orders were placed and %d refused, of %d for %d pieces", placed, len(times), customers, pieces)
	}
	for id, n := range times {
		if n != 1 || last[id].Reason != orderamqp.ReasonOutOfStock {
			t.Errorf("%s was refused %d times: %+v", id, n, last[id])
		}
	}
	stock, err := s.Stock(t.Context(), "console")
	if want := []order.Stock{{SKU: "console", Available: 0, Reserved: pieces}}; err != nil || !slices.Equal(stock, want) {
		t.Errorf("the stock is %+v, %v", stock, err)
	}
	for _, bad := range []string{"retried", "dead", "deferred"} {
		if n := total(replicas, "lapse_messages_total", "outcome", bad); n != 0 {
			t.Errorf("%v messages were %s", n, bad)
		}
	}
	if text := log.text(); text != "" {
		t.Errorf("somebody heard of it:\n%s", text)
	}
}
