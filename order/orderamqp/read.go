package orderamqp

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/lapse-go/lapse/order"
)

// ReadDraft reads one draft as strictly as the API does: a mistyped name, a price without its amount, or a
// name that stands twice would cost a shop, or its customer, money. The draft is not validated. The error
// wraps [order.ErrInvalid].
func ReadDraft(text []byte) (order.Draft, error) {
	var wire struct {
		Draft
		Lines []struct {
			SKU      string `json:"sku"`
			Quantity int64  `json:"quantity"`
			Price    struct {
				Amount   *int64 `json:"amount"`
				Currency string `json:"currency"`
			} `json:"price"`
		} `json:"lines"`
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	err := decoder.Decode(&wire)
	switch {
	case err == nil && !utf8.Valid(text):
		err = errors.New("it is not valid UTF-8")
	case err == nil:
		err = onceEach(json.NewDecoder(bytes.NewReader(text)))
	}
	if of, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		err = fmt.Errorf("%s cannot be a JSON %s", strings.TrimPrefix(of.Field, "Draft."), of.Value)
	}
	if err != nil {
		return order.Draft{}, fmt.Errorf("%w: %w", order.ErrInvalid, err)
	}
	for i, line := range wire.Lines {
		if line.Price.Amount == nil {
			return order.Draft{}, fmt.Errorf("%w: line %d: no price: give its amount, 0 if it costs nothing", order.ErrInvalid, i+1)
		}
		wire.Draft.Lines = append(wire.Draft.Lines, Line{line.SKU, line.Quantity, Money{*line.Price.Amount, line.Price.Currency}})
	}
	return wire.Order()
}

// onceEach reads one value and finds a name that stands twice in an object: the second would be mixed into
// what the first one said.
func onceEach(decoder *json.Decoder) error {
	token, err := decoder.Token()
	if err != nil {
		return err
	}
	open, nested := token.(json.Delim)
	if !nested {
		return nil
	}
	seen := map[string]bool{}
	for decoder.More() {
		if open == '{' {
			name, err := decoder.Token()
			if err != nil {
				return err
			}
			// Names that differ only in case are one to encoding/json.
			folded := strings.ToLower(name.(string))
			if seen[folded] {
				return fmt.Errorf("the name %q is there twice", name)
			}
			seen[folded] = true
		}
		if err := onceEach(decoder); err != nil {
			return err
		}
	}
	if _, err = decoder.Token(); errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return err
}
