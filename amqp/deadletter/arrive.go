package deadletter

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/lapse-go/lapse/amqp"
)

// maxError is how many bytes a TEXT takes.
const maxError = 1<<16 - 1

// arrived is a message on its way to become a letter.
type arrived struct {
	index    int // in its batch
	row      row
	identity identity
	pattern  string // of its group

	inserted bool
	unfit    error // why it can never be inserted
}

// arrive makes a row of a message. What depends on the database is still missing in it.
func (d *Desk) arrive(queue string, index int, m amqp.Message) (*arrived, error) {
	m = m.Unparked()
	o := originOf(d.cfg.Topology, queue, m)
	id, err := identify(queue, m, o)
	if err != nil {
		return nil, fmt.Errorf("its headers: %w", err)
	}
	a := &arrived{index: index, identity: id, row: row{
		MessageID: []byte(m.ID), Kind: []byte(o.kind), Queue: []byte(queue),
		Exchange: []byte(o.route.Exchange), RoutingKey: []byte(o.route.RoutingKey),
		Reason: string(o.reason), Attempts: m.Attempt(), FirstError: readable(m.Headers[amqp.HeaderFirstError]),
		FirstErrorAt: instant(parseTime(m.Headers[amqp.HeaderFirstErrorAt])),
		Body:         m.Body, Size: len(m.Body), DiedAt: instant(o.diedAt), State: string(Open),
	}}
	if o.buried {
		a.row.Error = readable(m.Headers[amqp.HeaderError])
	}
	if o.reason == Unroutable {
		a.row.Error = readable(fmt.Sprintf("no queue is bound to exchange %s for the routing key %s: is it mistyped, or a kind that nobody has declared?",
			o.route.Exchange, o.route.RoutingKey))
	}
	if job := text(m.Headers[amqp.HeaderReplay]); len(job) == 36 && printable(job, 36) {
		a.row.ReplayedBy = job
	}
	if a.row.Headers, err = encodeTable(m.Headers); err != nil {
		return nil, fmt.Errorf("its headers: %w", err)
	}
	if a.row.Properties, err = encodeProperties(m); err != nil {
		return nil, fmt.Errorf("its properties: %w", err)
	}
	a.row.Fingerprint, a.pattern = Fingerprint(o.kind, o.reason, string(a.row.Error))
	if d.cfg.Guard != nil {
		m.Kind = o.route.RoutingKey // as [Letter.message]
		if subject := d.cfg.Guard.Subject(m); len(subject) <= maxName {
			a.row.Subject = []byte(subject)
		}
	}
	return a, nil
}

// readable is what a header says, as text that a column takes.
func readable(value any) []byte {
	var said string
	switch v := value.(type) {
	case nil:
	case string:
		said = v
	case []byte:
		said = string(v)
	default:
		said = fmt.Sprint(v)
	}
	said = strings.ToValidUTF8(said, "\uFFFD")
	if len(said) <= maxError {
		return []byte(said)
	}
	cut := maxError
	for !utf8.RuneStart(said[cut]) {
		cut--
	}
	return []byte(said[:cut])
}

// bytes is how much room the row takes in a statement at most, in which each byte may be escaped.
func (a *arrived) bytes() int {
	const others = 1 << 10 // numbers, times, quotes
	r := &a.row
	return others + 2*(len(r.MessageID)+len(r.Kind)+len(r.Subject)+len(r.Queue)+len(r.Exchange)+len(r.RoutingKey)+
		len(r.Error)+len(r.FirstError)+len(r.Properties)+len(r.Headers)+len(r.Body))
}
