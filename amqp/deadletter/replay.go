package deadletter

import "time"

// DefaultRate is how many messages a second a replay publishes unless it says otherwise.
const DefaultRate = 50

// Request asks for a replay.
type Request struct {
	Selection Selection // of open letters; those that are not open are left out
	By        By        // the reason is required
	Rate      int       // messages a second, 0 to 100,000; 0 is as fast as the broker confirms
	To        *Route    // where to publish instead of each letter's first route
}

// Route is an exchange and a routing key. The default exchange, "", routes to the queue that the key names.
type Route struct {
	Exchange   string `json:"exchange"`
	RoutingKey string `json:"routing_key"`
}

// Replay is a job that publishes letters' messages again. Which letters is fixed when it starts.
type Replay struct {
	ID        string // the header lapse-replay of what it publishes
	State     ReplayState
	By        By
	Selection Selection
	Rate      int
	To        *Route

	Total     int64  // letters
	Published int64  // published and confirmed
	Settled   int64  // not published, because the guard said that there is nothing left to do
	Failed    int64  // could not be published, and are open still
	Trouble   string // what it waits for at present, "" if for nothing
	Owner     string // the process that runs it, "" if none does at present

	CreatedAt, StartedAt, UpdatedAt, EndedAt time.Time // by the database's clock; zero if not yet
}

// Left is how many letters it has still to do, or left undone when it was cancelled.
func (r Replay) Left() int64 { return r.Total - r.Published - r.Settled - r.Failed }

// ReplayState is how far a replay is.
type ReplayState string

const (
	Running    ReplayState = "running"
	Cancelling ReplayState = "cancelling" // it stops within a second
	Done       ReplayState = "done"
	Cancelled  ReplayState = "cancelled"
)

// Ended is whether nothing more happens.
func (s ReplayState) Ended() bool { return s == Done || s == Cancelled }

// Result is what became of one letter in a replay.
type Result struct {
	Letter int64
	Result string // published, settled or failed
	Detail string // the guard's answer, or the error
	At     time.Time
}
