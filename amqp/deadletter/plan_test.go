package deadletter

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"gorm.io/gorm"
)

// many has 100,000 letters of thirty days, of which 3 in 100 are large: of six kinds, five reasons, forty groups of
// which some are large, and all states. Two each are of the same message, and three each died at the same time.
func many(t *testing.T) *Desk {
	t.Helper()
	const letters, chunk = 100_000, 10_000
	d := desk(t, nil)
	const group = "FLOOR(40 * POW((s.n * 7919 MOD 10007) / 10007, 2))"
	const kindAndReason = `CONCAT('kind-', g MOD 6), ELT(1 + g MOD 5, 'hopeless', 'out-of-tries', 'delivery-limit', 'unroutable', 'rejected')`
	run(t, d.cfg.DB, `INSERT INTO lapse_dead_letter_groups (fingerprint, kind, reason, pattern)
		SELECT LPAD(g, 16, '0'), `+kindAndReason+`, CONCAT('error ', g, ' of order <id>') FROM (SELECT a.d + 10 * b.d AS g FROM `+digits+` a, `+digits+` b) s WHERE g < 40`)
	for from := 0; from < letters; from += chunk {
		run(t, d.cfg.DB, `INSERT INTO lapse_dead_letters (identity, message_id, subject, queue, exchange, routing_key, kind, reason, attempts, error, first_error,
				fingerprint, properties, headers, body, size, died_at, collected_at, replays, replayed_by, state, resolved_at)
			SELECT CONCAT('letter-', n), CONCAT('m-', n DIV 2), CONCAT('order-', n DIV 2), 'lapse.dead', 'lapse.due', 'kind', `+kindAndReason+`, 8,
				CONCAT('error ', g, ' of order order-', n), CONCAT('first error of order-', n), LPAD(g, 16, '0'), '{"content_type":"application/json"}',
				CONCAT('{"lapse-error":"', REPEAT('it failed ', 20), n, '","tenant":"t-', n MOD 7, '"}'),
				IF(n MOD 33 = 0, REPEAT('x', 16000), CONCAT('{"order_id":"order-', n DIV 2, '","deadline":"2026-01-01T00:00:00Z"}')), IF(n MOD 33 = 0, 16000, 60),
				UTC_TIMESTAMP(6) - INTERVAL 78 * ((? - n) DIV 3) SECOND, UTC_TIMESTAMP(6), 0, '', ELT(1 + n MOD 10, 'replayed', 'settled', 'discarded', 'replayed', 'replayed', 'replayed',
				'open', 'open', 'open', 'open'), IF(n MOD 10 < 6, UTC_TIMESTAMP(6), NULL)
			FROM (SELECT s.n, `+group+` AS g FROM (SELECT ? + a.d + 10 * b.d + 100 * c.d + 1000 * e.d AS n FROM
				`+digits+` a, `+digits+` b, `+digits+` c, `+digits+` e ORDER BY n) s) s`, letters, from)
	}
	run(t, d.cfg.DB, "ANALYZE TABLE lapse_dead_letters, lapse_dead_letter_groups")
	return d
}

// pairs are filters with one condition, with each two of them, and with none.
func pairs(filters map[string]Filter) map[string]Filter {
	all := map[string]Filter{"all": {}}
	for name, one := range filters {
		all[name] = one
		for other, two := range filters {
			if name < other {
				all[name+", "+other] = both(one, two)
			}
		}
	}
	return all
}

func both(one, two Filter) Filter {
	to, from := reflect.ValueOf(&one).Elem(), reflect.ValueOf(two)
	for i := range from.NumField() {
		if !from.Field(i).IsZero() {
			to.Field(i).Set(from.Field(i))
		}
	}
	return one
}

func TestManyLetters(t *testing.T) {
	d := many(t)
	t.Run("time and plan", func(t *testing.T) { testManyLetters(t, d) })
	t.Run("rows", func(t *testing.T) { testPagesReadLittle(t, d) })
}

// Each look takes less than 200 ms of the database, and goes by an index.
func testManyLetters(t *testing.T, d *Desk) {
	now := time.Now().UTC()
	filters := pairs(map[string]Filter{
		"open": {State: Open}, "kind": {Kind: "kind-3"}, "reason": {Reason: Unroutable}, "group": {Group: "0000000000000003"},
		"subject": {Subject: "order-4242"}, "message": {MessageID: "m-4242"},
		"since": {From: now.Add(-20 * 24 * time.Hour)}, "until": {To: now.Add(-10 * 24 * time.Hour)},
	})
	maps.Copy(filters, map[string]Filter{
		"discarded": {State: Discarded}, "no reason": {Reason: Unknown}, "open, no reason": {State: Open, Reason: Unknown}, "never": {Kind: "kind-3", Reason: Expired}, "open, never": {State: Open, Kind: "kind-3", Reason: Expired},
		"no kind": {Kind: "no-kind"}, "a day": {State: Open, From: now.Add(-20 * time.Hour), To: now.Add(-10 * time.Hour)},
		"text": {Text: "order-42", From: now.Add(-24 * time.Hour)}, "text of a kind": {Kind: "kind-0", Text: "order-42", From: now.Add(-24 * time.Hour)},
	})
	asked := recordQueries(d)
	for _, name := range slices.Sorted(maps.Keys(filters)) {
		f := filters[name]
		asked.about(name, false)
		if _, err := d.Count(t.Context(), f); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if _, err := d.Groups(t.Context(), f); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		asked.about(name, true)
		for _, p := range []Page{{}, {Oldest: true}, {After: middle(now)}, {After: middle(now), Oldest: true}} {
			p.Limit = 100
			if _, _, err := d.List(t.Context(), f, p); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
	}
	asked.check(t, 200*time.Millisecond)
	asked.stop()
}

func middle(now time.Time) string {
	return cursor("letters", fmt.Sprintf("%s/%d", now.Add(-15*24*time.Hour).Format(instantLayout), 50_000))
}

// A page reads about as many rows as it has: what an index is followed for, it also has in order.
func testPagesReadLittle(t *testing.T, d *Desk) {
	now := time.Now().UTC()
	day := Filter{From: now.Add(-20 * 24 * time.Hour), To: now.Add(-10 * 24 * time.Hour)}
	for name, f := range map[string]Filter{
		"all": {}, "state": {State: Replayed}, "kind": {Kind: "kind-3"}, "group": {Group: "0000000000000003"},
		"subject": {Subject: "order-4242"}, "message": {MessageID: "m-4242"}, "no kind": {Kind: "no-kind"}, "open kind": {State: Open, Kind: "kind-0"},
	} {
		for _, f := range []Filter{f, both(f, day)} {
			for _, p := range []Page{{}, {Oldest: true}, {After: middle(now)}, {After: middle(now), Oldest: true}} {
				p.Limit = 100
				read := rowsRead(t, d, func(d *Desk) {
					if _, _, err := d.List(t.Context(), f, p); err != nil {
						t.Fatalf("%s: %v", name, err)
					}
				})
				// As many of each state, their union, and those of the page, again sorted.
				if most := int64(16 * (p.Limit + 1)); read > most {
					t.Errorf("%s, %+v, %+v: %d rows are read, and not at most %d", name, f, p, read, most)
				}
			}
		}
	}
}

// rowsRead is how many rows the server reads while do uses the desk.
func rowsRead(t *testing.T, d *Desk, do func(*Desk)) (n int64) {
	t.Helper()
	err := d.cfg.DB.Connection(func(db *gorm.DB) error {
		sum := func() (n int64) {
			var counters []struct{ Value int64 }
			if err := db.Raw("SHOW SESSION STATUS LIKE 'Handler_read%'").Scan(&counters).Error; err != nil {
				t.Fatal(err)
			}
			for _, c := range counters {
				n += c.Value
			}
			return n
		}
		before := sum()
		nothing := sum() - before // what asking itself reads
		do(New(Config{DB: db, Topology: d.cfg.Topology}))
		n = sum() - before - 2*nothing
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

type queries struct {
	db      *gorm.DB
	name    string
	list    bool
	queries []query
}

type query struct {
	name, sql string
	list      bool // and so read in the order of an index
	took      time.Duration
}

// recordQueries keeps what is asked on the desk's pool, and how long it took.
func recordQueries(d *Desk) *queries {
	q := &queries{db: d.cfg.DB}
	begin := func(db *gorm.DB) { db.InstanceSet("begin", time.Now()) }
	end := func(db *gorm.DB) {
		if at, ok := db.InstanceGet("begin"); ok {
			sql := db.Dialector.Explain(db.Statement.SQL.String(), db.Statement.Vars...)
			q.queries = append(q.queries, query{q.name, sql, q.list, time.Since(at.(time.Time))})
		}
	}
	_ = q.db.Callback().Row().Before("gorm:row").Register("begin", begin)
	_ = q.db.Callback().Row().After("gorm:row").Register("end", end)
	_ = q.db.Callback().Query().Before("gorm:query").Register("begin", begin)
	_ = q.db.Callback().Query().After("gorm:query").Register("end", end)
	return q
}

func (q *queries) stop() {
	for _, of := range []string{"begin", "end"} {
		_ = q.db.Callback().Row().Remove(of)
		_ = q.db.Callback().Query().Remove(of)
	}
}

func (q *queries) about(name string, list bool) { q.name, q.list = name, list }

func (q *queries) check(t *testing.T, most time.Duration) {
	t.Helper()
	asked := q.queries
	var slowest query
	for _, one := range asked {
		for range 3 { // the machine may have been busy with something else
			if one.took > most {
				one.took = min(one.took, timed(t, q.db, one.sql))
			}
		}
		if one.took > most {
			t.Errorf("%s: %s: %s", one.name, one.took, one.sql)
		}
		if one.took > slowest.took {
			slowest = one
		}
		var plan []struct {
			Table, Type, Key, Extra string
			Rows                    int64
		}
		if err := q.db.Raw("EXPLAIN FORMAT=TRADITIONAL " + one.sql).Scan(&plan).Error; err != nil {
			t.Fatalf("%v: %s", err, one.sql)
		}
		for _, step := range plan {
			if !strings.Contains(step.Table, "lapse_dead_letters") {
				continue
			}
			if step.Type == "ALL" || step.Key == "" || one.list && strings.Contains(step.Extra, "filesort") {
				t.Errorf("%s: not by an index: %+v: %s", one.name, step, one.sql)
			}
		}
	}
	if len(asked) == 0 {
		t.Fatal("nothing was asked")
	}
	t.Logf("%d queries, the slowest %s: %s: %s", len(asked), slowest.took, slowest.name, slowest.sql)
}

func timed(t *testing.T, db *gorm.DB, sql string) time.Duration {
	t.Helper()
	begin := time.Now()
	rows, err := db.Raw(sql).Rows()
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		continue
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return time.Since(begin)
}
