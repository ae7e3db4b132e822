package deadletter

import (
	"context"
	"fmt"
	"sync"

	"gorm.io/gorm"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/amqp/database"
)

// Handler stores what comes from one of the queues of dead letters: [amqp.Topology.Dead] or Unrouted. A message is
// done when its letter is committed. One that the database refuses is parked, alone.
func (d *Desk) Handler(queue string) amqp.Handler {
	return &collector{Desk: d, queue: queue, doubted: map[doubt]identity{}}
}

// Probe is nil if the database can be asked for letters.
func (d *Desk) Probe(ctx context.Context) error {
	var id []int64
	return d.cfg.DB.WithContext(ctx).Raw("SELECT id FROM lapse_dead_letters LIMIT 1").Scan(&id).Error
}

type collector struct {
	*Desk
	queue string

	mu      sync.Mutex
	doubted map[doubt]identity // what may have been committed, although an error said otherwise
}

// doubt is one of the equal messages of a batch that failed, and that comes again.
type doubt struct {
	hash string
	nth  int
}

// Handle stores a batch.
func (c *collector) Handle(ctx context.Context, batch []amqp.Message) ([]amqp.Outcome, error) {
	outcomes := make([]amqp.Outcome, len(batch))
	var letters []*arrived
	for i, m := range batch {
		a, err := c.arrive(c.queue, i, m)
		if err != nil {
			outcomes[i] = amqp.Park(err)
			continue
		}
		letters = append(letters, a)
	}
	doubts := c.recall(letters)
	if err := c.store(ctx, letters, outcomes); err != nil {
		c.remember(doubts, letters)
		return nil, err
	}
	c.forget()
	for _, a := range letters {
		if a.inserted {
			c.metrics.collected.WithLabelValues(a.row.Reason).Inc()
		}
	}
	return outcomes, nil
}

// recall gives the letters the identities that they had when their batch failed. Whether that was committed nobody
// knows, but if it was, then under these.
func (c *collector) recall(letters []*arrived) []doubt {
	c.mu.Lock()
	defer c.mu.Unlock()
	doubts := make([]doubt, len(letters))
	equal := map[string]int{}
	for i, a := range letters {
		doubts[i] = doubt{a.identity.text, equal[a.identity.text]}
		equal[a.identity.text]++
		if id, found := c.doubted[doubts[i]]; found {
			a.identity = id
		}
	}
	return doubts
}

func (c *collector) remember(doubts []doubt, letters []*arrived) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, a := range letters {
		if a.inserted {
			c.doubted[doubts[i]] = identity{a.row.Identity, true, false}
		}
	}
}

// forget ends all doubts once a batch is stored: one that failed is handled again at once, or never here. It may have gone
// to another process, and what comes later and is equal is another letter.
func (c *collector) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.doubted)
}

// store commits the letters, together or, if the database refuses one of them, in halves until that one is alone. An
// error says that the database is away, and nothing of any letter.
func (c *collector) store(ctx context.Context, letters []*arrived, outcomes []amqp.Outcome) error {
	if len(letters) == 0 {
		return nil
	}
	err := database.Transact(ctx, c.cfg.DB, func(tx *gorm.DB) error { return insert(tx, letters) })
	switch {
	case err == nil:
		for _, a := range letters {
			outcomes[a.index] = amqp.Done()
			if a.unfit != nil {
				outcomes[a.index] = amqp.Park(a.unfit)
			}
		}
		return nil
	case database.IsOutage(err) || database.IsConflict(err):
		return fmt.Errorf("collecting from %s: %w", c.queue, err)
	case len(letters) == 1:
		letters[0].inserted = false
		outcomes[letters[0].index] = amqp.Park(fmt.Errorf("the database refuses it: %w", err))
		return nil
	}
	half := len(letters) / 2
	if err := c.store(ctx, letters[:half], outcomes); err != nil {
		return err
	}
	return c.store(ctx, letters[half:], outcomes)
}
