package amqp

import (
	"context"
	"errors"
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
	said    string // the last complaint
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
		// Nothing is taken while it cannot be handled.
		if !w.outage.await(ctx, pause, w.cfg.Probe) {
			return nil
		}
		w.outage.end()
		began := time.Now()
		err := w.consume(ctx, finish)
		if time.Since(began) > time.Minute {
			pause.Reset()
		}
		switch {
		case ctx.Err() != nil:
		case errors.Is(err, errHandBack):
			err = nil
		case errors.Is(err, errIdle):
			w.repaired("idle")
			err = w.declare(ctx)
		case errors.Is(err, errCancelled) || isNotFound(err):
			w.repaired("cancelled")
			w.cfg.Logger.Warn("the queue is gone, or its consumer; declaring it and consuming again", "error", err)
			// At once is too soon: a quorum queue that is declared right after it was deleted can leave
			// another replica's consumer registered with the old one, and unserved for ever.
			err = nil
			if sleep(ctx, max(time.Second+rand.N(time.Second), pause.NextBackOff())) {
				err = w.declare(ctx)
			}
		default:
			w.repaired("channel")
			w.complain(err)
			sleep(ctx, pause.NextBackOff())
			err = nil
		}
		if isMismatch(err) {
			return err
		}
		w.complain(err)
	}
	return nil
}

// complain logs what keeps the worker from consuming, once. That the connection or channel was lost the
// connection logs itself.
func (w *worker) complain(err error) {
	var refusal *amqp091.Error
	if err == nil || !errors.As(err, &refusal) || !refusal.Server || err.Error() == w.said {
		return
	}
	w.said = err.Error()
	w.cfg.Logger.Warn("a consumer has trouble, and goes on trying", "error", err)
}

func isMismatch(err error) bool {
	var mismatch *MismatchError
	return errors.As(err, &mismatch)
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
			if err := s.settle(finish, s.take(delivery)); err != nil {
				return err
			}
			idle.Reset(w.cfg.Idle)
		case <-again:
			if err := s.followUp(finish); err != nil {
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

// consuming is whether the worker has a channel on which messages can come.
func (w *worker) consuming() bool {
	s := w.current.Load()
	return s != nil && s.alive.Err() == nil
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
