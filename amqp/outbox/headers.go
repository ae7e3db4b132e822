package outbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

// Headers are kept as JSON in which a number with a point or an exponent is a float64 and any other an
// int64, so that an attempt counter comes out as it went in. The text is ASCII, so that no session's
// character set can change it.

const maxDepth = 16 // of tables and lists in each other

func encodeHeaders(headers map[string]any) (string, error) {
	for _, key := range []string{"CC", "BCC"} {
		if _, found := headers[key]; found {
			return "", fmt.Errorf("header %s would send it to other queues as well", key)
		}
	}
	if _, found := headers["x-death"]; found {
		// One that a broker wrote makes its queues look like a cycle to the next one, and one that makes
		// no sense ends dead-lettering on the whole node (RabbitMQ 3.10).
		return "", errors.New("header x-death is the broker's own")
	}
	table, err := toJSON(headers, 0)
	if err != nil {
		return "", err
	}
	text, err := json.Marshal(table)
	if err != nil {
		return "", err
	}
	return ascii(string(text)), nil
}

// toJSON is the value as encoding/json has to see it.
func toJSON(value any, depth int) (any, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("nested more than %d deep", maxDepth)
	}
	switch v := value.(type) {
	case nil, bool, int8, int16, int32, int64, int, uint8, uint16, uint32:
		return v, nil
	case float32:
		return toJSON(float64(v), depth)
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return nil, fmt.Errorf("%v cannot be kept", v)
		}
		return json.RawMessage(strconv.FormatFloat(v, 'e', -1, 64)), nil
	case string:
		if !utf8.ValidString(v) {
			return nil, errors.New("not valid UTF-8")
		}
		return v, nil
	case []any:
		list := make([]any, len(v))
		for i := range v {
			item, err := toJSON(v[i], depth+1)
			if err != nil {
				return nil, err
			}
			list[i] = item
		}
		return list, nil
	case amqp091.Table:
		return toJSON(map[string]any(v), depth)
	case map[string]any:
		table := make(map[string]any, len(v))
		for key, item := range v {
			if !utf8.ValidString(key) || len(key) > maxShort {
				return nil, fmt.Errorf("header %q: the name has to be valid UTF-8 and at most %d bytes", key, maxShort)
			}
			item, err := toJSON(item, depth+1)
			if err != nil {
				return nil, fmt.Errorf("header %q: %w", key, err)
			}
			table[key] = item
		}
		return table, nil
	}
	return nil, fmt.Errorf("a %T cannot be kept: give text, a whole number of at most 64 bits, a float, a bool, nil, a list or a table", value)
}

// ascii writes what is not ASCII as JSON's escapes.
func ascii(text string) string {
	var b strings.Builder
	for _, r := range text {
		if r < utf8.RuneSelf {
			b.WriteRune(r)
			continue
		}
		for _, unit := range utf16.Encode([]rune{r}) {
			fmt.Fprintf(&b, `\u%04x`, unit)
		}
	}
	return b.String()
}

func decodeHeaders(text string) (map[string]any, error) {
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.UseNumber()
	var table map[string]any
	if err := decoder.Decode(&table); err != nil {
		return nil, fmt.Errorf("headers: %w", err)
	}
	for key, value := range table {
		value, err := fromJSON(value)
		if err != nil {
			return nil, fmt.Errorf("header %q: %w", key, err)
		}
		table[key] = value
	}
	return table, nil
}

func fromJSON(value any) (any, error) {
	switch v := value.(type) {
	case json.Number:
		if strings.ContainsAny(v.String(), ".eE") {
			return v.Float64()
		}
		return v.Int64()
	case []any:
		for i := range v {
			item, err := fromJSON(v[i])
			if err != nil {
				return nil, err
			}
			v[i] = item
		}
	case map[string]any:
		for key := range v {
			item, err := fromJSON(v[key])
			if err != nil {
				return nil, err
			}
			v[key] = item
		}
		return amqp091.Table(v), nil
	}
	return value, nil
}
