package checkout

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/amqp/database"
	"github.com/lapse-go/lapse/migrations"
	"github.com/lapse-go/lapse/order"
)

// Ready is nil while [Closer.Serve] is connected to the broker, its messages are being handled (timers, orders to
// place, further kinds, dead letters), or expiry is paused, and [Checkout.Submit] can publish, as far as these are its roles; it
// else says why not.
func (c *Closer) Ready() error {
	p := c.process.Load()
	if p == nil {
		return errors.New("not serving yet")
	}
	return p.ready()
}

// Check is nil while the process is ready (see [Closer.Ready]), the database answers and has the tables of this
// program, and the store finds nothing wrong with its own, and else says why not. It takes as long as ctx lets it.
func (c *Closer) Check(ctx context.Context) error {
	if err := c.Ready(); err != nil {
		return err
	}
	return c.checkTables(ctx)
}

// checkTables is nil if the tables are there and the store, if it has a method Check, finds nothing wrong with its own.
func (c *Closer) checkTables(ctx context.Context) error {
	if c.db != nil {
		pool, err := c.db.DB()
		if err != nil {
			return err
		}
		if err := migrations.Check(ctx, pool, c.tables...); err != nil {
			return err
		}
	}
	if store, checks := c.store.(interface{ Check(context.Context) error }); checks {
		return store.Check(ctx)
	}
	return nil
}

func (p *process) ready() error {
	if p.submits() {
		err := p.intake.ready()
		if errors.Is(err, errNoIntake) {
			err = p.intakeClosed()
		}
		if err != nil {
			return err
		}
	}
	if !p.loops() {
		return nil
	}
	started := p.started.Load()
	if started == nil {
		return errors.New("waiting for the database, or for the broker at the start")
	}
	for _, check := range *started {
		if err := check(); err != nil && !errors.Is(err, amqp.ErrPaused) {
			return err
		}
	}
	return nil
}

// awaitDatabase waits until the database answers, and fails if its tables are not those of this
// program.
func (c *Closer) awaitDatabase(ctx context.Context) error {
	waiting := false
	pause := backoff.WithContext(backoff.NewExponentialBackOff(
		backoff.WithMaxInterval(5*time.Second), backoff.WithMaxElapsedTime(0)), ctx)
	return backoff.Retry(func() error {
		err := c.checkTables(ctx)
		switch {
		case err == nil:
			return nil
		case database.IsRefused(err):
			return backoff.Permanent(fmt.Errorf("%w (does the database exist? `lapse migrate up` creates it)", err))
		case !database.IsOutage(err) && !errors.Is(err, order.ErrUnavailable):
			return backoff.Permanent(err)
		}
		if !waiting {
			c.cfg.Logger.Warn("waiting for the database", "error", err)
			waiting = true
		}
		return err
	}, pause)
}
