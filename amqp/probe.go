package amqp

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

// probeTimeout is how long one object may take to answer: a queue without a majority does not.
const probeTimeout = 5 * time.Second

// probe compares by asking for each name that it knows.
func (t Topology) probe(ctx context.Context, conn *Conn) (Plan, error) {
	const needsAPI = "only the management API can tell"
	plan := Plan{Via: "probing"}
	wanted := t.Objects()
	for _, e := range wanted.Exchanges {
		err := probe(ctx, conn, func(ch *amqp091.Channel) error {
			return ch.ExchangeDeclarePassive(e.Name, e.Kind, true, false, false, false, nil)
		})
		if err := plan.probed(ctx, conn, Difference{Object: "exchange", Name: e.Name}, err, e.declare); err != nil {
			return Plan{}, err
		}
	}
	for _, q := range wanted.Queues {
		messages, err := ready(ctx, conn, q.Name)
		about := Difference{Object: "queue", Name: q.Name, Messages: messages}
		if err := plan.probed(ctx, conn, about, err, q.declare); err != nil {
			return Plan{}, err
		}
	}
	for _, b := range wanted.Bindings {
		about := b.difference()
		about.State, about.Advice = NotChecked, needsAPI+"; applying the topology makes those that are missing"
		plan.Items = append(plan.Items, about)
	}
	plan.Items = append(plan.Items, Difference{
		Object: "queue", Name: t.name("delay.*") + " and " + t.name("due.*"), State: NotChecked, Messages: -1,
		Advice: needsAPI + " which rungs and kinds are no longer configured, and which policies apply",
	})
	return plan, nil
}

// probed takes the answer to whether an object exists, and asks, if it does, whether it is as wanted: to
// declare what exists as it is changes nothing, and to declare it otherwise is refused.
func (p *Plan) probed(ctx context.Context, conn *Conn, about Difference, err error, declare step) error {
	if notFound(err) {
		about.Messages = 0
		p.add(about, false, nil)
		return nil
	}
	if err == nil {
		err = probe(ctx, conn, declare)
	}
	if m := (*MismatchError)(nil); errors.As(err, &m) {
		p.add(about, true, []Difference{{Argument: m.Argument, Wanted: m.Wanted, Found: m.Found}})
		return nil
	}
	switch {
	case err == nil:
		p.add(about, true, nil)
	case ctx.Err() != nil:
		return err
	case !permanent(err) && conn.Ready() != nil:
		return fmt.Errorf("%w (%w)", conn.Ready(), err)
	default:
		about.State, about.Advice = NotChecked, fmt.Sprintf("see to what the broker says: %v", err)
		p.Items = append(p.Items, about)
	}
	return nil
}

// depth is how many messages are ready in a queue, or −1 if it does not say.
func depth(ctx context.Context, conn *Conn, queue string) (int64, error) {
	messages, err := ready(ctx, conn, queue)
	if err != nil && (ctx.Err() != nil || !permanent(err) && !notFound(err) && conn.Ready() != nil) {
		return -1, err
	}
	return messages, nil
}

// ready is how many messages are ready in a queue, −1 with an error.
func ready(ctx context.Context, conn *Conn, queue string) (int64, error) {
	var messages int64
	err := probe(ctx, conn, func(ch *amqp091.Channel) error {
		state, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
		messages = int64(state.Messages)
		return err
	})
	if err != nil {
		return -1, err // and what asked may still be about to set messages
	}
	return messages, nil
}

// probe asks one question on a channel of its own, because most answers but "yes" close it.
func probe(ctx context.Context, conn *Conn, ask step) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	missing := make(chan error, 1)
	err := run(ctx, conn, []step{func(ch *amqp091.Channel) error {
		err := ask(ch)
		if notFound(err) {
			missing <- err
			return nil
		}
		return err
	}})
	select {
	case err = <-missing:
	default:
	}
	return err
}

func notFound(err error) bool {
	var refusal *amqp091.Error
	return errors.As(err, &refusal) && refusal.Server && refusal.Code == amqp091.NotFound
}
