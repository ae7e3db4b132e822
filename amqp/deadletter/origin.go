package deadletter

import (
	"slices"
	"strings"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/lapse-go/lapse/amqp"
)

const headerDeath = "x-death"

// origin is where a message that came to the desk died, and why.
type origin struct {
	buried bool // by Lapse, which has said in headers why; else by the broker, or by nobody
	kind   string
	route  Route // its first one
	reason Reason
	diedAt time.Time // zero if nobody knows
}

// originOf reads what the headers say. Brokers before 4.0 pass on whatever x-death a client sends, so nothing in it
// is believed that makes no sense in this topology.
func originOf(t amqp.Topology, queue string, m amqp.Message) origin {
	arrival := m.Arrival()
	last, broker := lastDeath(m)
	said := Reason(text(m.Headers[amqp.HeaderReason]))
	if !slices.Contains(Reasons, said) {
		said = Unknown
	}
	o := origin{
		// Lapse buries without x-death. Where there is one, a former death may have left the headers.
		buried: queue == t.Dead() && !broker && (said != Unknown || text(m.Headers[amqp.HeaderLetter]) != ""),
		kind:   arrival.RoutingKey,
		route:  Route{Exchange: arrival.Exchange, RoutingKey: arrival.RoutingKey},
		reason: Unknown,
		diedAt: last.at,
	}
	kind, due := strings.CutPrefix(last.queue, t.DueQueue(""))
	due = due && kind != "" && len(kind) <= maxName && queue == t.Dead()
	switch {
	case queue == t.Unrouted():
		o.reason = Unroutable
	case o.buried:
		o.reason, o.diedAt = said, parseTime(m.Headers[amqp.HeaderDiedAt])
		o.route = Route{Exchange: t.Due(), RoutingKey: o.kind}
	case due:
		// Its routing key may be the name of an event.
		o.kind, o.reason = kind, last.reason
		o.route = Route{Exchange: t.Due(), RoutingKey: kind}
	case broker && len(last.exchange) <= maxName && len(last.key) <= maxName:
		if strings.HasPrefix(last.queue, rungs(t)) {
			o.reason = last.reason
		}
		o.route = Route{Exchange: last.exchange, RoutingKey: last.key}
	}
	exchange, known := m.Headers[amqp.HeaderFirstExchange].(string)
	key, alsoKnown := m.Headers[amqp.HeaderFirstKey].(string)
	if known && alsoKnown && len(exchange) <= maxName && len(key) <= maxName {
		o.route = Route{Exchange: exchange, RoutingKey: key}
	}
	return o
}

// maxName is how many bytes AMQP allows in a name.
const maxName = 255

// rungs is how the names of all rungs begin.
func rungs(t amqp.Topology) string {
	return strings.TrimSuffix(t.Delay(time.Second), amqp.RungName(time.Second))
}

// brokerDeath is what the broker writes when it takes a message from a queue to its dead-letter exchange.
type brokerDeath struct {
	queue, exchange, key string
	reason               Reason
	at                   time.Time
}

var brokerReasons = map[string]Reason{"delivery_limit": DeliveryLimit, "expired": Expired, "rejected": Rejected}

// lastDeath is the last of these, and whether there is any.
func lastDeath(m amqp.Message) (last brokerDeath, found bool) {
	value, found := m.Headers[headerDeath]
	if !found {
		return brokerDeath{}, false
	}
	last.reason = Unknown
	deaths, _ := value.([]any)
	if len(deaths) == 0 {
		return last, true
	}
	table, _ := deaths[0].(amqp091.Table)
	last.queue, last.exchange = text(table["queue"]), text(table["exchange"])
	if keys, _ := table["routing-keys"].([]any); len(keys) > 0 {
		last.key = text(keys[0])
	}
	if reason, known := brokerReasons[text(table["reason"])]; known {
		last.reason = reason
	}
	last.at = parseTime(table["time"])
	return last, true
}

// text is a value that is text, or "".
func text(value any) string {
	text, _ := value.(string)
	return text
}

// parseTime is a value that is a time between 1970 and 9998, or zero.
func parseTime(value any) time.Time {
	at, ok := value.(time.Time)
	if said, isText := value.(string); isText {
		var err error
		at, err = time.Parse(time.RFC3339Nano, said)
		ok = err == nil
	}
	if year := at.UTC().Year(); !ok || year < 1970 || year > 9998 {
		return time.Time{}
	}
	return at.UTC()
}
