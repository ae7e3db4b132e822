package amqp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

const (
	// followUpEvery is how often it is looked for follow-ups to be tried again.
	followUpEvery = time.Second
	// followUpWait bounds one try. Whatever is not confirmed by then waits for a second, then for two, and
	// so on up to followUpPause, so that a queue that does not answer holds up others no more than now and
	// then.
	followUpWait  = 5 * time.Second
	followUpPause = 32 * time.Second
)

// followUp is a message whose outcome is another message: a hop, a retry or a dead letter. It is
// acknowledged once that one is confirmed.
type followUp struct {
	tag     uint64
	publish Publishing
	verb    verb
	since   time.Time
	again   time.Time     // when to try again,
	pause   time.Duration // and how long after that
	invalid error         // it cannot be published, so that the broker has to bury the delivery as it came
}

// settle has a batch handled and acts on the outcomes. An error ends the subscription, and the broker
// delivers again what was not acknowledged.
func (s *subscription) settle(finish context.Context, batch []amqp091.Delivery) error {
	busy := s.cfg.Metrics.WorkersBusy.WithLabelValues(s.cfg.Kind)
	busy.Inc()
	defer busy.Dec()
	// What is in another queue than the due queue was never due.
	if age, known := s.age(batch); known && s.cfg.Queue == "" {
		s.cfg.Metrics.DueAge.WithLabelValues(s.cfg.Kind).Set(age.Seconds())
	}
	messages := make([]Message, len(batch))
	for i, delivery := range batch {
		messages[i] = received(delivery)
		if s.cfg.Queue == "" {
			// Whoever published straight to the queue had its name for a key, under which nothing comes back.
			messages[i].Kind = s.cfg.Kind
		}
	}
	s.cfg.Metrics.BatchSize.WithLabelValues(s.cfg.Kind).Observe(float64(len(batch)))

	outcomes, err := s.handleThroughOutages(finish, messages)
	if err != nil {
		s.cfg.Metrics.Returned.WithLabelValues(s.cfg.Kind).Add(float64(len(batch)))
		return err
	}
	var done []uint64
	now := time.Now()
	for i, outcome := range outcomes {
		if outcome.verb == verbDone {
			done = append(done, batch[i].DeliveryTag)
			s.count(verbDone)
			continue
		}
		publish, verb := s.next(messages[i], outcome, now)
		s.held = append(s.held, followUp{tag: batch[i].DeliveryTag, publish: publish, verb: verb, since: now})
	}
	if len(s.held) == 0 {
		// All that was ever taken on this channel is settled: one frame says so.
		return s.acked(s.channel.Ack(batch[len(batch)-1].DeliveryTag, true))
	}
	for _, tag := range done {
		if err := s.acked(s.channel.Ack(tag, false)); err != nil {
			return err
		}
	}
	return s.followUp(finish)
}

// acked makes a failed acknowledgement the end of the subscription.
func (s *subscription) acked(err error) error {
	if err != nil {
		return fmt.Errorf("%w: %w", errLost, err)
	}
	return nil
}

// handleThroughOutages handles a batch, again and again while the handler's server is away, for as long
// as the broker lets it be held.
func (s *subscription) handleThroughOutages(finish context.Context, messages []Message) ([]Outcome, error) {
	finish, cancel := context.WithTimeout(finish, s.cfg.Hold)
	defer cancel()
	holding, cancel := context.WithTimeout(s.alive, s.cfg.Hold)
	defer cancel()
	pause := s.pauses()
	for {
		outcomes, err := s.handle(finish, messages)
		if err == nil {
			s.outage.end()
			return outcomes, nil
		}
		if finish.Err() != nil {
			return nil, fmt.Errorf("%w: %w", errHandBack, finish.Err())
		}
		s.outage.begin(err)
		// Without a probe, handing back at once would only be to take again at once.
		paused := errors.Is(err, ErrPaused) && s.cfg.Probe != nil
		if paused || !s.outage.await(holding, pause, s.cfg.Probe) {
			return nil, fmt.Errorf("%w: %w", errHandBack, err)
		}
	}
}

// handle has a batch handled, splitting it where the handler panics until the message that makes it
// panic is alone.
func (s *subscription) handle(ctx context.Context, messages []Message) ([]Outcome, error) {
	outcomes, panicked, err := s.call(ctx, messages)
	if panicked == nil {
		return outcomes, err
	}
	if len(messages) == 1 {
		s.cfg.Metrics.Panics.WithLabelValues(s.cfg.Kind).Inc()
		s.cfg.Logger.Error("the handler panicked", "message_id", messages[0].ID, "error", panicked, "stack", panicked.stack)
		return []Outcome{Retry(panicked)}, nil
	}
	half := len(messages) / 2
	left, err := s.handle(ctx, messages[:half])
	if err != nil {
		return nil, err
	}
	right, err := s.handle(ctx, messages[half:])
	if err != nil {
		return nil, err
	}
	return append(left, right...), nil
}

func (s *subscription) call(ctx context.Context, messages []Message) (outcomes []Outcome, panicked *panicError, err error) {
	defer func() {
		if r := recover(); r != nil {
			panicked = &panicError{r, string(debug.Stack())}
		}
	}()
	outcomes, err = s.cfg.Handler.Handle(ctx, messages)
	if err == nil && len(outcomes) != len(messages) {
		panic(fmt.Sprintf("%d outcomes for %d messages", len(outcomes), len(messages)))
	}
	return outcomes, nil, err
}

type panicError struct {
	value any
	stack string
}

func (e *panicError) Error() string { return fmt.Sprintf("the handler panicked: %v", e.value) }

// next is the message that an outcome asks for.
func (s *subscription) next(m Message, outcome Outcome, now time.Time) (Publishing, verb) {
	topology := s.cfg.Topology
	err := outcome.err
	if err == nil {
		err = errors.New("the handler gave no reason")
	}
	verb := outcome.verb
	if s.cfg.Queue != "" {
		verb = verbParked // a rung leads to the due queue, which is not where it came from
	}
	switch verb {
	case verbParked:
		return m.parked(s.cfg.queue(), err, topology), verbParked
	case verbDeferred:
		step := topology.Ladder.Step(0, outcome.after)
		return Publishing{Message: m.again(), Exchange: topology.Delay(step.Rung), Expiration: step.Expiration}, verbDeferred
	case verbDead:
		return Publishing{Message: m.buried(ReasonHopeless, err, now), Exchange: topology.Dead()}, verbDead
	}
	delay, ok := s.cfg.Retry.Delay(m.Attempt())
	if !ok {
		return Publishing{Message: m.buried(ReasonOutOfTries, err, now), Exchange: topology.Dead()}, verbDead
	}
	rung := topology.Ladder.Backoff(delay)
	return Publishing{Message: m.retried(err, now), Exchange: topology.Delay(rung)}, verbRetried
}

// followUp publishes what is held, acknowledges what was confirmed, and goes on holding the rest. While
// nothing can be published it does nothing; when it has held anything for too long it gives up.
func (s *subscription) followUp(ctx context.Context) error {
	if err := s.rejectInvalid(); err != nil || len(s.held) == 0 {
		return err
	}
	if time.Since(s.held[0].since) > s.cfg.Hold {
		return fmt.Errorf("%w: the broker took no follow-up for %s", errHandBack, s.cfg.Hold)
	}
	if s.cfg.Publisher.Ready() != nil {
		return nil
	}
	now := time.Now()
	var kept, due []followUp
	var publishings []Publishing
	for _, f := range s.held {
		if f.again.After(now) {
			kept = append(kept, f)
			continue
		}
		due, publishings = append(due, f), append(publishings, f.publish)
	}
	s.held = kept
	wait, cancel := context.WithTimeout(ctx, followUpWait)
	defer cancel()
	var lost, unroutable error
	for i, err := range s.cfg.Publisher.Publish(wait, publishings...) {
		f := due[i]
		if err == nil {
			s.count(f.verb)
			if reason, _ := f.publish.Headers[HeaderReason].(string); f.verb == verbDead {
				s.countDead(reason)
			}
			lost = cmp.Or(lost, s.acked(s.channel.Ack(f.tag, false)))
			continue
		}
		if errors.Is(err, ErrUnroutable) {
			unroutable = err
		}
		switch {
		case !errors.Is(err, ErrInvalid):
		case f.verb == verbParked:
			// Nothing takes a message that is rejected from there, so it would be lost. If it cannot be published as it
			// came either, it stays where it is.
			s.cfg.Logger.Error("a message cannot be parked with the reason added", "message_id", f.publish.ID, "reason", f.publish.Headers[HeaderParked], "error", err)
			f.publish = f.publish.unexplained()
		default:
			f.invalid = err
		}
		f.pause = min(max(2*f.pause, time.Second), followUpPause)
		f.again = time.Now().Add(f.pause)
		s.held = append(s.held, f)
	}
	slices.SortFunc(s.held, func(a, b followUp) int { return a.since.Compare(b.since) })
	if lost == nil && unroutable != nil {
		// A rung or the dead-letter queue is gone: what is held waits until it is there again.
		s.cfg.Logger.Warn("part of the topology is gone; declaring it again", "error", unroutable)
		if err := s.declare(ctx); isMismatch(err) {
			return err
		}
	}
	return lost
}

// drain tries to see through what is held before the channel is closed on shutdown.
func (s *subscription) drain(ctx context.Context) {
	for len(s.held) > 0 {
		if s.followUp(ctx) != nil || len(s.held) > 0 && !sleep(ctx, followUpEvery) {
			return
		}
	}
}

// rejectInvalid has the broker bury what cannot be published again, for instance because its headers
// would no longer fit into a frame with the reason added: rejected from the due queue, a delivery goes to
// the dead letters as it came.
func (s *subscription) rejectInvalid() error {
	kept := s.held[:0]
	for _, f := range s.held {
		if f.invalid == nil {
			kept = append(kept, f)
			continue
		}
		s.cfg.Logger.Error("a message is buried as it came", "message_id", f.publish.ID, "outcome", f.verb, "error", f.invalid)
		s.count(verbDead)
		s.countDead(reasonRejected)
		if err := s.acked(s.channel.Reject(f.tag, false)); err != nil {
			return err
		}
	}
	s.held = kept
	return nil
}

func (s *subscription) count(v verb) {
	s.cfg.Metrics.Handled.WithLabelValues(s.cfg.Kind, string(v)).Inc()
}

func (s *subscription) countDead(reason string) {
	s.cfg.Metrics.DeadLetters.WithLabelValues(s.cfg.Kind, reason).Inc()
}
