package amqp

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

// QueueType is how the broker keeps the messages of a queue.
type QueueType string

const (
	// Quorum queues are replicated, and dead-letter at least once: a message leaves a rung only when
	// the due queue has confirmed it.
	Quorum QueueType = "quorum"
	// Classic queues promise less: not replicated; dead-lettered at most once, without a confirm, so
	// that a message is lost if its target is missing or the broker stops at that moment; without a
	// delivery limit; and their clock is the wall clock, so that a step of it fires timers early or
	// late. What is lost there the sweep has to find.
	Classic QueueType = "classic"
)

// Delivery limits are always set: unset means none before RabbitMQ 4.0 and 20 from there on, and −1
// does not mean "none" everywhere.
const (
	dueDeliveryLimit  = 1_000
	restDeliveryLimit = 1_000_000
)

// Topology names and describes every exchange and queue of one service. All are durable.
type Topology struct {
	// Namespace begins every name, so that services share one broker. "lapse" when empty; letters,
	// digits, dots, dashes and underscores.
	Namespace string
	// Type of all queues but the events log, which is a stream. Quorum when empty.
	Type QueueType
	// Ladder is the rungs. DefaultLadder() when empty.
	Ladder Ladder
	// Kinds of messages: there is one due queue for each. Same characters as in a namespace.
	Kinds []string
	// Subscriptions are, by kind, patterns of events that come to its due queue as well: order.expired, or
	// order.# (https://www.rabbitmq.com/tutorials/tutorial-five-go). To its handler they are of this kind.
	Subscriptions map[string][]string
	// History is how long the events log keeps an event at least. Whole seconds, 7 days when zero.
	History time.Duration
}

func (t Topology) withDefaults() Topology {
	if t.Namespace == "" {
		t.Namespace = "lapse"
	}
	if t.Type == "" {
		t.Type = Quorum
	}
	if len(t.Ladder) == 0 {
		t.Ladder = DefaultLadder()
	}
	if t.History == 0 {
		t.History = 7 * 24 * time.Hour
	}
	return t
}

var namePattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)

// Validate says what is wrong with the topology, or nil.
func (t Topology) Validate() error {
	t = t.withDefaults()
	if !namePattern.MatchString(t.Namespace) || len(t.Namespace) > 100 {
		return fmt.Errorf("namespace %q: give up to 100 letters, digits, dots, dashes and underscores, a letter or digit first", t.Namespace)
	}
	if strings.HasPrefix(t.Namespace+".", "amq.") {
		return fmt.Errorf("namespace %q: names that begin with amq. are the broker's own", t.Namespace)
	}
	if t.Type != Quorum && t.Type != Classic {
		return fmt.Errorf("queue type %q: give %q or %q", t.Type, Quorum, Classic)
	}
	if ladder, err := NewLadder(t.Ladder...); err != nil {
		return err
	} else if ladder.String() != t.Ladder.String() {
		return fmt.Errorf("ladder %q is not in ascending order", t.Ladder)
	}
	seen := map[string]bool{}
	for _, kind := range t.Kinds {
		switch {
		case !namePattern.MatchString(kind) || len(kind) > 100:
			return fmt.Errorf("kind %q: give up to 100 letters, digits, dots, dashes and underscores, a letter or digit first", kind)
		case seen[kind]:
			return fmt.Errorf("kind %q is there twice", kind)
		}
		seen[kind] = true
	}
	for kind, patterns := range t.Subscriptions {
		if !seen[kind] {
			return fmt.Errorf("kind %q subscribes to events, and is none of the kinds: add it", kind)
		}
		for i, pattern := range patterns {
			switch {
			case pattern == "" || len(pattern) > 255:
				return fmt.Errorf("kind %q: pattern %q of events: give 1 to 255 bytes, such as order.expired or order.#", kind, pattern)
			case slices.Contains(patterns[:i], pattern):
				return fmt.Errorf("kind %q: pattern %q of events is there twice", kind, pattern)
			}
		}
	}
	if t.History < time.Second || t.History%time.Second != 0 {
		return fmt.Errorf("a history of %s: give whole seconds, at least one", t.History)
	}
	return nil
}

func (t Topology) name(suffix string) string { return t.withDefaults().Namespace + "." + suffix }

// Delay is the name of a rung's exchange, and of its queue: lapse.delay.30m.
func (t Topology) Delay(rung time.Duration) string { return t.name("delay." + RungName(rung)) }

// Due is the name of the exchange to which rungs dead-letter, and to which whatever is due at once
// is published.
func (t Topology) Due() string { return t.name("due") }

// DueQueue is the name of the queue of what is due of a kind: lapse.due.order.payment_timeout.
func (t Topology) DueQueue(kind string) string { return t.name("due." + kind) }

// Dead is the name of the exchange, and of the queue, for dead letters.
func (t Topology) Dead() string { return t.name("dead") }

// Unrouted is the name of the exchange, and of the queue, for what came to the due exchange with a
// kind that no queue is bound for.
func (t Topology) Unrouted() string { return t.name("unrouted") }

// Parked is the name of the exchange, and of the queue, for dead letters that the database refuses.
func (t Topology) Parked() string { return t.name("parked") }

// Events is the name of the topic exchange from which other services take events.
func (t Topology) Events() string { return t.name("events") }

// EventsLog is the name of the stream that keeps the history of all events.
func (t Topology) EventsLog() string { return t.name("events.log") }

// Objects is everything in a topology, each list in the order of declaration: targets before what
// sends to them. All of it is durable, and nothing deletes itself.
type Objects struct {
	Exchanges []Exchange
	Queues    []Queue
	Bindings  []Binding
}

// Exchange is as the broker knows it.
type Exchange struct {
	Name, Kind string
	Arguments  amqp091.Table
}

// Queue is as the broker knows it.
type Queue struct {
	Name      string
	Arguments amqp091.Table
}

// Binding routes from an exchange to a queue.
type Binding struct {
	Exchange, Queue, Key string
}

// Objects lists what [Topology.Declare] declares. Integers are int64: a delay of 30 days does not
// fit into 32 bits.
func (t Topology) Objects() Objects {
	t = t.withDefaults()
	var o Objects
	for _, name := range []string{t.Parked(), t.Dead(), t.Unrouted()} {
		o.add(Exchange{name, amqp091.ExchangeFanout, nil}, Queue{name, t.arguments(restDeliveryLimit, nil)}, "")
	}
	// Without the alternate exchange, one message of a kind that nothing is bound for would jam the
	// rung that it comes from (https://github.com/rabbitmq/rabbitmq-server/issues/12625).
	o.Exchanges = append(o.Exchanges, Exchange{t.Due(), amqp091.ExchangeDirect, amqp091.Table{"alternate-exchange": t.Unrouted()}})
	for _, kind := range t.Kinds {
		o.Queues = append(o.Queues, Queue{t.DueQueue(kind), t.arguments(dueDeliveryLimit, t.deadLettering(t.Dead()))})
		o.Bindings = append(o.Bindings, Binding{t.Due(), t.DueQueue(kind), kind})
	}
	// No dead-letter routing key: the kind stays the key. No x-expires: a rung that deletes itself
	// takes its timers with it (https://github.com/rabbitmq/rabbitmq-server/issues/5894).
	for _, rung := range t.Ladder {
		arguments := t.deadLettering(t.Due())
		arguments[amqp091.QueueMessageTTLArg] = rung.Milliseconds()
		o.add(Exchange{t.Delay(rung), amqp091.ExchangeFanout, nil}, Queue{t.Delay(rung), t.arguments(0, arguments)}, "")
	}
	o.add(Exchange{t.Events(), amqp091.ExchangeTopic, nil}, Queue{t.EventsLog(), amqp091.Table{
		amqp091.QueueTypeArg:    amqp091.QueueTypeStream,
		amqp091.StreamMaxAgeArg: fmt.Sprintf("%ds", int64(t.History/time.Second)),
	}}, "#")
	for _, kind := range t.Kinds {
		for _, pattern := range t.Subscriptions[kind] {
			o.Bindings = append(o.Bindings, Binding{t.Events(), t.DueQueue(kind), pattern})
		}
	}
	return o
}

func (o *Objects) add(e Exchange, q Queue, key string) {
	o.Exchanges = append(o.Exchanges, e)
	o.Queues = append(o.Queues, q)
	o.Bindings = append(o.Bindings, Binding{e.Name, q.Name, key})
}

// deadLettering is at least once where the queue type can do that, for which all three are needed
// (https://www.rabbitmq.com/docs/quorum-queues#activating-at-least-once-dead-lettering).
func (t Topology) deadLettering(exchange string) amqp091.Table {
	arguments := amqp091.Table{"x-dead-letter-exchange": exchange}
	if t.Type == Quorum {
		arguments["x-dead-letter-strategy"] = "at-least-once"
		arguments[amqp091.QueueOverflowArg] = amqp091.QueueOverflowRejectPublish
	}
	return arguments
}

// arguments adds the queue type, and a delivery limit unless it is zero, to more.
func (t Topology) arguments(deliveryLimit int64, more amqp091.Table) amqp091.Table {
	arguments := amqp091.Table{amqp091.QueueTypeArg: string(t.Type)}
	if deliveryLimit != 0 && t.Type == Quorum {
		arguments["x-delivery-limit"] = deliveryLimit
	}
	for key, value := range more {
		arguments[key] = value
	}
	return arguments
}

// Declare makes every exchange, queue and binding that is missing. It may be called at any time, by
// several processes at once. A lost connection it waits for and goes on; when ctx ends it returns,
// saying what it was waiting for. A [MismatchError] says that an object exists with other
// properties, which can be changed only by deleting it.
func (t Topology) Declare(ctx context.Context, conn *Conn) error {
	if err := t.Validate(); err != nil {
		return err
	}
	if err := run(ctx, conn, t.Objects().declarations()); err != nil {
		return fmt.Errorf("declare topology: %w", err)
	}
	return nil
}

// Apply makes every exchange, queue and binding that is missing, like [Topology.Declare], but goes on
// past those that exist with other properties, and returns what it found of these. It changes nothing
// that exists. It waits for 5 s for each of them, and the error says which one could not be made.
func (t Topology) Apply(ctx context.Context, conn *Conn) ([]*MismatchError, error) {
	if err := t.Validate(); err != nil {
		return nil, err
	}
	var mismatches []*MismatchError
	for _, declare := range t.Objects().declarations() {
		err := bounded(ctx, func(ctx context.Context) error {
			return run(ctx, conn, []step{declare}) // each on a channel of its own, because a mismatch closes it
		})
		if m := (*MismatchError)(nil); errors.As(err, &m) {
			mismatches = append(mismatches, m)
		} else if err != nil {
			return mismatches, fmt.Errorf("apply topology: %s: %w", declare.object, err)
		}
	}
	return mismatches, nil
}

// declarations make the objects, in order: each queue is bound at once, so that one that cannot be made
// leaves none of those before it without its binding.
func (o Objects) declarations() []step {
	var steps []step
	for _, e := range o.Exchanges {
		steps = append(steps, step{fmt.Sprintf("exchange %q", e.Name), e.declare})
	}
	for _, q := range o.Queues {
		steps = append(steps, step{fmt.Sprintf("queue %q", q.Name), q.declare})
		for _, b := range o.Bindings {
			if b.Queue == q.Name {
				steps = append(steps, step{fmt.Sprintf("binding of queue %q", q.Name), func(ch *amqp091.Channel) error {
					return ch.QueueBind(b.Queue, b.Key, b.Exchange, false, nil)
				}})
			}
		}
	}
	return steps
}

func (e Exchange) declare(ch *amqp091.Channel) error {
	err := ch.ExchangeDeclare(e.Name, e.Kind, true, false, false, false, e.Arguments)
	return mismatch(err, fmt.Sprintf("exchange %q", e.Name), e.Arguments)
}

func (q Queue) declare(ch *amqp091.Channel) error {
	_, err := ch.QueueDeclare(q.Name, true, false, false, false, q.Arguments)
	return mismatch(err, fmt.Sprintf("queue %q", q.Name), q.Arguments)
}

// Delete removes every exchange and queue of the topology with all messages in them. It is meant
// for tests and demonstrations.
func (t Topology) Delete(ctx context.Context, conn *Conn) error {
	if err := t.Validate(); err != nil {
		return err
	}
	o := t.Objects()
	var steps []step
	for _, q := range o.Queues {
		steps = append(steps, step{q.Name, func(ch *amqp091.Channel) error {
			_, err := ch.QueueDelete(q.Name, false, false, false)
			return err
		}})
	}
	for _, e := range o.Exchanges {
		steps = append(steps, step{e.Name, func(ch *amqp091.Channel) error {
			return ch.ExchangeDelete(e.Name, false, false)
		}})
	}
	if err := run(ctx, conn, steps); err != nil {
		return fmt.Errorf("delete topology: %w", err)
	}
	return nil
}

// step is one request to the broker about an object; doing it twice does no harm.
type step struct {
	object string
	do     func(*amqp091.Channel) error
}

// run takes the steps in order on one channel, and all again on another one if that is lost, until
// ctx ends.
func run(ctx context.Context, conn *Conn, steps []step) error {
	const pause = 250 * time.Millisecond
	var last error
	for {
		err := conn.Do(ctx, func(ch *amqp091.Channel) error {
			for _, s := range steps {
				if ctx.Err() != nil {
					return context.Cause(ctx)
				}
				if err := s.do(ch); err != nil {
					return err
				}
			}
			return nil
		})
		switch {
		case err == nil, permanent(err):
			return err
		case ctx.Err() != nil, errors.Is(err, ErrClosed):
			return errors.Join(err, last)
		}
		if last = err; !sleep(ctx, pause) {
			return fmt.Errorf("%w (%w)", context.Cause(ctx), last)
		}
	}
}

// permanent tells what the broker refuses from what may go well on another connection, or later.
func permanent(err error) bool {
	var refusal *amqp091.Error
	var mismatch *MismatchError
	if errors.As(err, &mismatch) {
		return true
	}
	if !errors.As(err, &refusal) || !refusal.Server {
		return false
	}
	switch refusal.Code {
	case amqp091.AccessRefused, amqp091.PreconditionFailed, amqp091.NotAllowed, amqp091.NotImplemented,
		amqp091.SyntaxError, amqp091.CommandInvalid, amqp091.ResourceLocked:
		return true
	}
	return false
}

// MismatchError says that an exchange or queue exists with other properties than it is declared
// with. The broker cannot change them in place.
type MismatchError struct {
	Object   string // for instance: queue "lapse.delay.30m"
	Argument string // for instance: x-message-ttl
	Wanted   string // "none" when it is not to be set
	Found    string // "none" when it is not set
}

func (e *MismatchError) Error() string {
	return fmt.Sprintf("%s exists with %s = %s, but %s is wanted; it cannot be changed in place: keep to what is there, or drain and delete it, or use another namespace",
		e.Object, e.Argument, e.Found, e.Wanted)
}

// The broker tells all this only in words, and cuts them off after 255 bytes. These are the words of
// RabbitMQ 3.10 to 4.3.
var mismatchText = regexp.MustCompile(`inequivalent arg '([^']*)' for ` +
	`(?:.* in vhost '.*': received (?:the value )?('[^']*'|none)(?: of type '[^']*')?` +
	`(?: but current is (?:the value )?('[^']*'|none))?)?`)

// mismatch turns the broker's refusal to declare an object with these arguments into a
// [MismatchError], and leaves any other error, or nil, as it is.
func mismatch(err error, object string, arguments amqp091.Table) error {
	var refusal *amqp091.Error
	if !errors.As(err, &refusal) || refusal.Code != amqp091.PreconditionFailed {
		return err
	}
	words := mismatchText.FindStringSubmatch(refusal.Reason)
	if words == nil {
		return err
	}
	value := func(text string) string {
		if text == "" {
			return "something else" // it was cut off
		}
		return strings.Trim(text, "'")
	}
	m := &MismatchError{Object: object, Argument: words[1], Wanted: value(words[2]), Found: value(words[3])}
	if wanted, given := arguments[m.Argument]; given && words[2] == "" {
		m.Wanted = fmt.Sprint(wanted)
	}
	return m
}
