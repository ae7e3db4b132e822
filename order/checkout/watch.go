package checkout

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/amqp/deadletter"
)

const (
	// watchEvery is how often everything is measured that nothing else tells.
	watchEvery = 5 * time.Second
	// watchWait bounds each measurement.
	watchWait = 4 * time.Second
	// silentPause is the longest that a broker which is there, but does not answer, is left alone: each
	// question that it does not answer occupies a channel until it does.
	silentPause = 10 * time.Minute
)

// watch measures, until ctx ends, whether expiry is paused, which orders are overdue, how many dead letters are open,
// and, unless conn is nil, how much waits in each queue. What cannot be measured it removes from the metrics, and goes on
// with the rest.
func (c *Closer) watch(ctx context.Context, conn *amqp.Conn) error {
	var parts []func(context.Context) error
	if c.store != nil {
		parts = append(parts, c.watchPause, c.watchOverdue)
	}
	if c.desk != nil {
		parts = append(parts, c.watchDesk)
	}
	if conn != nil {
		parts = append(parts, c.depths(conn))
	}
	ticker := time.NewTicker(watchEvery)
	defer ticker.Stop()
	for failing := false; ; {
		began := time.Now()
		err := measure(ctx, parts)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		c.metrics.loops.round("watch", time.Since(began), err)
		switch {
		case err != nil && !failing:
			c.cfg.Logger.Warn("some metrics are missing, because they cannot be measured", "error", err)
		case err == nil && failing:
			c.cfg.Logger.Info("all metrics can be measured again")
		}
		failing = err != nil
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
	}
}

// measure does all parts side by side, so that none is held up by another.
func measure(ctx context.Context, parts []func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, watchWait)
	defer cancel()
	errs := make([]error, len(parts))
	var all sync.WaitGroup
	for i, part := range parts {
		all.Go(func() { errs[i] = part(ctx) })
	}
	all.Wait()
	return errors.Join(errs...)
}

func (c *Closer) watchPause(ctx context.Context) error {
	m := c.metrics.watch
	paused, err := c.store.Paused(ctx)
	if err != nil {
		m.paused.Reset()
		return err
	}
	value := 0.0
	if paused {
		value = 1
	}
	m.paused.WithLabelValues().Set(value)
	return nil
}

func (c *Closer) watchOverdue(ctx context.Context) error {
	m := c.metrics.watch
	overdue, err := c.overdue(ctx)
	if err != nil {
		m.overdue.Reset()
		m.oldest.Reset()
		return err
	}
	m.overdue.WithLabelValues().Set(float64(overdue.Orders))
	m.oldest.WithLabelValues().Set(overdue.Oldest.Seconds())
	return nil
}

func (c *Closer) watchDesk(ctx context.Context) error {
	m := c.metrics.watch
	open, err := c.desk.Open(ctx)
	if err != nil {
		m.letters.Reset()
		return err
	}
	for _, reason := range deadletter.Reasons {
		m.letters.WithLabelValues(string(reason)).Set(float64(open[reason]))
	}
	return nil
}

// depths measures how much waits in each queue.
func (c *Closer) depths(conn *amqp.Conn) func(context.Context) error {
	m := c.metrics.watch
	var silence error // while the broker is left alone
	var until time.Time
	pause := backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(watchEvery), backoff.WithMaxInterval(silentPause), backoff.WithMaxElapsedTime(0))
	return func(ctx context.Context) error {
		if silence != nil && time.Now().Before(until) && conn.Ready() == nil {
			return silence
		}
		depths, err := c.topology.Depths(ctx, conn)
		if silence = nil; err != nil {
			m.depth.Reset()
			if conn.Ready() == nil {
				silence, until = err, time.Now().Add(pause.NextBackOff())
			}
		} else {
			pause.Reset()
		}
		c.measured.Store(&Known[Queues]{Queues{time.Now(), depths}, err})
		for _, d := range depths {
			if d.Missing {
				m.depth.DeleteLabelValues(d.Queue, d.Role)
			} else {
				m.depth.WithLabelValues(d.Queue, d.Role).Set(float64(d.Messages))
			}
		}
		return err
	}
}
