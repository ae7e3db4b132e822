package checkout

import (
	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/order/orderamqp"
)

// consumers are those of the roles, without their connections.
func (c *Closer) consumers(roles []Role) (all []amqp.ConsumerConfig) {
	for _, role := range roles {
		switch role {
		case Timer:
			all = append(all, c.timers())
		case Place:
			all = append(all, c.placements())
		case Desk:
			all = append(all, c.collect("desk.dead", c.topology.Dead()), c.collect("desk.unrouted", c.topology.Unrouted()))
		case Kinds:
			for _, kind := range c.cfg.Kinds {
				if kind.Handler != nil {
					all = append(all, c.further(kind))
				}
			}
		}
	}
	return all
}

func (c *Closer) timers() amqp.ConsumerConfig {
	expirer := &orderamqp.Expirer{Store: c.store, Metrics: c.metrics.orders}
	cfg := c.consumer(orderamqp.KindPaymentTimeout, expirer)
	cfg.Probe, cfg.Workers = expirer.Probe, c.cfg.Workers
	return cfg
}

func (c *Closer) placements() amqp.ConsumerConfig {
	placer := &orderamqp.Placer{Orders: c.placer, Metrics: c.metrics.orders}
	cfg := c.consumer(orderamqp.KindPlace, placer)
	cfg.Probe, cfg.Workers = placer.Probe, c.cfg.PlaceWorkers
	return cfg
}

// collect has what is in a queue of dead letters put on the desk.
func (c *Closer) collect(name, queue string) amqp.ConsumerConfig {
	cfg := c.consumer(name, c.desk.Handler(queue))
	cfg.Queue, cfg.Probe = queue, c.desk.Probe
	cfg.Workers, cfg.Batch, cfg.Prefetch = 1, 100, 100 // each may have megabytes
	return cfg
}

func (c *Closer) further(kind Kind) amqp.ConsumerConfig {
	cfg := c.consumer(kind.Name, kind.Handler)
	cfg.Probe, cfg.Workers, cfg.Batch = kind.Probe, kind.Workers, kind.Batch
	return cfg
}

func (c *Closer) consumer(kind string, handler amqp.Handler) amqp.ConsumerConfig {
	return amqp.ConsumerConfig{
		Topology: c.topology, Kind: kind, Handler: handler, Retry: c.cfg.Retry,
		Batch: c.cfg.Batch, Hold: c.cfg.Hold, Shutdown: c.cfg.Shutdown,
		Metrics: c.metrics.transport, Logger: c.cfg.Logger,
	}
}
