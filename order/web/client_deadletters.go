package web

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/lapse-go/lapse/amqp/deadletter"
)

// maxDeskReply is the most bytes of an answer of the desk: a letter is as large as the database takes, and longer as
// JSON.
const maxDeskReply = 512 << 20

// DeadLetters lists dead letters as [deadletter.Desk.List] does, and how many match on all pages. Texts that are not
// UTF-8 come escaped, here and elsewhere: see [DeadLetter].
func (c *Client) DeadLetters(ctx context.Context, f deadletter.Filter, p deadletter.Page) (letters []deadletter.Letter, next string, count int64, err error) {
	var reply DeadLetters
	query := filterQuery(f)
	addPage(query, p)
	if err := c.look(ctx, "/v1/dead-letters", query, &reply); err != nil {
		return nil, "", 0, err
	}
	letters = make([]deadletter.Letter, len(reply.DeadLetters))
	for i, letter := range reply.DeadLetters {
		if letters[i], err = letter.letter(); err != nil {
			return nil, "", 0, err
		}
	}
	return letters, reply.Next, reply.Count, nil
}

// DeadLetter returns one letter, whole, and its history. Its headers have numbers as int64 or float64, and what has no
// type of its own in JSON as text: see [Headers].
func (c *Client) DeadLetter(ctx context.Context, id int64) (deadletter.Letter, []deadletter.Event, error) {
	var reply DeadLetter
	if err := c.look(ctx, "/v1/dead-letters/"+strconv.FormatInt(id, 10), nil, &reply); err != nil {
		return deadletter.Letter{}, nil, err
	}
	letter, err := reply.letter()
	return letter, reply.history(), err
}

// DeadLetterGroups lists groups: see [deadletter.Desk.Groups].
func (c *Client) DeadLetterGroups(ctx context.Context, f deadletter.Filter) ([]deadletter.Group, error) {
	var reply DeadLetterGroups
	if err := c.look(ctx, "/v1/dead-letters/groups", filterQuery(f), &reply); err != nil {
		return nil, err
	}
	return each(reply.Groups, DeadLetterGroup.group), nil
}

// ExportDeadLetters writes all letters that match, the oldest first, as [NDJSON] or [CSV]. After an error some may have
// been written.
func (c *Client) ExportDeadLetters(ctx context.Context, f deadletter.Filter, format string, w io.Writer) error {
	query := filterQuery(f)
	query.Set("format", format)
	answer, err := c.send(ctx, http.MethodGet, "/v1/dead-letters/export?"+query.Encode(), nil, http.Header{"Accept": {"*/*"}})
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if media := answer.Header.Get("Content-Type"); media != exportMedia[format] {
		return fmt.Errorf("the answer to the export is not that of a Lapse service: it is %.80q", media)
	}
	if _, err := io.Copy(w, answer.Body); err != nil {
		return fmt.Errorf("the export is not complete: %w", err)
	}
	return nil
}

// Discard takes letters off the desk: see [deadletter.Desk.Discard].
func (c *Client) Discard(ctx context.Context, s deadletter.Selection, by deadletter.By) (int64, error) {
	return c.resolve(ctx, "discard", s, by)
}

// Restore puts letters back: see [deadletter.Desk.Restore].
func (c *Client) Restore(ctx context.Context, s deadletter.Selection, by deadletter.By) (int64, error) {
	return c.resolve(ctx, "restore", s, by)
}

func (c *Client) resolve(ctx context.Context, action string, s deadletter.Selection, by deadletter.By) (int64, error) {
	if err := sendable(s); err != nil {
		return 0, err
	}
	var reply Affected
	err := c.ask(ctx, http.MethodPost, "/v1/dead-letters/"+action, resolveBody{SelectionOf(s), by.Why}, &reply, nil)
	return reply.Count, err
}

// look asks the desk.
func (c *Client) look(ctx context.Context, path string, query url.Values, reply any) error {
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	return c.askMuch(ctx, maxDeskReply, http.MethodGet, path, nil, reply, nil)
}

func filterQuery(f deadletter.Filter) url.Values {
	query := url.Values{}
	state := string(f.State)
	if state == "" {
		state = allStates
	}
	add(query, "state", state)
	add(query, "kind", f.Kind)
	add(query, "reason", string(f.Reason))
	add(query, "group", f.Group)
	add(query, "subject", f.Subject)
	add(query, "message_id", f.MessageID)
	addTime(query, "from", f.From)
	addTime(query, "to", f.To)
	add(query, "text", f.Text)
	return query
}

func addPage(query url.Values, p deadletter.Page) {
	add(query, "after", p.After)
	if p.Limit != 0 {
		add(query, "limit", strconv.Itoa(p.Limit))
	}
	if p.Oldest {
		add(query, "oldest", "true")
	}
}

func add(query url.Values, name, value string) {
	if value != "" {
		query.Set(name, value)
	}
}

func addTime(query url.Values, name string, at time.Time) {
	if !at.IsZero() {
		query.Set(name, at.UTC().Format(time.RFC3339Nano))
	}
}

// sendable says whether JSON can carry the selection: what is not UTF-8 would become something else on the way, and
// with it what is selected.
func sendable(s deadletter.Selection) error {
	if f := s.Filter; f != nil && !utf8.ValidString(f.Kind+"\n"+f.Group+"\n"+f.Subject+"\n"+f.MessageID+"\n"+f.Text) {
		return fmt.Errorf("%w: the filter is not UTF-8: list the letters with it, and give their ids", deadletter.ErrInvalid)
	}
	return nil
}
