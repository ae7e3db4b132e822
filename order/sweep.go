package order

import (
	"context"
	"errors"
	"log/slog"
	"time"
)

// SweepGrace is how late a timer may be before a sweep does its work, unless that says otherwise.
const SweepGrace = 30 * time.Second

// Sweep expires the overdue orders whose timer did not come. Any number may run at once.
type Sweep struct {
	Store Store
	// Every is the time between two rounds. 1 min when zero.
	Every time.Duration
	// Grace is how long a timer may be late before the sweep does its work. [SweepGrace] when zero.
	Grace time.Duration
	// Batch is how many orders are expired at once. 200 when zero.
	Batch int
	// Logger is slog.Default when nil.
	Logger *slog.Logger
	// OnExpired, if set, is told of each order that was expired, and the time by the database's clock. Many
	// are a sign of lost timers, but only while the broker is up and no timers wait in the due queue.
	OnExpired func(e Expiry, now time.Time)
	// OnRound, if set, is told of each round of Run, also of one that ended early: what it has expired
	// is expired. A round that the end of Run cut short has the context's error.
	OnRound func(took time.Duration, sum Summary, err error)
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
		began := time.Now()
		sum, err := s.Once(ctx)
		if s.OnRound != nil {
			s.OnRound(time.Since(began), sum, err)
		}
		switch {
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
		grace = SweepGrace
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
		for _, e := range expiries.Orders {
			switch e.Outcome {
			case OutcomeExpired:
				sum.Expired++
				if s.OnExpired != nil {
					s.OnExpired(e, expiries.Now)
				}
			case OutcomeFailed:
				sum.Failed++
			}
		}
		if len(overdue) < batch {
			return sum, nil
		}
		after = overdue[len(overdue)-1].Cursor()
	}
}
