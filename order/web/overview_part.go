package web

import (
	"encoding/json"
	"reflect"

	"github.com/danielgtaylor/huma/v2"

	"github.com/lapse-go/lapse/order/checkout"
)

// Part is a part of an [Overview]. In JSON it is its value, or, where that cannot be found out, an object whose text
// unknown says why.
type Part[T any] struct {
	Value   T
	Unknown string
}

type notKnown struct {
	Unknown string `json:"unknown"`
}

func partOf[D, T any](known *checkout.Known[D], convert func(D) T) *Part[T] {
	switch {
	case known == nil:
		return nil
	case known.Err != nil:
		return &Part[T]{Unknown: plain(why(known.Err))}
	}
	return &Part[T]{Value: convert(known.Value)}
}

// MarshalJSON writes the value, or why it is not known.
func (p Part[T]) MarshalJSON() ([]byte, error) {
	if p.Unknown != "" {
		return json.Marshal(notKnown{p.Unknown})
	}
	return json.Marshal(p.Value)
}

// UnmarshalJSON reads either.
func (p *Part[T]) UnmarshalJSON(text []byte) error {
	var why notKnown
	if err := json.Unmarshal(text, &why); err == nil && why.Unknown != "" {
		*p = Part[T]{Unknown: why.Unknown}
		return nil
	}
	*p = Part[T]{}
	return json.Unmarshal(text, &p.Value)
}

// Schema is for the OpenAPI document.
func (p Part[T]) Schema(r huma.Registry) *huma.Schema {
	return &huma.Schema{AnyOf: []*huma.Schema{
		r.Schema(reflect.TypeFor[T](), true, ""),
		{
			Type: huma.TypeObject, Required: []string{"unknown"}, AdditionalProperties: true,
			Properties: map[string]*huma.Schema{"unknown": {Type: huma.TypeString, Description: "Why it is not known."}},
		},
	}}
}
