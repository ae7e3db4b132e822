package main

import (
	"cmp"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/order"
	"github.com/lapse-go/lapse/order/checkout"
)

// Flags that several commands have. Each is also an environment variable, LAPSE_… ; those marked secret
// may be given as a file, LAPSE_…_FILE. What is for one call has the command in its variable's name: a
// LAPSE_TAG that is there for something else must not limit anything.

// namespaceFlag has to be the same in every process of a service.
type namespaceFlag struct {
	Namespace string `default:"lapse" help:"Begins the name of every exchange and queue."`
}

// topologyFlags say which exchanges and queues there are.
type topologyFlags struct {
	namespaceFlag
	QueueType amqp.QueueType `default:"quorum" enum:"quorum,classic" help:"quorum, or classic with its weaker promise."`
	Rungs     ladder         `default:"${rungs}" help:"Delays for which there is a queue each."`
	Kinds     []string       `help:"Further kinds of messages, which the shop's own programs handle, separated by commas: their queues are made and looked at."`
}

// windowFlag is for those that place orders.
type windowFlag struct {
	Window duration `default:"30m" help:"Time to pay of an order that does not say: 1ms to a year."`
}

// workFlags say how a process works.
type workFlags struct {
	grace
	Tries        int      `default:"8" help:"How often a message is tried before it is a dead letter."`
	RetryDelay   duration `default:"1s" help:"Delay before the second try; it doubles from then on."`
	RetryMax     duration `default:"5m" help:"Longest delay between two tries."`
	Workers      int      `default:"2" help:"Batches of timers handled at the same time."`
	PlaceWorkers int      `default:"2" help:"Batches of orders placed by message at the same time."`
	Batch        int      `default:"200" help:"Most messages in a batch."`
	SweepEvery   duration `default:"1m" help:"How often overdue orders are looked for."`
	Hold         duration `default:"10m" help:"How long messages are held through an outage: well below the broker's consumer_timeout."`
	InboxKeep    duration `default:"720h" help:"How long the inbox knows a message that was handled: longer than it may come again."`
	DeskKeep     duration `default:"2160h" help:"How long a dead letter is kept after it was replayed, settled or discarded; an open one always is."`
	Shutdown     duration `default:"10s" help:"How long to finish what is in hand on SIGTERM. The API has the first half of it, the loops the second."`
}

// grace is how long a timer may be late before the sweep closes its order.
type grace struct {
	SweepGrace duration `default:"30s" help:"How long a timer may be late before the sweep closes its order."`
}

func (g grace) validate() error {
	return within("sweep-grace", g.SweepGrace, time.Millisecond, 24*time.Hour, "30s")
}

// byFlags say who did something, for the order's timeline.
type byFlags struct {
	Who string `default:"${user}" help:"Who does it."`
	Why string `help:"Why it is done."`
}

func (f byFlags) by() order.By { return order.By{Who: f.Who, Why: f.Why} }

func (f topologyFlags) checkout() checkout.Config {
	cfg := checkout.Config{Namespace: f.Namespace, QueueType: f.QueueType, Ladder: amqp.Ladder(f.Rungs)}
	for _, kind := range f.Kinds {
		cfg.Kinds = append(cfg.Kinds, checkout.Kind{Name: strings.TrimSpace(kind)})
	}
	return cfg
}

func (f windowFlag) validate() error {
	return within("window", f.Window, order.MinWindow, order.MaxWindow, "30m")
}

func (f workFlags) validate() error {
	const whole = 10_000
	return cmp.Or(
		number("tries", f.Tries, 1, 1000),
		within("retry-delay", f.RetryDelay, time.Millisecond, amqp.MaxDelay, "1s"),
		within("retry-max", f.RetryMax, f.RetryDelay.time(), amqp.MaxDelay, "5m"),
		number("workers", f.Workers, 1, 1000),
		number("place-workers", f.PlaceWorkers, 1, 1000),
		number("batch", f.Batch, 1, whole),
		within("sweep-every", f.SweepEvery, time.Millisecond, 24*time.Hour, "1m"),
		f.grace.validate(),
		within("hold", f.Hold, time.Second, 24*time.Hour, "10m"),
		within("inbox-keep", f.InboxKeep, time.Minute, amqp.MaxDelay, "720h"),
		within("desk-keep", f.DeskKeep, time.Hour, amqp.MaxDelay, "2160h"),
		within("shutdown", f.Shutdown, time.Millisecond, time.Hour, "10s"),
	)
}

// apply puts the flags into a configuration.
func (f workFlags) apply(cfg checkout.Config, logger *slog.Logger) checkout.Config {
	cfg.Retry = amqp.RetryPolicy{Tries: f.Tries, Initial: f.RetryDelay.time(), Max: f.RetryMax.time()}
	cfg.Workers, cfg.PlaceWorkers, cfg.Batch = f.Workers, f.PlaceWorkers, f.Batch
	cfg.SweepEvery, cfg.SweepGrace = f.SweepEvery.time(), f.SweepGrace.time()
	cfg.InboxKeep, cfg.DeskKeep = f.InboxKeep.time(), f.DeskKeep.time()
	cfg.Hold, cfg.Shutdown = f.Hold.time(), f.Shutdown.time()
	cfg.Logger = logger
	return cfg
}

// within is the error of a duration that is out of bounds.
func within(flag string, d duration, least, most time.Duration, such string) error {
	if d.time() >= least && d.time() <= most {
		return nil
	}
	return fmt.Errorf("%w: --%s=%s: give %s to %s, such as %s", errUsage, flag, d, duration(least), span(most), such)
}

func number(flag string, n, least, most int) error {
	if n >= least && n <= most {
		return nil
	}
	return fmt.Errorf("%w: --%s=%d: give %d to %d", errUsage, flag, n, least, most)
}

// span is how people call a long time.
func span(d time.Duration) string {
	switch d {
	case order.MaxWindow:
		return "a year"
	case amqp.MaxDelay:
		return "ten years"
	}
	return duration(d).String()
}
