package web

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"time"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"
	amqp091 "github.com/rabbitmq/amqp091-go"
)

// Headers are those of a message, as JSON that people can read. Whole numbers are exact. Bytes that are not UTF-8 are
// {"base64": "…"}, and times are text.
type Headers map[string]any

// MarshalJSON writes them.
func (h Headers) MarshalJSON() ([]byte, error) {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(readable(map[string]any(h)))
	return text.Bytes(), err
}

// UnmarshalJSON reads them, whole numbers as int64.
func (h *Headers) UnmarshalJSON(text []byte) error {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	var given map[string]any
	if err := decoder.Decode(&given); err != nil {
		return err
	}
	*h = nil
	if given != nil {
		*h = make(Headers, len(given))
	}
	for key, value := range given {
		(*h)[key] = typed(value)
	}
	return nil
}

// Schema is for huma.
func (Headers) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{
		Type: huma.TypeObject, AdditionalProperties: true,
		Description: `Of the message, whatever they are. Whole numbers have up to 64 bits; bytes that are not UTF-8 are {"base64": "…"}; times are text.`,
	}
}

// readable is a value of an AMQP table as encoding/json writes it well.
func readable(value any) any {
	switch v := value.(type) {
	case string:
		if !utf8.ValidString(v) {
			return map[string]string{"base64": base64.StdEncoding.EncodeToString([]byte(v))}
		}
	case []byte:
		return readable(string(v))
	case amqp091.Table:
		return readable(map[string]any(v))
	case map[string]any:
		table := make(map[string]any, len(v))
		for key, value := range v {
			table[plain(key)] = readable(value)
		}
		return table
	case []any:
		values := make([]any, len(v))
		for i, value := range v {
			values[i] = readable(value)
		}
		return values
	case time.Time:
		return v.UTC().Format(time.RFC3339)
	case amqp091.Decimal:
		return json.Number(fmt.Sprintf("%de-%d", v.Value, v.Scale))
	case float32:
		return readable(float64(v))
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return fmt.Sprint(v)
		}
	case nil, bool:
	default:
		if reflect.ValueOf(value).CanInt() || reflect.ValueOf(value).CanUint() {
			return value
		}
		return plain(fmt.Sprint(value)) // nothing that AMQP knows
	}
	return value
}

// typed is a value of a table as it was before [readable], as far as JSON tells.
func typed(value any) any {
	switch v := value.(type) {
	case json.Number:
		if whole, err := v.Int64(); err == nil {
			return whole
		}
		number, _ := v.Float64()
		return number
	case map[string]any:
		if text, ok := v["base64"].(string); ok && len(v) == 1 {
			if raw, err := base64.StdEncoding.DecodeString(text); err == nil {
				return raw
			}
		}
		for key, value := range v {
			v[key] = typed(value)
		}
	case []any:
		for i, value := range v {
			v[i] = typed(value)
		}
	}
	return value
}
