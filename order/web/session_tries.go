package web

import (
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// tries limits how often somebody may try to sign in and fail, so that tokens are not guessed and the log of a
// proxy is not filled: from one address, and from all together. Behind a proxy all come from its address.
type tries struct {
	mu  sync.Mutex
	all *rate.Limiter
	by  map[netip.Prefix]*rate.Limiter
}

const (
	triesAtOnce   = 10 // from one address, and then one in triesEvery
	triesEvery    = 6 * time.Second
	allAtOnce     = 200 // from all
	allEvery      = time.Second
	maxTriesKnown = 10_000 // addresses; more are not told apart
)

func newTries() *tries {
	return &tries{all: rate.NewLimiter(rate.Every(allEvery), allAtOnce), by: make(map[netip.Prefix]*rate.Limiter)}
}

// begin says whether somebody may try. A try that went well is given back by calling good.
func (t *tries) begin(address string, now time.Time) (good func(), ok bool) {
	one := t.limiter(address, now).ReserveN(now, 1)
	all := t.all.ReserveN(now, 1)
	give := func() { one.CancelAt(now); all.CancelAt(now) }
	if one.DelayFrom(now) > 0 || all.DelayFrom(now) > 0 {
		give()
		return nil, false
	}
	return give, true
}

// limiter is that of an address; of IPv6, of its network.
func (t *tries) limiter(address string, now time.Time) *rate.Limiter {
	var from netip.Prefix
	if host, _, err := net.SplitHostPort(address); err == nil {
		if addr, err := netip.ParseAddr(host); err == nil {
			addr = addr.Unmap().WithZone("")
			from, _ = addr.Prefix(min(addr.BitLen(), 64))
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if l := t.by[from]; l != nil {
		return l
	}
	if len(t.by) >= maxTriesKnown {
		for known, l := range t.by {
			if l.TokensAt(now) >= triesAtOnce {
				delete(t.by, known)
			}
		}
		if len(t.by) >= maxTriesKnown {
			return t.all
		}
	}
	l := rate.NewLimiter(rate.Every(triesEvery), triesAtOnce)
	t.by[from] = l
	return l
}
