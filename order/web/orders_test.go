package web_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lapse-go/lapse/order"
	"github.com/lapse-go/lapse/order/checkout"
	"github.com/lapse-go/lapse/order/web"
)

func TestAnOrderFromPlacingToPayment(t *testing.T) {
	ctx, s := t.Context(), start(t, nil)
	if _, err := s.SetStock(ctx, "kettle", 10); err != nil {
		t.Fatal(err)
	}
	stock, err := s.SetStock(ctx, "filter", 1)
	if err != nil || stock != (order.Stock{SKU: "filter", Available: 1}) {
		t.Fatal(stock, err)
	}
	placed := s.placed("A-1")
	direct, err := s.shop.Get(ctx, "A-1")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(direct, placed); diff != "" {
		t.Errorf("what the shop has, and what placing answered:\n%s", diff)
	}
	again, err := s.Place(ctx, draft("A-1"))
	if err != nil || !cmp.Equal(again, placed) {
		t.Errorf("placed again: %v, %v", again, err)
	}
	other := draft("A-1")
	other.Customer = "somebody else"
	_, err = s.Place(ctx, other)
	wantProblem(t, err, "conflict", http.StatusConflict, order.ErrConflict)

	later := placed.Deadline.Add(20 * time.Minute)
	extended, err := s.Extend(ctx, "A-1", later, order.By{Who: "not believed", Why: "the bank is slow"})
	if err != nil || !extended.Deadline.Equal(later) {
		t.Errorf("extended to %s: %v", extended.Deadline, err)
	}
	paid, err := s.Pay(ctx, "A-1", order.Payment{Reference: "P-1"})
	if err != nil || paid.Status != order.Paid || len(paid.Payments) != 1 || paid.Payments[0].Amount != placed.Total {
		t.Errorf("paid: %+v, %v", paid, err)
	}
	late, err := s.Pay(ctx, "A-1", order.Payment{Reference: "P-2", Amount: placed.Total})
	p := asProblem(t, err, "already-paid", http.StatusConflict, order.ErrAlreadyPaid)
	if !strings.Contains(p.Detail, "refunded") || len(late.Payments) != 2 || !late.Payments[1].Late {
		t.Errorf("%q, %+v", p.Detail, late)
	}
	_, err = s.Cancel(ctx, "A-1", order.By{})
	wantProblem(t, err, "already-paid", http.StatusConflict, order.ErrAlreadyPaid)

	got, err := s.Get(ctx, "A-1")
	if direct, _ := s.shop.Get(ctx, "A-1"); err != nil || !cmp.Equal(direct, got) {
		t.Errorf("got: %s, %v", cmp.Diff(direct, got), err)
	}
	timeline, err := s.Timeline(ctx, "A-1")
	if direct, _ := s.shop.Timeline(ctx, "A-1"); err != nil || !cmp.Equal(direct, timeline) {
		t.Errorf("timeline: %s, %v", cmp.Diff(direct, timeline), err)
	}
	if len(timeline) != 4 || timeline[1].By != (order.By{Who: "local", Why: "the bank is slow"}) {
		t.Errorf("timeline: %+v", timeline)
	}
	found, err := s.Stock(ctx, "kettle", "unknown", "filter")
	want := []order.Stock{{SKU: "kettle", Available: 8, Sold: 2}, {SKU: "filter", Sold: 1}}
	if err != nil || !cmp.Equal(found, want) {
		t.Errorf("stock: %v, %v", found, err)
	}
	_, err = s.Stock(ctx)
	if !errors.Is(err, order.ErrInvalid) {
		t.Errorf("stock of nothing: %v", err)
	}
}

func TestRefusedOrders(t *testing.T) {
	ctx, s := t.Context(), start(t, nil)
	s.stocked("kettle", 1)
	_, err := s.Place(ctx, draft("A-1"))
	p := asProblem(t, err, "unknown-sku", http.StatusConflict, order.ErrUnknownSKU)
	if !cmp.Equal(p.UnknownSKUs, []string{"filter"}) {
		t.Errorf("unknown: %v", p.UnknownSKUs)
	}
	s.stocked("filter", 5)
	_, err = s.Place(ctx, draft("A-1"))
	wantProblem(t, err, "out-of-stock", http.StatusConflict, order.ErrOutOfStock)
	if shortage, ok := errors.AsType[*order.ShortageError](err); !ok || !cmp.Equal(shortage.Short, []string{"kettle"}) {
		t.Errorf("shortage: %+v", shortage)
	}
	for _, get := range []func() error{
		func() error { _, err := s.Get(ctx, "A-1"); return err },
		func() error { _, err := s.Timeline(ctx, "A-1"); return err },
		func() error { _, err := s.Pay(ctx, "A-1", order.Payment{Reference: "P"}); return err },
		func() error { _, err := s.Cancel(ctx, "A-1", order.By{}); return err },
		func() error { _, err := s.Extend(ctx, "A-1", time.Now().Add(time.Hour), order.By{}); return err },
	} {
		wantProblem(t, get(), "not-found", http.StatusNotFound, order.ErrNotFound)
	}
	// What the schema cannot tell is told by the domain.
	mixed := draft("A-1")
	mixed.Lines[1].Price.Currency = "USD"
	_, err = s.Place(ctx, mixed)
	wantProblem(t, err, "invalid", http.StatusUnprocessableEntity, order.ErrInvalid)
	endless := draft("A-1")
	endless.Window = 2 * order.MaxWindow
	_, err = s.PlaceAsync(ctx, endless)
	wantProblem(t, err, "invalid", http.StatusUnprocessableEntity, order.ErrInvalid)
	s.stocked("kettle", 10)
	s.placed("A-1")
	_, err = s.Pay(ctx, "A-1", order.Payment{Reference: "P", Amount: order.Money{Amount: 1, Currency: "EUR"}})
	wantProblem(t, err, "invalid", http.StatusUnprocessableEntity, order.ErrInvalid)
	_, err = s.Extend(ctx, "A-1", time.Now().Add(-time.Hour), order.By{})
	wantProblem(t, err, "invalid", http.StatusUnprocessableEntity, order.ErrInvalid)
	if o, err := s.Cancel(ctx, "A-1", order.By{Why: "changed his mind"}); err != nil || o.Status != order.Cancelled {
		t.Errorf("cancelled: %v, %v", o, err)
	}
	if _, err := s.Cancel(ctx, "A-1", order.By{}); err != nil {
		t.Errorf("cancelled again: %v", err)
	}
	late, err := s.Pay(ctx, "A-1", order.Payment{Reference: "P-1"})
	p = asProblem(t, err, "payment-late", http.StatusConflict, order.ErrLatePayment)
	if !strings.Contains(p.Detail, "refunded") || late.Status != order.Cancelled || len(late.Payments) != 1 {
		t.Errorf("%q, %+v", p.Detail, late)
	}
	_, err = s.Extend(ctx, "A-1", time.Now().Add(time.Hour), order.By{})
	wantProblem(t, err, "already-cancelled", http.StatusConflict, order.ErrAlreadyCancelled)
}

func TestTheWindowIsWrittenAsPeopleDo(t *testing.T) {
	if got := web.OrderOf(order.Order{Window: 20 * time.Minute}).Window; got != "20m" {
		t.Errorf("20 minutes are %s", got)
	}
}

// Ids may be any bytes from 0x21 to 0x7E, also those that have a meaning in a path.
func TestIdsThatAreHardToEscape(t *testing.T) {
	ctx, s := t.Context(), start(t, nil)
	s.stocked("kettle", 1000)
	s.stocked("filter", 1000)
	var all strings.Builder
	for c := '!'; c <= '~'; c++ {
		all.WriteRune(c)
	}
	ids := []string{
		".", "..", "a/../b", "../../v1/pause", "/", "//", "a//b", "/a", "a/", "?", "a?b=c", "#", "%", "%2F", "%zz", "%00", "a:extend", ":", "&", "+",
		"a;b", `"'<>\`, "pay", "orders:extend", "{id}", "A-1/pay", all.String()[:64], all.String()[30:],
	}
	for _, id := range ids {
		if o := s.placed(id); o.ID != id {
			t.Errorf("%q was placed as %q", id, o.ID)
		}
		if o, err := s.Get(ctx, id); err != nil || o.ID != id {
			t.Errorf("%q: %q, %v", id, o.ID, err)
		}
		if o, err := s.Pay(ctx, id, order.Payment{Reference: id + "-paid"}); err != nil || o.ID != id || o.Status != order.Paid {
			t.Errorf("%q: %v, %v", id, o, err)
		}
		if stock, err := s.SetStock(ctx, id, 7); err != nil || stock.SKU != id {
			t.Errorf("sku %q: %v, %v", id, stock, err)
		}
		if stock, err := s.Stock(ctx, id); err != nil || len(stock) != 1 || stock[0].SKU != id {
			t.Errorf("sku %q: %v, %v", id, stock, err)
		}
	}
	for _, id := range []string{"a b", "é", "\x00", "\x7f", strings.Repeat("x", 65)} {
		_, err := s.Get(ctx, id)
		p := asProblem(t, err, "invalid", http.StatusUnprocessableEntity, order.ErrInvalid)
		if len(p.Places) == 0 || p.Places[0].Location != "path.id" {
			t.Errorf("%q: %+v", id, p.Places)
		}
	}
	_, err := s.Get(ctx, "")
	wantProblem(t, err, "no-such-path", http.StatusNotFound, nil)
}

// A retried "+20 min" must not give 40.
func TestExtendingAll(t *testing.T) {
	ctx, s := t.Context(), start(t, nil)
	s.stocked("kettle", 1000)
	s.stocked("filter", 1000)
	before := s.placed("A-1")
	s.placed("A-2")
	r := order.ExtendRequest{Key: "bank-outage", More: 20 * time.Minute, Tag: "sale", By: order.By{Why: "the bank is away"}}
	for range 3 {
		p, err := s.ExtendAll(ctx, r)
		if err != nil || p.Extended != 2 || !p.Done || p.Key != r.Key || p.StartedAt.IsZero() {
			t.Errorf("%+v, %v", p, err)
		}
	}
	after, err := s.Get(ctx, "A-1")
	if got := after.Deadline.Sub(before.Deadline); err != nil || got != r.More {
		t.Errorf("extended by %s: %v", got, err)
	}
	r.More = 40 * time.Minute
	_, err = s.ExtendAll(ctx, r)
	wantProblem(t, err, "conflict", http.StatusConflict, order.ErrConflict)
	r.Key = ""
	_, err = s.ExtendAll(ctx, r)
	p := asProblem(t, err, "invalid", http.StatusUnprocessableEntity, order.ErrInvalid)
	if len(p.Places) != 1 || !strings.EqualFold(p.Places[0].Location, "header.Idempotency-Key") {
		t.Errorf("%+v", p.Places)
	}
	r.Key, r.More = "too-much", 2*order.MaxWindow
	_, err = s.ExtendAll(ctx, r)
	wantProblem(t, err, "invalid", http.StatusUnprocessableEntity, order.ErrInvalid)
}

func TestPlacingAtTheSpeedOfTheBroker(t *testing.T) {
	ctx, s := t.Context(), start(t, nil)
	s.stocked("kettle", 1000)
	s.stocked("filter", 1000)
	begin := time.Now()
	_, err := s.PlaceAsync(ctx, draft("A-1"))
	wantProblem(t, err, "not-accepted", http.StatusServiceUnavailable, order.ErrNotAccepted)
	if took := time.Since(begin); took > 6*time.Second {
		t.Errorf("without a broker it took %s", took)
	}
	s.serveShop(checkout.API, checkout.Place)
	await(t, 20*time.Second, "the broker takes orders", func() bool {
		_, err := s.PlaceAsync(ctx, draft("A-1"))
		return err == nil
	})
	unnamed := draft("")
	id, err := s.PlaceAsync(ctx, unnamed)
	if err != nil || id == "" {
		t.Fatal(id, err)
	}
	const plain = `{"id":"A/2","lines":[{"sku":"kettle","quantity":1,"price":{"amount":1,"currency":"EUR"}}]}`
	status, header, _ := s.send("POST", "/v1/orders", plain, "Prefer", "handling=strict", "Prefer", "wait=5, Respond-Async; x=1")
	if status != http.StatusAccepted || header.Get("Location") != "/v1/orders/A%2F2" || header.Get("Preference-Applied") != "respond-async" {
		t.Errorf("%d, %v", status, header)
	}
	status, header, _ = s.send("POST", "/v1/orders", plain, "Prefer", "handling=strict")
	if status != http.StatusCreated || header.Get("Location") != "/v1/orders/A%2F2" || header.Get("Preference-Applied") != "" {
		t.Errorf("%d, %v", status, header)
	}
	for _, id := range []string{"A-1", "A/2", id} {
		await(t, 20*time.Second, "the order is placed", func() bool {
			o, err := s.Get(ctx, id)
			return err == nil && o.Status == order.Pending
		})
	}
}

func TestFiftyAtOnceAreOneOrder(t *testing.T) {
	s := start(t, nil)
	s.stocked("kettle", 1000)
	s.stocked("filter", 1000)
	orders := make([]order.Order, 50)
	var all sync.WaitGroup
	for i := range orders {
		all.Go(func() {
			var err error
			if orders[i], err = s.Place(t.Context(), draft("A-1")); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	for _, o := range orders[1:] {
		if !cmp.Equal(o, orders[0]) {
			t.Errorf("two orders: %s", cmp.Diff(o, orders[0]))
		}
	}
	stock, err := s.Stock(t.Context(), "kettle")
	if err != nil || stock[0].Reserved != 2 {
		t.Errorf("stock: %v, %v", stock, err)
	}
}

func TestTheClientFollowsItsContext(t *testing.T) {
	s := start(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Get(ctx, "A-1"); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}
