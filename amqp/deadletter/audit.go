package deadletter

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"gorm.io/gorm"

	"github.com/lapse-go/lapse/amqp/database"
)

// Entry is a line of the audit: what somebody did.
type Entry struct {
	ID        int64
	At        time.Time // by the database's clock; set by [Desk.Record]
	Actor     string
	Action    string // "replay", "replay.cancel", "replay.end", "discard", "restore", "prune", "pause", "resume", "sweep", "order.extend", …
	Subject   string // for instance an order's id or a replay's
	Selection string // JSON, as it was given; "" if there is none
	Count     int64  // of letters, or of orders
	Reason    string
	Result    string // "done", or what went wrong
}

// AuditFilter says which entries. What is zero does not restrict.
type AuditFilter struct {
	Actor, Action, Subject string
	From, To               time.Time // To is not included
}

// Record adds an entry to the audit. Texts that are longer than it has room for are cut, and what is not valid UTF-8 in them
// is replaced.
//
// Entries are only ever added: nothing here updates or deletes one. With a login that has no UPDATE and DELETE on
// lapse_audit the server itself holds that.
func (d *Desk) Record(ctx context.Context, e Entry) error {
	return database.Transact(ctx, d.cfg.DB, func(tx *gorm.DB) error { return record(tx, e) })
}

// Did adds an entry about what was done, or tried, and ended with err: its result, if it has none yet, is "done" or the
// error. It is added also when ctx has ended. What was done stays done when the entry cannot be written, so that is only
// logged. A nil desk does nothing.
func (d *Desk) Did(ctx context.Context, e Entry, err error) {
	if d == nil {
		return
	}
	if e.Result == "" {
		e.Result = "done"
		if err != nil {
			e.Result = err.Error()
		}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTimeout)
	defer cancel()
	// That a database is away which did not do it either is told by err.
	if failed := d.Record(ctx, e); failed != nil && !database.IsOutage(err) {
		d.cfg.Logger.Error("what was done is not in the audit", "actor", e.Actor, "action", e.Action, "subject", e.Subject,
			"selection", e.Selection, "count", e.Count, "reason", e.Reason, "result", e.Result, "error", failed)
	}
}

// recordTimeout is less than anybody waits for the answer to what was done.
const recordTimeout = time.Second

// record adds an entry in a transaction.
func record(tx *gorm.DB, e Entry) error {
	err := tx.Exec(`INSERT INTO lapse_audit (at, actor, action, subject, selection, count, reason, result)
		VALUES (UTC_TIMESTAMP(6), ?, ?, ?, NULLIF(?, ''), ?, ?, ?)`,
		bounded(e.Actor, maxWho), ascii(bounded(e.Action, maxAction)), bounded(e.Subject, maxSubject), boundedJSON(e.Selection),
		e.Count, bounded(e.Reason, maxWhy), bounded(e.Result, maxWhy)).Error
	if err != nil {
		return fmt.Errorf("writing the audit: %w", err)
	}
	return nil
}

// Bounds of texts in bytes.
const (
	maxWho       = 255
	maxAction    = 64
	maxSubject   = 255
	maxWhy       = 1000    // of reasons, results and the like
	maxSelection = 1 << 20 // well within one packet
)

// bounded is the text as a column of so many bytes, or characters, can hold it: valid, and cut between two runes.
func bounded(text string, most int) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	if len(text) > most {
		// What is left of a rune that was cut is not valid.
		text = strings.ToValidUTF8(text[:most], "")
	}
	return text
}

// boundedJSON is JSON still: a part of a document would be none.
func boundedJSON(text string) string {
	if len(text) > maxSelection {
		return fmt.Sprintf(`"of %d bytes, too long to be kept"`, len(text))
	}
	return strings.ToValidUTF8(text, "\uFFFD")
}

func ascii(text string) string {
	return strings.Map(func(r rune) rune {
		if r >= 0x80 {
			return '?'
		}
		return r
	}, text)
}

// auditList is the name of the list in its cursors.
const auditList = "audit"

// Audit lists entries, the newest first unless the page says otherwise, and next as [Desk.List] does.
func (d *Desk) Audit(ctx context.Context, f AuditFilter, p Page) (entries []Entry, next string, err error) {
	limit, err := p.limit()
	if err != nil {
		return nil, "", err
	}
	if err := validSpan(f.From, f.To); err != nil {
		return nil, "", err
	}
	conditions := f.conditions()
	direction, beyond := p.order()
	place, err := p.place(auditList)
	if err != nil {
		return nil, "", err
	}
	if place != "" {
		id, err := strconv.ParseInt(place, 10, 64)
		if err != nil {
			return nil, "", p.strange()
		}
		conditions = append(conditions, condition{"id " + beyond + " ?", []any{id}})
	}
	sql, args := where(conditions...)
	// One more than asked for tells whether there is another page.
	rows, err := d.cfg.DB.WithContext(ctx).Raw(`
		SELECT id, at, actor, action, subject, COALESCE(selection, ''), count, reason, result
		FROM lapse_audit WHERE `+sql+` ORDER BY id `+direction+` LIMIT ?`, append(args, limit+1)...).Rows()
	if err != nil {
		return nil, "", fmt.Errorf("reading the audit: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var e Entry
		if err := rows.Scan(&e.ID, (*instant)(&e.At), &e.Actor, &e.Action, &e.Subject, &e.Selection, &e.Count, &e.Reason, &e.Result); err != nil {
			return nil, "", fmt.Errorf("reading the audit: %w", err)
		}
		entries = append(entries, e)
	}
	if err := rows.Err(); err != nil {
		return nil, "", fmt.Errorf("reading the audit: %w", err)
	}
	if len(entries) > limit {
		entries = entries[:limit]
		next = cursor(auditList, strconv.FormatInt(entries[limit-1].ID, 10))
	}
	return entries, next, nil
}

// conditions are the filter in SQL.
func (f AuditFilter) conditions() (all []condition) {
	add := func(given bool, sql string, arg any) {
		if given {
			all = append(all, condition{sql, []any{arg}})
		}
	}
	add(f.Actor != "", "actor = ?", bounded(f.Actor, maxWho))
	add(f.Action != "", "action = ?", ascii(bounded(f.Action, maxAction)))
	add(f.Subject != "", "subject = ?", bounded(f.Subject, maxSubject))
	add(!f.From.IsZero(), "at >= ?", instant(f.From))
	add(!f.To.IsZero(), "at < ?", instant(f.To))
	return all
}
