package web

import (
	"context"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"
)

// operation is one thing that can be asked for.
type operation struct {
	id, method, path string
	summary, doc     string
	role             Role // who may, at least
	public           bool // anybody may, without a token
	page             bool // it is part of the page: for browsers, with a session
	status           int  // when it went well
	maxBody          int64
	problems         []*problemType // what it may answer besides those of all operations
	// answers are the bodies that go with each status, where there are several.
	answers map[int]any
	// contents are those of an answer that is no JSON, by media type.
	contents map[string]*huma.Schema
}

func (op *operation) pattern() string { return op.method + " " + op.path }

// Problems of every operation that needs a token, and of those with a body.
var (
	commonProblems = []*problemType{malformed, invalid, unauthorized, forbidden, crossOrigin, wrongHost, bodyLate, bodyTooLarge, unavailable, internal}
	bodyProblems   = []*problemType{mediaType}
)

const bearer = "bearer"

// register adds an operation.
func register[I, O any](s *Server, api huma.API, op *operation, do func(context.Context, *I) (*O, error)) {
	problems := slices.Concat(commonProblems, op.problems)
	if op.maxBody > 0 {
		problems = append(problems, bodyProblems...)
	}
	responses := problemResponses(api.OpenAPI(), problems)
	for status, body := range op.answers {
		responses[strconv.Itoa(status)] = &huma.Response{
			Description: http.StatusText(status),
			Content: map[string]*huma.MediaType{"application/json": {
				Schema: api.OpenAPI().Components.Schemas.Schema(reflect.TypeOf(body), true, ""),
			}},
		}
	}
	if op.contents != nil {
		content := make(map[string]*huma.MediaType)
		for media, schema := range op.contents {
			content[media] = &huma.MediaType{Schema: schema}
		}
		responses[strconv.Itoa(op.status)] = &huma.Response{Description: http.StatusText(op.status), Content: content}
	}
	s.operations[op.pattern()] = op
	huma.Register(api, huma.Operation{
		OperationID: op.id, Method: op.method, Path: op.path, Summary: op.summary, Description: op.doc,
		DefaultStatus: op.status, Responses: responses,
		Security:     []map[string][]string{{bearer: {}}},
		MaxBodyBytes: -1, BodyReadTimeout: -1, // the body is read before
	}, func(ctx context.Context, in *I) (*O, error) {
		out, err := do(ctx, in)
		if err != nil {
			a := ctx.Value(answerKey{}).(*answer)
			a.cause = err
			return nil, problemOf(err, a.request)
		}
		return out, nil
	})
}

// problemResponses documents problems: those with one status together.
func problemResponses(api *huma.OpenAPI, problems []*problemType) map[string]*huma.Response {
	schema := api.Components.Schemas.Schema(reflect.TypeFor[Problem](), true, "")
	byStatus := make(map[int][]string)
	for _, t := range problems {
		byStatus[t.status] = append(byStatus[t.status], t.uri())
	}
	responses := make(map[string]*huma.Response, len(byStatus))
	for status, types := range byStatus {
		slices.Sort(types)
		types = slices.Compact(types)
		response := &huma.Response{
			Description: http.StatusText(status) + ": " + strings.Join(types, ", "),
			Content:     map[string]*huma.MediaType{problemMedia: {Schema: schema}},
		}
		if status == http.StatusServiceUnavailable {
			response.Headers = map[string]*huma.Param{"Retry-After": {
				Description: "Seconds to wait before the next try.", Schema: &huma.Schema{Type: huma.TypeInteger},
			}}
		}
		responses[strconv.Itoa(status)] = response
	}
	return responses
}

// schemaName names schemas after the Go types, without what tells these from the domain's.
func schemaName(t reflect.Type, hint string) string {
	return strings.TrimSuffix(strings.TrimSuffix(huma.DefaultSchemaNamer(t, hint), "Body"), "Input")
}
