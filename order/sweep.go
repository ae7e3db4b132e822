package order

import (
	"context"
	"errors"
	"log/slog"
	"time"
)

// Sweep expires the overdue orders whose timer did not come. Any number may run at once.
type Sweep struct {
	Store Store
	// Every is the time between two rounds. 1 min when zero.
	Every time.Duration
	// Grace is how long a timer may be late before the sweep does its work. 30 s when zero.
	Grace time.Duration
	// Batch is how many orders are expired at once. 200 when zero.
	Batch int
	// Logger is slog.Default when nil.
	Logger *slog.Logger
	// OnExpired, if set, is told how many orders a batch has expired. Many are a sign of lost timers,
	// but only while the broker is up and no timers wait in the due queue.
	OnExpired func(n int)
}

// Summary is what one round of the sweep found and did.
type Summary struct {
	Found   int
	Expired int
	// Failed are the orders that could not be expired; the next round tries them again.
	Failed int
	// Paused says that the round was cut short, or skipped, because expiry is paused.
	Paused bool
}

// Run sweeps at once and then at each interval, until the context ends, and returns its error. An
// error ends the round, not the loop: it is logged, and the next round begins anew.
func (s *Sweep) Run(ctx context.Context) error {
	every, logger := s.Every, s.Logger
	if every <= 0 {
		every = time.Minute
	}
	if logger == nil {
		logger = slog.Default()
	}
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		switch sum, err := s.Once(ctx); {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			logger.WarnContext(ctx, "sweep ended early", "found", sum.Found, "expired", sum.Expired, "error", err)
		case sum.Expired > 0 || sum.Failed > 0: // other replicas may have been first
			logger.InfoContext(ctx, "sweep expired orders whose timer did not come", "found", sum.Found, "expired", sum.Expired, "failed", sum.Failed)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
	}
}

// Once does one round: it goes through all overdue orders, the longest overdue first, past those
// that fail.
func (s *Sweep) Once(ctx context.Context) (Summary, error) {
	grace, batch := s.Grace, s.Batch
	if grace <= 0 {
		grace = 30 * time.Second
	}
	if batch <= 0 {
		batch = 200
	}
	var sum Summary
	if paused, err := s.Store.Paused(ctx); err != nil || paused {
		sum.Paused = paused
		return sum, err
	}
	var after Cursor
	for {
		overdue, err := s.Store.Overdue(ctx, grace, after, batch)
		if err != nil || len(overdue) == 0 {
			return sum, err
		}
		ids := make([]string, len(overdue))
		for i, o := range overdue {
			ids[i] = o.ID
		}
		sum.Found += len(ids)
		expiries, err := s.Store.Expire(ctx, ids)
		if errors.Is(err, ErrPaused) {
			sum.Paused = true
			return sum, nil
		}
		if err != nil {
			return sum, err
		}
		expired := 0
		for _, e := range expiries.Orders {
			switch e.Outcome {
			case OutcomeExpired:
				expired++
			case OutcomeFailed:
				sum.Failed++
			}
		}
		sum.Expired += expired
		if expired > 0 && s.OnExpired != nil {
			s.OnExpired(expired)
		}
		if len(overdue) < batch {
			return sum, nil
		}
		after = overdue[len(overdue)-1].Cursor()
	}
}
