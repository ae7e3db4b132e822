package amqp

import (
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

func TestDueSince(t *testing.T) {
	topology := Topology{Namespace: "shop"}
	s := &subscription{worker: &worker{cfg: ConsumerConfig{Topology: topology}}}
	made, due := time.Unix(1_900_000_000, 0), time.Unix(1_900_001_800, 0)
	death := func(queue string) []any {
		return []any{amqp091.Table{"queue": queue, "reason": "expired", "time": due}, amqp091.Table{"queue": "older", "time": made}}
	}
	for _, test := range []struct {
		name     string
		delivery amqp091.Delivery
		want     time.Time
	}{
		{"from a rung", amqp091.Delivery{Timestamp: made, Headers: amqp091.Table{"x-death": death("shop.delay.30m")}}, due},
		{"from a rung, of unknown age", amqp091.Delivery{Headers: amqp091.Table{"x-death": death("shop.delay.30m")}}, due},
		{"straight to the due exchange", amqp091.Delivery{Timestamp: made}, made},
		{"with an x-death of elsewhere", amqp091.Delivery{Timestamp: made, Headers: amqp091.Table{"x-death": death("other.queue")}}, made},
		{"with an x-death of nonsense", amqp091.Delivery{Timestamp: made, Headers: amqp091.Table{"x-death": []any{"nonsense"}}}, made},
		{"without a time", amqp091.Delivery{Headers: amqp091.Table{"x-death": "nonsense"}}, time.Time{}},
	} {
		if got := s.dueSince(test.delivery); !got.Equal(test.want) {
			t.Errorf("%s: since %s, want %s", test.name, got, test.want)
		}
	}
}
