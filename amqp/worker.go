package amqp

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v4"
	amqp091 "github.com/rabbitmq/amqp091-go"
)

// Why a worker stopped consuming on a channel.
var (
	errCancelled = errors.New("the broker cancelled the consumer")
	errLost      = errors.New("the channel was lost")
	errIdle      = errors.New("nothing came for long")
	errHandBack  = errors.New("messages were handed back")
)

// worker consumes on one channel after another. All that it holds belongs to the present channel,
// since a delivery can only be acknowledged there.
type worker struct {
	cfg     ConsumerConfig
	outage  *outage
	current atomic.Pointer[subscription]
}

// run consumes on one channel after another until ctx ends or the topology turns out to be irreparable.
func (w *worker) run(ctx context.Context) error {
	// What has been taken is still finished after ctx has ended, within a limit.
	finish, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() {
		select {
		case <-time.After(w.cfg.Shutdown):
			cancel()
		case <-finish.Done():
		}
	})()

	pause := w.pauses()
	for ctx.Err() == nil {
		began := time.Now()
		err := w.consume(ctx, finish)
		if time.Since(began) > time.Minute {
			pause.Reset()
		}
		switch {
		case ctx.Err() != nil:
		case errors.Is(err, errHandBack):
			w.awaitProbe(ctx, pause)
		case errors.Is(err, errIdle):
			w.repaired("idle")
			err = w.declare(ctx)
		case errors.Is(err, errCancelled) || isNotFound(err):
			w.repaired("cancelled")
			w.cfg.Logger.Warn("the queue is gone, or its consumer; declaring it and consuming again", "error", err)
			// At once is too soon: a quorum queue that is declared right after it was deleted can leave
			// another replica's consumer registered with the old one, and unserved for ever.
			if sleep(ctx, max(time.Second+rand.N(time.Second), pause.NextBackOff())) {
				err = w.declare(ctx)
			}
		default:
			w.repaired("channel")
			w.cfg.Logger.Debug("consuming again", "error", err)
			sleep(ctx, pause.NextBackOff())
		}
		if mismatch := (*MismatchError)(nil); errors.As(err, &mismatch) {
			return err
		}
	}
	return nil
}

func (w *worker) repaired(cause string) {
	w.cfg.Metrics.Repairs.WithLabelValues(w.cfg.Kind, cause).Inc()
}

// declare makes sure that nothing of the topology is missing. It is bounded, because part of it may
// be out of reach for long without the worker's queue being so.
func (w *worker) declare(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return w.cfg.Topology.Declare(ctx, w.cfg.Conn)
}

func isNotFound(err error) bool {
	var e *amqp091.Error
	return errors.As(err, &e) && e.Code == amqp091.NotFound
}

// consume works on one channel until it is lost, or no longer to be trusted, or ctx ends.
func (w *worker) consume(ctx, finish context.Context) error {
	s, err := w.open(ctx)
	if err != nil {
		return err
	}
	defer s.close()
	defer w.current.Store(nil)

	idle := time.NewTimer(w.cfg.Idle)
	defer idle.Stop()
	tick := time.NewTicker(followUpEvery)
	defer tick.Stop()
	for ctx.Err() == nil {
		var again <-chan time.Time
		if len(s.held) > 0 {
			again = tick.C
		}
		select {
		case <-ctx.Done():
		case delivery, ok := <-s.arrived:
			if !ok {
				return s.cause()
			}
			if err := s.settle(ctx, finish, s.take(delivery)); err != nil {
				return err
			}
			idle.Reset(w.cfg.Idle)
		case <-again:
			followed, err := s.followUp(finish)
			if err == nil {
				err = s.ack(followed)
			}
			if err != nil {
				return err
			}
			idle.Reset(w.cfg.Idle)
		case <-idle.C:
			return errIdle
		}
	}
	s.drain(finish)
	return ctx.Err()
}

// subscription is a worker's hold on one channel.
type subscription struct {
	*worker
	channel   *amqp091.Channel
	arrived   chan amqp091.Delivery // closed, like ended, when no more can come
	ended     chan struct{}
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
		ended:     make(chan struct{}),
		closed:    channel.NotifyClose(make(chan *amqp091.Error, 1)),
		cancelled: channel.NotifyCancel(make(chan string, 1)),
	}
	if err := channel.Qos(w.cfg.Prefetch, 0, false); err != nil {
		s.close()
		return nil, fmt.Errorf("set the prefetch: %w", err)
	}
	queue := w.cfg.Topology.DueQueue(w.cfg.Kind)
	deliveries, err := channel.Consume(queue, "", false, false, false, false, nil)
	if err != nil {
		s.close()
		return nil, fmt.Errorf("consume %s: %w", queue, err)
	}
	go s.pump(deliveries)
	w.current.Store(s)
	return s, nil
}

// pump moves deliveries into a channel with room for all that the broker may send at a time. The
// library's own is unbuffered, so it would look empty between any two messages and make batches of one.
func (s *subscription) pump(deliveries <-chan amqp091.Delivery) {
	for delivery := range deliveries {
		s.arrived <- delivery
	}
	close(s.ended)
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

// consuming is whether the worker has a channel on which messages can come.
func (w *worker) consuming() bool {
	s := w.current.Load()
	if s == nil {
		return false
	}
	select {
	case <-s.ended:
		return false
	default:
		return true
	}
}

// close gives back, by closing the channel, whatever was not acknowledged. A dead socket does not
// hold it up.
func (s *subscription) close() {
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

// awaitProbe waits, holding no message, until the handler's server can work again.
func (w *worker) awaitProbe(ctx context.Context, pause backoff.BackOff) {
	for sleep(ctx, w.probePause(pause)) {
		if w.cfg.Probe == nil {
			return
		}
		err := w.probe(ctx)
		if err == nil {
			w.outage.end()
			return
		}
		w.outage.begin(err)
	}
}

func (w *worker) probe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	return w.cfg.Probe(ctx)
}

// probePause is short while work is only paused, so that it goes on within a second.
func (w *worker) probePause(pause backoff.BackOff) time.Duration {
	if errors.Is(w.outage.current(), ErrPaused) {
		return 500 * time.Millisecond
	}
	return pause.NextBackOff()
}

func (w *worker) pauses() backoff.BackOff {
	return backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(250*time.Millisecond),
		backoff.WithMultiplier(2),
		backoff.WithMaxInterval(5*time.Second),
		backoff.WithMaxElapsedTime(0),
	)
}

// sleep is false when ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
