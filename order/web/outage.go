package web

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/lapse-go/lapse/order"
)

// calm is for how long no request may have failed for an outage to be over: while some are answered and
// others are not, it goes on.
const calm = 5 * time.Second

// outage is whether requests fail for want of a server. It logs when that begins, and when it is over, but
// not each of them, of which there may be thousands a second.
type outage struct {
	server string
	logger *slog.Logger

	mu          sync.Mutex
	failed      int // 0 while there is no outage
	first, last time.Time
}

// note takes what the server, or the lack of it, made of a request.
func (o *outage) note(away bool, err error) {
	if errors.Is(err, context.Canceled) || errors.Is(err, order.ErrInvalid) {
		return // the client did not wait, or the server was not asked
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now()
	switch {
	case away:
		if o.failed == 0 {
			o.first = now
			o.logger.Warn("requests fail, since a server is away or busy", "server", o.server, "error", err)
		}
		o.failed++
		o.last = now
	case o.failed > 0 && now.Sub(o.last) >= calm:
		o.logger.Info("requests are answered again", "server", o.server, "failed", o.failed, "after", now.Sub(o.first).Round(time.Millisecond))
		o.failed = 0
	}
}
