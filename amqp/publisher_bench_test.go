package amqp_test

import (
	"context"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/amqp/amqptest"
)

// BenchmarkPublish compares confirmed publishing with bare amqp091, pipelined in the same window: ratio is
// the publisher's rate over the bare one. Both write to the same queue in turn.
func BenchmarkPublish(b *testing.B) {
	const n, window = 20_000, 2048
	conn := amqptest.Conn(b)
	queue := amqptest.Namespace()
	ch, err := conn.Channel(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	if _, err := ch.QueueDeclare(queue, true, false, false, false, amqp091.Table{"x-queue-type": "quorum"}); err != nil {
		b.Fatal(err)
	}
	defer func() { _, _ = ch.QueueDelete(queue, false, false, false) }()
	bare, err := amqptest.Conn(b).Channel(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	if err := bare.Confirm(false); err != nil {
		b.Fatal(err)
	}
	confirms := bare.NotifyPublish(make(chan amqp091.Confirmation, window))
	body := make([]byte, 200)
	raw := func() {
		sent := 0
		for confirmed := 0; confirmed < n; {
			if sent < n && sent-confirmed < window {
				err := bare.PublishWithContext(b.Context(), "", queue, true, false, amqp091.Publishing{
					ContentType: "application/json", DeliveryMode: amqp091.Persistent, MessageId: queue, Timestamp: time.Now(), Body: body})
				if err != nil {
					b.Fatal(err)
				}
				sent++
			} else {
				<-confirms
				confirmed++
			}
			for len(confirms) > 0 {
				<-confirms
				confirmed++
			}
		}
	}
	p := amqp.NewPublisher(amqptest.Conn(b), amqp.PublisherConfig{Window: window})
	defer p.Close()
	messages := make([]amqp.Publishing, n)
	for i := range messages {
		messages[i].Message = amqp.Message{ID: queue, Kind: queue, Body: body}
	}
	ours := func() {
		for _, err := range p.Publish(context.Background(), messages...) {
			if err != nil {
				b.Fatal(err)
			}
		}
	}
	took := map[string]time.Duration{}
	for b.Loop() {
		for name, publish := range map[string]func(){"raw": raw, "ours": ours} {
			started := time.Now()
			publish()
			took[name] += time.Since(started)
			if _, err := ch.QueuePurge(queue, false); err != nil {
				b.Fatal(err)
			}
		}
	}
	rate := func(name string) float64 { return float64(n*b.N) / took[name].Seconds() }
	b.ReportMetric(rate("raw"), "raw/s")
	b.ReportMetric(rate("ours"), "publisher/s")
	b.ReportMetric(rate("ours")/rate("raw"), "ratio")
	for name, publish := range map[string]func(){"raw": raw, "ours": ours} {
		b.ReportMetric(testing.AllocsPerRun(1, publish)/n, name+"-allocs/msg")
	}
}
