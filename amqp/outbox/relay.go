package outbox

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v4"
	"gorm.io/gorm"

	"github.com/lapse-go/lapse/amqp"
)

// Publisher is what a relay needs of [amqp.Publisher].
type Publisher interface {
	// Publish answers for each message when the broker has, or when ctx ends.
	Publish(ctx context.Context, messages ...amqp.Publishing) []error
	// Ready is nil unless publishing would only wait. It answers at once.
	Ready() error
}

var _ Publisher = (*amqp.Publisher)(nil)

// RelayConfig says how a [Relay] works. The zero value of a field is its default.
type RelayConfig struct {
	// Topology names the rungs for timers.
	Topology amqp.Topology
	// Batch is how many rows are claimed at a time. 500 when zero; at most 900, because MariaDB makes a
	// subquery of a list of 1,000 (https://mariadb.com/kb/en/conversion-of-big-in-predicates-into-subqueries/).
	Batch int
	// Lease is how long a claim holds: the rows of a relay that died wait for that long, and a publish
	// has a third of it to be confirmed. 30 s when zero; at least 1 s.
	Lease time.Duration
	// Poll is how often an outbox that is at rest is looked at, with one query. Right after there were
	// rows it is looked at more often, so that those of another process, which cannot wake the relay, do
	// not wait for long. 1 s when zero.
	Poll time.Duration
	// Metrics counts. Private ones when nil.
	Metrics *Metrics
	// OnRound, if set, is told of each round: a look at the outbox and, if rows were found, their way to
	// the broker and out of the outbox. A round that found nothing went well; one fails when the database
	// does not answer, or when the broker is away, takes nothing, or confirms nothing. What the broker says
	// of single rows is no failure of the round. It may be called by several goroutines at once, and has
	// to be quick.
	OnRound func(took time.Duration, err error)
	// Logger is told when a queue or the database does not answer or does again, and of rows set aside.
	// slog.Default() when nil.
	Logger *slog.Logger
}

const (
	// publishing is how many batches are published at a time, while the next one is being claimed.
	publishing = 2
	// quickPoll is how soon the outbox is looked at again after there were rows. It doubles, up to Poll,
	// with each look that finds none.
	quickPoll = 50 * time.Millisecond
	// fullScan is how often rows below the low-water id are looked for.
	fullScan = time.Minute
	// grace is how long a relay that is to stop still waits for either server.
	grace = 5 * time.Second
	// readyPoll is how often a publisher that is not ready is asked again; that costs nothing.
	readyPoll = 100 * time.Millisecond
	// silencePause follows a batch for which the broker answered nothing, though it seems to be there.
	silencePause = time.Second
)

// errSilent is why a round failed of whose rows none was answered.
var errSilent = errors.New("the broker confirmed none of the rows")

// Relay publishes what is in the outbox. Any number of them may work on one outbox, in any number of
// processes.
//
// A row is claimed for a while, published, and deleted once the broker has confirmed it; no
// transaction is open meanwhile. A row whose confirmation did not come is sent again, so a message
// may come twice, with the same id. Rows for a queue that is full or does not answer wait for 1, 2, 4 …
// 32 s. One that cannot be routed, or never be published, is set aside with its error and tried again
// after a minute, two, and so on up to an hour.
type Relay struct {
	db   *gorm.DB
	pub  Publisher
	cfg  RelayConfig
	wake chan struct{} // rows were committed

	holds holds

	// mu is held by the one that looks for rows, or waits for some, while the others publish theirs.
	mu     sync.Mutex
	pause  *backoff.ExponentialBackOff // between tries while the database is away
	dbAway bool
	denied time.Time     // when a round was last told of as failed because the publisher is not ready
	hot    bool          // there may be rows to claim
	looked time.Time     // at the outbox, at rest,
	poll   time.Duration // and after that long again
	low    lowWater
	scan   scan
}

// scan looks for the rows below the low-water id.
type scan struct {
	began time.Time
	on    bool
	turn  bool // it takes turns with the rows above
}

// NewRelay makes a relay; [Relay.Run] runs it. The pool should be one of [database.Open].
func NewRelay(db *gorm.DB, pub Publisher, cfg RelayConfig) *Relay {
	if len(cfg.Topology.Ladder) == 0 {
		cfg.Topology.Ladder = amqp.DefaultLadder()
	}
	if cfg.Batch <= 0 {
		cfg.Batch = 500
	}
	if cfg.Lease == 0 {
		cfg.Lease = 30 * time.Second
	}
	cfg.Batch = min(cfg.Batch, 900)
	cfg.Lease = max(cfg.Lease, time.Second)
	if cfg.Poll <= 0 {
		cfg.Poll = time.Second
	}
	if cfg.Metrics == nil {
		cfg.Metrics = NewMetrics(nil)
	}
	if cfg.OnRound == nil {
		cfg.OnRound = func(time.Duration, error) {}
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	return &Relay{
		db: db, pub: pub, cfg: cfg,
		wake:  make(chan struct{}, 1),
		holds: holds{log: cfg.Logger, m: map[route]*hold{}},
		hot:   true,
		poll:  cfg.Poll,
		pause: backoff.NewExponentialBackOff(
			backoff.WithInitialInterval(250*time.Millisecond),
			backoff.WithMaxInterval(5*time.Second),
			backoff.WithMaxElapsedTime(0),
		),
	}
}

// Wake tells the relay that rows have been committed, so that it need not wait for its next look. It
// never blocks.
func (r *Relay) Wake() {
	select {
	case r.wake <- struct{}{}:
	default: // it is there already
	}
}

// Run relays until ctx ends; then what is claimed is finished, or given back after a few seconds, and
// Run returns nil. It does not end when a server is away.
func (r *Relay) Run(ctx context.Context) error {
	var workers sync.WaitGroup
	for range publishing + 1 {
		workers.Go(func() {
			for {
				b := r.next(ctx)
				if b == nil {
					return
				}
				err := r.relay(ctx, b)
				r.cfg.OnRound(time.Since(b.began), err)
				if errors.Is(err, errSilent) {
					sleep(ctx, silencePause, nil)
				}
			}
		})
	}
	workers.Wait()
	return nil
}

// next waits for rows and claims them. It returns nil when ctx has ended.
func (r *Relay) next(ctx context.Context) *batch {
	r.mu.Lock()
	defer r.mu.Unlock()
	for ctx.Err() == nil {
		limit := r.cfg.Batch
		denial := r.pub.Ready()
		if denial != nil {
			limit = 0
		}
		began := time.Now()
		b, err := r.find(ctx, limit)
		switch {
		case err != nil && ctx.Err() != nil:
			return nil
		case err != nil:
			if !r.dbAway {
				r.cfg.Logger.Warn("the outbox cannot be read", "error", err)
			}
			r.dbAway = true
			r.cfg.OnRound(time.Since(began), err)
			sleep(ctx, r.pause.NextBackOff(), nil)
			continue
		case r.dbAway:
			r.cfg.Logger.Info("the outbox can be read again")
			r.dbAway = false
			r.pause.Reset()
		}
		switch {
		case b != nil:
			b.began = began
			return b
		case denial != nil:
			// It is asked ten times a second; that is no reason to tell of it as often.
			if time.Since(r.denied) >= r.cfg.Poll {
				r.denied = time.Now()
				r.cfg.OnRound(time.Since(began), denial)
			}
			sleep(ctx, readyPoll, nil)
			continue
		}
		if !r.looked.Before(began) {
			r.cfg.OnRound(time.Since(began), nil)
		}
		if !r.hot && !r.scan.on {
			r.hot = sleep(ctx, time.Until(r.looked.Add(r.poll)), r.wake)
		}
	}
	return nil
}

// find claims the next rows, if there are any.
func (r *Relay) find(ctx context.Context, limit int) (b *batch, err error) {
	if time.Since(r.scan.began) >= fullScan {
		if err := r.survey(ctx); err != nil {
			return nil, err
		}
	}
	if limit == 0 {
		return nil, nil
	}
	poll := r.poll
	if r.hot {
		poll = r.cfg.Poll
	}
	if time.Since(r.looked) >= poll {
		if err := r.look(ctx); err != nil {
			return nil, err
		}
	}
	r.scan.turn = !r.scan.turn
	if r.scan.on && (r.scan.turn || !r.hot) {
		// A few at a time, because these have most likely failed before.
		b, err = r.claim(ctx, 0, r.low.id, max(1, limit/10))
		r.scan.on = b != nil
		return b, err
	}
	if !r.hot {
		return nil, nil
	}
	b, err = r.claim(ctx, r.low.id, math.MaxInt64, limit)
	if err != nil {
		return nil, err
	}
	r.hot = b != nil && b.full
	if b != nil {
		r.low.seen = max(r.low.seen, b.ids[len(b.ids)-1])
		r.poll = min(quickPoll, r.cfg.Poll)
	}
	return b, nil
}

// survey measures the backlog and begins a scan.
func (r *Relay) survey(ctx context.Context) error {
	now := time.Now()
	backlog, err := Stats(ctx, r.db)
	if err != nil {
		return err
	}
	r.cfg.Metrics.set(backlog)
	if backlog.lowest.Valid {
		r.low.lower(backlog.lowest.Int64)
	}
	r.scan.began, r.scan.on = now, r.low.id > 0 && backlog.Rows > 0
	r.hot = r.hot || backlog.Rows > 0
	r.looked = now
	return nil
}

// look finds out with one query whether there are rows to claim, and moves the low-water id.
func (r *Relay) look(ctx context.Context) error {
	now := time.Now()
	present, ready, err := r.peek(ctx)
	if err != nil {
		return err
	}
	r.low.mark(now, present)
	r.hot = r.hot || ready
	if !ready {
		r.poll = min(2*r.poll, r.cfg.Poll)
	}
	r.looked = now
	return nil
}

// relay publishes a batch. What it has begun it finishes after ctx has ended, for a short while. What it
// could not do it has logged.
func (r *Relay) relay(ctx context.Context, b *batch) error {
	publishCtx, cancel := finishing(ctx, time.Now().Add(r.cfg.Lease/3))
	defer cancel()
	var rows []row
	err := insist(publishCtx, func() (err error) {
		rows, err = r.read(publishCtx, b)
		return err
	})
	if err != nil {
		r.cfg.Logger.Warn("rows of the outbox wait until their claim is over", "error", err, "rows", len(b.ids))
		return err
	}
	r.publish(publishCtx, rows)
	r.cfg.Metrics.count(rows)
	r.report(rows)

	// After the lease they may be another relay's.
	settleCtx, cancel := finishing(ctx, b.since.Add(r.cfg.Lease))
	defer cancel()
	if err = insist(settleCtx, func() error { return r.settle(settleCtx, rows) }); err != nil {
		r.cfg.Logger.Warn("rows of the outbox will be sent again", "error", err, "rows", len(rows))
	}
	if silence(rows) {
		err = errors.Join(err, errSilent)
	}
	return err
}

// insist tries until it succeeds or ctx ends, and returns the last error.
func insist(ctx context.Context, try func() error) error {
	return backoff.Retry(try, backoff.WithContext(backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(50*time.Millisecond),
		backoff.WithMaxInterval(2*time.Second),
		backoff.WithMaxElapsedTime(0),
	), ctx))
}

// publish sends what may be sent, and notes in each row what came of it.
func (r *Relay) publish(ctx context.Context, rows []row) {
	var out []amqp.Publishing
	var sent []*row
	for i := range rows {
		m := &rows[i]
		switch {
		case m.err != nil:
		case r.holds.admit(m.route(), r.cfg.Lease/3):
			out, sent = append(out, m.out), append(sent, m)
		default:
			m.err = errHeld
		}
	}
	for i, err := range r.pub.Publish(ctx, out...) {
		sent[i].err = err
	}
	r.holds.learn(sent)
}

// report tells what was set aside.
func (r *Relay) report(rows []row) {
	aside := 0
	var reason error
	for _, m := range rows {
		if errors.Is(m.err, amqp.ErrUnroutable) || errors.Is(m.err, amqp.ErrInvalid) {
			aside, reason = aside+1, m.err
		}
	}
	if aside > 0 {
		r.cfg.Logger.Warn("rows of the outbox were set aside", "rows", aside, "error", reason)
	}
}

// finishing is a context for work that has begun: it ends at the deadline, or a grace after ctx did.
func finishing(ctx context.Context, deadline time.Time) (context.Context, context.CancelFunc) {
	work, cancel := context.WithDeadline(context.WithoutCancel(ctx), deadline)
	stop := context.AfterFunc(ctx, func() {
		sleep(work, grace, nil)
		cancel()
	})
	return work, func() { stop(); cancel() }
}

// sleep waits for d, for wake, or for the end of ctx, and reports whether it was for wake.
func sleep(ctx context.Context, d time.Duration, wake <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-wake:
		return true
	case <-timer.C:
	case <-ctx.Done():
	}
	return false
}
