package deadletter

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

// Headers are kept as JSON that people can read and search, and that keeps AMQP's types all the same, so that a
// replay publishes what came. Text, 64-bit integers, booleans, lists and tables are JSON's own. Any other value is
// an object with one member whose name says the type: {"$int32":5}, {"$time":"2026-01-02T03:04:05Z"}. Bytes are
// written as Go writes them between quotes, {"$bytes":"a\\xff"}, and so is text that is not UTF-8. A table with
// names that are not UTF-8, or that could be taken for such a type, is {"$table":[["name",value],…]}.

// encodeTable returns the same text for the same table.
func encodeTable(table map[string]any) ([]byte, error) {
	value, err := toJSON(amqp091.Table(table))
	if err != nil {
		return nil, err
	}
	return marshal(value)
}

// inHeaders is how a part of a text reads in encoded headers.
func inHeaders(part string) string {
	if !utf8.ValidString(part) {
		part = escape(part)
	}
	text, _ := marshal(part) // a string always can
	return string(text[1 : len(text)-1])
}

func marshal(value any) ([]byte, error) {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(text.Bytes(), []byte("\n")), nil
}

func tagged(kind string, value any) any { return map[string]any{"$" + kind: value} }

func toJSON(value any) (any, error) {
	switch v := value.(type) {
	case nil, bool, int64:
		return v, nil
	case string:
		if utf8.ValidString(v) {
			return v, nil
		}
		return tagged("string", escape(v)), nil
	case []byte:
		return tagged("bytes", escape(string(v))), nil
	case int8:
		return tagged("int8", v), nil
	case int16:
		return tagged("int16", v), nil
	case int32:
		return tagged("int32", v), nil
	case uint8:
		return tagged("uint8", v), nil
	case uint16:
		return tagged("uint16", v), nil
	case uint32:
		return tagged("uint32", v), nil
	case float32: // as text: not every float is a number of JSON
		return tagged("float32", strconv.FormatFloat(float64(v), 'g', -1, 32)), nil
	case float64:
		return tagged("float64", strconv.FormatFloat(v, 'g', -1, 64)), nil
	case amqp091.Decimal:
		return tagged("decimal", []any{v.Scale, v.Value}), nil
	case time.Time:
		if year := v.UTC().Year(); year < 0 || year > 9999 {
			return tagged("unix", v.Unix()), nil
		}
		return tagged("time", v.UTC().Format(time.RFC3339Nano)), nil
	case []any:
		list := make([]any, len(v))
		for i := range v {
			item, err := toJSON(v[i])
			if err != nil {
				return nil, err
			}
			list[i] = item
		}
		return list, nil
	case amqp091.Table:
		return tableToJSON(v)
	}
	return nil, fmt.Errorf("no message comes with a %T in it", value)
}

func tableToJSON(table amqp091.Table) (any, error) {
	plain, object := true, make(map[string]any, len(table))
	for name, value := range table {
		item, err := toJSON(value)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", name, err)
		}
		object[name] = item
		plain = plain && utf8.ValidString(name) && !strings.HasPrefix(name, "$")
	}
	if plain {
		return object, nil
	}
	pairs := make([]any, 0, len(table))
	for _, name := range slices.Sorted(maps.Keys(table)) {
		key, _ := toJSON(name)
		pairs = append(pairs, []any{key, object[name]})
	}
	return tagged("table", pairs), nil
}

// decodeTable is the reverse. An empty table is nil.
func decodeTable(text []byte) (map[string]any, error) {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	var object map[string]any
	if err := decoder.Decode(&object); err != nil {
		return nil, err
	}
	value, err := fromObject(object)
	if err != nil {
		return nil, err
	}
	table, ok := value.(amqp091.Table)
	if !ok {
		return nil, fmt.Errorf("a %T instead of a table", value)
	}
	if len(table) == 0 {
		return nil, nil
	}
	return table, nil
}

func fromJSON(value any) (any, error) {
	switch v := value.(type) {
	case json.Number:
		return v.Int64()
	case []any:
		for i := range v {
			item, err := fromJSON(v[i])
			if err != nil {
				return nil, err
			}
			v[i] = item
		}
		return v, nil
	case map[string]any:
		return fromObject(v)
	}
	return value, nil
}

func fromObject(object map[string]any) (any, error) {
	if len(object) == 1 {
		for name, value := range object {
			if kind, ok := strings.CutPrefix(name, "$"); ok {
				return untag(kind, value)
			}
		}
	}
	table := make(amqp091.Table, len(object))
	for name, value := range object {
		item, err := fromJSON(value)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", name, err)
		}
		table[name] = item
	}
	return table, nil
}

func untag(kind string, value any) (any, error) {
	switch v := value.(type) {
	case json.Number:
		return untagNumber(kind, v.String())
	case string:
		return untagText(kind, v)
	case []any:
		return untagList(kind, v)
	}
	return nil, fmt.Errorf("$%s of a %T", kind, value)
}

func untagNumber(kind, text string) (any, error) {
	switch kind {
	case "uint8", "uint16", "uint32":
		n, err := strconv.ParseUint(text, 10, 32)
		switch {
		case err != nil:
			return nil, err
		case kind == "uint8" && n <= math.MaxUint8:
			return uint8(n), nil
		case kind == "uint16" && n <= math.MaxUint16:
			return uint16(n), nil
		case kind == "uint32":
			return uint32(n), nil
		}
		return nil, fmt.Errorf("$%s of %s", kind, text)
	}
	n, err := strconv.ParseInt(text, 10, 64)
	switch {
	case err != nil:
		return nil, err
	case kind == "int8" && n == int64(int8(n)):
		return int8(n), nil
	case kind == "int16" && n == int64(int16(n)):
		return int16(n), nil
	case kind == "int32" && n == int64(int32(n)):
		return int32(n), nil
	case kind == "unix":
		return time.Unix(n, 0).UTC(), nil
	}
	return nil, fmt.Errorf("$%s of %s", kind, text)
}

func untagText(kind, text string) (any, error) {
	switch kind {
	case "string":
		return unescape(text)
	case "bytes":
		raw, err := unescape(text)
		return []byte(raw), err
	case "float32":
		f, err := strconv.ParseFloat(text, 32)
		return float32(f), err
	case "float64":
		return strconv.ParseFloat(text, 64)
	case "time":
		return time.Parse(time.RFC3339Nano, text)
	}
	return nil, fmt.Errorf("$%s of %q", kind, text)
}

func untagList(kind string, list []any) (any, error) {
	switch {
	case kind == "decimal" && len(list) == 2:
		scale, err := untag("uint8", list[0])
		if err != nil {
			return nil, err
		}
		value, err := untag("int32", list[1])
		if err != nil {
			return nil, err
		}
		return amqp091.Decimal{Scale: scale.(uint8), Value: value.(int32)}, nil
	case kind == "table":
		table := make(amqp091.Table, len(list))
		for _, pair := range list {
			both, err := fromJSON(pair)
			if err != nil {
				return nil, err
			}
			entry, _ := both.([]any)
			if len(entry) != 2 {
				return nil, fmt.Errorf("$table with %v", pair)
			}
			name, ok := entry[0].(string)
			if !ok {
				return nil, fmt.Errorf("$table with the name %v", entry[0])
			}
			table[name] = entry[1]
		}
		return table, nil
	}
	return nil, fmt.Errorf("$%s of a list", kind)
}

// escape makes text of any bytes, and unescape bytes of that text.
func escape(raw string) string {
	quoted := strconv.Quote(raw)
	return quoted[1 : len(quoted)-1]
}

func unescape(text string) (string, error) { return strconv.Unquote(`"` + text + `"`) }
