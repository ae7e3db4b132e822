package deadletter

import (
	"context"
	"log/slog"
)

// complaint logs the trouble of a loop when it begins and when it is over, and not each time.
type complaint struct {
	logger *slog.Logger
	about  string // what fails
	made   bool
}

func (c *complaint) note(ctx context.Context, err error) {
	switch {
	case ctx.Err() != nil:
	case err != nil && !c.made:
		c.logger.Warn("the desk has trouble, and goes on trying", "with", c.about, "error", err)
	case err == nil && c.made:
		c.logger.Info("the desk's trouble is over", "with", c.about)
	}
	c.made = err != nil
}
