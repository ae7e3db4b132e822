package web

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/lapse-go/lapse/amqp/deadletter"
	"github.com/lapse-go/lapse/order"
)

type letterView struct {
	deadletter.Letter
	Body     body
	Headers  body
	History  []deadletter.Event
	NoHist   error
	Order    *order.Order // that it is about, if that is known
	NoOrder  error
	Forecast string // what replaying it would come to
	NoCast   error
}

func (s *Server) letterPage(r *http.Request) (view, error) {
	id, err := parseID(r.PathValue("id"))
	if err != nil {
		return view{}, err
	}
	l := letterView{}
	if l.Letter, err = look(r.Context(), s, func(ctx context.Context) (deadletter.Letter, error) { return s.cfg.Desk.Get(ctx, id) }); err != nil {
		return view{}, err
	}
	l.Body, l.Headers = bodyOf(l.Letter.Body), headersOf(l.Letter)
	l.History, l.NoHist = look(r.Context(), s, func(ctx context.Context) ([]deadletter.Event, error) { return s.cfg.Desk.History(ctx, id) })
	if s.cfg.Orders != nil && order.ValidateID("", l.Subject) == nil {
		o, err := look(r.Context(), s, func(ctx context.Context) (order.Order, error) { return s.cfg.Orders.Get(ctx, l.Subject) })
		if l.NoOrder = err; err == nil {
			l.Order = &o
		}
	}
	if l.State == deadletter.Open {
		f, err := look(r.Context(), s, func(ctx context.Context) (deadletter.Forecast, error) {
			return s.cfg.Desk.DryRun(ctx, deadletter.Selection{IDs: []int64{id}}, false)
		})
		l.NoCast = err
		for answer := range f.Answers {
			l.Forecast = answer
		}
	}
	return view{Template: "letter", Title: fmt.Sprintf("Letter %d", id), Section: "/letters", Data: l}, nil
}

// OrderMissing is whether there is no such order.
func (l letterView) OrderMissing() bool { return errors.Is(l.NoOrder, order.ErrNotFound) }

// Facts are the message's properties that are there, with their names.
func (l letterView) Facts() (facts [][2]string) {
	p := l.Properties
	for _, fact := range [][2]string{
		{"content type", p.ContentType}, {"content encoding", p.ContentEncoding}, {"correlation id", p.CorrelationID},
		{"reply to", p.ReplyTo}, {"type", p.Type}, {"app id", p.AppID},
	} {
		if fact[1] != "" {
			facts = append(facts, fact)
		}
	}
	if p.Priority != 0 {
		facts = append(facts, [2]string{"priority", fmt.Sprint(p.Priority)})
	}
	if !p.Timestamp.IsZero() {
		facts = append(facts, [2]string{"timestamp", p.Timestamp.UTC().Format("2006-01-02 15:04:05 UTC")})
	}
	return facts
}

// headersOf are the headers of a letter's message for people to read.
func headersOf(l deadletter.Letter) body {
	if len(l.Headers) == 0 {
		return body{As: "nothing"}
	}
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(Headers(l.Headers)); err != nil {
		return body{As: "text", Text: err.Error()}
	}
	return bodyOf(bytes.TrimSpace(text.Bytes()))
}

// letterBody answers with the body of a letter as it came, for a browser to save and not to look at.
func (s *Server) letterBody(w http.ResponseWriter, r *http.Request) {
	a := r.Context().Value(answerKey{}).(*answer)
	id, err := parseID(r.PathValue("id"))
	if err != nil {
		a.fail(err)
		return
	}
	l, err := look(r.Context(), s, func(ctx context.Context) (deadletter.Letter, error) { return s.cfg.Desk.Get(ctx, id) })
	if err != nil {
		a.fail(err)
		return
	}
	pageHeaders(w.Header())
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Disposition", fmt.Sprintf(`attachment; filename="letter-%d"`, id))
	_, _ = w.Write(l.Body)
}
