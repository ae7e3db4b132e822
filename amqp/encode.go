package amqp

import (
	"fmt"
	"math"
	"strconv"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

// encode is the message in amqp091's terms.
func (m *Publishing) encode() amqp091.Publishing {
	out := amqp091.Publishing{
		Headers:         m.Headers,
		ContentType:     m.ContentType,
		ContentEncoding: m.Properties.ContentEncoding,
		DeliveryMode:    amqp091.Persistent,
		Priority:        m.Properties.Priority,
		CorrelationId:   m.Properties.CorrelationID,
		ReplyTo:         m.Properties.ReplyTo,
		MessageId:       m.ID,
		Timestamp:       m.Timestamp,
		Type:            m.Properties.Type,
		AppId:           m.AppID,
		Body:            m.Body,
	}
	if out.ContentType == "" && !m.verbatim {
		out.ContentType = amqp091.MimeApplicationJSON
	}
	if out.Timestamp.IsZero() && !m.verbatim {
		out.Timestamp = time.Now()
	}
	if m.Expiration > 0 {
		out.Expiration = strconv.FormatInt(int64((m.Expiration+time.Millisecond-1)/time.Millisecond), 10)
	}
	return out
}

// check returns the size of the frame that carries the message's properties, or what makes it
// impossible to send. Half of an impossible message would end up on the wire before amqp091 found
// that out, and the broker would end the connection for everybody.
func (m *Publishing) check(maxBytes int) (int, error) {
	const fixed = 64 // what is not counted below: the frame itself, flags, timestamp, expiration, lengths
	size := fixed
	for _, field := range [...]struct{ name, value string }{
		{"exchange", m.Exchange}, {"kind", m.Kind}, {"id", m.ID}, {"content type", m.ContentType}, {"app id", m.AppID},
		{"content encoding", m.Properties.ContentEncoding}, {"correlation id", m.Properties.CorrelationID},
		{"reply-to", m.Properties.ReplyTo}, {"type", m.Properties.Type},
	} {
		if len(field.value) > maxShort {
			return 0, fmt.Errorf("its %s has %d bytes; AMQP allows %d", field.name, len(field.value), maxShort)
		}
		size += len(field.value)
	}
	if len(m.Body) > maxBytes {
		return 0, fmt.Errorf("its body has %d bytes; %d are allowed", len(m.Body), maxBytes)
	}
	if m.Expiration < 0 || m.Expiration > MaxDelay {
		return 0, fmt.Errorf("its expiration is %s; the broker takes 0 to %s", m.Expiration, MaxDelay)
	}
	for key, why := range forbidden {
		if _, found := m.Headers[key]; found {
			return 0, fmt.Errorf("header %s %s", key, why)
		}
	}
	headers, err := tableSize(m.Headers, 0)
	if err != nil {
		return 0, fmt.Errorf("its headers: %w", err)
	}
	return size + headers, nil
}

// forbidden headers are the broker's to act on. An x-death that is not the broker's own, a list of
// strings for instance, crashes RabbitMQ 3.10's dead-letter worker over and over until its
// supervisor gives up, and with it all at-least-once dead-lettering of the node, until that is
// restarted (tried with 3.10.8).
var forbidden = map[string]string{
	"CC":      "would send it to other queues as well",
	"BCC":     "would send it to other queues as well",
	"x-death": "is the broker's own",
}

const (
	// headerRoom is kept free in the frame for what is added later: by the broker when it dead-letters
	// the message (x-death), by a retry (the errors). A message that fits no more cannot be delivered:
	// the broker ends the consumer's connection over it, each time again.
	headerRoom = 8 << 10
	maxShort   = 255 // bytes in AMQP's short strings
	maxDepth   = 32  // of tables and lists in each other: what is deeper amqp091 does not read
)

// room is how many bytes of a frame the message's properties may take; 0 is as many as it likes. To what is sent as
// it came, nothing is added later.
func (m *Publishing) room(frame int) int {
	if m.verbatim {
		return frame
	}
	return frame - min(headerRoom, frame/2)
}

// tableSize is how many bytes a table takes on the wire.
func tableSize(table amqp091.Table, depth int) (int, error) {
	size := 4
	for key, value := range table {
		if len(key) > maxShort {
			return 0, fmt.Errorf("a name has %d bytes; AMQP allows %d", len(key), maxShort)
		}
		n, err := fieldSize(value, depth)
		if err != nil {
			return 0, fmt.Errorf("%q: %w", key, err)
		}
		size += 1 + len(key) + n
	}
	return size, nil
}

func fieldSize(value any, depth int) (int, error) {
	if depth == maxDepth {
		return 0, fmt.Errorf("nested more than %d deep", maxDepth)
	}
	switch v := value.(type) {
	case nil:
		return 1, nil
	case bool, byte, int8:
		return 2, nil
	case int16, uint16:
		return 3, nil
	case int32, uint32:
		return 5, nil
	case float32:
		return 5, finite(float64(v))
	case int:
		if v != int(int32(v)) {
			return 0, fmt.Errorf("int %d is sent with 32 bits and does not fit: use int64", v)
		}
		return 5, nil
	case amqp091.Decimal:
		return 6, nil
	case int64, time.Time:
		return 9, nil
	case float64:
		return 9, finite(v)
	case string:
		return 5 + len(v), nil
	case []byte:
		return 5 + len(v), nil
	case []any:
		size := 5
		for _, item := range v {
			n, err := fieldSize(item, depth+1)
			if err != nil {
				return 0, err
			}
			size += n
		}
		return size, nil
	case amqp091.Table:
		n, err := tableSize(v, depth+1)
		return 1 + n, err
	}
	return 0, fmt.Errorf("AMQP cannot carry a %T", value)
}

// finite: over any other number the broker ends the connection with an internal error (tried with
// RabbitMQ 3.10 and 4.3).
func finite(f float64) error {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return fmt.Errorf("the broker cannot read the number %v", f)
	}
	return nil
}
