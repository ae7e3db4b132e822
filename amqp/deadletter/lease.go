package deadletter

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"
	"gorm.io/gorm"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/amqp/database"
)

const (
	lookEvery  = 500 * time.Millisecond // for replays to take
	watchEvery = 250 * time.Millisecond // whether a replay is to be cancelled
	leaseTime  = 10 * time.Second
	renewEvery = 4 // looks: each second
	maxReplays = 4 // that one process runs at the same time: each uses three connections of the pool
)

// Why a process stops running a replay, besides that it is done.
var (
	errCancelling = errors.New("it is to be cancelled")
	errTaken      = errors.New("another process runs it")
)

// replay runs the replays that nobody else does, until ctx ends.
func (d *Desk) replay(ctx context.Context, publisher *amqp.Publisher) error {
	group, running := errgroup.WithContext(ctx)
	defer func() { _ = group.Wait() }() // they end with ctx, and have said what kept them
	places := make(chan struct{}, maxReplays)
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	trouble := complaint{logger: d.cfg.Logger, about: "looking for replays"}
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
		select {
		case places <- struct{}{}:
		default:
			continue // all places are taken
		}
		r, err := d.lease(ctx)
		trouble.note(ctx, err)
		if r == nil {
			<-places
			continue
		}
		group.Go(func() error {
			defer func() { <-places }()
			r.publisher = publisher
			r.run(running)
			return nil
		})
	}
}

// lease takes a replay that nobody runs, nil if there is none.
func (d *Desk) lease(ctx context.Context) (*runner, error) {
	db := d.cfg.DB.WithContext(ctx)
	var id string
	err := db.Raw("SELECT id FROM lapse_replays WHERE state IN ? AND leased_until < UTC_TIMESTAMP(6) LIMIT 1",
		[]ReplayState{Cancelling, Running}).Scan(&id).Error
	if err != nil || id == "" {
		return nil, err
	}
	me := owner()
	var job Replay
	var mine bool
	err = database.Transact(ctx, d.cfg.DB, func(tx *gorm.DB) error {
		taken := tx.Exec(`UPDATE lapse_replays SET owner = ?, leased_until = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND, trouble = NULL,
			started_at = COALESCE(started_at, UTC_TIMESTAMP(6)), updated_at = UTC_TIMESTAMP(6)
			WHERE id = ? AND state IN ? AND leased_until < UTC_TIMESTAMP(6)`, me, leaseTime.Microseconds(), id, []ReplayState{Cancelling, Running})
		if mine = taken.RowsAffected == 1; taken.Error != nil || !mine {
			return taken.Error
		}
		job, err = replayIn(tx, id)
		return err
	})
	if err != nil || !mine {
		return nil, err
	}
	return &runner{Desk: d, job: job, owner: me, logger: d.cfg.Logger.With("replay", id)}, nil
}

// owner is a name that nobody else has, and from which one sees where it runs. At most 64 characters.
func owner() string {
	host, _ := os.Hostname()
	return fmt.Sprintf("%.32s/%d/%.8s", host, os.Getpid(), uuid.NewString())
}

// keep renews the lease until ctx ends, and shows what the run waits for. It ends the run when the replay is to be
// cancelled, or belongs to another process. While the database is away, nobody else can take it either.
func (r *runner) keep(ctx context.Context, stop context.CancelCauseFunc) {
	ticker := time.NewTicker(watchEvery)
	defer ticker.Stop()
	for look := 1; ; look++ {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		err := r.look(ctx, stop, look%renewEvery == 0)
		if err != nil {
			look-- // the next look may do
		}
	}
}

func (r *runner) look(ctx context.Context, stop context.CancelCauseFunc, renew bool) error {
	ctx, cancel := context.WithTimeout(ctx, leaseTime/2)
	defer cancel()
	db := r.cfg.DB.WithContext(ctx)
	if renew {
		renewed := db.Exec(`UPDATE lapse_replays SET leased_until = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND, updated_at = UTC_TIMESTAMP(6), trouble = ?
			WHERE id = ? AND owner = ? AND state IN ?`, leaseTime.Microseconds(), r.trouble.Load(), r.job.ID, r.owner, []ReplayState{Running, Cancelling})
		if renewed.Error != nil {
			return renewed.Error
		}
	}
	var now struct{ State, Owner string }
	if err := db.Raw("SELECT state, owner FROM lapse_replays WHERE id = ?", r.job.ID).Scan(&now).Error; err != nil {
		return err
	}
	switch state := ReplayState(now.State); {
	case now.Owner != r.owner || state.Ended():
		stop(errTaken)
	case state == Cancelling:
		stop(errCancelling)
	}
	return nil
}

// abandoned ends a replay that is to be cancelled and that nobody runs.
func (d *Desk) abandoned(ctx context.Context, id string) error {
	r, err := d.Replay(ctx, id)
	if err != nil || r.Owner != "" || r.State != Cancelling {
		return err // whoever runs it ends it
	}
	run := runner{Desk: d, job: r, owner: owner(), logger: d.cfg.Logger}
	taken := d.cfg.DB.WithContext(ctx).Exec(`UPDATE lapse_replays SET owner = ?, leased_until = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND
		WHERE id = ? AND state = ? AND leased_until < UTC_TIMESTAMP(6)`, run.owner, leaseTime.Microseconds(), id, Cancelling)
	if taken.Error != nil || taken.RowsAffected == 0 {
		return taken.Error
	}
	return run.end(ctx, Cancelled)
}
