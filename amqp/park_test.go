package amqp

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	amqp091 "github.com/rabbitmq/amqp091-go"
)

func TestAParkedMessageComesBackAsItWas(t *testing.T) {
	death := []any{amqp091.Table{"queue": "lapse.due.k", "count": int64(3)}}
	m := received(amqp091.Delivery{
		Exchange: "lapse.due", RoutingKey: "k", Body: []byte("body"), Redelivered: true,
		Headers: amqp091.Table{"x-death": death, "x-other": "kept", "n": int32(5), HeaderReason: "hopeless", HeaderLetter: "letter"},
	})
	parked := m.parked("lapse.dead", errors.New("too large"), Topology{})
	if parked.Exchange != "lapse.parked" || parked.Kind != "k" || parked.Headers[HeaderParked] != "too large" {
		t.Errorf("%+v", parked)
	}
	if _, err := parked.check(1 << 20); err != nil {
		t.Error(err)
	}
	out := parked.encode()
	if out.ContentType != "" || out.MessageId != "" || !out.Timestamp.IsZero() {
		t.Errorf("something was added: %+v", out)
	}
	// It is moved as the broker's tools do it, which give it another route.
	back := received(amqp091.Delivery{Exchange: "", RoutingKey: "lapse.dead", Headers: parked.Headers, Body: parked.Body}).Unparked()
	if diff := cmp.Diff(m.Headers, back.Headers); diff != "" {
		t.Error(diff)
	}
	if back.Kind != "k" || back.Arrival() != (Arrival{Exchange: "lapse.due", RoutingKey: "k"}) {
		t.Errorf("kind %q, %+v", back.Kind, back.Arrival())
	}
	if other := received(amqp091.Delivery{RoutingKey: "k"}); other.Unparked().Kind != "k" {
		t.Error("what was not parked became something else")
	}
	forged := received(amqp091.Delivery{RoutingKey: "k", Headers: amqp091.Table{HeaderParked: int32(5), headerParkedKey: true, HeaderDeath: 1.5}})
	if got := forged.Unparked(); got.Kind != "k" || got.Headers["x-death"] != 1.5 {
		t.Errorf("%+v", got)
	}
	if n := len(parked.unexplained().Headers); n != 4 {
		t.Errorf("%d headers without the explanation, want the 4 that it came with but for x-death", n)
	}
}

// A message that died before and is at work again does not pass for that dead letter if the broker buries it.
func TestWhatIsPublishedAgainIsNoDeadLetter(t *testing.T) {
	at := time.Date(2030, 1, 2, 3, 4, 5, 6_789_000, time.UTC)
	dead := Message{ID: "1", Kind: "k"}.buried(ReasonHopeless, errors.New("no"), at)
	if dead.Headers[HeaderDiedAt] != "2030-01-02T03:04:05.006Z" {
		t.Errorf("died at %v", dead.Headers[HeaderDiedAt])
	}
	parked := dead.parked("lapse.dead", errors.New("no"), Topology{})
	for name, again := range map[string]Message{"hop": parked.again(), "retry": parked.retried(errors.New("x"), at)} {
		for header := range again.Headers {
			if strings.HasPrefix(header, "lapse-parked") || header == HeaderReason || header == HeaderLetter || header == HeaderDiedAt {
				t.Errorf("a %s keeps %s", name, header)
			}
		}
	}
}
