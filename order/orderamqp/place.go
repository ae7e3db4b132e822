package orderamqp

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/order"
)

// KindPlace is the kind of a message that asks to place an order: published to the due exchange, with a
// [Draft] as its body. The time to pay runs from when the order is placed, by the database's clock,
// and not from when the message was sent.
const KindPlace = "order.place"

// EncodePlace makes the message that asks to place the order. Publishing gives it an id of its own.
func EncodePlace(d order.Draft) (amqp.Message, error) {
	body, err := json.Marshal(DraftOf(d))
	if err != nil {
		return amqp.Message{}, fmt.Errorf("encode order %s: %w", d.ID, err)
	}
	return amqp.Message{Kind: KindPlace, Body: body}, nil
}

// DecodePlace reads an order that anybody may have sent, as [ReadDraft] does. An error that wraps
// [order.ErrInvalid] comes with a draft that has an id, so that its sender can be told of it. Any other error
// comes without: nobody could tell whose order it is.
func DecodePlace(m amqp.Message) (order.Draft, error) {
	const looks = `{"id": "A-1", "lines": [{"sku": "kettle", "quantity": 2, "price": {"amount": 1999, "currency": "EUR"}}], "window": "30m"}`
	var who struct{ ID string }
	if err := json.Unmarshal(m.Body, &who); err != nil {
		return order.Draft{}, fmt.Errorf("not an order: %w; one looks like %s", err, looks)
	}
	if order.ValidateID("id", who.ID) != nil {
		return order.Draft{}, fmt.Errorf("an order with the id %.80q: give 1 to %d printable ASCII characters without spaces, as in %s", who.ID, order.MaxIDBytes, looks)
	}
	d, err := ReadDraft(m.Body)
	d.ID = who.ID
	if d.Request = m.ID; d.Request == "" {
		d.Request = fmt.Sprintf("%x", sha256.Sum256(m.Body)) // who gives no id is known by what he says
	}
	return d, err
}

// Orders is what a [Placer] needs of the service. An [order.Service] has it.
type Orders interface {
	PlaceAll(ctx context.Context, drafts []order.Draft) ([]order.Placement, error)
	Refuse(ctx context.Context, drafts []order.Draft, errs []error) error
	Paused(ctx context.Context) (order.Pause, error)
}

var _ Orders = (*order.Service)(nil)

// Placer is the handler of [KindPlace]: it places the orders that messages ask for.
type Placer struct {
	Orders  Orders
	Metrics *Metrics
}

var _ amqp.Handler = (*Placer)(nil)

// Handle places the orders of the batch, in one go.
//
//   - Placed, now or before: done.
//   - Out of stock, an unknown article, an id that another order has, or not valid: order.refused is
//     published, and the message done.
//   - Nobody could tell whose order it is: a dead letter.
//   - Others keep locked what it needs: it comes again in a second, and no attempt is counted.
//   - Anything else that the database says of the order is a failure.
//
// A batch that is handled again, since nobody knows whether it was committed, finds its orders placed. What
// was refused is refused again by the same event, which has its id from that of the message, unless it
// can be placed by now.
func (p *Placer) Handle(ctx context.Context, batch []amqp.Message) ([]amqp.Outcome, error) {
	outcomes := make([]amqp.Outcome, len(batch))
	counts := make(map[string]int)
	var asked, refused requests
	for i, m := range batch {
		switch d, err := DecodePlace(m); {
		case err == nil:
			asked.add(i, d, nil)
		case errors.Is(err, order.ErrInvalid):
			refused.add(i, d, err)
		default:
			outcomes[i] = amqp.Dead(err)
			counts[placementFailed]++
		}
	}
	if len(asked.drafts) > 0 {
		placed, err := p.Orders.PlaceAll(ctx, asked.drafts)
		if err != nil {
			return nil, err
		}
		for n, placement := range placed {
			i, d, err := asked.index[n], asked.drafts[n], placement.Err
			if errors.Is(err, order.ErrConflict) || errors.Is(err, order.ErrInvalid) {
				refused.add(i, d, err)
				continue
			}
			outcomes[i] = placementOutcome(d.ID, placement, counts)
		}
	}
	if len(refused.drafts) > 0 {
		err := p.Orders.Refuse(ctx, refused.drafts, refused.errs)
		if errors.Is(err, order.ErrUnavailable) {
			return nil, err // what was placed is found placed the next time
		}
		for _, i := range refused.index {
			if outcomes[i] = amqp.Done(); err != nil {
				outcomes[i] = amqp.Retry(err)
				counts[placementFailed]++
				continue
			}
			counts[placementRefused]++
		}
	}
	p.Metrics.placements(counts)
	return outcomes, nil
}

// placementOutcome is the outcome for an order that need not be refused any more, and counts it.
func placementOutcome(id string, p order.Placement, counts map[string]int) amqp.Outcome {
	switch {
	case p.Err == nil && p.Repeated:
		counts[placementRepeated]++
	case p.Err == nil:
		counts[placementPlaced]++
	case errors.Is(p.Err, order.ErrOutOfStock), errors.Is(p.Err, order.ErrUnknownSKU):
		counts[placementRefused]++ // and told by the transaction that found it
	case errors.Is(p.Err, order.ErrUnavailable):
		return amqp.Defer(time.Second) // somebody holds what it needs, and it is not to blame
	default:
		counts[placementFailed]++
		return amqp.Retry(fmt.Errorf("order %s: %w", id, p.Err))
	}
	return amqp.Done()
}

// requests are some of a batch's messages.
type requests struct {
	drafts []order.Draft
	errs   []error // why each is refused
	index  []int   // of each in the batch
}

func (r *requests) add(i int, d order.Draft, err error) {
	r.drafts, r.errs, r.index = append(r.drafts, d), append(r.errs, err), append(r.index, i)
}

// Probe tells whether orders can be placed again: it fails while the database is away. That expiry is
// paused is no reason not to place.
func (p *Placer) Probe(ctx context.Context) error {
	_, err := p.Orders.Paused(ctx)
	return err
}
