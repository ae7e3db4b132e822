package checkout

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/amqp/outbox"
	"github.com/lapse-go/lapse/order"
	"github.com/lapse-go/lapse/order/orderdb"
)

// Overview is how a service is. A part is nil where there is no such thing.
type Overview struct {
	At      time.Time
	Trouble string // why not all is connected, or not all works; "" if nothing is wrong
	Pause   *Known[order.Pause]
	// Orders are counted up to [MostCounted] of each status.
	Orders  *Known[map[order.Status]int]
	Overdue *Known[Overdue]
	Closing *Known[orderdb.Closing]
	Queues  *Known[Queues]
	Outbox  *Known[outbox.Backlog]
	Letters *Known[int64] // that are open, counted up to MostCounted
}

// Known is a part of an [Overview]: its value, or why that is not known.
type Known[T any] struct {
	Value T
	Err   error
}

// Overdue is the orders that the sweep should have expired.
type Overdue struct {
	Orders int // counted up to [MostOverdue]
	Oldest time.Duration
}

// Queues is how much waited in each queue, and when.
type Queues struct {
	At     time.Time
	Depths []amqp.Depth
}

// ErrBroker is wrapped by the errors of the broker in an [Overview].
var ErrBroker = errors.New("the broker is busy or away")

const (
	// MostCounted is how many orders of a status, rows of the outbox and open letters an [Overview] counts.
	MostCounted = 100_000
	// MostOverdue is how many overdue orders. More would say no more.
	MostOverdue = 1000
	// overviewKeep is for how long an overview is good.
	overviewKeep = 5 * time.Second
	// overviewWait bounds each part of it.
	overviewWait = 1500 * time.Millisecond
	// closingWithin and closingMost are what an overview says of closing is about.
	closingWithin = 5 * time.Minute
	closingMost   = 5_000
	// queuesKeep is how old what the watch has measured may be.
	queuesKeep = 30 * time.Second
)

// overviews keeps the last.
type overviews struct {
	mu   sync.Mutex
	last Overview
}

// Overview says how the service is, of what can be found out within two seconds or so. It is the same for some
// seconds, whoever asks, so that looking costs the service little.
func (c *Closer) Overview(ctx context.Context) Overview {
	c.overviews.mu.Lock() // of those who ask at once, one finds out
	defer c.overviews.mu.Unlock()
	if time.Since(c.overviews.last.At) < overviewKeep {
		return c.overviews.last
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), overviewWait) // it is not only for who was first
	defer cancel()
	c.overviews.last = c.overview(ctx, c.Check, c.queues)
	return c.overviews.last
}

// Look is [Closer.Overview] for a process that does not serve. It finds out at once, asks the broker for the queues, and
// takes some seconds at most. Trouble is with the servers and the tables only.
func (c *Closer) Look(ctx context.Context, broker amqp.Config) Overview {
	ctx, cancel := context.WithTimeout(ctx, watchWait)
	defer cancel()
	o := c.overview(ctx, c.checkTables, func() (Queues, error) { return c.lookAtQueues(ctx, broker) })
	if err := o.Queues.Err; err != nil && o.Trouble == "" {
		o.Trouble = err.Error()
	}
	return o
}

func (c *Closer) overview(ctx context.Context, check func(context.Context) error, queues func() (Queues, error)) Overview {
	o := Overview{At: time.Now()}
	var parts sync.WaitGroup
	parts.Go(func() {
		if err := check(ctx); err != nil {
			o.Trouble = err.Error()
		}
	})
	if c.store != nil {
		o.Overdue = find(&parts, func() (Overdue, error) { return c.overdue(ctx) })
	}
	if pause, ok := c.store.(order.PauseSwitch); ok {
		o.Pause = find(&parts, func() (order.Pause, error) { return pause.Pause(ctx) })
	}
	if store, ok := c.store.(*orderdb.Store); ok {
		o.Orders = find(&parts, func() (map[order.Status]int, error) { return store.Counts(ctx, MostCounted) })
		o.Closing = find(&parts, func() (orderdb.Closing, error) { return store.Closing(ctx, closingWithin, closingMost) })
	}
	if c.db != nil {
		o.Outbox = find(&parts, func() (outbox.Backlog, error) { return outbox.Stats(ctx, c.db) })
		o.Letters = find(&parts, func() (int64, error) { return c.openLetters(ctx) })
	}
	o.Queues = find(&parts, queues)
	parts.Wait()
	return o
}

// find has a part found out beside the others.
func find[T any](parts *sync.WaitGroup, out func() (T, error)) *Known[T] {
	part := &Known[T]{}
	parts.Go(func() { part.Value, part.Err = out() })
	return part
}

func (c *Closer) overdue(ctx context.Context) (Overdue, error) {
	orders, err := c.store.Overdue(ctx, cmp.Or(c.cfg.SweepGrace, order.SweepGrace), order.Cursor{}, MostOverdue)
	if err != nil || len(orders) == 0 {
		return Overdue{}, err
	}
	return Overdue{len(orders), orders[0].Late}, nil
}

func (c *Closer) openLetters(ctx context.Context) (n int64, err error) {
	open, err := c.desk.Open(ctx)
	for _, letters := range open {
		n += letters
	}
	return n, err
}

// queues is what the watch has measured last.
func (c *Closer) queues() (Queues, error) {
	switch last := c.measured.Load(); {
	case last == nil:
		return Queues{}, errors.New("the queues have not been looked at yet")
	case time.Since(last.Value.At) > queuesKeep:
		return Queues{}, errors.New("the queues have not been looked at lately: is this process connected to the broker?")
	default:
		return last.Value, brokerError(last.Err)
	}
}

// lookAtQueues measures with a connection of its own.
func (c *Closer) lookAtQueues(ctx context.Context, broker amqp.Config) (Queues, error) {
	conn, err := amqp.Open(context.WithoutCancel(ctx), broker)
	if err != nil {
		return Queues{}, brokerError(err)
	}
	defer conn.Close()
	depths, err := c.topology.Depths(ctx, conn)
	if why := conn.Ready(); err != nil && why != nil {
		err = why // says more than that the time is over
	}
	return Queues{time.Now(), depths}, brokerError(err)
}

func brokerError(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", ErrBroker, err)
}
