package deadletter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"
	"gorm.io/gorm"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/amqp/database"
)

// runner is one process's run of a replay. Three steps go on at the same time, each with a part of the letters: they
// are read, and their guard is asked; what is not settled is published; and what became of them is marked.
type runner struct {
	*Desk
	job       Replay
	owner     string
	publisher *amqp.Publisher
	logger    *slog.Logger
	trouble   atomic.Pointer[string] // what it waits for, nil if for nothing
	alone     sync.RWMutex           // held to write by who publishes messages one by one
}

const (
	// maxBatch is how many letters are read, published and marked at a time. Twice as many are marked hardly faster, but
	// then a run that is to stop takes longer, and one that is killed leaves more in doubt.
	maxBatch = 500
	// publishers is how many batches are published at the same time.
	publishers = 2
	// confirmTime is how long a run that is to stop waits for the confirms of what is under way, and markTime
	// for the database to take them.
	confirmTime = 400 * time.Millisecond
	markTime    = 3 * time.Second
)

// run works until there is nothing left to do, or somebody cancels it, or ctx ends.
func (r *runner) run(ctx context.Context) {
	r.logger.Info("replaying", "letters", r.job.Left(), "rate", r.job.Rate, "who", r.job.By.Who, "why", r.job.By.Why)
	working, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	if r.job.State == Cancelling { // since before it was taken over
		stop(errCancelling)
	}
	keeping, relax := context.WithCancel(context.WithoutCancel(ctx))
	var keeper sync.WaitGroup
	keeper.Go(func() { r.keep(keeping, stop) })

	err := r.work(ctx, working, stop)
	switch {
	case err == nil:
		err = r.persist(ctx, func() error { return r.end(ctx, Done) })
	case errors.Is(context.Cause(working), errCancelling):
		err = r.persist(ctx, func() error { return r.end(ctx, Cancelled) })
	}
	relax()
	keeper.Wait()
	switch {
	case errors.Is(err, errTaken):
		r.logger.Info("another process goes on with the replay")
	case err != nil:
		r.release(ctx)
	}
}

// work replays until nothing is left, or working ends. What has become of letters until then is marked, unless ctx has
// ended and the database does not take it.
func (r *runner) work(ctx, working context.Context, stop context.CancelCauseFunc) error {
	marking, cancel := longer(ctx, markTime)
	defer cancel()
	// Small batches may wait to be marked together.
	read, done := make(chan consignment), make(chan []outcome, maxBatch/r.size()-1)
	group, working := errgroup.WithContext(working)
	group.Go(func() error { defer close(read); return r.read(working, read) })
	group.Go(func() error {
		defer close(done)
		sending, working := errgroup.WithContext(working)
		for range publishers {
			sending.Go(func() error {
				for c := range read {
					if err := r.publish(working, c, done); err != nil {
						return err
					}
				}
				return nil
			})
		}
		return sending.Wait()
	})
	group.Go(func() (err error) {
		for outcomes := range done {
			if err == nil {
				if err = r.mark(marking, r.more(outcomes, done)); err != nil {
					stop(err)
				}
			}
		}
		return err
	})
	return group.Wait()
}

// more adds what waits to be marked, too.
func (r *runner) more(outcomes []outcome, done <-chan []outcome) []outcome {
	for len(outcomes)+r.size() <= maxBatch {
		select {
		case others, ok := <-done:
			if !ok {
				return outcomes
			}
			outcomes = append(outcomes, others...)
		default:
			return outcomes
		}
	}
	return outcomes
}

// size is how many letters a batch has: a tenth of a second's.
func (r *runner) size() int {
	if r.job.Rate == 0 {
		return maxBatch
	}
	return min(max(r.job.Rate/10, 1), maxBatch)
}

// consignment is letters on their way, and what their guard has said of each.
type consignment struct {
	letters  []parcel
	verdicts []Verdict
	asked    time.Time
}

// publishings is how many of them are to be published.
func (c consignment) publishings() (n int) {
	for i, p := range c.letters {
		if p.damage == nil && !c.verdicts[i].Settled {
			n++
		}
	}
	return n
}

// read hands on the letters, as fast as the rate allows.
func (r *runner) read(ctx context.Context, to chan<- consignment) error {
	limit, size := rate.Inf, r.size()
	if r.job.Rate > 0 {
		limit = rate.Limit(r.job.Rate)
	}
	pace := rate.NewLimiter(limit, 2*size)
	pace.AllowN(time.Now(), 2*size) // it begins with nothing saved up
	for after := int64(0); ; {
		var letters []parcel
		err := r.persist(ctx, func() (err error) {
			letters, err = r.next(ctx, after, size)
			return err
		})
		if err != nil || len(letters) == 0 {
			return err
		}
		after = letters[len(letters)-1].ID
		c, err := r.examine(ctx, letters)
		if err != nil {
			return err
		}
		if err := pace.WaitN(ctx, c.publishings()); err != nil {
			return err
		}
		select {
		case to <- c:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// next reads letters of the replay, from after one on.
func (r *runner) next(ctx context.Context, after int64, limit int) ([]parcel, error) {
	db := r.cfg.DB.WithContext(ctx)
	// Because of the order, servers would rather go through the whole table.
	ids, err := load(db, "lapse_dead_letters FORCE INDEX (lapse_dead_letters_replay)", limit,
		condition{"replay_id = ? AND state = ? AND id > ?", []any{r.job.ID, Open, after}})
	if err != nil {
		return nil, err
	}
	return parcels(db, ids)
}

// examine asks the guard about letters until it answers.
func (r *runner) examine(ctx context.Context, letters []parcel) (consignment, error) {
	c := consignment{letters: letters}
	err := r.persist(ctx, func() (err error) {
		c.asked = time.Now()
		c.verdicts, err = r.ask(ctx, letters)
		return err
	})
	return c, err
}

// release lets another process go on at once.
func (r *runner) release(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	err := r.cfg.DB.WithContext(ctx).Exec("UPDATE lapse_replays SET owner = '', leased_until = UTC_TIMESTAMP(6) WHERE id = ? AND owner = ?", r.job.ID, r.owner).Error
	if err != nil {
		r.logger.Warn("a replay could not be handed on; another process takes it when the lease is over", "error", err)
	}
}

// end writes that nothing more happens, with which the letters that are left are free.
func (r *runner) end(ctx context.Context, state ReplayState) error {
	// It is done also while the process ends.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	return database.Transact(ctx, r.cfg.DB, func(tx *gorm.DB) error {
		ended := tx.Exec(`UPDATE lapse_replays SET state = ?, ended_at = UTC_TIMESTAMP(6), updated_at = UTC_TIMESTAMP(6), trouble = NULL,
			leased_until = UTC_TIMESTAMP(6) WHERE id = ? AND owner = ? AND state IN ?`, state, r.job.ID, r.owner, []ReplayState{Running, Cancelling})
		if ended.Error != nil {
			return ended.Error
		}
		if ended.RowsAffected == 0 {
			return errTaken
		}
		now, err := replayIn(tx, r.job.ID)
		if err != nil {
			return err
		}
		result := fmt.Sprintf("%s: %d published, %d settled, %d failed, %d left", state, now.Published, now.Settled, now.Failed, now.Left())
		r.logger.Info("the replay has ended", "result", result)
		return record(tx, Entry{Actor: now.By.Who, Action: "replay.end", Subject: now.ID, Count: now.Published, Reason: now.By.Why, Result: result})
	})
}
