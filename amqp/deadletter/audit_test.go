package deadletter

import (
	"errors"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/lapse-go/lapse/amqp/amqptest"
)

func TestTheAuditIsListedAndFiltered(t *testing.T) {
	desk := New(Config{DB: amqptest.Database(t), Logger: amqptest.Logger(t)})
	written := []Entry{
		{Actor: "ann", Action: "pause", Reason: "sale", Result: "done"},
		{Actor: "bob", Action: "order.extend", Subject: "A-1", Count: 1, Reason: "he called", Result: "done"},
		{Actor: "ann", Action: "order.cancel", Subject: "A-1", Result: "already paid"},
		{Actor: "bob", Action: "discard", Selection: `{"all":true}`, Count: 412, Reason: "test data", Result: "done"},
		{Actor: "ann", Action: "resume", Result: "done"},
	}
	for _, e := range written {
		if err := desk.Record(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
	all, next, err := desk.Audit(t.Context(), AuditFilter{}, Page{Oldest: true})
	if err != nil || next != "" {
		t.Fatalf("%v, next %q", err, next)
	}
	if diff := cmp.Diff(written, all, cmpopts.IgnoreFields(Entry{}, "ID", "At")); diff != "" {
		t.Error(diff)
	}
	for _, e := range all {
		if age := time.Since(e.At); age < -time.Minute || age > time.Minute {
			t.Errorf("%s was done %s ago", e.Action, age)
		}
	}
	for name, one := range map[string]struct {
		filter AuditFilter
		want   string // actions, the newest first
	}{
		"actor":   {AuditFilter{Actor: "ann"}, "resume order.cancel pause"},
		"action":  {AuditFilter{Action: "discard"}, "discard"},
		"subject": {AuditFilter{Subject: "A-1"}, "order.cancel order.extend"},
		"two":     {AuditFilter{Subject: "A-1", Actor: "bob"}, "order.extend"},
		"from":    {AuditFilter{From: all[3].At}, "resume discard"},
		"to":      {AuditFilter{To: all[1].At}, "pause"},
		"between": {AuditFilter{From: all[1].At.In(time.FixedZone("", 7200)), To: all[3].At}, "order.cancel order.extend"},
		"nobody":  {AuditFilter{Actor: "Ann"}, ""},
		"no text": {AuditFilter{Actor: "\xff", Action: "ö\xff", Subject: "\xff"}, ""},
	} {
		var got []string
		for page := (Page{Limit: 1}); ; {
			entries, next, err := desk.Audit(t.Context(), one.filter, page)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			for _, e := range entries {
				got = append(got, e.Action)
			}
			if page.After = next; next == "" {
				break
			}
		}
		if strings.Join(got, " ") != one.want {
			t.Errorf("%s: got %v, want %s", name, got, one.want)
		}
	}
	for _, f := range []AuditFilter{{From: time.Date(10_000, 1, 1, 0, 0, 0, 0, time.UTC)}, {To: time.Date(999, 1, 1, 0, 0, 0, 0, time.UTC)}, {From: all[1].At, To: all[0].At}} {
		if _, _, err := desk.Audit(t.Context(), f, Page{}); !errors.Is(err, ErrInvalid) {
			t.Errorf("%+v: %v", f, err)
		}
	}
	for _, page := range []Page{{Limit: -1}, {Limit: 1001}, {After: "zzz"}, {After: cursor("letters", "7")}, {After: cursor("audit", "x")}} {
		if _, _, err := desk.Audit(t.Context(), AuditFilter{}, page); !errors.Is(err, ErrInvalid) {
			t.Errorf("%+v: %v", page, err)
		}
	}
}

func TestTheAuditHoldsAnyText(t *testing.T) {
	desk := New(Config{DB: amqptest.Database(t), Logger: amqptest.Logger(t)})
	long := strings.Repeat("ä😀\xff", 1000)
	err := desk.Record(t.Context(), Entry{
		Actor: long, Action: long, Subject: long, Reason: "x" + long, Result: long, Selection: `"` + strings.Repeat("a", maxSelection) + `"`,
	})
	if err != nil {
		t.Fatal(err)
	}
	entries, _, err := desk.Audit(t.Context(), AuditFilter{}, Page{})
	if err != nil || len(entries) != 1 {
		t.Fatalf("%d entries, %v", len(entries), err)
	}
	e := entries[0]
	for _, text := range []string{e.Actor, e.Subject, e.Reason, e.Result} {
		if !utf8.ValidString(text) || len(text) < 250 || !strings.Contains(text, "ä😀\uFFFD") {
			t.Errorf("%q of %d bytes", text, len(text))
		}
	}
	if e.Selection != `"of 1048578 bytes, too long to be kept"` {
		t.Error(e.Selection)
	}
}

func TestTheAuditIsReadByAnIndex(t *testing.T) {
	db := amqptest.Database(t)
	err := db.Exec(`INSERT INTO lapse_audit (at, actor, action, subject, count, reason, result)
		SELECT UTC_TIMESTAMP(6) - INTERVAL n MINUTE, CONCAT('actor-', n MOD 100), CONCAT('action-', n MOD 100), CONCAT('A-', n), 1, '', 'done'
		FROM (` + numbers + `) seq WHERE n < 20000 ORDER BY n DESC`).Error
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Exec("ANALYZE TABLE lapse_audit").Error; err != nil {
		t.Fatal(err)
	}
	for condition, want := range map[string]string{
		"actor = 'actor-7'":   "lapse_audit_actor",
		"action = 'action-7'": "lapse_audit_action",
		"subject = 'A-77'":    "lapse_audit_subject",
		"TRUE":                "PRIMARY",
		"at >= '2020-01-01 00:00:00' AND at < '2020-01-02 00:00:00'": "lapse_audit_at",
	} {
		if key := explain(t, db, "SELECT * FROM lapse_audit WHERE "+condition+" ORDER BY id DESC LIMIT 51"); key != want {
			t.Errorf("%s: by %s, want %s", condition, key, want)
		}
	}
}
