package deadletter

import (
	"database/sql/driver"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"gorm.io/gorm"

	"github.com/lapse-go/lapse/amqp/database"
)

// insert adds the letters that are not there yet, as part of the transaction tx, which is run again from its start
// after a conflict. What is too large for the server it marks as unfit and leaves out.
func insert(tx *gorm.DB, letters []*arrived) error {
	var now instant
	var packet int
	// The limit is that of the session: what is changed holds for later ones.
	if err := tx.Raw("SELECT CAST(UTC_TIMESTAMP(6) AS CHAR), @@max_allowed_packet").Row().Scan(&now, &packet); err != nil {
		return err
	}
	var fit []*arrived
	for _, a := range letters {
		a.prepare(time.Time(now))
		if a.unfit = a.tooLarge(packet); a.unfit == nil {
			fit = append(fit, a)
		}
	}
	if len(fit) == 0 {
		return nil
	}
	if err := countReplays(tx, fit); err != nil {
		return err
	}
	if err := insertGroups(tx, fit); err != nil {
		return err
	}
	// Well below the limit: what is larger goes alone.
	room := min(packet, 16<<20) / 2
	for len(fit) > 0 {
		n, size := 1, fit[0].bytes()
		for n < len(fit) && size+fit[n].bytes() <= room {
			size += fit[n].bytes()
			n++
		}
		if err := insertSome(tx, fit[:n], size > room); err != nil {
			return err
		}
		fit = fit[n:]
	}
	return nil
}

// prepare fills in what depends on the database, at each run.
func (a *arrived) prepare(now time.Time) {
	a.inserted = false
	a.row.Identity = a.identity.text
	a.row.CollectedAt = instant(now)
	if died := time.Time(a.row.DiedAt); died.IsZero() || died.After(now) {
		a.row.DiedAt = instant(now)
	}
}

// tooLarge is why the server cannot take the row at all.
func (a *arrived) tooLarge(packet int) error {
	const others = 64 << 10 // more than all else in the packet
	for _, part := range []struct {
		name string
		size int
	}{{"body", len(a.row.Body)}, {"table of headers", len(a.row.Headers)}} {
		if part.size > packet-others {
			const unit = 1 << 20
			return fmt.Errorf("its %s has %d bytes and max_allowed_packet is %d: raise it to %d at least, then move this message back to %s",
				part.name, part.size, packet, (part.size+others+unit-1)/unit*unit, a.row.Queue)
		}
	}
	return nil
}

// countReplays tells each letter how often its message had been replayed. A replay that is running may have published
// it and not have said so yet.
func countReplays(tx *gorm.DB, letters []*arrived) error {
	ids, jobs := map[string]bool{}, map[string]bool{"": true}
	for _, a := range letters {
		a.row.Replays = 0
		if len(a.row.MessageID) > 0 {
			ids[string(a.row.MessageID)] = true
			jobs[a.row.ReplayedBy] = true
		}
	}
	if len(ids) == 0 {
		return nil
	}
	var messages []blob
	for id := range ids {
		messages = append(messages, blob(id))
	}
	rows, err := tx.Raw(`SELECT message_id, COUNT(*) FROM lapse_dead_letters
		WHERE message_id IN ? AND (state = 'replayed' OR replay_id IN ?) GROUP BY message_id`,
		messages, slices.Collect(maps.Keys(jobs))).Rows()
	if err != nil {
		return err
	}
	defer rows.Close()
	counts := map[string]int{}
	for rows.Next() {
		var id []byte
		var n int
		if err := rows.Scan(&id, &n); err != nil {
			return err
		}
		counts[string(id)] = n
	}
	for _, a := range letters {
		a.row.Replays = counts[string(a.row.MessageID)]
	}
	return rows.Err()
}

// insertGroups adds the groups that are new, in one order, so that two desks do not wait for each other.
func insertGroups(tx *gorm.DB, letters []*arrived) error {
	groups := map[string]*arrived{}
	for _, a := range letters {
		groups[a.row.Fingerprint] = a
	}
	var known []string
	ids := slices.Sorted(maps.Keys(groups))
	if err := tx.Raw("SELECT fingerprint FROM lapse_dead_letter_groups WHERE fingerprint IN ?", ids).Scan(&known).Error; err != nil {
		return err
	}
	for _, id := range ids {
		if slices.Contains(known, id) {
			continue
		}
		a := groups[id]
		err := exec(tx, "INSERT INTO lapse_dead_letter_groups (fingerprint, kind, reason, pattern) VALUES (?, ?, ?, ?)",
			id, blob(a.row.Kind), a.row.Reason, blob(a.pattern))
		if err != nil && !database.IsDuplicate(err) {
			return err
		}
	}
	return nil
}

// insertSome adds letters with one statement, or one by one if some are there already.
func insertSome(tx *gorm.DB, letters []*arrived, large bool) error {
	err := insertRows(tx, letters, large)
	if err == nil {
		for _, a := range letters {
			a.inserted = true
		}
	}
	if !database.IsDuplicate(err) {
		return err
	}
	for _, a := range letters {
		if err := insertOne(tx, a, large); err != nil {
			return err
		}
	}
	return nil
}

func insertOne(tx *gorm.DB, a *arrived, large bool) error {
	for {
		err := insertRows(tx, []*arrived{a}, large)
		switch {
		case err == nil:
			a.inserted = true
			return nil
		case !database.IsDuplicate(err):
			return err
		case a.identity.sure:
			if another, err := a.diedAgain(tx); err != nil || !another {
				return err
			}
		}
		a.row.Identity = a.identity.another().text
	}
}

// diedAgain is whether the letter that is there is of a former death: somebody has resolved it, and then the same message
// came anew.
func (a *arrived) diedAgain(tx *gorm.DB) (again bool, err error) {
	if !a.identity.first {
		return false, nil
	}
	err = tx.Raw("SELECT COUNT(*) > 0 FROM lapse_dead_letters WHERE identity = ? AND state <> ?", a.identity.text, Open).Row().Scan(&again)
	return again, err
}

const columns = "identity, message_id, kind, subject, queue, exchange, routing_key, reason, attempts, error, first_error, first_error_at, " +
	"fingerprint, properties, headers, body, size, died_at, collected_at, replays, replayed_by, state"

func (r *row) values() []any {
	return []any{
		r.Identity, blob(r.MessageID), blob(r.Kind), blob(r.Subject), blob(r.Queue), blob(r.Exchange), blob(r.RoutingKey),
		r.Reason, r.Attempts, blob(r.Error), blob(r.FirstError), r.FirstErrorAt,
		r.Fingerprint, blob(r.Properties), blob(r.Headers), blob(r.Body), r.Size, r.DiedAt, r.CollectedAt, r.Replays, r.ReplayedBy, r.State,
	}
}

func insertRows(tx *gorm.DB, letters []*arrived, large bool) error {
	one := "(" + strings.Repeat("?, ", strings.Count(columns, ",")) + "?)"
	statement := "INSERT INTO lapse_dead_letters (" + columns + ") VALUES " + one + strings.Repeat(", "+one, len(letters)-1)
	var values []any
	for _, a := range letters {
		values = append(values, a.row.values()...)
	}
	if !large {
		return exec(tx, statement, values...)
	}
	// Prepared, so that nothing is escaped and the driver sends the body in pieces.
	prepared, err := tx.Statement.ConnPool.PrepareContext(tx.Statement.Context, statement)
	if err != nil {
		return err
	}
	defer prepared.Close()
	_, err = prepared.ExecContext(tx.Statement.Context, values...)
	return err
}

// exec keeps the server's errors as they are; gorm can be told to translate them.
func exec(tx *gorm.DB, statement string, values ...any) error {
	_, err := tx.Statement.ConnPool.ExecContext(tx.Statement.Context, statement, values...)
	return err
}

// blob is bytes; nil, too, is none of them and not NULL.
type blob []byte

func (b blob) Value() (driver.Value, error) {
	if b == nil {
		return []byte{}, nil
	}
	return []byte(b), nil
}
