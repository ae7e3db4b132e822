package outbox

import (
	"fmt"
	"testing"
	"time"

	"github.com/lapse-go/lapse/amqp"
)

// How fast one relay empties an outbox, half of it timers.
func BenchmarkRelay(b *testing.B) {
	w := newWorld(b)
	fill := func(n int) {
		var messages []Message
		for i := range n {
			if i%2 == 0 {
				messages = append(messages, w.event(fmt.Sprintf(`{"order_id":"order-%08d","state":"placed","total":1999}`, i)))
			} else {
				messages = append(messages, Message{
					Message:  amqp.Message{Kind: "timer", Body: fmt.Appendf(nil, `{"order_id":"order-%08d"}`, i)},
					Deadline: time.Now().Add(time.Minute), Window: time.Minute,
				})
			}
		}
		w.add(messages...)
	}
	pub := w.publisher(w.conn)
	const rows = 20_000
	for b.Loop() {
		b.StopTimer()
		fill(rows)
		b.StartTimer()
		stop := run(b, w.relay(pub))
		eventually(b, "the outbox is empty", func() bool { return w.rows() == 0 })
		b.StopTimer()
		stop()
		b.StartTimer()
	}
	b.ReportMetric(float64(rows*b.N)/b.Elapsed().Seconds(), "rows/s")
}

// How fast transactions of one message each are written.
func BenchmarkAdd(b *testing.B) {
	w := newWorld(b)
	for _, n := range []int{1, 100} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			messages := make([]Message, n)
			for b.Loop() {
				for i := range messages {
					messages[i] = w.event(`{"order_id":"order-1"}`)
				}
				w.add(messages...)
			}
			b.ReportMetric(float64(n*b.N)/b.Elapsed().Seconds(), "rows/s")
		})
	}
}
