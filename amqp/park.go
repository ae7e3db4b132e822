package amqp

import (
	"maps"
	"slices"
)

// Headers of a parked message, beside [HeaderParked] and [HeaderDeath]. They keep what would not come back with it:
// whoever moves messages from queue to queue usually changes their route.
const (
	headerParkedQueue    = "lapse-parked-queue"    // the queue that it came from
	headerParkedExchange = "lapse-parked-exchange" // its route until then
	headerParkedKey      = "lapse-parked-key"
)

var parkedHeaders = []string{HeaderParked, headerParkedQueue, headerParkedExchange, headerParkedKey, HeaderDeath}

// parked is the message for [Topology.Parked], err being why. What its sender left out stays so.
func (m Message) parked(queue string, err error, t Topology) Publishing {
	death := m.Headers["x-death"]
	m = m.withoutForbidden()
	m.Headers[HeaderParked] = headerText(err.Error())
	m.Headers[headerParkedQueue] = queue
	m.Headers[headerParkedExchange] = m.arrival.Exchange
	m.Headers[headerParkedKey] = m.arrival.RoutingKey
	if death != nil {
		m.Headers[HeaderDeath] = death
	}
	return Publishing{Message: m, Exchange: t.Parked(), verbatim: true}
}

// unexplained is a parked message without what was added, so that it takes no more room than it did.
func (m Publishing) unexplained() Publishing {
	m.Headers = maps.Clone(m.Headers)
	for _, name := range parkedHeaders {
		delete(m.Headers, name)
	}
	return m
}

// withoutForbidden is the message with a table of headers of its own, in which none is forbidden.
func (m Message) withoutForbidden() Message {
	headers := make(map[string]any, len(m.Headers)+len(parkedHeaders))
	for name, value := range m.Headers {
		if _, found := forbidden[name]; !found && !slices.Contains(parkedHeaders, name) {
			headers[name] = value
		}
	}
	m.Headers = headers
	return m
}

// Unparked is a message that came back from [Topology.Parked] as it was before, and any other as it is.
func (m Message) Unparked() Message {
	if _, found := m.Headers[HeaderParked]; !found {
		return m
	}
	exchange, known := m.Headers[headerParkedExchange].(string)
	key, alsoKnown := m.Headers[headerParkedKey].(string)
	if known && alsoKnown {
		m.arrival.Exchange, m.arrival.RoutingKey, m.Kind = exchange, key, key
	}
	death := m.Headers[HeaderDeath]
	m = m.withoutForbidden()
	if death != nil {
		m.Headers["x-death"] = death
	}
	return m
}
