package web_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/lapse-go/lapse/amqp/amqptest"
	"github.com/lapse-go/lapse/amqp/deadletter"
	"github.com/lapse-go/lapse/order"
	"github.com/lapse-go/lapse/order/web"
)

// What is done by hand is in the audit with who did it, and so is what the order did not allow.
func TestWhatIsDoneByHandIsAudited(t *testing.T) {
	db := amqptest.Database(t)
	desk := deadletter.New(deadletter.Config{DB: db, Logger: amqptest.Logger(t)})
	tokens := map[web.Role]string{}
	s := start(t, db, withTokens(t, tokens), func(cfg *web.Config) { cfg.Desk = desk })
	s.Client = s.client(tokens[web.Checkout])
	operator := s.client(tokens[web.Operator])
	s.stocked("kettle", 10)
	s.stocked("filter", 10)
	for _, id := range []string{"A-1", "A-2"} {
		s.placed(id)
	}
	ctx := t.Context()
	wanted := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	by := func(why string) order.By { return order.By{Why: why} }
	wanted(operator.Pause(ctx, by("sale")))
	_, err := operator.Sweep(ctx)
	wantProblem(t, err, "paused", 409, order.ErrPaused)
	wanted(operator.Resume(ctx, by("")))
	_, err = operator.Sweep(ctx)
	wanted(err)
	_, err = s.Extend(ctx, "A-1", time.Now().Add(2*time.Hour), by("he called"))
	wanted(err)
	_, err = s.Extend(ctx, "A-1", time.Now().Add(-2*time.Hour), by("typing error"))
	wantProblem(t, err, "invalid", 422, order.ErrInvalid)
	_, err = operator.ExtendAll(ctx, order.ExtendRequest{Key: "k-1", More: 20 * time.Minute, Tag: "sale", By: by("outage")})
	wanted(err)
	_, err = s.Pay(ctx, "A-1", order.Payment{Reference: "p-1"})
	wanted(err)
	_, err = s.Cancel(ctx, "A-1", by("he called again"))
	wantProblem(t, err, "already-paid", 409, order.ErrAlreadyPaid)
	_, err = s.Cancel(ctx, "A-2", by(""))
	wanted(err)
	_, err = s.Cancel(ctx, "A-3", by(""))
	wantProblem(t, err, "not-found", 404, order.ErrNotFound)
	_, err = operator.Stock(ctx, "kettle") // looking is no action
	wanted(err)

	got, _, err := desk.Audit(ctx, deadletter.AuditFilter{}, deadletter.Page{Oldest: true})
	wanted(err)
	want := []deadletter.Entry{
		{Actor: "operator-1", Action: "pause", Reason: "sale", Result: "done"},
		{Actor: "operator-1", Action: "sweep", Result: "expiry is paused, 0 orders were expired before that: resume it first"},
		{Actor: "operator-1", Action: "resume", Result: "done"},
		{Actor: "operator-1", Action: "sweep", Result: "done"},
		{Actor: "checkout-1", Action: "order.extend", Subject: "A-1", Count: 1, Reason: "he called", Result: "done"},
		{Actor: "operator-1", Action: "order.extend-all", Subject: "k-1", Selection: `{"by":"20m0s","tag":"sale"}`, Count: 2, Reason: "outage", Result: "done"},
		{Actor: "checkout-1", Action: "order.cancel", Subject: "A-1", Reason: "he called again", Result: "already paid"},
		{Actor: "checkout-1", Action: "order.cancel", Subject: "A-2", Count: 1, Result: "done"},
		{Actor: "checkout-1", Action: "order.cancel", Subject: "A-3", Result: "no such order"},
	}
	same := cmp.FilterPath(func(p cmp.Path) bool { return p.Last().String() == ".Result" },
		cmp.Comparer(func(a, b string) bool { return strings.Contains(a, b) || strings.Contains(b, a) }))
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(deadletter.Entry{}, "ID", "At"), same); diff != "" {
		t.Error(diff)
	}
	seen, _, err := desk.Audit(ctx, deadletter.AuditFilter{Actor: "checkout-1", Subject: "A-1"}, deadletter.Page{})
	if err != nil || len(seen) != 2 || seen[0].Action != "order.cancel" || seen[1].Action != "order.extend" {
		t.Errorf("%v, %v", seen, err)
	}
}

// What was done is answered as done, although the audit cannot tell it; the log does.
func TestWhatTheAuditCannotTellTheLogTells(t *testing.T) {
	db := amqptest.Database(t)
	var log bytes.Buffer
	desk := deadletter.New(deadletter.Config{DB: db, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	s := start(t, db, func(cfg *web.Config) { cfg.Desk = desk })
	s.stocked("kettle", 10)
	s.stocked("filter", 10)
	s.placed("A-1")
	if err := db.Exec("DROP TABLE lapse_audit").Error; err != nil {
		t.Fatal(err)
	}
	o, err := s.Cancel(t.Context(), "A-1", order.By{Why: "he called"})
	if err != nil || o.Status != order.Cancelled {
		t.Fatalf("%s, %v", o.Status, err)
	}
	for _, part := range []string{"level=ERROR", "actor=local", "action=order.cancel", "subject=A-1", `reason="he called"`, "result=done", "lapse_audit"} {
		if !strings.Contains(log.String(), part) {
			t.Errorf("the log has no %s:\n%s", part, &log)
		}
	}
}
