package doctor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync/atomic"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/lapse-go/lapse/amqp"
)

const (
	// trialTTL is how long a message of the trial waits to be dead-lettered, and trialPatience how long it may
	// then take to come.
	trialTTL      = 100 * time.Millisecond
	trialPatience = 5 * time.Second
	// trialTimeout bounds the trial.
	trialTimeout = 8 * time.Second
	// trialExpiry is when the broker removes queues of the trial that this program did not; their exchanges
	// go with them.
	trialExpiry = time.Minute
	// trialKey is that of the message for which a queue is bound.
	trialKey = "trial"
)

// try has messages dead-lettered in a small topology of its own, made as the real one is.
func (b *brokerSide) try(ctx context.Context, conn *amqp.Conn, topology amqp.Topology, base string) {
	t := newTrial(topology, base)
	err := t.run(ctx, conn)
	var failed *trialError
	switch {
	case err != nil && conn.Blocked():
		b.skip(DeadLettering, "the broker accepts no messages")
	case errors.As(err, &failed):
		b.problem(DeadLettering, failed.saw, failed.cure)
	case err != nil:
		b.problem(DeadLettering, fmt.Sprintf("it could not be tried: %v", err), "see to what the broker says, and run this again")
	case t.atLeastOnce:
		b.fine(DeadLettering, "tried: a message that was due came through, one of an unknown kind through the alternate exchange, and one that had nowhere to go was kept (at least once)")
	default:
		b.fine(DeadLettering, "tried: a message that was due came through, and one of an unknown kind through the alternate exchange (classic queues: at most once)")
	}
	if !t.begun.Load() {
		return
	}
	if err := t.remove(ctx, conn); err != nil {
		b.problem(DeadLettering, fmt.Sprintf("what it was tried on could not be removed: %v", err),
			fmt.Sprintf("nothing needs to be done: the broker removes %s.* within a minute or so", base))
	}
	select {
	case <-t.ended:
		b.clock = t.clock
	default:
	}
}

// trialError is what the trial found out.
type trialError struct{ saw, cure string }

func (e *trialError) Error() string { return e.saw }

// trial is a due exchange with its queue, an alternate exchange with one, a rung that dead-letters to the
// former, and one that dead-letters to nowhere.
type trial struct {
	due, unrouted, rung, jam, nowhere string

	patience    time.Duration
	atLeastOnce bool
	plain       amqp091.Table // arguments of queues
	delayed     amqp091.Table // of the rung
	jammed      amqp091.Table // of the rung to nowhere
	begun       atomic.Bool   // something may have been made
	ended       chan struct{} // closed when nothing more is
	clock       offset        // the broker's, if a message came back; not to be read before the end
}

func newTrial(topology amqp.Topology, base string) *trial {
	t := &trial{
		due: base + ".due", unrouted: base + ".unrouted", rung: base + ".rung", jam: base + ".jam", nowhere: base + ".nowhere",
		patience: trialPatience, ended: make(chan struct{}),
	}
	for _, q := range topology.Objects().Queues {
		if q.Arguments[amqp091.QueueMessageTTLArg] != nil {
			t.delayed = q.Arguments
			break
		}
	}
	expiry := trialExpiry.Milliseconds()
	t.delayed["x-expires"] = expiry
	t.delayed["x-dead-letter-exchange"] = t.due
	t.delayed[amqp091.QueueMessageTTLArg] = trialTTL.Milliseconds()
	t.plain = amqp091.Table{amqp091.QueueTypeArg: t.delayed[amqp091.QueueTypeArg], "x-expires": expiry}
	t.atLeastOnce = t.delayed["x-dead-letter-strategy"] == "at-least-once"
	t.jammed = maps.Clone(t.delayed)
	t.jammed["x-dead-letter-exchange"] = t.nowhere
	t.jammed[amqp091.QueueMaxLenArg] = int64(1)
	return t
}

// run waits for the trial until ctx ends; the trial then ends by itself, unless the broker does not answer.
func (t *trial) run(ctx context.Context, conn *amqp.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, trialTimeout)
	defer cancel()
	return conn.Do(ctx, func(ch *amqp091.Channel) error {
		t.begun.Store(true) // before it is seen that ctx has ended, as whoever reads it knows
		defer close(t.ended)
		return t.perform(ctx, ch)
	})
}

func (t *trial) perform(ctx context.Context, ch *amqp091.Channel) error {
	due, unrouted, err := t.declare(ctx, ch)
	if err != nil {
		return err
	}
	published := time.Now()
	for _, key := range []string{trialKey, "unknown"} {
		if stored, err := publish(ctx, ch, t.rung, key); err != nil {
			return err
		} else if !stored {
			return &trialError{"a rung made for the trial takes no messages", "see the broker's log"}
		}
	}
	late := time.After(trialTTL + t.patience)
	for _, wait := range []struct {
		deliveries <-chan amqp091.Delivery
		what       string
	}{{due, "that was due did not come through"}, {unrouted, "of an unknown kind did not come through the alternate exchange"}} {
		select {
		case d, ok := <-wait.deliveries:
			if !ok {
				return errors.New("the channel was lost")
			}
			if !t.clock.known {
				t.clock = clockOf(d, published, time.Now())
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-late:
			return &trialError{
				fmt.Sprintf("tried: a message %s within %s", wait.what, t.patience),
				"see the broker's log for what it says of dead-lettering and of its quorum queues. On RabbitMQ 3.10 a message with a forged x-death header stops all of it until the node is restarted",
			}
		}
	}
	if !t.atLeastOnce {
		return nil
	}
	return t.keeps(ctx, ch)
}

func (t *trial) declare(ctx context.Context, ch *amqp091.Channel) (due, unrouted <-chan amqp091.Delivery, err error) {
	for _, pair := range []struct {
		name, kind, key string
		exchange, queue amqp091.Table
	}{
		{t.unrouted, amqp091.ExchangeFanout, "", nil, t.plain},
		{t.due, amqp091.ExchangeDirect, trialKey, amqp091.Table{"alternate-exchange": t.unrouted}, t.plain},
		{t.rung, amqp091.ExchangeFanout, "", nil, t.delayed},
		{t.jam, amqp091.ExchangeFanout, "", nil, t.jammed},
	} {
		if err := ctx.Err(); err != nil {
			return nil, nil, err
		}
		// The exchange deletes itself when its queue is gone.
		if err := ch.ExchangeDeclare(pair.name, pair.kind, true, true, false, false, pair.exchange); err != nil {
			return nil, nil, err
		}
		if _, err := ch.QueueDeclare(pair.name, true, false, false, false, pair.queue); err != nil {
			return nil, nil, err
		}
		if err := ch.QueueBind(pair.name, pair.key, pair.name, false, nil); err != nil {
			return nil, nil, err
		}
	}
	if due, err = ch.Consume(t.due, "", true, false, false, false, nil); err != nil {
		return nil, nil, err
	}
	if unrouted, err = ch.Consume(t.unrouted, "", true, false, false, false, nil); err != nil {
		return nil, nil, err
	}
	return due, unrouted, ch.Confirm(false)
}

func publish(ctx context.Context, ch *amqp091.Channel, exchange, key string) (stored bool, err error) {
	confirm, err := ch.PublishWithDeferredConfirmWithContext(ctx, exchange, key, false, false, amqp091.Publishing{DeliveryMode: amqp091.Persistent})
	if err != nil {
		return false, err
	}
	return confirm.WaitContext(ctx)
}

// keeps finds out whether what cannot be dead-lettered is kept. Nothing tells that the broker has fallen
// back to at most once but what it does: a queue that may hold one message takes any number of those that it
// drops when they expire, and refuses more while it keeps one.
func (t *trial) keeps(ctx context.Context, ch *amqp091.Channel) error {
	const enough = 10
	for range enough {
		stored, err := publish(ctx, ch, t.jam, trialKey)
		if err != nil {
			return err
		}
		if !stored {
			return nil
		}
		select {
		case <-time.After(2 * trialTTL):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return &trialError{
		"tried: messages are dead-lettered at most once: one that could not be delivered at that moment was dropped",
		"see that the feature flag stream_queue is enabled (rabbitmqctl list_feature_flags, rabbitmqctl enable_feature_flag all): without it the broker falls back, and says so in its log only",
	}
}

// clockOf reads when the broker dead-lettered a message, which it tells in whole seconds, rounded down.
func clockOf(d amqp091.Delivery, published, received time.Time) offset {
	deaths, _ := d.Headers["x-death"].([]any)
	if len(deaths) == 0 {
		return offset{}
	}
	death, _ := deaths[0].(amqp091.Table)
	at, ok := death["time"].(time.Time)
	if !ok {
		return offset{}
	}
	return offset{true, at.Sub(received), at.Add(time.Second).Sub(published.Add(trialTTL))}
}

// remove deletes whatever the trial has made, also after ctx has ended.
func (t *trial) remove(ctx context.Context, conn *amqp.Conn) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	select {
	case <-t.ended:
	case <-ctx.Done():
		return errors.New("the broker does not answer")
	}
	return ask(ctx, conn, func(ch *amqp091.Channel) error {
		for _, name := range []string{t.jam, t.rung, t.due, t.unrouted} {
			if _, err := ch.QueueDelete(name, false, false, false); err != nil {
				return err
			}
			if err := ch.ExchangeDelete(name, false, false); err != nil {
				return err
			}
		}
		return nil
	})
}
