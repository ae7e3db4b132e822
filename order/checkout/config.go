package checkout

import (
	"cmp"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/amqp/inbox"
	"github.com/lapse-go/lapse/order"
	"github.com/lapse-go/lapse/order/orderamqp"
)

// Config says how a service works. The zero value serves. What concerns placing has to be the same in
// every process of the service; the rest concerns only those that call [Closer.Serve].
type Config struct {
	// Namespace begins the names of all exchanges and queues. "lapse" when empty. Placing needs it, too:
	// what is written to the outbox names the exchange that it goes to.
	Namespace string
	// QueueType is [amqp.Quorum] when empty.
	QueueType amqp.QueueType
	// Ladder is the delays for which there is a queue each. [amqp.DefaultLadder] when empty.
	Ladder amqp.Ladder
	// Window is how long a customer has to pay unless the order says otherwise, from a millisecond to a
	// year. 30 min when zero.
	Window time.Duration

	// The rest is for Serve.

	// Retry is the policy for messages that fail.
	Retry amqp.RetryPolicy
	// Workers is how many batches of timers one process handles at the same time. 2 when zero.
	Workers int
	// PlaceWorkers is how many batches of orders to place. 2 when zero.
	PlaceWorkers int
	// Batch is the most messages handled at once. 200 when zero.
	Batch int
	// SweepEvery and SweepGrace: see [order.Sweep]. 1 min and 30 s when zero.
	SweepEvery, SweepGrace time.Duration
	// InboxKeep is for how long the inbox knows a message, see [inbox.Pruner]. 30 days when zero.
	InboxKeep time.Duration
	// DeskKeep is for how long a dead letter is kept after it was resolved. 90 days when zero.
	DeskKeep time.Duration
	// Hold and Shutdown: see [amqp.ConsumerConfig]. 10 min and 10 s when zero.
	Hold, Shutdown time.Duration

	// Kinds are further kinds of messages, beside those of Lapse.
	Kinds []Kind

	// Registerer takes the metrics; two Checkouts need two. None when nil.
	Registerer prometheus.Registerer
	Logger     *slog.Logger
}

// Topology is that of the service.
func (cfg Config) Topology() amqp.Topology {
	t := amqp.Topology{
		Namespace: cmp.Or(cfg.Namespace, "lapse"), Type: cfg.QueueType, Ladder: cfg.Ladder,
		Kinds:         []string{orderamqp.KindPaymentTimeout, orderamqp.KindPlace},
		Subscriptions: make(map[string][]string),
	}
	for _, kind := range cfg.Kinds {
		t.Kinds = append(t.Kinds, kind.Name)
		if len(kind.Events) > 0 {
			t.Subscriptions[kind.Name] = kind.Events
		}
	}
	return t
}

// Validate says what is wrong with the names and periods, or nil.
func (cfg Config) Validate() error {
	for _, kind := range cfg.Kinds {
		if kind.Name == orderamqp.KindPaymentTimeout || kind.Name == orderamqp.KindPlace {
			return fmt.Errorf("kind %q is Lapse's own: give yours another name", kind.Name)
		}
	}
	if err := cfg.Topology().Validate(); err != nil {
		return err
	}
	if cfg.Window != 0 && (cfg.Window < order.MinWindow || cfg.Window > order.MaxWindow) {
		return fmt.Errorf("a default payment window of %s: give a millisecond up to a year, for instance 30m", cfg.Window)
	}
	if cfg.InboxKeep < 0 {
		return fmt.Errorf("inbox notes kept for %s: give a period, for instance %s", cfg.InboxKeep, inbox.DefaultKeep)
	}
	return nil
}
