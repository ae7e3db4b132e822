package deadletter

import (
	"math"
	"testing"
	"time"

	"github.com/lapse-go/lapse/amqp"
)

// A replay at full speed reaches at least half of what publishing the same messages with confirms does. They take
// turns, so that whatever else the machine does slows both.
func TestFullSpeed(t *testing.T) {
	const letters, turns = 9000, 4
	d := desk(t, nil)
	conn, name := queue(t)
	put(t, d, letters*turns, Route{"", name})
	publisher := amqp.NewPublisher(conn, amqp.PublisherConfig{})
	defer publisher.Close()
	all, err := batch(d.cfg.DB, 1000)
	if err != nil {
		t.Fatal(err)
	}
	raw := func() time.Duration {
		begin := time.Now()
		for range letters / len(all) {
			publishings := make([]amqp.Publishing, len(all))
			for i, p := range all {
				publishings[i] = p.again("01890000-0000-7000-8000-000000000000", nil)
			}
			for _, err := range publisher.Publish(t.Context(), publishings...) {
				if err != nil {
					t.Fatal(err)
				}
			}
		}
		return time.Since(begin)
	}
	running(t, d, conn)
	var replaying time.Duration
	publishing := raw()
	for range turns {
		ids, err := find(d.cfg.DB, Selection{All: true}, math.MaxInt64, Open)
		if err != nil {
			t.Fatal(err)
		}
		r := begin(t, d, Request{Selection: Selection{IDs: ids[:letters]}})
		if r = ended(t, d, r.ID, time.Minute); r.Published != letters {
			t.Errorf("published %d of %d", r.Published, letters)
		}
		replaying += r.EndedAt.Sub(r.StartedAt)
		publishing += raw()
	}
	raws := float64((turns + 1) * letters)
	ratio := publishing.Seconds() / raws / (replaying.Seconds() / (letters * turns))
	t.Logf("replayed %.0f/s, published %.0f/s without: ratio %.2f", letters*turns/replaying.Seconds(), raws/publishing.Seconds(), ratio)
	if ratio < 0.5 && !underRace { // which is not for measuring: .ci/run does that without
		t.Errorf("a replay reaches %.2f of raw publishing, want half at least", ratio)
	}
}
