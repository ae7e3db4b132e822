package orderdb_test

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lapse-go/lapse/order"
)

func TestPay(t *testing.T) {
	s := newShop(t)
	s.setStock(10, "shoe")
	s.place(draft("o-1", "shoe"))
	s.place(draft("o-2", "shoe"))
	pay := func(id, reference string, cents int64) error {
		t.Helper()
		p := order.Payment{Reference: reference}
		if cents != 0 {
			p.Amount = order.Money{Amount: cents, Currency: "EUR"}
		}
		o, err := s.Pay(t.Context(), id, p)
		if err == nil && (o.Status != order.Paid || o.ID != id) {
			t.Errorf("%s is %s", o.ID, o.Status)
		}
		return err
	}
	for _, test := range []struct {
		name, id, reference string
		cents               int64
		want                error
	}{
		{"no such order", "o-3", "p-1", 0, order.ErrNotFound},
		{"no such id", "ö", "p-1", 0, order.ErrNotFound},
		{"no reference", "o-1", "", 0, order.ErrInvalid},
		{"too little", "o-1", "p-1", 999, order.ErrInvalid},
		{"paid", "o-1", "p-1", 1000, nil},
		{"again", "o-1", "p-1", 0, nil},
		{"its reference for another order", "o-2", "p-1", 0, order.ErrConflict},
		{"by another reference", "o-1", "p-2", 500, order.ErrAlreadyPaid},
		{"by that again", "o-1", "p-2", 500, order.ErrAlreadyPaid},
		{"by that again, whatever it was", "o-1", "p-2", 0, order.ErrAlreadyPaid},
		{"by that again, as if it had been all", "o-1", "p-2", 1000, order.ErrConflict},
		{"references are compared byte by byte", "o-2", "P-1", 0, nil},
	} {
		if err := pay(test.id, test.reference, test.cents); !errors.Is(err, test.want) || (err == nil) != (test.want == nil) {
			t.Errorf("%s: %v", test.name, err)
		}
	}
	s.wantEvents("o-1", "order.placed", "order.paid", "order.payment_late")
	s.wantEvents("o-2", "order.placed", "order.paid")
	s.wantStock("shoe", 8, 0, 2)
	late := s.lastEvent("o-1")
	if late.Payment.Reference != "p-2" || late.Payment.Amount.Amount != 500 || !late.Payment.Late || len(late.Order.Lines) != 1 {
		t.Errorf("the event says %+v", late)
	}
	got, err := s.Get(t.Context(), "o-1")
	if err != nil || got.Version != 3 || len(got.Payments) != 2 || got.Payments[0].Late || !got.Payments[1].Late {
		t.Errorf("%+v, %v", got, err)
	}
}

// As in github.com/mollie/WooCommerce/issues/1252: a payment comes after expiry, twice, and once more
// at the same time from two sides.
func TestLatePaymentIsRecordedOnce(t *testing.T) {
	s := newShop(t)
	s.setStock(1, "shoe")
	s.place(draft("o-1", "shoe"))
	s.makeDue(-2*time.Hour, "o-1")
	if _, err := s.Expire(t.Context(), []string{"o-1"}); err != nil {
		t.Fatal(err)
	}
	s.wantStock("shoe", 1, 0, 0)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			o, err := s.Pay(t.Context(), "o-1", order.Payment{Reference: "p-1"})
			if !errors.Is(err, order.ErrLatePayment) || o.Status != order.Expired || len(o.Payments) != 1 {
				t.Errorf("%+v, %v", o, err)
			}
		})
	}
	all.Wait()
	s.wantEvents("o-1", "order.placed", "order.expired", "order.payment_late")
	s.wantStock("shoe", 1, 0, 0)
	entries, err := s.Timeline(t.Context(), "o-1")
	if err != nil || len(entries) != 3 || entries[2].Version != 3 || entries[2].Type != order.EventLatePayment ||
		entries[2].Detail != "EUR 10.00 by p-1 for an order that was expired, to be refunded" {
		t.Errorf("%+v, %v", entries, err)
	}
}

// A payment that commits after the deadline is good as long as nothing has expired the order.
func TestPaymentAfterTheDeadline(t *testing.T) {
	s := newShop(t)
	s.setStock(1, "shoe")
	s.place(draft("o-1", "shoe"))
	s.makeDue(-time.Hour, "o-1")
	if err := s.pay(t.Context(), "o-1"); err != nil {
		t.Error(err)
	}
	got, err := s.Expire(t.Context(), []string{"o-1"})
	if err != nil || got.Orders[0].Outcome != order.OutcomeAlreadyPaid {
		t.Errorf("%+v, %v", got, err)
	}
	s.wantStock("shoe", 0, 0, 1)
}

func TestCancel(t *testing.T) {
	s := newShop(t)
	s.setStock(2, "shoe")
	s.place(draft("o-1", "shoe"))
	by := order.By{Who: "Zoë", Why: "customer called 📞"}
	for range 2 {
		o, err := s.Cancel(t.Context(), "o-1", by)
		if err != nil || o.Status != order.Cancelled || o.ClosedAt.IsZero() {
			t.Errorf("%+v, %v", o, err)
		}
	}
	s.wantStock("shoe", 2, 0, 0)
	s.wantEvents("o-1", "order.placed", "order.cancelled")
	entries, err := s.Timeline(t.Context(), "o-1")
	if err != nil || len(entries) != 2 || entries[1].By != by {
		t.Errorf("%+v, %v", entries, err)
	}
	s.place(draft("o-2", "shoe"))
	if err := s.pay(t.Context(), "o-2"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Cancel(t.Context(), "o-2", by); !errors.Is(err, order.ErrAlreadyPaid) {
		t.Error(err)
	}
	if _, err := s.Timeline(t.Context(), "o-3"); !errors.Is(err, order.ErrNotFound) {
		t.Error(err)
	}
}

// As in github.com/mollie/magento2/issues/658: more time shortly before the deadline. The timer that is
// under way is told how long to wait; only the deadline that holds now closes the order.
func TestExtend(t *testing.T) {
	s := newShop(t)
	s.setStock(1, "shoe")
	d := draft("o-1", "shoe")
	d.Window = 15 * time.Minute
	o := s.place(d)
	s.makeDue(time.Minute, "o-1")

	to := o.PlacedAt.Add(30 * time.Minute)
	for range 2 {
		got, err := s.Extend(t.Context(), "o-1", to, order.By{Who: "ann"})
		if err != nil || !got.Deadline.Equal(to) || got.Version != 2 {
			t.Errorf("%+v, %v", got, err)
		}
	}
	if e := s.lastEvent("o-1"); e.Type != order.EventExtended || !e.Order.Deadline.Equal(to) || e.By.Who != "ann" || e.OldDeadline.IsZero() {
		t.Errorf("%+v", e)
	}
	s.wantTimers("o-1", 1)
	got, err := s.Expire(t.Context(), []string{"o-1"})
	if err != nil || got.Orders[0].Outcome != order.OutcomeNotDue || got.Orders[0].Remaining != to.Sub(got.Now) || !got.Orders[0].Deadline.Equal(to) {
		t.Errorf("%+v, %v", got, err)
	}

	// Earlier: the timer under way would come too late.
	if _, err := s.Extend(t.Context(), "o-1", to.Add(-10*time.Minute), order.By{}); err != nil {
		t.Error(err)
	}
	s.wantTimers("o-1", 2)
	for _, wrong := range []time.Time{o.PlacedAt, o.PlacedAt.AddDate(1, 0, 1), {}} {
		if _, err := s.Extend(t.Context(), "o-1", wrong, order.By{}); !errors.Is(err, order.ErrInvalid) {
			t.Errorf("to %s: %v", wrong, err)
		}
	}
	s.makeDue(0, "o-1")
	got, err = s.Expire(t.Context(), []string{"o-1"})
	if err != nil || got.Orders[0].Outcome != order.OutcomeExpired {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := s.Extend(t.Context(), "o-1", to.Add(time.Hour), order.By{}); !errors.Is(err, order.ErrAlreadyExpired) {
		t.Error(err)
	}
	s.wantEvents("o-1", "order.placed", "order.extended", "order.extended", "order.expired")
}

func (s *shop) wantTimers(id string, want int) {
	s.t.Helper()
	var got int
	if err := s.db.Raw("SELECT COUNT(*) FROM timers WHERE order_id = ?", id).Scan(&got).Error; err != nil || got != want {
		s.t.Errorf("%d timers for %s, want %d: %v", got, id, want, err)
	}
}

// As in github.com/go-gorm/gorm/issues/969: a copy of the order is loaded, its payment commits, and the
// copy is written. The store writes only what was decided about the locked row.
func TestALoadedCopyCannotUndoAPayment(t *testing.T) {
	s := newShop(t)
	s.setStock(1, "shoe")
	s.place(draft("o-1", "shoe"))
	stale, err := s.Get(t.Context(), "o-1")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.pay(t.Context(), "o-1"); err != nil {
		t.Fatal(err)
	}
	for _, version := range []int64{1, 2, 3} {
		stale.Version = version
		_, err = s.store.Change(t.Context(), "o-1", func(order.Order, time.Time) (order.Order, order.Event, error) {
			return stale, order.Event{Type: order.EventExtended, Order: stale}, nil
		})
		if !errors.Is(err, order.ErrConflict) {
			t.Errorf("written with version %d: %v", version, err)
		}
	}
	got, err := s.Get(t.Context(), "o-1")
	if err != nil || got.Status != order.Paid || got.Version != 2 {
		t.Errorf("%+v, %v", got, err)
	}
	s.wantStock("shoe", 0, 0, 1)
}

func TestPauseTellsWhoAndWhy(t *testing.T) {
	s := newShop(t)
	s.setStock(1, "shoe")
	s.place(draft("o-1", "shoe"))
	s.makeDue(-time.Minute, "o-1")
	by := order.By{Who: "ann", Why: "the payment provider is down"}
	if err := s.Pause(t.Context(), by); err != nil {
		t.Fatal(err)
	}
	state, err := s.Paused(t.Context())
	if err != nil || !state.Paused || state.By != by || time.Since(state.Since).Abs() > time.Minute {
		t.Errorf("%+v, %v", state, err)
	}
	if _, err := s.Expire(t.Context(), []string{"o-1"}); !errors.Is(err, order.ErrPaused) {
		t.Error(err)
	}
	// Payment goes on.
	if err := s.pay(t.Context(), "o-1"); err != nil {
		t.Error(err)
	}
	if err := s.Resume(t.Context(), order.By{Who: "bob"}); err != nil {
		t.Fatal(err)
	}
	state, err = s.Paused(t.Context())
	if err != nil || state.Paused || state.By.Who != "bob" {
		t.Errorf("%+v, %v", state, err)
	}
}

func TestStock(t *testing.T) {
	s := newShop(t)
	s.setStock(5, "b", "a", "B")
	s.place(draft("o-1", "a"))
	got, err := s.SetStock(t.Context(), "a", 7)
	if err != nil || got != (order.Stock{SKU: "a", Available: 7, Reserved: 1}) {
		t.Errorf("%+v, %v", got, err)
	}
	want := []order.Stock{{SKU: "B", Available: 5}, {SKU: "a", Available: 7, Reserved: 1}, {SKU: "b", Available: 5}}
	all, err := s.Stock(t.Context())
	if diff := cmp.Diff(want, all); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if none, err := s.Stock(t.Context(), "A", "ä"); err != nil || len(none) != 0 {
		t.Errorf("%+v, %v", none, err)
	}
	for _, wrong := range []int64{-1, order.MaxStock + 1} {
		if _, err := s.SetStock(t.Context(), "a", wrong); !errors.Is(err, order.ErrInvalid) {
			t.Errorf("a stock of %d: %v", wrong, err)
		}
	}
}

func TestAddStock(t *testing.T) {
	s := newShop(t)
	s.setStock(5, "a")
	s.setStock(order.MaxStock, "full")
	s.place(draft("o-1", "a"))
	for _, test := range []struct {
		name, sku string
		delta     int64
		want      error
		available int64
	}{
		{"goods came", "a", 3, nil, 7},
		{"goods are lost", "a", -2, nil, 5},
		{"all are lost", "a", -5, nil, 0},
		{"more than all are lost", "a", -1, order.ErrOutOfStock, 0},
		{"a new article came", "b", 4, nil, 4},
		{"skus are compared byte by byte", "B", 1, nil, 1},
		{"an unknown article is lost", "c", -1, order.ErrUnknownSKU, -1},
		{"as many as there can be", "b", order.MaxStock - 4, nil, order.MaxStock},
		{"one more", "b", 1, order.ErrInvalid, order.MaxStock},
		{"all lost at once", "b", -order.MaxStock, nil, 0},
		{"nothing came", "a", 0, order.ErrInvalid, 0},
		{"too much came", "a", order.MaxStock + 1, order.ErrInvalid, 0},
		{"too much was lost", "full", -order.MaxStock - 1, order.ErrInvalid, order.MaxStock},
		{"no sku", "", 1, order.ErrInvalid, -1},
	} {
		got, err := s.AddStock(t.Context(), test.sku, test.delta)
		if !errors.Is(err, test.want) || (err == nil) != (test.want == nil) {
			t.Errorf("%s: %v", test.name, err)
		}
		if err == nil && (got.SKU != test.sku || got.Available != test.available) {
			t.Errorf("%s: %+v", test.name, got)
		}
		if shortage, ok := errors.AsType[*order.ShortageError](err); ok && !slices.Equal(slices.Concat(shortage.Short, shortage.Unknown), []string{test.sku}) {
			t.Errorf("%s: short of %+v", test.name, shortage)
		}
		now, err := s.Stock(t.Context(), test.sku)
		if err != nil || (test.available < 0) != (len(now) == 0) || test.available >= 0 && now[0].Available != test.available {
			t.Errorf("%s: then %+v, %v", test.name, now, err)
		}
	}
	s.wantStock("a", 0, 1, 0)
	// What customers gave back may be more than can be set. It can still be taken away, but not added to.
	s.setStock(order.MaxStock, "a")
	if _, err := s.Cancel(t.Context(), "o-1", order.By{}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.AddStock(t.Context(), "a", 1); !errors.Is(err, order.ErrInvalid) {
		t.Error(err)
	}
	if got, err := s.AddStock(t.Context(), "a", -1); err != nil || got.Available != order.MaxStock {
		t.Errorf("%+v, %v", got, err)
	}
}

// Goods come in while others are ordered, at the same time from many sides, of articles that nobody knew:
// all of them are counted.
func TestStockIsAddedWhileItIsOrdered(t *testing.T) {
	s := newShop(t)
	var all sync.WaitGroup
	for caller := range 8 {
		all.Go(func() {
			for i := range 10 {
				if _, err := s.AddStock(t.Context(), fmt.Sprintf("sku-%d", i), 2); err != nil {
					t.Error(err)
				}
				s.place(draft(fmt.Sprintf("o-%d-%d", caller, i), fmt.Sprintf("sku-%d", i)))
			}
		})
	}
	all.Wait()
	for i := range 10 {
		s.wantStock(fmt.Sprintf("sku-%d", i), 8, 8, 0)
	}
	s.audit(16)
}
