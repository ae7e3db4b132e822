package web

import (
	"context"
	"net/url"

	"github.com/lapse-go/lapse/amqp/deadletter"
)

// Audit lists what people did: see [deadletter.Desk.Audit].
func (c *Client) Audit(ctx context.Context, f deadletter.AuditFilter, p deadletter.Page) (entries []deadletter.Entry, next string, err error) {
	var reply Audit
	query := url.Values{}
	add(query, "actor", f.Actor)
	add(query, "action", f.Action)
	add(query, "subject", f.Subject)
	addTime(query, "from", f.From)
	addTime(query, "to", f.To)
	addPage(query, p)
	err = c.look(ctx, "/v1/audit", query, &reply)
	return each(reply.Entries, AuditEntry.entry), reply.Next, err
}
