package order

import (
	"context"
	"time"
)

// Service is what a shop does with its orders. Its fields are set before it is used.
type Service struct {
	Repository Repository
	// Window is the time to pay of an order that does not say. [DefaultWindow] when zero.
	Window time.Duration
}

// Place places an order: it reserves the stock and starts the time to pay. Without an id it gets a
// new one. The same id with the same content (see [Draft.Hash]) answers the order that was placed the
// first time; with other content the error wraps [ErrConflict]. Other errors wrap [ErrInvalid],
// [ErrOutOfStock], [ErrUnknownSKU] or [ErrUnavailable]. After the last the order may have been placed, and
// placing it again is safe only if the draft has an id: without one, each call places another order.
func (s *Service) Place(ctx context.Context, d Draft) (Order, error) {
	placed, err := s.PlaceAll(ctx, []Draft{d})
	if err != nil {
		return Order{}, err
	}
	return placed[0].Order, placed[0].Err
}

// PlaceAll places many orders with few transactions and gives one answer for each, in their order.
// It fails as a whole only with an error that wraps [ErrUnavailable]; some of the orders may have been
// placed then, and placing all of them again is safe if they have ids. So it is for an answer of which
// the error wraps ErrUnavailable.
func (s *Service) PlaceAll(ctx context.Context, drafts []Draft) ([]Placement, error) {
	placed := make([]Placement, len(drafts))
	var valid []Draft
	var index []int
	for i, d := range drafts {
		d = s.Prepare(d)
		if err := d.Validate(); err != nil {
			placed[i].Err = err
			continue
		}
		valid, index = append(valid, d), append(index, i)
	}
	if len(valid) == 0 {
		return placed, nil
	}
	answers, err := s.Repository.Place(ctx, valid)
	if err != nil {
		return nil, err
	}
	for i, answer := range answers {
		placed[index[i]] = answer
	}
	return placed, nil
}

// Refuse tells subscribers, by order.refused, of drafts that were not placed: errs[i], which wraps
// [ErrInvalid], [ErrConflict], [ErrOutOfStock] or [ErrUnknownSKU], says why drafts[i] was not. It is for
// whoever places for somebody who does not wait for the answer, and not for the last two when
// [Service.PlaceAll] has found them, which then were told already. The drafts need valid ids. It fails as a
// whole, and then nobody is told; with [ErrUnavailable] they may have been told, and telling them again is
// safe if they have a [Draft.Request].
func (s *Service) Refuse(ctx context.Context, drafts []Draft, errs []error) error {
	for _, d := range drafts {
		if err := ValidateID("order id", d.ID); err != nil {
			return err
		}
	}
	if len(drafts) == 0 {
		return nil
	}
	return s.Repository.Refuse(ctx, drafts, errs)
}

// Prepare gives a draft the id and the window that it lacks.
func (s *Service) Prepare(d Draft) Draft {
	if d.ID == "" {
		d.ID = NewID()
	}
	if d.Window == 0 {
		d.Window = s.Window
	}
	return d
}

// Pay records a payment. A pending order becomes paid, also after its deadline, as long as nothing
// has expired it: payment and expiry change the same row, and whichever commits first wins. The amount,
// if given, has to be the order's total. The same payment again, with its amount or without, gets the
// same answer; its reference for another order, or with another amount, is an [ErrConflict].
//
// A payment for an order that was expired or cancelled is recorded and answered with an error that
// wraps [ErrLatePayment], one with another reference for an order that was paid with one that wraps
// [ErrAlreadyPaid]. Either has order.payment_late published, once, so that the money is given back.
// The order is returned along with these two errors.
func (s *Service) Pay(ctx context.Context, id string, p Payment) (Order, error) {
	if err := p.Validate(); err != nil {
		return Order{}, err
	}
	return s.Repository.Change(ctx, id, Pay(p))
}

// Cancel closes a pending order and gives its stock back. Cancelling it again is no error; one that
// was paid or expired is an [ErrAlreadyPaid] or [ErrAlreadyExpired].
func (s *Service) Cancel(ctx context.Context, id string, by By) (Order, error) {
	if err := by.Validate(); err != nil {
		return Order{}, err
	}
	return s.Repository.Change(ctx, id, Cancel(by))
}

// Extend moves a pending order's deadline, later or earlier, but neither into the past nor more than
// a year ahead.
func (s *Service) Extend(ctx context.Context, id string, to time.Time, by By) (Order, error) {
	if err := by.Validate(); err != nil {
		return Order{}, err
	}
	return s.Repository.Change(ctx, id, Extend(to, by))
}

// ExtendAll gives more time to all orders that are pending, or to those with a tag, and that were
// placed before the request was first made. A request is done once: with the same key again it goes on
// where it was interrupted, or answers what was done. The same key for another request is an
// [ErrConflict].
func (s *Service) ExtendAll(ctx context.Context, r ExtendRequest) (ExtendProgress, error) {
	if err := r.Validate(); err != nil {
		return ExtendProgress{}, err
	}
	for {
		progress, err := s.Repository.ExtendSome(ctx, r)
		if err != nil || progress.Done {
			return progress, err
		}
	}
}

// Expire is [Store].Expire, for operators.
func (s *Service) Expire(ctx context.Context, ids []string) (Expiries, error) {
	return s.Repository.Expire(ctx, ids)
}

// Pause is [Switch.Pause].
func (s *Service) Pause(ctx context.Context, by By) error { return Switch{s.Repository}.Pause(ctx, by) }

// Resume is [Switch.Resume].
func (s *Service) Resume(ctx context.Context, by By) error {
	return Switch{s.Repository}.Resume(ctx, by)
}

// Paused is [Switch.Paused].
func (s *Service) Paused(ctx context.Context) (Pause, error) { return Switch{s.Repository}.Paused(ctx) }

// Get loads an order.
func (s *Service) Get(ctx context.Context, id string) (Order, error) {
	return s.Repository.Get(ctx, id)
}

// Timeline lists what happened to an order, from its first event on.
func (s *Service) Timeline(ctx context.Context, id string) ([]Entry, error) {
	return s.Repository.Timeline(ctx, id)
}

// SetStock sets how many pieces of an article are available, from 0 to [MaxStock]; those that are
// reserved or sold stay so. What is ordered or given back while somebody counts is lost by it: for goods
// that came, or are gone, there is [Service.AddStock].
func (s *Service) SetStock(ctx context.Context, sku string, available int64) (Stock, error) {
	if err := ValidateID("sku", sku); err != nil {
		return Stock{}, err
	}
	if available < 0 || available > MaxStock {
		return Stock{}, invalid("a stock of %d: give 0 to %d", available, int64(MaxStock))
	}
	return s.Repository.SetStock(ctx, sku, available)
}

// AddStock adds pieces to those that are available of an article, for goods that came; with a delta below
// zero it takes some away, for goods that are lost. Those that are reserved or sold stay so. An article
// that is unknown becomes known, unless pieces are to be taken away: that is an [ErrUnknownSKU], and to
// take more than are available an [ErrOutOfStock]. To have more than [MaxStock] is an [ErrInvalid], and so
// is a delta that is zero or beyond MaxStock.
//
// Unlike the other requests it is not known when it comes again: after an [ErrUnavailable] the pieces may
// or may not have been added, so look at the stock before trying again.
func (s *Service) AddStock(ctx context.Context, sku string, delta int64) (Stock, error) {
	if err := ValidateID("sku", sku); err != nil {
		return Stock{}, err
	}
	if delta == 0 || delta < -MaxStock || delta > MaxStock {
		return Stock{}, invalid("%d more pieces: give %d to %d, and not 0", delta, int64(-MaxStock), int64(MaxStock))
	}
	return s.Repository.AddStock(ctx, sku, delta)
}

// Stock lists the stock of the articles, in ascending order of their skus; of all articles when none
// is given. One that is unknown is not in the answer.
func (s *Service) Stock(ctx context.Context, skus ...string) ([]Stock, error) {
	return s.Repository.Stock(ctx, skus...)
}
