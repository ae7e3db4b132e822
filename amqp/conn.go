package amqp

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v4"
	amqp091 "github.com/rabbitmq/amqp091-go"
)

const (
	// dialTimeout bounds one attempt at one node: TCP, TLS and the AMQP handshake together.
	dialTimeout = 10 * time.Second
	// closeTimeout is how long a broker may take to say goodbye.
	closeTimeout = 2 * time.Second
	// reopenPause is how long to wait before asking a connection that is up, but has just refused to
	// open a channel, for another one.
	reopenPause = 100 * time.Millisecond
)

// Config says how to reach the broker.
type Config struct {
	// URIs of the broker, amqp:// or amqps://: at least one. Those of a cluster's nodes are tried in
	// turn.
	URIs []string
	// Name is shown by the broker's tools and labels metrics, for instance "lapse/publish".
	Name string
	// Heartbeat is how often each side shows that it is alive; a peer that is silent for one and a
	// half times as long is taken for dead. Whole seconds, 5 s when zero. A URI's own heartbeat
	// parameter goes first.
	Heartbeat time.Duration
	// TLS serves amqps:// URIs. The system's roots, and the URI's own parameters, when nil.
	TLS *tls.Config
	// MinBackoff and MaxBackoff bound the pause between two rounds of dialling, which doubles from
	// one to the other, give or take half of it. 250 ms and 15 s when zero.
	MinBackoff, MaxBackoff time.Duration
	// Metrics counts. A private one when nil.
	Metrics *Metrics
	// Logger hears of each loss and recovery. slog.Default() when nil.
	Logger *slog.Logger
}

func (cfg Config) withDefaults() Config {
	if cfg.Name == "" {
		cfg.Name = "lapse"
	}
	if cfg.Heartbeat == 0 {
		cfg.Heartbeat = 5 * time.Second
	}
	if cfg.MinBackoff == 0 {
		cfg.MinBackoff = 250 * time.Millisecond
	}
	if cfg.MaxBackoff == 0 {
		cfg.MaxBackoff = max(15*time.Second, cfg.MinBackoff)
	}
	if cfg.Metrics == nil {
		cfg.Metrics = NewMetrics(nil)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	return cfg
}

// Validate says what is wrong with the configuration, or nil. It never shows a password.
func (cfg Config) Validate() error {
	_, err := cfg.withDefaults().nodes()
	return err
}

// A node is one URI, parsed.
type node struct {
	uri   string
	name  string // the URI without its password
	vhost string
}

func (cfg Config) nodes() ([]node, error) {
	switch {
	case len(cfg.URIs) == 0:
		return nil, errors.New("no broker: give at least one URI, for instance amqp://user:password@host:5672/vhost")
	case cfg.Heartbeat < time.Second || cfg.Heartbeat%time.Second != 0 || cfg.Heartbeat > time.Hour:
		return nil, fmt.Errorf("a heartbeat of %s: give whole seconds from 1s to 1h", cfg.Heartbeat)
	case cfg.MinBackoff < time.Millisecond || cfg.MaxBackoff < cfg.MinBackoff:
		return nil, fmt.Errorf("a redial backoff from %s to %s: give at least 1ms, and no more than the second", cfg.MinBackoff, cfg.MaxBackoff)
	}
	nodes := make([]node, len(cfg.URIs))
	for i, uri := range cfg.URIs {
		n, err := parseURI(uri)
		if err != nil {
			return nil, fmt.Errorf("broker URI %d of %d: %w", i+1, len(cfg.URIs), err)
		}
		nodes[i] = n
	}
	return nodes, nil
}

// parseURI returns what is to be known of the URI. The parser's own errors quote pieces of the URI,
// and a password with an unescaped character can be any of them, so none is passed on.
func parseURI(text string) (node, error) {
	scheme, rest, found := strings.Cut(text, "://")
	if !found || scheme != "amqp" && scheme != "amqps" {
		return node{}, errors.New("it has to begin with amqp:// or amqps://")
	}
	if end := strings.IndexAny(rest, "/?#"); end >= 0 && strings.ContainsAny(rest[end:], "@#") {
		return node{}, errors.New("there is an @ or # after the host: in a user, password or vhost, special characters are written as %40, %2F and so on")
	}
	uri, err := amqp091.ParseURI(text)
	if err != nil {
		return node{}, errors.New("it cannot be parsed: it has to look like amqp://user:password@host:5672/vhost, with special characters in a user, password or vhost written as %40, %2F and so on")
	}
	if uri.Port < 1 || uri.Port > 65535 {
		return node{}, errors.New("its port has to be from 1 to 65535")
	}
	name := fmt.Sprintf("%s://%s@%s (vhost %q)", uri.Scheme, uri.Username,
		net.JoinHostPort(uri.Host, strconv.Itoa(uri.Port)), uri.Vhost)
	return node{text, name, uri.Vhost}, nil
}

// Conn is one connection to the broker that is dialled again whenever it is lost. Publishers and
// consumers need one each: a broker that is short of memory or disk blocks those that publish.
type Conn struct {
	cfg    Config
	nodes  []node
	cancel context.CancelFunc
	done   chan struct{}

	mu      sync.Mutex
	link    *link // nil while there is none
	cause   error // why there is none
	blocked string
	closed  bool
	changed chan struct{}
}

// link is one connection that was established, and its socket. amqp091 can wait for ever on a
// blocked socket, so what has to end in any case closes that.
type link struct {
	*amqp091.Connection
	socket  *socket
	closes  chan *amqp091.Error
	blocks  chan amqp091.Blocking
	dropped chan error // the first cause given to drop
}

// Open starts to connect, and goes on doing so whenever the connection is lost, until ctx ends or
// [Conn.Close] is called. It does not wait for the broker. The error says what is wrong with cfg.
func Open(ctx context.Context, cfg Config) (*Conn, error) {
	cfg = cfg.withDefaults()
	nodes, err := cfg.nodes()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	c := &Conn{
		cfg:     cfg,
		nodes:   nodes,
		cancel:  cancel,
		done:    make(chan struct{}),
		cause:   errors.New("not connected yet"),
		changed: make(chan struct{}),
	}
	cfg.Metrics.connection(cfg.Name)
	c.cfg.Logger = cfg.Logger.With("connection", cfg.Name)
	go c.supervise(ctx)
	return c, nil
}

// Channel waits for a connection and opens a channel on it. It fails when ctx ends (the error then
// also says why there is no connection) and, with [ErrClosed], when the connection was closed by
// its owner.
func (c *Conn) Channel(ctx context.Context) (*amqp091.Channel, error) {
	ch, _, err := c.channel(ctx)
	return ch, err
}

// Do opens a channel as [Conn.Channel] does, has f use it, and closes it. amqp091 waits for each answer of
// the broker however long it takes; Do returns at the latest when ctx ends, and f may outlive it by then.
func (c *Conn) Do(ctx context.Context, f func(*amqp091.Channel) error) error {
	ch, err := c.Channel(ctx)
	if err != nil {
		return err
	}
	return answered(ctx, func() error {
		defer ch.Close()
		return f(ch)
	})
}

// answered is what f returns, or an error when ctx ends first. What f has set besides may be read only if
// that was nil.
func answered(ctx context.Context, f func() error) error {
	answer := make(chan error, 1)
	go func() { answer <- f() }()
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return fmt.Errorf("the broker did not answer: %w", context.Cause(ctx))
	}
}

func (c *Conn) channel(ctx context.Context) (*amqp091.Channel, *link, error) {
	for {
		c.mu.Lock()
		link, cause, changed, closed := c.link, c.cause, c.changed, c.closed
		c.mu.Unlock()
		if closed {
			return nil, nil, ErrClosed
		}
		var pause <-chan time.Time
		if link != nil {
			ch, err := link.channel(ctx)
			if err == nil {
				return ch, link, nil
			}
			cause, pause = err, time.After(reopenPause)
		}
		select {
		case <-ctx.Done():
			return nil, nil, fmt.Errorf("no channel to the broker: %w (%w)", context.Cause(ctx), cause)
		case <-changed:
		case <-pause:
		}
	}
}

// Ready is nil while there is a connection on which the broker accepts messages, and otherwise says
// why not.
func (c *Conn) Ready() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return ErrClosed
	case c.link == nil:
		return fmt.Errorf("no connection to the broker: %w", c.cause)
	case c.blocked != "":
		return fmt.Errorf("the broker accepts no messages at present: %s", c.blocked)
	}
	return nil
}

// Server is the product and version that the broker says it is, for instance "RabbitMQ" and "3.10.8".
// Both are empty while there is no connection.
func (c *Conn) Server() (product, version string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.link == nil {
		return "", ""
	}
	product, _ = c.link.Properties["product"].(string)
	version, _ = c.link.Properties["version"].(string)
	return product, version
}

// Vhost is the one that the URIs name; the first does if they differ.
func (c *Conn) Vhost() string { return c.nodes[0].vhost }

// Blocked is true while the broker blocks publishing on the connection, because it is short of
// memory or disk (https://www.rabbitmq.com/docs/connection-blocked).
func (c *Conn) Blocked() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.blocked != ""
}

// Changed is closed at the next change of state: connected, lost, blocked, unblocked, closed. Take
// it before asking for the state.
func (c *Conn) Changed() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.changed
}

// Reset drops the connection, which was found to be dead because of cause, and lets it be dialled
// again.
func (c *Conn) Reset(cause error) {
	c.mu.Lock()
	link := c.link
	c.mu.Unlock()
	if link != nil {
		link.drop(cause)
	}
}

// Close ends the connection and waits until it has ended, a few seconds at most even when the
// broker does not answer.
func (c *Conn) Close() error {
	c.cancel()
	<-c.done
	return nil
}

// supervise keeps the connection up while ctx lives.
func (c *Conn) supervise(ctx context.Context) {
	defer close(c.done)
	defer c.set(func() { c.closed, c.cause = true, ErrClosed })
	pause := backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(c.cfg.MinBackoff),
		backoff.WithMaxInterval(c.cfg.MaxBackoff),
		backoff.WithMultiplier(2),
		backoff.WithMaxElapsedTime(0),
	)
	next := 0
	lost := time.Now()
	for first := true; ; first = false {
		link, at := c.connect(ctx, next, pause)
		if link == nil {
			return
		}
		if first {
			c.cfg.Logger.Info("connected to the broker", "broker", c.nodes[at].name)
		} else {
			c.cfg.Metrics.Reconnections.WithLabelValues(c.cfg.Name).Inc()
			c.cfg.Logger.Info("connected to the broker again", "broker", c.nodes[at].name, "after", time.Since(lost).Round(time.Millisecond))
		}
		c.set(func() { c.link, c.cause = link, nil })
		up := time.Now()
		cause := c.watch(ctx, link)
		c.set(func() { c.link, c.cause = nil, cause })
		if ctx.Err() != nil {
			return
		}
		c.cfg.Logger.Warn("lost the connection to the broker", "broker", c.nodes[at].name, "error", cause)
		// A node that drops what it has just accepted is not dialled faster than one that is down.
		if time.Since(up) > c.cfg.MaxBackoff {
			pause.Reset()
		}
		next, lost = at+1, time.Now()
		if !sleep(ctx, pause.NextBackOff()) {
			return
		}
	}
}

// connect dials the nodes in turn, beginning with number next, until one answers. It returns nil
// when ctx ends.
func (c *Conn) connect(ctx context.Context, next int, pause backoff.BackOff) (*link, int) {
	const unlogged = -1
	logged := unlogged
	for {
		var failures []error
		code := 0
		for i := range c.nodes {
			at := (next + i) % len(c.nodes)
			link, err := c.dial(ctx, c.nodes[at])
			if err == nil {
				return link, at
			}
			failures = append(failures, fmt.Errorf("%s: %w", c.nodes[at].name, err))
			if refusal := (*amqp091.Error)(nil); errors.As(err, &refusal) && (refusal.Server || refusal == amqp091.ErrCredentials) {
				code = refusal.Code
			}
		}
		if ctx.Err() != nil {
			return nil, 0
		}
		cause := errors.Join(failures...)
		c.set(func() { c.cause = cause })
		// Once an outage, and once more if the broker comes back with a refusal of another sort.
		if code != logged {
			logged = code
			c.cfg.Logger.Warn("cannot connect to the broker, and will go on trying", "error", cause)
		}
		if !sleep(ctx, pause.NextBackOff()) {
			return nil, 0
		}
	}
}

// dial makes one attempt at one node.
func (c *Conn) dial(ctx context.Context, n node) (*link, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	var s *socket
	properties := amqp091.NewConnectionProperties()
	properties.SetClientConnectionName(c.cfg.Name)
	properties["product"] = "Lapse"
	connection, err := amqp091.DialConfig(n.uri, amqp091.Config{
		Heartbeat:       c.cfg.Heartbeat,
		Properties:      properties,
		TLSClientConfig: c.cfg.TLS.Clone(), // it is given the node's name
		Dial: func(network, addr string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			s = &socket{Conn: conn}
			context.AfterFunc(ctx, func() {
				if !s.established.Load() {
					s.Close()
				}
			})
			return s, nil
		},
	})
	if err != nil {
		if s != nil {
			s.Close()
		}
		switch {
		case errors.Is(ctx.Err(), context.DeadlineExceeded):
			return nil, fmt.Errorf("no answer within %s: %w", dialTimeout, ctx.Err())
		case errors.Is(err, amqp091.ErrCredentials):
			return nil, fmt.Errorf("the broker hung up at the login, as it does for a wrong user name or password: %w", err)
		case errors.Is(err, amqp091.ErrVhost):
			// Of a vhost that is missing or closed to the user, it says so.
			return nil, errors.New("the broker hung up during the handshake")
		}
		return nil, err
	}
	s.established.Store(true)
	return &link{
		Connection: connection,
		socket:     s,
		closes:     connection.NotifyClose(make(chan *amqp091.Error, 1)),
		blocks:     connection.NotifyBlocked(make(chan amqp091.Blocking, 16)),
		dropped:    make(chan error, 1),
	}, nil
}

// watch follows the connection until it is lost, and returns why; when ctx ends, it closes it.
func (c *Conn) watch(ctx context.Context, l *link) error {
	var counted time.Time // until when it has been blocked, so far; zero while it is not
	count := func() {
		if !counted.IsZero() {
			now := time.Now()
			c.cfg.Metrics.BlockedSeconds.WithLabelValues(c.cfg.Name).Add(now.Sub(counted).Seconds())
			counted = now
		}
	}
	tick := time.NewTicker(time.Second) // an alarm may last for hours, and is to be seen before it ends
	defer tick.Stop()
	block := func(reason string) {
		count()
		counted = time.Time{}
		c.cfg.Metrics.Blocked.WithLabelValues(c.cfg.Name).Set(0)
		if reason != "" {
			counted = time.Now()
			c.cfg.Metrics.Blocked.WithLabelValues(c.cfg.Name).Set(1)
		}
		c.set(func() { c.blocked = reason })
	}
	defer block("")
	blocks := l.blocks
	for {
		select {
		case b, ok := <-blocks:
			switch {
			case !ok:
				blocks = nil
			case b.Active:
				block(cmp.Or(b.Reason, "for a reason it does not give"))
				c.cfg.Logger.Warn("the broker blocks publishing", "reason", b.Reason)
			default:
				block("")
				c.cfg.Logger.Info("the broker accepts messages again")
			}
		case <-tick.C:
			count()
		case cause := <-l.dropped:
			<-l.closes //nolint:errcheck // that it came is all
			return cause
		case e := <-l.closes:
			select {
			case cause := <-l.dropped:
				return cause
			default:
			}
			if e == nil {
				return errors.New("closed")
			}
			return e
		case <-ctx.Done():
			l.close(c.Blocked())
			return ErrClosed
		}
	}
}

// set changes the state and wakes whoever waits for that.
func (c *Conn) set(change func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change()
	close(c.changed)
	c.changed = make(chan struct{})
}

// channel opens a channel. amqp091 waits for the broker however long it takes; this does not.
func (l *link) channel(ctx context.Context) (*amqp091.Channel, error) {
	type answer struct {
		ch  *amqp091.Channel
		err error
	}
	answers := make(chan answer, 1)
	go func() {
		ch, err := l.Connection.Channel()
		answers <- answer{ch, err}
	}()
	select {
	case a := <-answers:
		return a.ch, a.err
	case <-ctx.Done():
		go func() {
			if a := <-answers; a.err == nil {
				a.ch.Close()
			}
		}()
		return nil, errors.New("the broker did not answer")
	}
}

// drop ends a connection that is dead.
func (l *link) drop(cause error) {
	select {
	case l.dropped <- cause:
	default:
	}
	l.socket.Close()
}

// close ends a connection in good order if the broker answers; one that it blocks it does not read.
func (l *link) close(blocked bool) {
	if !blocked {
		defer time.AfterFunc(closeTimeout+time.Second, func() { l.socket.Close() }).Stop()
		_ = l.CloseDeadline(time.Now().Add(closeTimeout))
	}
	l.socket.Close()
	<-l.closes //nolint:errcheck // that it came is all
}

// socket closes itself when it cannot be read from any more. Otherwise amqp091, on finding that
// the peer is silent, waits for a write that is stuck before it closes the socket, which is all
// that could end that write.
type socket struct {
	net.Conn
	established atomic.Bool
}

func (s *socket) Read(p []byte) (int, error) {
	n, err := s.Conn.Read(p)
	if err != nil {
		s.Conn.Close()
	}
	return n, err
}
