package deadletter

import (
	"context"
	"time"

	"github.com/lapse-go/lapse/amqp"
)

// Guard knows what messages are about. It is safe for concurrent use.
type Guard interface {
	// Subject is what a message is about, for instance an order's id; "" if nobody can tell. It looks at
	// nothing but the message.
	Subject(m amqp.Message) string
	// Ask says what replaying each would come to, in their order, and changes nothing. now is the time by the
	// database's clock. An error says that it cannot be found out at present, of none of them.
	Ask(ctx context.Context, now time.Time, batch []amqp.Message) ([]Verdict, error)
}

// Verdict is a guard's answer about one message.
type Verdict struct {
	// Answer is for people and is counted, so it names nothing in particular: "would be expired", "already
	// paid", "not due yet", "not found", "malformed", "not checked".
	Answer string
	// Settled: there is nothing left to do, so the message is not published, and its letter resolved.
	Settled bool
}
