package deadletter

import (
	"cmp"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"gorm.io/gorm"

	"github.com/lapse-go/lapse/amqp"
)

// DefaultKeep is for how long a letter is kept after it was resolved.
const DefaultKeep = 90 * 24 * time.Hour

// Config says where the letters are.
type Config struct {
	// DB has the tables of [migrations.Transport].
	//
	// [migrations.Transport]: https://pkg.go.dev/github.com/lapse-go/lapse/migrations#Transport
	DB       *gorm.DB
	Topology amqp.Topology
	// Guard knows what messages are about. When nil, nobody is asked.
	Guard Guard
	// Keep is for how long a letter is kept after it was resolved. [DefaultKeep] when zero. An open one is always
	// kept.
	Keep time.Duration
	// Registerer takes the metrics. None when nil.
	Registerer prometheus.Registerer
	// Logger is slog.Default when nil.
	Logger *slog.Logger
}

// Desk is where dead letters are worked on. Safe for concurrent use; any number of processes may have one over
// the same tables.
//
// Errors wrap [ErrInvalid], [ErrNotFound], [ErrEnded] or are a [*BusyError] where that is said; any other is of the
// database or the guard.
type Desk struct {
	cfg     Config
	metrics *metrics
}

// New makes a desk. It does not talk to the database.
func New(cfg Config) *Desk {
	cfg.Keep = cmp.Or(cfg.Keep, DefaultKeep)
	cfg.Logger = cmp.Or(cfg.Logger, slog.Default())
	return &Desk{cfg: cfg, metrics: newMetrics(cfg.Registerer)}
}
