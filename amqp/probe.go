package amqp

import (
	"context"
	"errors"
	"fmt"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

// probe compares by asking for each name that it knows, on a channel of its own, because most answers but
// "yes" close it.
func (t Topology) probe(ctx context.Context, conn *Conn) (Plan, error) {
	const needsAPI = "only the management API can tell"
	plan := Plan{Via: "probing"}
	wanted := t.Objects()
	var unknown []error
	// look takes the answer to whether an object exists, and asks, if it does, whether it is as wanted: to
	// declare what exists as it is changes nothing, and to declare it otherwise is refused.
	look := func(about Difference, err error, declare func(*amqp091.Channel) error) error {
		if err == nil {
			err = ask(ctx, conn, declare)
		}
		var m *MismatchError
		switch {
		case err == nil:
			plan.add(about, true, nil)
		case isMissing(err):
			about.Messages = 0
			plan.add(about, false, nil)
		case errors.As(err, &m):
			plan.add(about, true, []Difference{{Argument: m.Argument, Wanted: m.Wanted, Found: m.Found}})
		case isAway(ctx, conn, err):
			return err
		default:
			plan.Items = append(plan.Items, about.unknown(err))
			unknown = append(unknown, fmt.Errorf("%s %s: %w", about.Object, about.Name, err))
		}
		return nil
	}
	for _, e := range wanted.Exchanges {
		err := ask(ctx, conn, func(ch *amqp091.Channel) error {
			return ch.ExchangeDeclarePassive(e.Name, e.Kind, true, false, false, false, nil)
		})
		if err := look(Difference{Object: "exchange", Name: e.Name}, err, e.declare); err != nil {
			return Plan{}, err
		}
	}
	for _, q := range wanted.Queues {
		about := Difference{Object: "queue", Name: q.Name}
		err := about.count(ctx, conn)
		if err := look(about, err, q.declare); err != nil {
			return Plan{}, err
		}
	}
	if len(unknown) == len(plan.Items) {
		return Plan{}, unknown[0]
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

// ask puts one question to the broker. It does not wait for long: a queue without a majority does not answer.
func ask(ctx context.Context, conn *Conn, question func(*amqp091.Channel) error) error {
	return bounded(ctx, func(ctx context.Context) error { return conn.Do(ctx, question) })
}

// count asks how many messages are ready in a queue.
func (d *Difference) count(ctx context.Context, conn *Conn) error {
	return bounded(ctx, func(ctx context.Context) (err error) {
		d.Messages, err = ready(ctx, conn, d.Name)
		return err
	})
}

// isAway tells a broker that is away from one that does not want to answer a question, or a queue that does
// not.
func isAway(ctx context.Context, conn *Conn, err error) bool {
	return ctx.Err() != nil || !permanent(err) && !isNotFound(err) && conn.Ready() != nil
}

func (d Difference) unknown(err error) Difference {
	d.State, d.Advice = Unknown, fmt.Sprintf("see to what the broker says: %v", err)
	if isNotFound(err) {
		d.Advice = fmt.Sprintf("it exists, but it is down, or its node is: start that again. The broker says: %v", err)
	}
	return d
}
