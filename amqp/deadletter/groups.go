package deadletter

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// Group is letters of one kind that died for the same reason and with the same error, but for ids, numbers, times
// and addresses in it.
type Group struct {
	ID                  string // the fingerprint
	Kind                string
	Reason              Reason
	Pattern             string // the error without what differs
	Count               int64
	FirstSeen, LastSeen time.Time // when the first and the last of those counted died
	Example             int64     // id of one of the last
}

// Groups lists the groups of the letters that match, those with the most letters first. At most 1000.
func (d *Desk) Groups(ctx context.Context, f Filter) ([]Group, error) {
	if err := f.Validate(); err != nil {
		return nil, err
	}
	// A group has one kind and one reason, so that they need not be read of each letter.
	var of []condition
	if f.Kind != "" {
		of = append(of, condition{"g.kind = ?", []any{blob(f.Kind)}})
	}
	if f.Reason != "" {
		of = append(of, condition{"g.reason = ?", []any{f.Reason}})
	}
	letters := f
	letters.Kind, letters.Reason = "", ""
	table := letters.table()
	if f.MessageID == "" && f.Subject == "" {
		table = Filter{Group: "any"}.table() // it has all that is counted
	}
	// Within one state, the index has the letters of a group side by side.
	var parts []string
	var args []any
	for _, state := range f.states() {
		sql, values := where(append(letters.conditions(), condition{"state = ?", []any{state}})...)
		parts = append(parts, `(SELECT fingerprint, COUNT(*) AS count, MIN(died_at) AS first_seen, MAX(died_at) AS last_seen, MAX(id) AS example
			FROM `+table+" WHERE "+sql+" GROUP BY fingerprint)")
		args = append(args, values...)
	}
	sql, values := where(of...)
	var rows []struct {
		ID, Reason, Pattern string
		Kind                []byte
		Count, Example      int64
		FirstSeen, LastSeen instant
	}
	err := d.cfg.DB.WithContext(ctx).Raw(`SELECT g.fingerprint AS id, g.kind, g.reason, g.pattern, n.count, n.first_seen, n.last_seen, n.example
		FROM (SELECT fingerprint, SUM(count) AS count, MIN(first_seen) AS first_seen, MAX(last_seen) AS last_seen, MAX(example) AS example
			FROM (`+strings.Join(parts, " UNION ALL ")+`) states GROUP BY fingerprint) n
		JOIN lapse_dead_letter_groups g ON g.fingerprint = n.fingerprint
		WHERE `+sql+" ORDER BY n.count DESC, g.fingerprint LIMIT 1000", append(args, values...)...).Scan(&rows).Error
	if err != nil {
		return nil, fmt.Errorf("grouping dead letters: %w", err)
	}
	groups := make([]Group, len(rows))
	for i, r := range rows {
		groups[i] = Group{r.ID, string(r.Kind), Reason(r.Reason), r.Pattern, r.Count, time.Time(r.FirstSeen), time.Time(r.LastSeen), r.Example}
	}
	return groups, nil
}
