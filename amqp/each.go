package amqp

import (
	"context"
	"errors"
	"time"
)

// Each handles the messages of a batch one after the other. For each, f answers nil when the work is done,
// [Hopeless] when it can never be, [NotYet] when it came too early, [Away] when a server is that it takes, and
// any other error to be tried again.
func Each(f func(ctx context.Context, m Message) error) Handler {
	return HandlerFunc(func(ctx context.Context, batch []Message) ([]Outcome, error) {
		outcomes := make([]Outcome, len(batch))
		for i, m := range batch {
			err := f(ctx, m)
			if away, ok := errors.AsType[*awayError](err); ok {
				return nil, away.err
			}
			outcomes[i] = outcomeOf(err)
		}
		return outcomes, nil
	})
}

// Hopeless is err as the answer of a message that can never succeed: it is a dead letter at once.
func Hopeless(err error) error { return &answer{Dead(err)} }

// NotYet is the answer of a message that came too early, and that comes again after that time, which is more than
// zero. No attempt is counted.
func NotYet(after time.Duration) error { return &answer{Defer(after)} }

// Away is err as the answer of a message that is not to blame: a server is away that the work takes. Its whole
// batch is handled again, also the messages before it, when [ConsumerConfig.Probe] says so or, without one, after a
// while; no attempt is counted.
func Away(err error) error { return &awayError{err} }

type awayError struct{ err error }

func (e *awayError) Error() string { return e.err.Error() }
func (e *awayError) Unwrap() error { return e.err }

// answer is an outcome as an error.
type answer struct{ outcome Outcome }

func (a *answer) Error() string {
	if a.outcome.err != nil {
		return a.outcome.err.Error()
	}
	return a.outcome.String()
}

func (a *answer) Unwrap() error { return a.outcome.err }

func outcomeOf(err error) Outcome {
	if a, ok := errors.AsType[*answer](err); ok {
		if a.outcome.verb == verbDead {
			return Dead(err)
		}
		return a.outcome
	}
	if err != nil {
		return Retry(err)
	}
	return Done()
}
