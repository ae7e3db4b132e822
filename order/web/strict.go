package web

import (
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf8"
)

// unmarshal reads JSON, and refuses bytes that are not UTF-8 instead of replacing them, as encoding/json does.
func unmarshal(data []byte, v any) error {
	if !utf8.Valid(data) {
		return errors.New("the body is not UTF-8")
	}
	err := json.Unmarshal(data, v)
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return fmt.Errorf("%s: a %s does not fit here: give whole numbers of at most 64 bits, and times in RFC 3339", wrong.Field, wrong.Value)
	}
	return err
}
