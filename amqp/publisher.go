package amqp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

// PublisherConfig sets bounds. Zero values are defaults.
type PublisherConfig struct {
	// Window is how many messages may be unconfirmed at a time. 2048 when zero.
	Window int
	// MaxBytes is the largest body. 16 MiB when zero. The broker closes the channel over one that is
	// larger than its own max_message_size, which AMQP does not tell.
	MaxBytes int
	// ConfirmTimeout is how long the broker may confirm nothing, though it blocks nothing either, until
	// the connection is taken for dead and dropped. 10 s when zero.
	ConfirmTimeout time.Duration
	// Metrics counts. A private one when nil.
	Metrics *Metrics
	// Logger is told of channels that the broker closed. slog.Default() when nil.
	Logger *slog.Logger
}

func (cfg PublisherConfig) withDefaults() PublisherConfig {
	if cfg.Window <= 0 {
		cfg.Window = 2048
	}
	if cfg.MaxBytes <= 0 {
		cfg.MaxBytes = 16 << 20
	}
	if cfg.ConfirmTimeout <= 0 {
		cfg.ConfirmTimeout = 10 * time.Second
	}
	if cfg.Metrics == nil {
		cfg.Metrics = NewMetrics(nil)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	return cfg
}

// Publisher publishes with confirms, pipelined on one channel. Any number of goroutines may use it.
//
// One goroutine of its own writes, so that a socket that takes no more blocks that one only, and
// not the callers, who wait on their contexts. Another one reads the broker's answers.
type Publisher struct {
	conn   *Conn
	cfg    PublisherConfig
	jobs   chan *job
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	tasks  sync.WaitGroup

	mu      sync.Mutex
	moved   *sync.Cond // something happened that the writer may be waiting for
	session *session   // nil while there is no channel
	asked   *link      // the writer waits for an answer on it,
	since   time.Time  // since then
}

// job is the messages of one call.
type job struct {
	ctx      context.Context
	messages []Publishing
	sizes    []int // of each message's properties, encoded

	// Guarded by Publisher.mu from when the writer has the job.
	errs    []error
	pending int           // how many are errPending
	left    bool          // nobody waits for it any more
	done    chan struct{} // closed when nothing is pending
}

// errPending stands for the answer that has not come yet.
var errPending = errors.New("pending")

func (j *job) answer(i int, err error) {
	j.errs[i] = err
	if j.pending--; j.pending == 0 {
		close(j.done)
	}
}

// session is a channel in confirm mode and what was sent on it.
type session struct {
	ch        *amqp091.Channel
	link      *link
	confirms  chan amqp091.Confirmation
	returns   chan amqp091.Return
	closes    chan *amqp091.Error
	exchanges map[string]bool // known to exist; for the writer only

	// Guarded by Publisher.mu. Delivery tags count from 1; those from first to next-1 are in flight,
	// each in flights[tag%len(flights)].
	flights     []flight
	first, next uint64
	progress    time.Time // of the last answer, or of the first message sent after a silence
	over        bool
}

// flight is a message that was sent and is not confirmed.
type flight struct {
	job      *job // nil when it was answered out of turn
	index    int
	sent     time.Time
	returned bool
	written  bool
	answer   *amqp091.DeferredConfirmation // once it is written; nil if that failed
}

func (s *session) flight(tag uint64) *flight { return &s.flights[tag%uint64(len(s.flights))] }

// NewPublisher starts a publisher on conn, which it should not share with a consumer. Close it
// before conn.
func NewPublisher(conn *Conn, cfg PublisherConfig) *Publisher {
	p := &Publisher{conn: conn, cfg: cfg.withDefaults(), jobs: make(chan *job)}
	p.moved = sync.NewCond(&p.mu)
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.tasks.Go(p.write)
	p.tasks.Go(p.watch)
	return p
}

// Publish sends the messages, mandatory and persistent, in order, and waits until the broker has
// answered for each or ctx ends. The error at i is that of message i: nil means that the broker
// confirmed it; any other wraps [ErrUnroutable], [ErrRefused], [ErrUnconfirmed] or [ErrInvalid].
// One message's error says nothing about the others, except that losing the channel leaves all that
// were under way unconfirmed.
//
// A message without an id is given one, in messages itself, so that publishing it again is to
// publish the same. Bodies and headers must not be changed afterwards: when ctx ends, a message may
// be half written.
func (p *Publisher) Publish(ctx context.Context, messages ...Publishing) []error {
	errs := p.publish(ctx, messages)
	for _, err := range errs {
		p.cfg.Metrics.Published.WithLabelValues(result(err)).Inc()
	}
	return errs
}

func result(err error) string {
	switch {
	case err == nil:
		return "confirmed"
	case errors.Is(err, ErrUnroutable):
		return "unroutable"
	case errors.Is(err, ErrRefused):
		return "refused"
	case errors.Is(err, ErrInvalid):
		return "invalid"
	}
	return "unconfirmed"
}

func (p *Publisher) publish(ctx context.Context, messages []Publishing) []error {
	j := &job{
		ctx:   ctx,
		sizes: make([]int, len(messages)),
		errs:  make([]error, len(messages)),
		done:  make(chan struct{}),
	}
	for i := range messages {
		m := &messages[i]
		if m.ID == "" && !m.verbatim {
			m.ID = newID()
		}
		size, err := m.check(p.cfg.MaxBytes)
		if err != nil {
			j.errs[i] = fmt.Errorf("%w: %w", ErrInvalid, err)
			continue
		}
		j.sizes[i], j.errs[i] = size, errPending
		j.pending++
	}
	if j.pending == 0 {
		return j.errs
	}
	j.messages = slices.Clone(messages)
	var cause error
	select {
	case p.jobs <- j:
		select {
		case <-j.done:
			return j.errs
		case <-ctx.Done():
			cause = context.Cause(ctx)
		}
	case <-ctx.Done():
		cause = context.Cause(ctx)
	case <-p.ctx.Done():
		cause = ErrClosed
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	j.left = true
	p.moved.Broadcast()
	errs := slices.Clone(j.errs)
	for i, err := range errs {
		if errors.Is(err, errPending) {
			errs[i] = unconfirmed(cause)
		}
	}
	return errs
}

func unconfirmed(cause error) error { return fmt.Errorf("%w: %w", ErrUnconfirmed, cause) }

// Ready is nil while there is a connection and the broker takes messages from it, and else says why
// publishing would only wait.
func (p *Publisher) Ready() error { return p.conn.Ready() }

// Close ends the publisher, within a few seconds. Whatever is not confirmed by then is answered
// with [ErrUnconfirmed].
func (p *Publisher) Close() error {
	p.cancel()
	defer time.AfterFunc(closeTimeout, func() {
		p.conn.Reset(errors.New("the publisher was closed and the broker did not answer"))
	}).Stop()
	p.mu.Lock()
	p.moved.Broadcast()
	p.mu.Unlock()
	p.tasks.Wait()
	return nil
}

// write takes one job after the other, and is the only one that writes to the channel.
func (p *Publisher) write() {
	for {
		select {
		case j := <-p.jobs:
			p.send(j)
		case <-p.ctx.Done():
			p.mu.Lock()
			s := p.session
			p.mu.Unlock()
			if s != nil {
				s.ch.Close()
			}
			return
		}
	}
}

func (p *Publisher) send(j *job) {
	for i := range j.messages {
		if !errors.Is(j.errs[i], errPending) {
			continue
		}
		s, err := p.slot(j)
		if err == nil {
			err = p.sendOne(s, j, i)
		}
		if err != nil {
			p.mu.Lock()
			j.answer(i, err)
			p.mu.Unlock()
		}
	}
}

// slot waits until the next message of the job may be sent.
func (p *Publisher) slot(j *job) (*session, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		s := p.session
		switch {
		case p.ctx.Err() != nil:
			return nil, unconfirmed(ErrClosed)
		case j.left || j.ctx.Err() != nil:
			return nil, unconfirmed(context.Cause(j.ctx))
		case p.conn.Blocked():
			p.moved.Wait()
		case s == nil:
			p.mu.Unlock()
			s, err := p.open(j.ctx)
			p.mu.Lock()
			if err != nil {
				return nil, unconfirmed(err)
			}
			p.session = s
			p.tasks.Go(func() { p.read(s) })
		case s.ch.IsClosed() || s.link.IsClosed():
			p.moved.Wait() // for read to find that out
		case s.next-s.first == uint64(len(s.flights)):
			p.moved.Wait()
		default:
			return s, nil
		}
	}
}

// open waits for a channel, as long as ctx.
func (p *Publisher) open(ctx context.Context) (*session, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(p.ctx, cancel)()
	for {
		ch, link, err := p.conn.channel(ctx)
		if err != nil {
			return nil, err
		}
		s := &session{
			ch:        ch,
			link:      link,
			confirms:  ch.NotifyPublish(make(chan amqp091.Confirmation, p.cfg.Window)),
			returns:   ch.NotifyReturn(make(chan amqp091.Return, p.cfg.Window)),
			closes:    ch.NotifyClose(make(chan *amqp091.Error, 1)),
			exchanges: map[string]bool{"": true},
			flights:   make([]flight, p.cfg.Window),
			first:     1,
			next:      1,
		}
		if err := p.ask(link, func() error { return ch.Confirm(false) }); err == nil {
			return s, nil
		}
		// The channel, and its connection most likely, was lost at once: wait for the next one.
		ch.Close()
	}
}

// ask waits for an answer of the broker, for which amqp091 has no bound; see watch.
func (p *Publisher) ask(l *link, question func() error) error {
	p.mu.Lock()
	p.asked, p.since = l, time.Now()
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		p.asked = nil
		p.mu.Unlock()
	}()
	return question()
}

// sendOne sends message i of the job. An error is the answer for it; without one, the answer comes
// from read.
func (p *Publisher) sendOne(s *session, j *job, i int) error {
	m := &j.messages[i]
	if room := m.room(s.link.Config.FrameSize); room > 0 && j.sizes[i] > room {
		return fmt.Errorf("%w: its properties and headers take %d bytes; %d are allowed", ErrInvalid, j.sizes[i], room)
	}
	if !s.exchanges[m.Exchange] {
		if err := p.find(j.ctx, s, m.Exchange); err != nil {
			return err
		}
		s.exchanges[m.Exchange] = true
	}
	p.mu.Lock()
	if s.over {
		p.mu.Unlock()
		return unconfirmed(errors.New("the channel was lost"))
	}
	now := time.Now()
	if s.first == s.next {
		s.progress = now
	}
	tag := s.next
	*s.flight(tag) = flight{job: j, index: i, sent: now}
	s.next++
	p.mu.Unlock()
	answer, err := s.ch.PublishWithDeferredConfirm(m.Exchange, m.Kind, true, false, m.encode())
	p.mu.Lock()
	f := s.flight(tag)
	f.written, f.answer = true, answer
	p.moved.Broadcast()
	p.mu.Unlock()
	if err != nil && !errors.Is(err, amqp091.ErrClosed) {
		// Half a message may be on the wire, so nothing else can follow it there.
		s.link.drop(fmt.Errorf("write to the broker: %w", err))
	}
	return nil
}

// find asks whether the exchange exists. A message to one that does not makes the broker close the
// channel, and so leaves all others on it in doubt.
func (p *Publisher) find(ctx context.Context, s *session, exchange string) error {
	err := p.ask(s.link, func() error {
		ch, err := s.link.channel(ctx)
		if err != nil {
			return err
		}
		defer ch.Close()
		// The broker compares nothing in a passive declaration.
		return ch.ExchangeDeclarePassive(exchange, amqp091.ExchangeDirect, true, false, false, false, nil)
	})
	var refusal *amqp091.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &refusal) && refusal.Code == amqp091.NotFound:
		return fmt.Errorf("%w: there is no exchange %q", ErrUnroutable, exchange)
	}
	return unconfirmed(fmt.Errorf("look for exchange %q: %w", exchange, err))
}

// read takes the broker's answers until the channel is lost.
func (p *Publisher) read(s *session) {
	for c := range s.confirms {
		p.mu.Lock()
		p.confirm(s, c)
		for range len(s.confirms) {
			p.confirm(s, <-s.confirms)
		}
		s.progress = time.Now()
		p.moved.Broadcast()
		p.mu.Unlock()
	}
	p.lose(s, <-s.closes)
}

// confirm answers for one message. Its return, if there is one, came before its confirm. amqp091
// passes confirms on in the order of their tags.
func (p *Publisher) confirm(s *session, c amqp091.Confirmation) {
	for range len(s.returns) {
		s.match(<-s.returns)
	}
	for s.first <= c.DeliveryTag && s.first < s.next {
		switch f := s.flight(s.first); {
		case f.job == nil:
			s.first++
		case !f.written:
			// It was, or there would be no answer; sendOne is about to note it. The lock is free
			// meanwhile, so everything may be different then.
			p.moved.Wait()
		default:
			f.land()
			s.first++
		}
	}
}

// land answers for a message that the broker has answered for.
func (f *flight) land() {
	var err error
	switch m := &f.job.messages[f.index]; {
	case f.returned:
		err = fmt.Errorf("%w: no queue is bound to exchange %q for key %q", ErrUnroutable, m.Exchange, m.Kind)
	case f.answer == nil:
		err = unconfirmed(errors.New("it was not written whole"))
	// The deferred confirmation, because amqp091 1.16 passes on a nack that came out of turn as an ack
	// when an ack for several messages follows it.
	case !f.answer.Acked():
		err = fmt.Errorf("%w: exchange %q, key %q", ErrRefused, m.Exchange, m.Kind)
	}
	f.job.answer(f.index, err)
	*f = flight{}
}

// overtake answers for messages that were confirmed although an earlier one was not, whose queue may
// have lost its majority. A nack it leaves alone: losing the channel looks the same.
func (p *Publisher) overtake(s *session, now time.Time) {
	var landed []*flight
	for tag := s.first; tag < s.next; tag++ {
		if f := s.flight(tag); f.answer != nil && f.answer.Acked() {
			landed = append(landed, f)
		}
	}
	if len(landed) == 0 {
		return
	}
	for range len(s.returns) {
		s.match(<-s.returns)
	}
	for _, f := range landed {
		f.land()
	}
	for s.first < s.next && s.flight(s.first).job == nil {
		s.first++
	}
	s.progress = now
	p.moved.Broadcast()
}

// match finds the message that the broker returned, which is usually the oldest one. Of several
// with the same id, route and kind it does not matter which.
func (s *session) match(r amqp091.Return) {
	for tag := s.first; tag < s.next; tag++ {
		f := s.flight(tag)
		if f.job == nil {
			continue
		}
		m := &f.job.messages[f.index]
		if !f.returned && m.ID == r.MessageId && m.Kind == r.RoutingKey && m.Exchange == r.Exchange {
			f.returned = true
			return
		}
	}
}

// lose ends a session whose channel is gone. What was not confirmed on it is unknown; only if one
// message was alone there, and the broker closed the channel over it, is it clear that the message
// was the cause and was not stored.
func (p *Publisher) lose(s *session, reason *amqp091.Error) {
	cause := errors.New("the channel was closed")
	answer := unconfirmed(cause)
	if reason != nil {
		answer = unconfirmed(reason)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.over {
		return
	}
	lost := s.next - s.first
	if reason != nil && reason.Server && lost == 1 {
		switch reason.Code {
		case amqp091.NotFound, amqp091.AccessRefused:
			answer = fmt.Errorf("%w: %w", ErrUnroutable, reason)
		case amqp091.PreconditionFailed, amqp091.ContentTooLarge:
			answer = fmt.Errorf("%w: %w", ErrInvalid, reason)
		}
	}
	p.leave(s, answer)
	if reason != nil && reason.Server && !s.link.IsClosed() {
		p.cfg.Logger.Warn("the broker closed the channel for publishing", "error", reason, "unconfirmed", lost)
	}
}

// leave ends a session: the next message gets a channel of its own.
func (p *Publisher) leave(s *session, answer error) {
	for ; s.first < s.next; s.first++ {
		if f := s.flight(s.first); f.job != nil {
			f.job.answer(f.index, answer)
		}
	}
	s.over = true
	if p.session == s {
		p.session = nil
	}
	p.moved.Broadcast()
}

// watch wakes the writer when the connection's state changes, and does not let the broker owe an answer
// for too long. While the broker blocks, it owes none.
func (p *Publisher) watch() {
	ticker := time.NewTicker(p.cfg.ConfirmTimeout / 8)
	defer ticker.Stop()
	for {
		changed := p.conn.Changed()
		p.mu.Lock()
		p.moved.Broadcast()
		dead := p.overdue(p.conn.Blocked(), time.Now())
		p.mu.Unlock()
		if dead != nil {
			dead.drop(fmt.Errorf("the broker has confirmed nothing for %s", p.cfg.ConfirmTimeout))
		}
		select {
		case <-changed:
		case <-ticker.C:
		case <-p.ctx.Done():
			return
		}
	}
}

// overdue returns the connection if nothing at all is answered on it any more. If only some queue does
// not answer, it gives up the channel with what waits for that one.
func (p *Publisher) overdue(blocked bool, now time.Time) *link {
	s := p.session
	if s != nil && !s.over {
		p.overtake(s, now)
	}
	switch {
	case blocked:
		p.since = now
		if s != nil {
			s.progress = now
		}
	case p.asked != nil && now.Sub(p.since) > p.cfg.ConfirmTimeout:
		return p.asked
	case s == nil || s.over || s.first == s.next:
	case s.overtaken() && now.Sub(s.flight(s.first).sent) > p.cfg.ConfirmTimeout:
		m := &s.flight(s.first).job.messages[s.flight(s.first).index]
		p.cfg.Logger.Warn("a queue does not answer; its messages stay unconfirmed", "exchange", m.Exchange, "kind", m.Kind)
		p.leave(s, unconfirmed(fmt.Errorf("the queue has not answered for %s", p.cfg.ConfirmTimeout)))
		go s.ch.Close() // it may wait for that queue, too
	case now.Sub(s.progress) > p.cfg.ConfirmTimeout:
		return s.link
	}
	return nil
}

// overtaken is whether a message has been answered before the first that is under way.
func (s *session) overtaken() bool {
	for tag := s.first; tag < s.next; tag++ {
		if s.flight(tag).job == nil {
			return true
		}
	}
	return false
}
