package deadletter

import (
	"fmt"
	"maps"
	"time"

	"github.com/lapse-go/lapse/amqp"
)

// message is the letter's message as it came, and as its first handler knows it: its kind is the key of its first
// route.
func (l Letter) message() amqp.Message {
	p := l.Properties
	return amqp.Message{
		ID: l.MessageID, Kind: l.RoutingKey, Body: l.Body, Headers: maps.Clone(l.Headers),
		ContentType: p.ContentType, Timestamp: p.Timestamp, AppID: p.AppID,
		Properties: amqp.Properties{
			ContentEncoding: p.ContentEncoding, CorrelationID: p.CorrelationID, ReplyTo: p.ReplyTo, Type: p.Type, Priority: p.Priority,
		},
	}
}

// encodeProperties keeps them as headers are kept, for they may be any bytes, too.
func encodeProperties(m amqp.Message) ([]byte, error) {
	table := map[string]any{}
	for name, value := range map[string]string{
		"content_type": m.ContentType, "content_encoding": m.Properties.ContentEncoding, "correlation_id": m.Properties.CorrelationID,
		"reply_to": m.Properties.ReplyTo, "type": m.Properties.Type, "app_id": m.AppID,
	} {
		if value != "" {
			table[name] = value
		}
	}
	if m.Properties.Priority != 0 {
		table["priority"] = int64(m.Properties.Priority)
	}
	if !m.Timestamp.IsZero() {
		table["timestamp"] = m.Timestamp
	}
	return encodeTable(table)
}

func decodeProperties(text []byte) (Properties, error) {
	table, err := decodeTable(text)
	if err != nil {
		return Properties{}, err
	}
	var p Properties
	for name, to := range map[string]*string{
		"content_type": &p.ContentType, "content_encoding": &p.ContentEncoding, "correlation_id": &p.CorrelationID,
		"reply_to": &p.ReplyTo, "type": &p.Type, "app_id": &p.AppID,
	} {
		value, found := table[name]
		if text, ok := value.(string); ok {
			*to = text
		} else if found {
			return Properties{}, fmt.Errorf("%s is a %T", name, value)
		}
	}
	priority, _ := table["priority"].(int64)
	p.Priority = uint8(priority)
	p.Timestamp, _ = table["timestamp"].(time.Time)
	return p, nil
}
