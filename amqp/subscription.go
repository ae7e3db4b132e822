package amqp

import (
	"context"
	"fmt"
	"strings"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

// subscription is a worker's hold on one channel.
type subscription struct {
	*worker
	channel   *amqp091.Channel
	arrived   chan amqp091.Delivery // closed when no more can come
	alive     context.Context       // ends then, too, and on shutdown
	end       context.CancelFunc
	closed    chan *amqp091.Error
	cancelled chan string
	held      []followUp // taken, and waiting for their follow-up to be confirmed
}

func (w *worker) open(ctx context.Context) (*subscription, error) {
	channel, err := w.cfg.Conn.Channel(ctx)
	if err != nil {
		return nil, err
	}
	s := &subscription{
		worker:    w,
		channel:   channel,
		arrived:   make(chan amqp091.Delivery, w.cfg.Prefetch),
		closed:    channel.NotifyClose(make(chan *amqp091.Error, 1)),
		cancelled: channel.NotifyCancel(make(chan string, 1)),
	}
	s.alive, s.end = context.WithCancel(ctx)
	deliveries, err := s.subscribe(ctx)
	if err != nil {
		s.close()
		return nil, err
	}
	go s.pump(deliveries)
	w.current.Store(s)
	return s, nil
}

// subscribe asks for messages, and does not wait for long: the queue may be out of reach, or the socket
// dead.
func (s *subscription) subscribe(ctx context.Context) (<-chan amqp091.Delivery, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	queue := s.cfg.queue()
	var deliveries <-chan amqp091.Delivery
	err := answered(ctx, func() error {
		err := s.channel.Qos(s.cfg.Prefetch, 0, false)
		if err == nil {
			deliveries, err = s.channel.Consume(queue, "", false, false, false, false, nil)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("consume %s: %w", queue, err)
	}
	return deliveries, nil
}

// pump moves deliveries into a channel with room for all that the broker may send at a time. The
// library's own is unbuffered, so it would look empty between any two messages and make batches of one.
func (s *subscription) pump(deliveries <-chan amqp091.Delivery) {
	for delivery := range deliveries {
		s.arrived <- delivery
	}
	s.end()
	close(s.arrived)
}

// cause is why no more deliveries can come.
func (s *subscription) cause() error {
	select {
	case _, cancelled := <-s.cancelled:
		if cancelled {
			return errCancelled
		}
	default:
	}
	select {
	case err := <-s.closed:
		if err != nil {
			return fmt.Errorf("%w: %w", errLost, err)
		}
	default:
	}
	return errLost
}

// close gives back, by closing the channel, whatever was not acknowledged. A dead socket does not
// hold it up.
func (s *subscription) close() {
	s.end()
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		_ = s.channel.Close() // it may be gone already, which is as good
	}()
	select {
	case <-closed:
	case <-time.After(2 * time.Second):
	}
}

// take is the batch that begins with first: what has arrived, never waiting for more.
func (s *subscription) take(first amqp091.Delivery) []amqp091.Delivery {
	batch := []amqp091.Delivery{first}
	bytes := len(first.Body)
	for len(batch) < s.cfg.Batch && bytes < s.cfg.BatchBytes {
		select {
		case delivery, ok := <-s.arrived:
			if !ok {
				return batch
			}
			batch = append(batch, delivery)
			bytes += len(delivery.Body)
		default:
			return batch
		}
	}
	return batch
}

// age is how long ago the oldest of a batch became due, as far as that is known of any. The clocks are
// several, so it is never less than zero.
func (s *subscription) age(batch []amqp091.Delivery) (age time.Duration, known bool) {
	for _, delivery := range batch {
		if since := s.dueSince(delivery); !since.IsZero() {
			age, known = max(age, time.Since(since)), true
		}
	}
	return age, known
}

// dueSince is when the rung that a message comes from let it go, by the broker's clock and in whole
// seconds; of one that comes from none, when it was made; zero when neither is known. An x-death that
// names no rung of this topology is not believed: brokers before 4.0 take over what a client writes.
func (s *subscription) dueSince(delivery amqp091.Delivery) time.Time {
	if deaths, _ := delivery.Headers["x-death"].([]any); len(deaths) > 0 {
		last, _ := deaths[0].(amqp091.Table)
		queue, _ := last["queue"].(string)
		at, _ := last["time"].(time.Time)
		if strings.HasPrefix(queue, s.cfg.Topology.name("delay.")) && !at.IsZero() {
			return at
		}
	}
	return delivery.Timestamp
}
