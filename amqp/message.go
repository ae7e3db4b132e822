package amqp

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	amqp091 "github.com/rabbitmq/amqp091-go"
)

// Headers that Lapse reads and writes. None begins with "x-": brokers from 4.0 on ignore what a
// client says there (https://github.com/rabbitmq/rabbitmq-server/issues/10709), so nothing is
// counted from x-death.
const (
	HeaderAttempt      = "lapse-attempt"        // number of the coming attempt, 1 when absent
	HeaderFirstError   = "lapse-first-error"    // what the first failed attempt said
	HeaderFirstErrorAt = "lapse-first-error-at" // when, RFC 3339, UTC
	HeaderError        = "lapse-error"          // what the last failed attempt said
	HeaderReason       = "lapse-reason"         // why it is a dead letter: a Reason
	HeaderLetter       = "lapse-letter"         // identity of the dead letter, so that burying twice is one letter
	HeaderReplay       = "lapse-replay"         // the replay job that published it last
	HeaderDiedAt       = "lapse-died-at"        // when it was buried, RFC 3339 with milliseconds, UTC

	HeaderFirstExchange = "lapse-first-exchange" // where it was published before any replay, and
	HeaderFirstKey      = "lapse-first-key"      // with which routing key

	HeaderParked = "lapse-parked" // why it is parked, see [Park]
	HeaderDeath  = "lapse-death"  // what x-death said of a parked message, for x-death cannot be sent
)

// Reason says why a message is a dead letter.
type Reason string

const (
	ReasonHopeless   Reason = "hopeless"     // its handler said that it can never succeed
	ReasonOutOfTries Reason = "out-of-tries" // it failed as often as the retry policy allows
)

// deathHeaders are those of a dead letter only.
var deathHeaders = []string{HeaderReason, HeaderLetter, HeaderDiedAt}

// maxErrorText bounds, in bytes, an error text in a header: all headers have to fit in one frame.
const maxErrorText = 1024

// Message is what Lapse sends and handles.
type Message struct {
	// ID is stable over hops, retries and replays. Publishing a message without one gives it one.
	ID string
	// Kind says what the message is about, for instance "order.payment_timeout". It is the routing
	// key everywhere. At most 255 bytes.
	Kind string
	// Body is JSON unless ContentType says otherwise.
	Body []byte
	// ContentType is application/json when empty.
	ContentType string
	// Timestamp is when the message was first made, to the second; AMQP carries no more.
	Timestamp time.Time
	// AppID names the program that made it.
	AppID string
	// Headers holds AMQP field-table values (see amqp091.Table).
	Headers map[string]any

	// Properties are kept on every way that the message takes.
	Properties Properties

	arrival Arrival
}

// Properties are those of AMQP that only programs other than Lapse set.
type Properties struct {
	ContentEncoding, CorrelationID, ReplyTo, Type string
	Priority                                      uint8
}

// Arrival is how a message was delivered.
type Arrival struct {
	Exchange, RoutingKey string // it was published to, last
	// Redelivered: it may have been delivered before. A broker that fails over says so of more messages than
	// it has delivered.
	Redelivered bool
}

// Arrival is how the broker delivered the message that a [Handler] got, and zero of any other.
func (m Message) Arrival() Arrival { return m.arrival }

// Publishing is a message on its way to an exchange.
type Publishing struct {
	Message
	// Exchange it goes to, by its full name. The routing key is the message's kind.
	Exchange string
	// Expiration is how long it may wait in a queue before it is dead-lettered. Zero leaves it to the
	// queue; anything else is rounded up to a whole millisecond.
	Expiration time.Duration

	verbatim bool // nothing is added where the message leaves something out
}

// Attempt is the number of the attempt that this delivery is; the first delivery is attempt 1.
// A header that is missing or makes no sense counts as 1.
func (m Message) Attempt() int {
	var n int64
	switch v := m.Headers[HeaderAttempt].(type) {
	case int64:
		n = v
	case int32:
		n = int64(v)
	case int16:
		n = int64(v)
	case int8:
		n = int64(v)
	case int:
		n = int64(v)
	}
	if n < 1 || n > 1_000_000 {
		return 1
	}
	return int(n)
}

// again is the message as it is published once more: a fresh one, without what the broker or a
// former publisher added for the former delivery only. In particular it has no x-death: a message
// that reaches a queue twice without a rejection in between is taken for a cycle and dropped, or
// stuck for ever (https://github.com/rabbitmq/rabbitmq-server/issues/11159). Nor does it say that it is a
// dead letter, or else it would pass for that one when the broker buries it later.
func (m Message) again() Message {
	headers := make(map[string]any, len(m.Headers)+4)
	for key, value := range m.Headers {
		if strings.HasPrefix(strings.ToLower(key), "x-") || key == "CC" || key == "BCC" {
			continue
		}
		headers[key] = value
	}
	for _, key := range slices.Concat(deathHeaders, parkedHeaders) {
		delete(headers, key)
	}
	m.Headers = headers
	if m.ID == "" {
		m.ID = newID()
	}
	return m
}

// retried is the message for its next attempt, err being why this one failed.
func (m Message) retried(err error, at time.Time) Message {
	next := m.failed(err, at)
	next.Headers[HeaderAttempt] = int64(m.Attempt() + 1)
	return next
}

// buried is the message as a dead letter.
func (m Message) buried(reason Reason, err error, at time.Time) Message {
	dead := m.failed(err, at)
	dead.Headers[HeaderAttempt] = int64(m.Attempt())
	dead.Headers[HeaderReason] = string(reason)
	dead.Headers[HeaderLetter] = letterID(m)
	dead.Headers[HeaderDiedAt] = at.UTC().Format("2006-01-02T15:04:05.000Z")
	return dead
}

func (m Message) failed(err error, at time.Time) Message {
	next := m.again()
	text := headerText(err.Error())
	if _, known := next.Headers[HeaderFirstError]; !known {
		next.Headers[HeaderFirstError] = text
		next.Headers[HeaderFirstErrorAt] = at.UTC().Format(time.RFC3339)
	}
	next.Headers[HeaderError] = text
	return next
}

// letterID is the same however often the same death is recorded. What is in the message, and when it was made, counts as
// well as its id: a program that gives two messages one id, for instance that of their order, has them both on the desk.
func letterID(m Message) string {
	replay, _ := m.Headers[HeaderReplay].(string)
	name := fmt.Sprintf("%s\x00%s\x00%d\x00%d\x00%s\x00%s", m.ID, m.Kind, m.Timestamp.Unix(), m.Attempt(), replay, m.Body)
	return uuid.NewSHA1(uuid.NameSpaceOID, []byte(name)).String()
}

func headerText(text string) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	if len(text) <= maxErrorText {
		return text
	}
	cut := maxErrorText
	for !utf8.RuneStart(text[cut]) {
		cut--
	}
	return text[:cut]
}

func newID() string { return uuid.Must(uuid.NewV7()).String() }

// received is the message that the broker delivered.
func received(d amqp091.Delivery) Message {
	return Message{
		ID:          d.MessageId,
		Kind:        d.RoutingKey,
		Body:        d.Body,
		ContentType: d.ContentType,
		Timestamp:   d.Timestamp,
		AppID:       d.AppId,
		Headers:     d.Headers,
		Properties: Properties{
			ContentEncoding: d.ContentEncoding, CorrelationID: d.CorrelationId, ReplyTo: d.ReplyTo, Type: d.Type, Priority: d.Priority,
		},
		arrival: Arrival{Exchange: d.Exchange, RoutingKey: d.RoutingKey, Redelivered: d.Redelivered},
	}
}
