package amqp_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os/signal"
	"syscall"
	"time"

	"github.com/lapse-go/lapse/amqp"
)

// A shop reminds customers to pick up what they ordered, a day after it was ready: messages of a kind of its
// own, delayed, handled in batches, tried again when they fail.
func Example() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	const kind = "order.pickup_reminder"
	topology := amqp.Topology{Namespace: "shop", Kinds: []string{kind}}

	open := func(use string) *amqp.Conn {
		conn, err := amqp.Open(context.WithoutCancel(ctx), amqp.Config{
			URIs: []string{"amqp://guest:guest@127.0.0.1:5672/"}, Name: "shop/" + use,
		})
		if err != nil {
			log.Fatal(err)
		}
		return conn
	}
	// Two connections: a broker that is short of memory stops reading from those that publish.
	publishing, consuming := open("publish"), open("consume")
	defer publishing.Close()
	defer consuming.Close()
	if err := topology.Declare(ctx, consuming); err != nil {
		log.Fatal(err)
	}
	publisher := amqp.NewPublisher(publishing, amqp.PublisherConfig{})
	defer publisher.Close()

	for _, err := range publisher.Publish(ctx, amqp.Publishing{
		Message:  amqp.Message{Kind: kind, Body: []byte(`{"order_id": "A-1"}`)},
		Exchange: topology.Delay(24 * time.Hour),
	}) {
		if err != nil {
			log.Print(err) // it has to be published again
		}
	}

	consumer, err := amqp.NewConsumer(amqp.ConsumerConfig{
		Conn: consuming, Publisher: publisher, Topology: topology, Kind: kind,
		Handler: amqp.HandlerFunc(func(_ context.Context, batch []amqp.Message) ([]amqp.Outcome, error) {
			outcomes := make([]amqp.Outcome, len(batch))
			for i, m := range batch {
				if len(m.Body) == 0 {
					outcomes[i] = amqp.Dead(errors.New("no order to remind of"))
					continue
				}
				fmt.Printf("attempt %d to remind of %s\n", m.Attempt(), m.Body)
				outcomes[i] = amqp.Done()
			}
			return outcomes, nil
		}),
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := consumer.Run(ctx); err != nil {
		log.Fatal(err)
	}
}
