package outbox

import (
	"errors"
	"log/slog"
	"sync"
	"time"
)

// errHeld is for a row that was not published, because others like it were not answered.
var errHeld = errors.New("held back: the queue does not answer")

// route is what may lead to a queue of its own.
type route struct{ exchange, kind string }

func (m *row) route() route { return route{m.out.Exchange, m.out.Kind} }

const (
	firstHold = time.Second
	maxHold   = 32 * time.Second
)

// holds keeps rows from queues that do not answer, one whose replicas have no majority for instance.
// RabbitMQ 3.10 handles nothing else on a channel for a minute once it has taken the channel's first
// message for such a queue; so only one row goes there from time to time, to find out.
type holds struct {
	log *slog.Logger
	mu  sync.Mutex
	m   map[route]*hold
}

type hold struct {
	pause time.Duration
	until time.Time
	told  bool
}

// admit tells whether a row may be published. After a pause one may, and the next one not before that
// had patience to be answered, and a pause twice as long.
func (h *holds) admit(to route, patience time.Duration) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	held, now := h.m[to], time.Now()
	switch {
	case held == nil:
		return true
	case now.Before(held.until):
		return false
	}
	held.pause = min(2*held.pause, maxHold)
	held.until = now.Add(patience + held.pause)
	return true
}

// learn takes what came of rows that were published, in this order. The first one that was not
// answered is the likely reason why those behind it were not.
func (h *holds) learn(rows []*row) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var suspect *row
	answered := map[route]bool{}
	for _, m := range rows {
		switch {
		case result(m.err) != "unconfirmed":
			answered[m.route()] = true
		case suspect == nil:
			suspect = m
		}
	}
	for to := range answered {
		if held := h.m[to]; held != nil && held.told {
			h.log.Info("the queue answers again", "exchange", to.exchange, "kind", to.kind)
		}
		delete(h.m, to)
	}
	if suspect == nil || answered[suspect.route()] {
		return
	}
	held := h.m[suspect.route()]
	switch {
	case held == nil:
		h.m[suspect.route()] = &hold{pause: firstHold, until: time.Now().Add(firstHold)}
	case held.pause > firstHold && !held.told:
		held.told = true
		h.log.Warn("a queue does not answer; rows for it wait", "exchange", suspect.out.Exchange, "kind", suspect.out.Kind,
			"error", suspect.err)
	}
}

// silence is whether the broker answered for none of the rows that were published.
func silence(rows []row) bool {
	silent := false
	for _, m := range rows {
		switch result(m.err) {
		case "held":
		case "unconfirmed":
			silent = true
		default:
			return false
		}
	}
	return silent
}
