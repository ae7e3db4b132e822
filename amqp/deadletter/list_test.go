package deadletter

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/go-sql-driver/mysql"
	gormmysql "gorm.io/driver/mysql"
	"gorm.io/gorm"

	"github.com/lapse-go/lapse/amqp/amqptest"
)

// pages are the ids of a whole list.
func pages(ctx context.Context, d *Desk, f Filter, p Page, between func()) (ids []int64, err error) {
	for {
		letters, next, err := d.List(ctx, f, p)
		if err != nil {
			return nil, err
		}
		if len(letters) > p.Limit || len(letters) < p.Limit && next != "" {
			return nil, fmt.Errorf("a page of %d with a limit of %d, and %q behind it", len(letters), p.Limit, next)
		}
		for _, l := range letters {
			ids = append(ids, l.ID)
		}
		if p.After = next; next == "" {
			return ids, nil
		}
		if between != nil {
			between()
		}
	}
}

// While letters arrive and change their state, every other letter is on one page, and none on two.
func TestPagesWhileLettersArriveAndChange(t *testing.T) {
	d := desk(t, nil)
	put(t, d, 600, Route{"", "x"})
	ctx, stop := context.WithCancel(t.Context())
	var changing sync.WaitGroup
	defer changing.Wait()
	defer stop()
	changing.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			state := States[i%len(States)]
			if err := d.cfg.DB.WithContext(ctx).Exec("UPDATE lapse_dead_letters SET state = ? WHERE id MOD 3 = 0 AND id MOD 5 = ?", state, i%5).Error; err != nil && ctx.Err() == nil {
				t.Error(err)
			}
		}
	})
	arrivals := 0
	arrive := func() {
		arrivals++
		at := time.Now().Add(-time.Duration(arrivals*37%600) * time.Second)
		add(t, d, row{MessageID: fmt.Append(nil, "late-", arrivals), Kind: []byte("kind-0"), Reason: string(Hopeless), DiedAt: instant(at), CollectedAt: instant(at)})
	}
	for _, c := range []struct {
		filter Filter
		each   int64 // letters whose id is not divisible by it are there all the time
	}{{Filter{}, 601}, {Filter{State: Open}, 3}, {Filter{State: Open, Kind: "kind-1"}, 3}} {
		for _, oldest := range []bool{false, true} {
			ids, err := pages(t.Context(), d, c.filter, Page{Limit: 23, Oldest: oldest}, arrive)
			if err != nil {
				t.Fatal(err)
			}
			seen := map[int64]bool{}
			for _, id := range ids {
				if seen[id] {
					t.Errorf("%+v: letter %d is there twice", c.filter, id)
				}
				seen[id] = true
			}
			var all []int64
			kind := c.filter.Kind
			if err := d.cfg.DB.Raw("SELECT id FROM lapse_dead_letters WHERE message_id LIKE 'm-%' AND id MOD ? <> 0 AND (kind = ? OR ? = '')", c.each, kind, kind).Scan(&all).Error; err != nil {
				t.Fatal(err)
			}
			for _, id := range all {
				if !seen[id] {
					t.Errorf("%+v, oldest %t: letter %d is missing", c.filter, oldest, id)
				}
			}
			if len(all) < 50 {
				t.Errorf("only %d letters to look for", len(all))
			}
		}
	}
}

func TestPagesThatThereAreNot(t *testing.T) {
	d := desk(t, nil)
	put(t, d, 3, Route{"", "x"})
	_, next, err := d.List(t.Context(), Filter{}, Page{Limit: 1})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []Page{
		{After: "x"}, {After: next[1:]}, {After: next[:len(next)-4]}, {After: next + "A"}, {After: "\xff"}, {After: cursor("audit", "7")},
		{After: cursor("letters", "7")}, {After: cursor("letters", "")}, {After: cursor("letters", "2026-01-01 00:00:00.000000/x")},
		{Limit: -1}, {Limit: maxLimit + 1},
	} {
		if letters, _, err := d.List(t.Context(), Filter{}, p); !errors.Is(err, ErrInvalid) {
			t.Errorf("%+v: %v, %v", p, letters, err)
		}
	}
	if letters, _, err := d.List(t.Context(), Filter{}, Page{After: next}); err != nil || len(letters) != 2 {
		t.Errorf("%v, %v", letters, err)
	}
}

// A list has little of what is long, and one letter has all of it.
func TestALetterIsReadWhole(t *testing.T) {
	d := desk(t, nil)
	long := strings.Repeat("é", 5000)
	id := add(t, d, row{
		MessageID: []byte("m"), Kind: []byte("k"), Reason: string(Hopeless), Error: []byte(long), FirstError: []byte(long), Body: []byte("\x00\xff"),
		Headers: []byte(`{"tenant":"t"}`), DiedAt: instant(time.Now()), CollectedAt: instant(time.Now()),
	})[0].ID
	listed, _, err := d.List(t.Context(), Filter{}, Page{})
	if err != nil || len(listed) != 1 {
		t.Fatal(listed, err)
	}
	l := listed[0]
	if utf8.RuneCountInString(l.Error) != 1000 || utf8.RuneCountInString(l.FirstError) != 1000 || l.Body != nil || l.Headers != nil || l.Size != 2 {
		t.Errorf("listed %+v", l)
	}
	got, err := d.Get(t.Context(), id)
	if err != nil || got.Error != long || got.FirstError != long || string(got.Body) != "\x00\xff" || got.Headers["tenant"] != "t" {
		t.Errorf("%v, %+v", err, got)
	}
	if _, err := d.Get(t.Context(), id+1); !errors.Is(err, ErrNotFound) {
		t.Errorf("%v", err)
	}
}

// What each letter has is read a few megabytes at a time, and a letter that leaves its state meanwhile is left out.
func TestEachLetterIsRead(t *testing.T) {
	d := desk(t, nil)
	var rows []row
	for i := range 5 {
		at := instant(time.Now().Add(time.Duration(i-10) * time.Minute))
		rows = append(rows, row{Kind: []byte("k"), Reason: string(Hopeless), Body: bytes.Repeat([]byte{byte(i)}, batchBytes/2+1), DiedAt: at, CollectedAt: at})
	}
	var stored []row
	for _, r := range rows {
		stored = append(stored, add(t, d, r)...)
	}
	asked := recordQueries(d)
	var ids []int64
	err := d.Each(t.Context(), Filter{State: Open}, func(l Letter) error {
		if len(l.Body) != batchBytes/2+1 || l.Body[0] != byte(len(ids)) {
			t.Errorf("letter %d has %d bytes, of another", l.ID, len(l.Body))
		}
		if len(ids) == 0 {
			run(t, d.cfg.DB, "UPDATE lapse_dead_letters SET state = 'discarded' WHERE id = ?", stored[4].ID)
		}
		ids = append(ids, l.ID)
		return nil
	})
	if want := []int64{stored[0].ID, stored[1].ID, stored[2].ID, stored[3].ID}; err != nil || !slices.Equal(ids, want) {
		t.Errorf("%v, %v, want %v", err, ids, want)
	}
	if n := len(slices.DeleteFunc(asked.queries, func(q query) bool { return !strings.Contains(q.sql, "body") })); n != 3 {
		t.Errorf("%d reads of bodies, want 3, of two each", n)
	}
	failed := errors.New("enough")
	if err := d.Each(t.Context(), Filter{}, func(Letter) error { return failed }); !errors.Is(err, failed) {
		t.Errorf("%v", err)
	}
}

// Times are UTC, whatever the pool says.
func TestTimesOnAPoolInAnotherZone(t *testing.T) {
	d := desk(t, nil)
	config, err := mysql.ParseDSN(amqptest.DSN(t, d.cfg.DB))
	if err != nil {
		t.Fatal(err)
	}
	config.Loc, config.ParseTime = time.FixedZone("elsewhere", 5*3600), true
	connector, err := mysql.NewConnector(config)
	if err != nil {
		t.Fatal(err)
	}
	pool := sql.OpenDB(connector)
	t.Cleanup(func() { pool.Close() })
	db, err := gorm.Open(gormmysql.New(gormmysql.Config{Conn: pool}), &gorm.Config{})
	if err != nil {
		t.Fatal(err)
	}
	at := time.Date(2026, 3, 1, 12, 0, 0, 1000, time.UTC)
	add(t, d, row{Kind: []byte("k"), Reason: string(Hopeless), DiedAt: instant(at), CollectedAt: instant(at)})
	elsewhere := New(Config{DB: db})
	for f, want := range map[Filter]int{{From: at}: 1, {To: at}: 0, {From: at.Add(1)}: 0, {To: at.Add(1)}: 1} {
		letters, _, err := elsewhere.List(t.Context(), f, Page{})
		if err != nil || len(letters) != want || want == 1 && !letters[0].DiedAt.Equal(at) {
			t.Errorf("%+v: %v, %+v", f, err, letters)
		}
	}
}
