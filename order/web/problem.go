package web

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/lapse-go/lapse/amqp/deadletter"
	"github.com/lapse-go/lapse/order"
)

// Errors of the [Client], besides those of package order.
var (
	// ErrUnauthorized: there is no token, or none that the service knows.
	ErrUnauthorized = errors.New("unauthorized")
	// ErrForbidden: the token's role does not allow it.
	ErrForbidden = errors.New("forbidden")
)

// problemType is the answer to errors that wrap its cause.
type problemType struct {
	name, title string
	status      int
	cause       error
}

// uri is the type of the problem, for good. It is a name, not an address.
func (t *problemType) uri() string { return problemURN + t.name }

const problemURN = "urn:lapse:problem:"

// either is errors of which each is told in the same way: those of orders, and of the desk.
type either []error

func (e either) Error() string   { return e[0].Error() }
func (e either) Unwrap() []error { return e }

// tells is whether an error is of this type.
func (t *problemType) tells(err error) bool {
	causes, ok := errors.AsType[either](t.cause)
	if !ok {
		causes = either{t.cause}
	}
	return slices.ContainsFunc(causes, func(cause error) bool { return cause != nil && errors.Is(err, cause) })
}

var (
	wrong   = either{order.ErrInvalid, deadletter.ErrInvalid}
	missing = either{order.ErrNotFound, deadletter.ErrNotFound}
)

// All types of problems. An error is of the first whose cause it wraps.
var (
	invalid          = &problemType{"invalid", "Invalid", http.StatusUnprocessableEntity, wrong}
	notFoundHere     = &problemType{"not-found", "Not found", http.StatusNotFound, missing}
	conflict         = &problemType{"conflict", "In use for something else", http.StatusConflict, order.ErrConflict}
	outOfStock       = &problemType{"out-of-stock", "Out of stock", http.StatusConflict, order.ErrOutOfStock}
	unknownSKU       = &problemType{"unknown-sku", "Unknown article", http.StatusConflict, order.ErrUnknownSKU}
	alreadyPaid      = &problemType{"already-paid", "Already paid", http.StatusConflict, order.ErrAlreadyPaid}
	alreadyCancelled = &problemType{"already-cancelled", "Already cancelled", http.StatusConflict, order.ErrAlreadyCancelled}
	alreadyExpired   = &problemType{"already-expired", "Already expired", http.StatusConflict, order.ErrAlreadyExpired}
	paymentLate      = &problemType{"payment-late", "Payment came too late", http.StatusConflict, order.ErrLatePayment}
	paused           = &problemType{"paused", "Expiry is paused", http.StatusConflict, order.ErrPaused}
	replayRunning    = &problemType{"replay-running", "Being replayed", http.StatusConflict, nil} // a [deadletter.BusyError]
	replayEnded      = &problemType{"replay-ended", "Replay has ended", http.StatusConflict, deadletter.ErrEnded}
	unavailable      = &problemType{"unavailable", "Database unavailable", http.StatusServiceUnavailable, order.ErrUnavailable}
	notAccepted      = &problemType{"not-accepted", "Broker unavailable", http.StatusServiceUnavailable, order.ErrNotAccepted}
	unauthorized     = &problemType{"unauthorized", "Token needed", http.StatusUnauthorized, ErrUnauthorized}
	forbidden        = &problemType{"forbidden", "Not allowed", http.StatusForbidden, ErrForbidden}
	malformed        = &problemType{"malformed", "Not understood", http.StatusBadRequest, wrong}
	noSuchPath       = &problemType{"no-such-path", "No such path", http.StatusNotFound, nil}
	notAllowed       = &problemType{"method-not-allowed", "Method not allowed", http.StatusMethodNotAllowed, nil}
	bodyLate         = &problemType{"body-late", "Body came too slowly", http.StatusRequestTimeout, nil}
	bodyTooLarge     = &problemType{"body-too-large", "Body too large", http.StatusRequestEntityTooLarge, wrong}
	mediaType        = &problemType{"media-type", "Not JSON", http.StatusUnsupportedMediaType, wrong}
	wrongHost        = &problemType{"wrong-host", "Wrong host", http.StatusMisdirectedRequest, ErrForbidden}
	crossOrigin      = &problemType{"cross-origin", "From another site", http.StatusForbidden, ErrForbidden}
	tooManyTries     = &problemType{"too-many-tries", "Too many tries", http.StatusTooManyRequests, ErrForbidden}
	notReady         = &problemType{"not-ready", "Not ready", http.StatusServiceUnavailable, nil}
	internal         = &problemType{"internal", "Failed", http.StatusInternalServerError, nil}

	problemTypes = []*problemType{
		invalid, notFoundHere, conflict, outOfStock, unknownSKU, alreadyPaid, alreadyCancelled, alreadyExpired,
		paymentLate, paused, replayRunning, replayEnded, unavailable, notAccepted, unauthorized, forbidden, malformed, noSuchPath, notAllowed,
		bodyLate, bodyTooLarge, mediaType, wrongHost, crossOrigin, tooManyTries, notReady, internal,
	}
)

// Problem is a refusal: what the server answers, and the error of the [Client]. errors.Is compares it
// with the errors of package order and of the desk, and errors.As finds the [order.ShortageError] or [deadletter.BusyError] in it.
type Problem struct {
	_ struct{} `additionalProperties:"true"`

	Type   string `json:"type" doc:"What it is: a name that does not change. Not an address."`
	Title  string `json:"title" doc:"The type, for people."`
	Status int    `json:"status" doc:"The HTTP status."`
	Detail string `json:"detail" doc:"What was wrong, and what to do."`
	// Places are what is wrong with the request, each.
	Places []Place `json:"errors,omitempty" doc:"Each place of the request that is wrong, up to 20 of them."`
	// OutOfStock and UnknownSKUs are the articles that an order could not get.
	OutOfStock  []string `json:"out_of_stock,omitempty" doc:"The articles of which too few are available."`
	UnknownSKUs []string `json:"unknown_skus,omitempty" doc:"The articles that have no stock at all."`

	Order *Order `json:"order,omitempty" doc:"The order, after a payment that has to be refunded."`
	// Replay is the one that runs already.
	Replay string `json:"replay,omitempty" doc:"The id of the replay to which letters belong."`

	header http.Header
	cause  error
}

// Place is one place of a request that is wrong.
type Place struct {
	Location string `json:"location,omitempty" doc:"Where: for instance body.lines[0].quantity, or path.id."`
	Message  string `json:"message" doc:"What is wrong there."`
}

// maxPlaces bounds the answer to a body that is wrong everywhere.
const maxPlaces = 20

// retryAfter is when to try again what a server that is away prevented, in seconds.
const retryAfter = "2"

func problem(t *problemType, format string, args ...any) *Problem {
	p := &Problem{Type: t.uri(), Title: t.title, Status: t.status, Detail: fmt.Sprintf(format, args...), cause: t.cause}
	if t.status == http.StatusServiceUnavailable {
		p.header = http.Header{"Retry-After": {retryAfter}}
	}
	return p
}

// problemOf is what to answer to an error. What the service is to blame for is told in words of its own:
// errors of servers name addresses and tables.
func problemOf(err error, request string) *Problem {
	if p, ok := errors.AsType[*Problem](err); ok {
		return p
	}
	if busy, ok := errors.AsType[*deadletter.BusyError](err); ok {
		p := problem(replayRunning, "%v", err)
		p.Replay, p.header, p.cause = busy.Replay, http.Header{"Location": {replayPath(busy.Replay)}}, busy
		return p
	}
	for _, t := range problemTypes {
		if !t.tells(err) {
			continue
		}
		var p *Problem
		switch t {
		case unavailable:
			p = problem(t, "the database is busy or away; what was asked for may or may not have been done, and repeating it is safe: send the same request again, with the same id or key")
		case notAccepted:
			p = problem(t, "the broker did not confirm that it has the order, and may have it all the same: send the order again, with the same id")
		default:
			p = problem(t, "%v", err)
		}
		if shortage, ok := errors.AsType[*order.ShortageError](err); ok {
			p.OutOfStock, p.UnknownSKUs = shortage.Short, shortage.Unknown
		}
		return p
	}
	return problem(internal, "the service failed; its log has more about request %s", request)
}

// ownProblems replaces huma's problems, which are about requests that do not match the document.
func ownProblems(_ huma.Context, _ string, v any) (any, error) {
	model, ok := v.(*huma.ErrorModel)
	if !ok {
		return v, nil
	}
	t := internal
	for _, candidate := range []*problemType{malformed, invalid, mediaType} {
		if candidate.status == model.Status {
			t = candidate
		}
	}
	p := problem(t, "%s", map[*problemType]string{
		malformed: "the body is missing, or cannot be understood: send JSON as /openapi.json describes it",
		invalid:   "the request is not as /openapi.json describes it: correct the places that are wrong",
		mediaType: "the body is not JSON: send application/json",
		internal:  "the service failed",
	}[t])
	for _, e := range model.Errors {
		if len(p.Places) == maxPlaces {
			break
		}
		p.Places = append(p.Places, Place{Location: bounded(e.Location), Message: bounded(e.Message)})
	}
	return p, nil
}

// bounded keeps what the request said from making the answer long.
func bounded(text string) string {
	if len(text) <= 300 {
		return text
	}
	return strings.ToValidUTF8(text[:300], "") + "…"
}

// write writes the problem as an answer.
func (p *Problem) write(w http.ResponseWriter) {
	for name, values := range p.header {
		w.Header()[name] = values
	}
	w.Header().Set("Content-Type", problemMedia)
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(p) // a network that fails is the client's to notice
}

const problemMedia = "application/problem+json"

// GetStatus, GetHeaders and ContentType tell huma how to answer.

// GetStatus is the HTTP status.
func (p *Problem) GetStatus() int { return p.Status }

// GetHeaders are the headers that go with it.
func (p *Problem) GetHeaders() http.Header { return p.header }

// ContentType is that of problems.
func (p *Problem) ContentType(string) string { return problemMedia }

// Error is the detail, and the places that are wrong.
func (p *Problem) Error() string {
	text := p.Detail
	if text == "" {
		text = p.Title
	}
	for _, place := range p.Places {
		text += "; "
		if place.Location != "" {
			text += place.Location + ": "
		}
		text += place.Message
	}
	return text
}

// Unwrap is the error of package order, or of this one, that the problem stands for, if there is any.
func (p *Problem) Unwrap() error { return p.cause }
