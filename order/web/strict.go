package web

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// maxDepth is how deep JSON may be nested; an order is three levels deep.
const maxDepth = 16

// unmarshal reads JSON and refuses what is read differently by different programs: a name that is there
// twice, and bytes that are not UTF-8. Names that differ in case only are the same name to encoding/json.
func unmarshal(data []byte, v any) error {
	if !utf8.Valid(data) {
		return errors.New("the body is not UTF-8")
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	if err := walk(decoder, 0); err != nil {
		return err
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return errors.New("there is more after the end of the JSON")
	}
	err := json.Unmarshal(data, v)
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return fmt.Errorf("%s: a %s does not fit here: give whole numbers of at most 64 bits, and times in RFC 3339", wrong.Field, wrong.Value)
	}
	return err
}

// walk reads one value.
func walk(decoder *json.Decoder, depth int) error {
	token, err := decoder.Token()
	if err != nil {
		return fmt.Errorf("the body is not JSON: %w", err)
	}
	open, _ := token.(json.Delim)
	if open == 0 {
		return nil
	}
	if depth++; depth > maxDepth {
		return fmt.Errorf("the body is nested more than %d levels deep", maxDepth)
	}
	seen := make(map[string]bool)
	for decoder.More() {
		if open == '{' {
			token, err := decoder.Token()
			if err != nil {
				return fmt.Errorf("the body is not JSON: %w", err)
			}
			name, _ := token.(string)
			folded := strings.ToLower(strings.ToUpper(name)) // as encoding/json folds: ſ is s, too
			if seen[folded] {
				return fmt.Errorf("the name %.80q is there twice", name)
			}
			seen[folded] = true
		}
		if err := walk(decoder, depth); err != nil {
			return err
		}
	}
	if _, err := decoder.Token(); err != nil {
		return fmt.Errorf("the body is not JSON: %w", err)
	}
	return nil
}
