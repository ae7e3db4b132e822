package deadletter

import (
	"time"

	"github.com/lapse-go/lapse/amqp"
)

// Letter is a message that died, once. A message that is replayed and dies again is another letter.
type Letter struct {
	ID        int64
	MessageID string // as it came, so any bytes; of one that came without, what a replay gave it
	Kind      string // what it is about: that of the due queue on which it died
	Subject   string // what it is about in the domain, for instance an order's id; "" if that is not known
	Queue     string // that it was collected from
	// Exchange and RoutingKey are its first route, which leads back to where it failed. A replay to
	// another destination does not change it.
	Exchange, RoutingKey string

	Reason       Reason
	Attempts     int
	Error        string // the last one; "" if nobody said. [Desk.List] cuts both after 1000 characters
	FirstError   string
	FirstErrorAt time.Time // zero if not known
	Group        string    // fingerprint of kind, reason and error, see [Group]

	// Properties, Headers and Body are as they came, of any bytes. [Desk.List] leaves them out.
	Properties Properties
	Headers    map[string]any
	Body       []byte
	Size       int // bytes of the body

	DiedAt      time.Time
	CollectedAt time.Time
	Replays     int    // how often the message had been replayed before it died
	ReplayedBy  string // the job that published it last before that, "" if none did

	State      State
	ResolvedAt time.Time // when it ceased to be open
	ResolvedBy string    // by whom: a person, or "lapse"
	Resolution string    // why: the reason that was given, or what the guard said
	Replay     string    // the last replay that it belonged to, "" if none did
}

// self is who resolves what nobody has to.
const self = "lapse"

// State is what became of a letter.
type State string

const (
	Open      State = "open"      // nobody has done anything about it
	Replayed  State = "replayed"  // its message was published again
	Settled   State = "settled"   // the guard said that there is nothing left to do
	Discarded State = "discarded" // somebody said that it is not worth anything
)

// States are all of them.
var States = []State{Open, Replayed, Settled, Discarded}

// Reason is why a message died.
type Reason string

const (
	Hopeless      = Reason(amqp.ReasonHopeless)   // its handler said that it can never succeed
	OutOfTries    = Reason(amqp.ReasonOutOfTries) // it failed as often as the retry policy allows
	DeliveryLimit = Reason("delivery-limit")      // it cost too many deliveries without ever being settled
	Expired       = Reason("expired")             // it waited too long in its queue
	Rejected      = Reason("rejected")            // it was rejected, and could not be buried with the reason
	Unroutable    = Reason("unroutable")          // no queue is bound for its kind
	Unknown       = Reason("unknown")             // it does not say
)

// Reasons are all of them.
var Reasons = []Reason{Hopeless, OutOfTries, DeliveryLimit, Expired, Rejected, Unroutable, Unknown}

// Properties are those of AMQP that are not elsewhere in a letter.
type Properties struct {
	ContentType     string    `json:"content_type,omitempty"`
	ContentEncoding string    `json:"content_encoding,omitempty"`
	CorrelationID   string    `json:"correlation_id,omitempty"`
	ReplyTo         string    `json:"reply_to,omitempty"`
	Type            string    `json:"type,omitempty"`
	AppID           string    `json:"app_id,omitempty"`
	Priority        uint8     `json:"priority,omitempty"`
	Timestamp       time.Time `json:"timestamp,omitzero"`
}
