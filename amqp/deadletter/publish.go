package deadletter

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/lapse-go/lapse/amqp"
)

const (
	// answerTime is for how long a guard's answer holds: what waits for longer is asked about again.
	answerTime = 5 * time.Second
	// publishTime bounds one try, so that the guard is asked again about what then is not confirmed.
	publishTime = time.Minute
)

// publish publishes what is not settled, until each message is confirmed or can never be, or ctx ends, which is an error
// if any is left. It hands on what has become of letters as soon as that is certain.
func (r *runner) publish(ctx context.Context, c consignment, done chan<- []outcome) error {
	s := r.snag()
	for try := 0; ; try++ {
		if time.Since(c.asked) > answerTime {
			var err error
			if c, err = r.examine(ctx, c.letters); err != nil {
				return err
			}
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		outcomes, left, err := r.try(ctx, c, try > 0)
		if len(outcomes) > 0 {
			done <- outcomes
			s.pause.Reset()
		}
		if len(left.letters) == 0 {
			s.over()
			return nil
		}
		if !s.wait(ctx, err) {
			return ctx.Err()
		}
		c = left
	}
}

// try publishes once what is not settled, and returns what became of letters, and those of which that is not certain, with the
// reason. Messages that are published together can make all unconfirmed when the broker closes the channel over one of
// them; it turns out which one that is, if they go one by one.
func (r *runner) try(ctx context.Context, c consignment, oneByOne bool) (outcomes []outcome, left consignment, why error) {
	var publishings []amqp.Publishing
	var open []int // the letters that they are of
	for i, p := range c.letters {
		switch {
		case p.damage != nil:
			outcomes = append(outcomes, outcome{letter: p.ID, result: resultFailed, detail: p.damage.Error()})
		case c.verdicts[i].Settled:
			outcomes = append(outcomes, outcome{letter: p.ID, result: resultSettled, detail: c.verdicts[i].Answer})
		default:
			publishings, open = append(publishings, p.again(r.job.ID, r.job.To)), append(open, i)
		}
	}
	if len(open) == 0 {
		return outcomes, left, nil
	}
	errs, err := r.send(ctx, publishings, oneByOne)
	left.asked = c.asked
	for n, i := range open {
		switch p := c.letters[i]; {
		case n >= len(errs):
			why = err
			left.letters, left.verdicts = append(left.letters, p), append(left.verdicts, c.verdicts[i])
		case errs[n] == nil:
			o := outcome{letter: p.ID, result: resultPublished, detail: c.verdicts[i].Answer}
			if p.MessageID == "" {
				o.given = publishings[n].ID
			}
			outcomes = append(outcomes, o)
		case errors.Is(errs[n], amqp.ErrUnroutable), errors.Is(errs[n], amqp.ErrInvalid):
			outcomes = append(outcomes, outcome{letter: p.ID, result: resultFailed, detail: errs[n].Error()})
		default: // an outage is not a failure of the message
			why = errs[n]
			left.letters, left.verdicts = append(left.letters, p), append(left.verdicts, c.verdicts[i])
		}
	}
	return outcomes, left, why
}

// send returns an error for each message that it published, from the first on, and says why it published no more.
func (r *runner) send(ctx context.Context, publishings []amqp.Publishing, oneByOne bool) (errs []error, err error) {
	if err := r.publisher.Ready(); err != nil {
		return nil, err // to publish would be to wait, and nobody would see for what
	}
	confirming, cancel := longer(ctx, confirmTime)
	defer cancel()
	confirming, cancel = context.WithTimeout(confirming, publishTime)
	defer cancel()
	if !oneByOne {
		r.alone.RLock()
		defer r.alone.RUnlock()
		return r.publisher.Publish(confirming, publishings...), nil
	}
	r.alone.Lock()
	defer r.alone.Unlock()
	for _, p := range publishings {
		if ctx.Err() != nil {
			return errs, ctx.Err()
		}
		err := r.publisher.Publish(confirming, p)[0]
		errs = append(errs, err)
		if errors.Is(err, amqp.ErrUnconfirmed) {
			return errs, err
		}
	}
	return errs, nil
}

// again is the letter's message as a replay publishes it: a fresh one, without anything that was added on its way.
func (l Letter) again(job string, to *Route) amqp.Publishing {
	m := l.message()
	headers := make(map[string]any, len(m.Headers)+3)
	maps.Copy(headers, m.Headers)
	maps.DeleteFunc(headers, func(key string, _ any) bool {
		return strings.HasPrefix(strings.ToLower(key), "x-") || key == "CC" || key == "BCC" || slices.Contains(ofTheDeath, key)
	})
	headers[amqp.HeaderReplay] = job
	headers[amqp.HeaderFirstExchange], headers[amqp.HeaderFirstKey] = l.Exchange, l.RoutingKey
	m.Headers = headers
	if m.ID == "" {
		// The same however often it is published.
		m.ID = uuid.NewSHA1(uuid.NameSpaceOID, fmt.Appendf(nil, "letter\x00%d\x00%s", l.ID, l.DiedAt.UTC())).String()
	}
	p := amqp.Publishing{Message: m, Exchange: l.Exchange}
	p.Kind = l.RoutingKey
	if to != nil {
		p.Exchange, p.Kind = to.Exchange, to.RoutingKey
	}
	return p
}

// ofTheDeath are headers about how the message died, and how often it was tried before.
var ofTheDeath = []string{
	amqp.HeaderAttempt, amqp.HeaderFirstError, amqp.HeaderFirstErrorAt, amqp.HeaderError, amqp.HeaderReason,
	amqp.HeaderLetter, amqp.HeaderDiedAt, amqp.HeaderParked, amqp.HeaderDeath,
}
