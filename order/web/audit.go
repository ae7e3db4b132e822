package web

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/lapse-go/lapse/amqp/deadletter"
)

// AuditEntry is what somebody did, as JSON.
type AuditEntry struct {
	_ struct{} `additionalProperties:"true"`

	ID        int64           `json:"id"`
	At        time.Time       `json:"at"`
	Actor     string          `json:"actor" doc:"The name of the token, or lapse."`
	Action    string          `json:"action" doc:"For instance replay, discard or pause."`
	Subject   string          `json:"subject,omitempty" doc:"For instance the id of an order or a replay."`
	Selection json.RawMessage `json:"selection,omitempty" doc:"Which letters, as it was given."`
	Count     int64           `json:"count" doc:"Of letters, or of orders."`
	Reason    string          `json:"reason,omitempty"`
	Result    string          `json:"result" doc:"done, or what went wrong."`
}

// Audit is a page of the audit as JSON.
type Audit struct {
	_ struct{} `additionalProperties:"true"`

	Entries []AuditEntry `json:"entries" nullable:"false"`
	Next    string       `json:"next,omitempty" doc:"Gets the next page as after. Absent on the last."`
}

// AuditEntryOf is the entry as JSON.
func AuditEntryOf(e deadletter.Entry) AuditEntry {
	b := AuditEntry{ID: e.ID, At: e.At.UTC(), Actor: e.Actor, Action: e.Action, Subject: plain(e.Subject), Count: e.Count, Reason: e.Reason, Result: e.Result}
	if json.Valid([]byte(e.Selection)) {
		b.Selection = json.RawMessage(e.Selection)
	}
	return b
}

func (b AuditEntry) entry() deadletter.Entry {
	return deadletter.Entry{ID: b.ID, At: b.At, Actor: b.Actor, Action: b.Action, Subject: b.Subject, Selection: string(b.Selection),
		Count: b.Count, Reason: b.Reason, Result: b.Result}
}

type auditInput struct {
	PageQuery
	Actor   string    `query:"actor" maxLength:"255"`
	Action  string    `query:"action" maxLength:"64"`
	Subject string    `query:"subject" maxLength:"255"`
	From    time.Time `query:"from" doc:"What was done then or later."`
	To      time.Time `query:"to" doc:"What was done before."`
}

func (s *Server) registerAudit(api huma.API) {
	register(s, api, &operation{
		id: "audit", method: http.MethodGet, path: "/v1/audit", role: Viewer, status: http.StatusOK,
		summary: "List what people did", doc: "Entries are only ever added.",
	}, func(ctx context.Context, in *auditInput) (*answerOf[Audit], error) {
		f := deadletter.AuditFilter{Actor: in.Actor, Action: in.Action, Subject: in.Subject, From: in.From, To: in.To}
		return answered(look(ctx, s, func(ctx context.Context) (Audit, error) {
			entries, next, err := s.cfg.Desk.Audit(ctx, f, in.page())
			return Audit{Entries: each(entries, AuditEntryOf), Next: next}, err
		}))
	})
}
