package orderamqp

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/order"
)

// Expirer is the handler of [KindPaymentTimeout]: it expires the orders whose timers have come.
type Expirer struct {
	Store   order.Store
	Metrics *Metrics
}

var _ amqp.Handler = (*Expirer)(nil)

// Handle expires what is pending and due of the batch, in one go.
//
//   - Expired, or closed otherwise before: done.
//   - Not due by the database's clock: the timer comes again when it is.
//   - No such order: its transaction may be about to commit, so until the deadline in the message the
//     timer only comes again; after that it counts as a failure.
func (x *Expirer) Handle(ctx context.Context, batch []amqp.Message) ([]amqp.Outcome, error) {
	outcomes := make([]amqp.Outcome, len(batch))
	timers := make([]order.Timer, 0, len(batch))
	ids := make([]string, 0, len(batch))
	index := make([]int, 0, len(batch)) // of each timer in the batch
	for i, m := range batch {
		timer, err := DecodeTimer(m)
		if err != nil {
			outcomes[i] = amqp.Dead(err)
			continue
		}
		timers, ids, index = append(timers, timer), append(ids, timer.OrderID), append(index, i)
	}
	if len(ids) == 0 {
		return outcomes, nil
	}
	expiries, err := x.Store.Expire(ctx, ids)
	if errors.Is(err, order.ErrPaused) {
		return nil, fmt.Errorf("%w: %w", amqp.ErrPaused, err)
	}
	if err != nil {
		return nil, err
	}
	for i, expiry := range expiries.Orders {
		x.Metrics.observe(expiry, expiries.Now)
		outcomes[index[i]] = outcome(timers[i], expiry, expiries.Now)
	}
	return outcomes, nil
}

func outcome(timer order.Timer, expiry order.Expiry, now time.Time) amqp.Outcome {
	switch expiry.Outcome {
	case order.OutcomeNotDue:
		return amqp.Defer(expiry.Remaining)
	case order.OutcomeNotFound:
		remaining := timer.Deadline.Sub(now)
		switch {
		case remaining > amqp.MaxDelay:
			return amqp.Dead(fmt.Errorf("order %s: %w, and the deadline in its timer, %s, is more than ten years away",
				timer.OrderID, order.ErrNotFound, timer.Deadline.Format(time.RFC3339)))
		case remaining > 0:
			return amqp.Defer(remaining)
		}
		return amqp.Retry(fmt.Errorf("order %s: %w; was its transaction rolled back?", timer.OrderID, order.ErrNotFound))
	case order.OutcomeFailed:
		if errors.Is(expiry.Err, order.ErrUnavailable) {
			return amqp.Defer(time.Second) // somebody holds it, and it is not to blame
		}
		return amqp.Retry(fmt.Errorf("order %s: %w", timer.OrderID, expiry.Err))
	}
	return amqp.Done()
}

// Probe tells whether orders can be expired again: it fails while expiry is paused or the store is
// away.
func (x *Expirer) Probe(ctx context.Context) error {
	paused, err := x.Store.Paused(ctx)
	if err != nil {
		return err
	}
	if paused {
		return fmt.Errorf("%w: %w", amqp.ErrPaused, order.ErrPaused)
	}
	return nil
}
