package web

import (
	"context"
	"encoding/base64"
	"net/http"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"

	"github.com/lapse-go/lapse/amqp/deadletter"
)

// DeadLetter is a dead letter as JSON. In lists it comes without what follows its size. Texts that came from the
// wire and are not UTF-8 are escaped as in Go: "\xff".
type DeadLetter struct {
	_ struct{} `additionalProperties:"true"`

	ID           int64             `json:"id"`
	MessageID    string            `json:"message_id" doc:"Of the message; it stays the same over retries and replays."`
	Kind         string            `json:"kind" doc:"What the message is about."`
	Subject      string            `json:"subject,omitempty" doc:"What it is about in the domain, for instance an order's id."`
	Queue        string            `json:"queue" doc:"That it was collected from."`
	Exchange     string            `json:"exchange" doc:"Of its first route, to which a replay leads."`
	RoutingKey   string            `json:"routing_key" doc:"Of its first route."`
	Reason       deadletter.Reason `json:"reason" doc:"Why it died: hopeless, out-of-tries, delivery-limit, expired, rejected, unroutable or unknown."`
	Attempts     int               `json:"attempts"`
	Error        string            `json:"error,omitempty" doc:"The last one."`
	FirstError   string            `json:"first_error,omitempty"`
	FirstErrorAt *time.Time        `json:"first_error_at,omitempty"`
	Group        string            `json:"group" doc:"The letters that failed alike: see dead-letters/groups."`
	DiedAt       time.Time         `json:"died_at"`
	CollectedAt  time.Time         `json:"collected_at"`
	Replays      int               `json:"replays" doc:"How often the message had been replayed before it died."`
	ReplayedBy   string            `json:"replayed_by,omitempty" doc:"The replay that published it last before it died."`
	State        deadletter.State  `json:"state" enum:"open,replayed,settled,discarded" doc:"Open until something is done about it: replayed, settled (there is nothing left to do) or discarded."`
	ResolvedAt   *time.Time        `json:"resolved_at,omitempty" doc:"When it ceased to be open."`
	ResolvedBy   string            `json:"resolved_by,omitempty" doc:"By whom: a person, or lapse."`
	Resolution   string            `json:"resolution,omitempty" doc:"Why: the reason that was given, or what was found."`
	Replay       string            `json:"replay,omitempty" doc:"The last replay that it belonged to; that has its state."`
	Size         int               `json:"size" doc:"Bytes of the body."`

	Properties *Properties       `json:"properties,omitempty" doc:"As they came, and so are the headers and the body."`
	Headers    Headers           `json:"headers,omitempty"`
	Body       *string           `json:"body,omitempty" doc:"If it is UTF-8."`
	BodyBase64 *string           `json:"body_base64,omitempty" doc:"If it is not."`
	History    []DeadLetterEvent `json:"history,omitempty" nullable:"false" doc:"What happened to this letter, and to others of the same message, from the first on."`
}

// Properties are those of AMQP that are not elsewhere in a letter, as JSON.
type Properties struct {
	_ struct{} `additionalProperties:"true"`

	ContentType     string     `json:"content_type,omitempty"`
	ContentEncoding string     `json:"content_encoding,omitempty"`
	CorrelationID   string     `json:"correlation_id,omitempty"`
	ReplyTo         string     `json:"reply_to,omitempty"`
	Type            string     `json:"type,omitempty"`
	AppID           string     `json:"app_id,omitempty"`
	Priority        uint8      `json:"priority,omitempty"`
	Timestamp       *time.Time `json:"timestamp,omitempty"`
	// TimestampSeconds is there if the timestamp is later than the year 9999, which is more than a date in JSON can be.
	TimestampSeconds *int64 `json:"timestamp_seconds,omitempty" doc:"Since 1970, instead of a timestamp that no date can be: it may have been sent in milliseconds."`
}

// DeadLetterEvent is something that happened to a letter, as JSON.
type DeadLetterEvent struct {
	_ struct{} `additionalProperties:"true"`

	At     time.Time `json:"at"`
	Letter int64     `json:"letter" doc:"To which letter."`
	What   string    `json:"what" doc:"For people."`
	Who    string    `json:"who,omitempty"`
	Detail string    `json:"detail,omitempty" doc:"The error, the reason that was given, or what was found."`
	Replay string    `json:"replay,omitempty" doc:"The replay that did it."`
}

// DeadLetterOf is a letter of a list as JSON.
func DeadLetterOf(l deadletter.Letter) DeadLetter {
	return DeadLetter{
		ID: l.ID, MessageID: plain(l.MessageID), Kind: plain(l.Kind), Subject: plain(l.Subject), Queue: plain(l.Queue),
		Exchange: plain(l.Exchange), RoutingKey: plain(l.RoutingKey), Reason: l.Reason, Attempts: l.Attempts,
		Error: plain(l.Error), FirstError: plain(l.FirstError), FirstErrorAt: maybe(l.FirstErrorAt), Group: l.Group,
		DiedAt: l.DiedAt.UTC(), CollectedAt: l.CollectedAt.UTC(), Replays: l.Replays, ReplayedBy: plain(l.ReplayedBy),
		State: l.State, ResolvedAt: maybe(l.ResolvedAt), ResolvedBy: l.ResolvedBy, Resolution: l.Resolution, Replay: l.Replay, Size: l.Size,
	}
}

// WholeDeadLetterOf is a letter with its properties, headers, body and history as JSON.
func WholeDeadLetterOf(l deadletter.Letter, history ...deadletter.Event) DeadLetter {
	b, p := DeadLetterOf(l), l.Properties
	b.Properties = &Properties{
		ContentType: plain(p.ContentType), ContentEncoding: plain(p.ContentEncoding), CorrelationID: plain(p.CorrelationID),
		ReplyTo: plain(p.ReplyTo), Type: plain(p.Type), AppID: plain(p.AppID), Priority: p.Priority, Timestamp: date(p.Timestamp), TimestampSeconds: seconds(p.Timestamp),
	}
	b.Headers = l.Headers
	body := string(l.Body)
	if utf8.ValidString(body) {
		b.Body = &body
	} else {
		body = base64.StdEncoding.EncodeToString(l.Body)
		b.BodyBase64 = &body
	}
	for _, e := range history {
		b.History = append(b.History, DeadLetterEvent{At: e.At.UTC(), Letter: e.Letter, What: e.What, Who: e.Who, Detail: plain(e.Detail), Replay: e.Replay})
	}
	return b
}

func (b DeadLetter) letter() (deadletter.Letter, error) {
	l := deadletter.Letter{
		ID: b.ID, MessageID: b.MessageID, Kind: b.Kind, Subject: b.Subject, Queue: b.Queue, Exchange: b.Exchange, RoutingKey: b.RoutingKey,
		Reason: b.Reason, Attempts: b.Attempts, Error: b.Error, FirstError: b.FirstError, FirstErrorAt: value(b.FirstErrorAt), Group: b.Group,
		DiedAt: b.DiedAt, CollectedAt: b.CollectedAt, Replays: b.Replays, ReplayedBy: b.ReplayedBy,
		State: b.State, ResolvedAt: value(b.ResolvedAt), ResolvedBy: b.ResolvedBy, Resolution: b.Resolution, Replay: b.Replay, Size: b.Size,
		Headers: b.Headers,
	}
	if p := b.Properties; p != nil {
		l.Properties = deadletter.Properties{
			ContentType: p.ContentType, ContentEncoding: p.ContentEncoding, CorrelationID: p.CorrelationID,
			ReplyTo: p.ReplyTo, Type: p.Type, AppID: p.AppID, Priority: p.Priority, Timestamp: p.timestamp(),
		}
	}
	var err error
	switch {
	case b.Body != nil:
		l.Body = []byte(*b.Body)
	case b.BodyBase64 != nil:
		l.Body, err = base64.StdEncoding.DecodeString(*b.BodyBase64)
	}
	return l, err
}

func (b DeadLetter) history() []deadletter.Event {
	events := make([]deadletter.Event, len(b.History))
	for i, e := range b.History {
		events[i] = deadletter.Event{At: e.At, Letter: e.Letter, What: e.What, Who: e.Who, Detail: e.Detail, Replay: e.Replay}
	}
	return events
}

// plain is text as JSON can carry it: if it is not UTF-8, escaped as Go does.
func plain(text string) string {
	if utf8.ValidString(text) {
		return text
	}
	quoted := strconv.Quote(text)
	return quoted[1 : len(quoted)-1]
}

// maybe is nil for the zero time, and value the other way round.
func maybe(at time.Time) *time.Time {
	if at.IsZero() {
		return nil
	}
	at = at.UTC()
	return &at
}

// date is the time, if it is one that JSON has, and else seconds is.
func date(at time.Time) *time.Time {
	if seconds(at) != nil {
		return nil
	}
	return maybe(at)
}

func seconds(at time.Time) *int64 {
	if year := at.UTC().Year(); year >= 0 && year <= 9999 {
		return nil
	}
	unix := at.Unix()
	return &unix
}

func (p *Properties) timestamp() time.Time {
	if p.TimestampSeconds != nil {
		return time.Unix(*p.TimestampSeconds, 0).UTC()
	}
	return value(p.Timestamp)
}

func value(at *time.Time) time.Time {
	if at == nil {
		return time.Time{}
	}
	return *at
}

// DeadLetterPath is the part of a request that names a letter. It is exported because huma needs that.
type DeadLetterPath struct {
	ID int64 `path:"id" minimum:"1" doc:"The letter's id."`
}

func (s *Server) registerDeadLetter(api huma.API) {
	register(s, api, &operation{
		id: "get-dead-letter", method: http.MethodGet, path: "/v1/dead-letters/{id}", role: Viewer, status: http.StatusOK,
		summary: "Show a dead letter", doc: "With its properties, headers, body and history. Looking changes nothing.",
		problems: []*problemType{notFoundHere},
	}, func(ctx context.Context, in *DeadLetterPath) (*answerOf[DeadLetter], error) {
		return answered(look(ctx, s, func(ctx context.Context) (DeadLetter, error) {
			letter, err := s.cfg.Desk.Get(ctx, in.ID)
			if err != nil {
				return DeadLetter{}, err
			}
			history, err := s.cfg.Desk.History(ctx, in.ID)
			return WholeDeadLetterOf(letter, history...), err
		}))
	})
}
