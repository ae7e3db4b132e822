package order_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/lapse-go/lapse/order"
)

var start = time.Date(2026, 3, 29, 1, 0, 0, 0, time.UTC)

func eur(cents int64) order.Money { return order.Money{Amount: cents, Currency: "EUR"} }

func sample() order.Draft {
	return order.Draft{
		ID: "o-1", Customer: "customer-1", Region: "eu", Tags: []string{"web", "vip", "web"},
		Lines: []order.Line{{SKU: "shoe", Quantity: 2, Price: eur(4999)}, {SKU: "sock", Quantity: 1, Price: eur(500)}},
	}
}

func pending(t *testing.T) order.Order {
	t.Helper()
	o, e, err := order.Place(sample(), start)
	if err != nil || e.Type != order.EventPlaced {
		t.Fatalf("placing: %v, %v", e.Type, err)
	}
	return o
}

// in is an order in a status, a minute after it was placed.
func in(t *testing.T, s order.Status) order.Order {
	t.Helper()
	o := pending(t)
	var transition order.Transition
	switch s {
	case order.Pending:
		return o
	case order.Paid:
		transition = order.Pay(order.Payment{Reference: "p-1"})
	case order.Cancelled:
		transition = order.Cancel(order.By{})
	case order.Expired:
		o.Deadline = start
		transition = order.Expire
	}
	o, _, err := transition(o, start.Add(time.Minute))
	if err != nil || o.Status != s {
		t.Fatalf("%s is %s: %v", s, o.Status, err)
	}
	return o
}

func TestPlaceBeginsAnOrder(t *testing.T) {
	got := pending(t)
	want := order.Order{
		ID: "o-1", Customer: "customer-1", Region: "eu", Tags: []string{"vip", "web"}, Lines: sample().Lines,
		Total: eur(10498), Status: order.Pending, PlacedAt: start, Window: 30 * time.Minute,
		Deadline: start.Add(30 * time.Minute), Version: 1,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestTransitions(t *testing.T) {
	by := order.By{Who: "ann", Why: "customer called"}
	pay := func(reference string, amount order.Money) order.Transition {
		return order.Pay(order.Payment{Reference: reference, Amount: amount})
	}
	before, after := start.Add(29*time.Minute), start.Add(31*time.Minute)
	for _, test := range []struct {
		name       string
		from       order.Status
		transition order.Transition
		at         time.Time
		to         order.Status
		event      order.EventType
		err        error
	}{
		{"pay", order.Pending, pay("p-1", order.Money{}), before, order.Paid, order.EventPaid, nil},
		{"pay the total", order.Pending, pay("p-1", eur(10498)), before, order.Paid, order.EventPaid, nil},
		{"pay after the deadline, before anything has expired it", order.Pending, pay("p-1", order.Money{}), after, order.Paid, order.EventPaid, nil},
		{"pay too little", order.Pending, pay("p-1", eur(10497)), before, order.Pending, "", order.ErrInvalid},
		{"pay in another currency", order.Pending, pay("p-1", order.Money{Amount: 10498, Currency: "USD"}), before, order.Pending, "", order.ErrInvalid},
		{"the same payment again", order.Paid, pay("p-1", order.Money{}), before, order.Paid, "", nil},
		{"the same payment with another amount", order.Paid, pay("p-1", eur(1)), before, order.Paid, "", order.ErrConflict},
		{"pay twice", order.Paid, pay("p-2", order.Money{}), before, order.Paid, order.EventLatePayment, order.ErrAlreadyPaid},
		{"pay what was expired", order.Expired, pay("p-2", order.Money{}), after, order.Expired, order.EventLatePayment, order.ErrLatePayment},
		{"pay too little, too late", order.Expired, pay("p-2", eur(1)), after, order.Expired, order.EventLatePayment, order.ErrLatePayment},
		{"pay what was cancelled", order.Cancelled, pay("p-2", order.Money{}), before, order.Cancelled, order.EventLatePayment, order.ErrLatePayment},

		{"cancel", order.Pending, order.Cancel(by), before, order.Cancelled, order.EventCancelled, nil},
		{"cancel again", order.Cancelled, order.Cancel(by), before, order.Cancelled, "", nil},
		{"cancel what was paid", order.Paid, order.Cancel(by), before, order.Paid, "", order.ErrAlreadyPaid},
		{"cancel what was expired", order.Expired, order.Cancel(by), after, order.Expired, "", order.ErrAlreadyExpired},

		{"expire", order.Pending, order.Expire, after, order.Expired, order.EventExpired, nil},
		{"expire at the deadline itself", order.Pending, order.Expire, start.Add(30 * time.Minute), order.Expired, order.EventExpired, nil},
		{"expire a microsecond early", order.Pending, order.Expire, start.Add(30*time.Minute - time.Microsecond), order.Pending, "", order.ErrNotDue},
		{"expire what was paid", order.Paid, order.Expire, after, order.Paid, "", order.ErrAlreadyPaid},
		{"expire what was cancelled", order.Cancelled, order.Expire, after, order.Cancelled, "", order.ErrAlreadyCancelled},
		{"expire again", order.Expired, order.Expire, after, order.Expired, "", order.ErrAlreadyExpired},

		{"extend", order.Pending, order.Extend(start.Add(time.Hour), by), before, order.Pending, order.EventExtended, nil},
		{"extend to an earlier deadline", order.Pending, order.Extend(before.Add(time.Second), by), before, order.Pending, order.EventExtended, nil},
		{"extend to the same deadline", order.Pending, order.Extend(start.Add(30*time.Minute), by), before, order.Pending, "", nil},
		{"extend into the past", order.Pending, order.Extend(before, by), before, order.Pending, "", order.ErrInvalid},
		{"extend by more than a year", order.Pending, order.Extend(before.Add(order.MaxWindow+time.Second), by), before, order.Pending, "", order.ErrInvalid},
		{"extend what was paid", order.Paid, order.Extend(start.Add(time.Hour), by), before, order.Paid, "", order.ErrAlreadyPaid},
		{"give more time", order.Pending, order.ExtendBy(time.Minute, by), before, order.Pending, order.EventExtended, nil},
		{"give more time to what was expired", order.Expired, order.ExtendBy(time.Minute, by), after, order.Expired, "", order.ErrAlreadyExpired},
	} {
		t.Run(test.name, func(t *testing.T) {
			from := in(t, test.from)
			to, event, err := test.transition(from, test.at)
			if to.Status != test.to || event.Type != test.event || !errors.Is(err, test.err) || (err == nil) != (test.err == nil) {
				t.Errorf("%s became %s with event %q and error %v", test.from, to.Status, event.Type, err)
			}
			if event.None() {
				if diff := cmp.Diff(from, to); diff != "" {
					t.Errorf("the order changed without an event:\n%s", diff)
				}
				return
			}
			if to.Version != from.Version+1 || !event.At.Equal(test.at) || event.ID != fmt.Sprintf("o-1.%d", to.Version) {
				t.Errorf("version %d became %d with event %s at %s", from.Version, to.Version, event.ID, event.At)
			}
			if diff := cmp.Diff(to, event.Order); diff != "" {
				t.Errorf("the event has another order:\n%s", diff)
			}
			if closed := to.Status != order.Pending; closed == to.ClosedAt.IsZero() {
				t.Errorf("%s, closed at %s", to.Status, to.ClosedAt)
			}
		})
	}
}

// More time counts from the deadline, or from now if that has passed: an order that is overdue because
// expiry is paused would otherwise get less than was promised.
func TestExtendBy(t *testing.T) {
	o := pending(t)
	for _, test := range []struct {
		more     time.Duration
		at, want time.Time
	}{
		{20 * time.Minute, start, start.Add(50 * time.Minute)},
		{20 * time.Minute, start.Add(time.Hour), start.Add(80 * time.Minute)},
		{order.MaxWindow, start, start.Add(order.MaxWindow)},
	} {
		if got, _, err := order.ExtendBy(test.more, order.By{})(o, test.at); err != nil || !got.Deadline.Equal(test.want) {
			t.Errorf("%s more at %s: %s, %v", test.more, test.at, got.Deadline, err)
		}
	}
}

// Whatever is asked of an order, in any order: it is closed once and stays as it was closed, its stock
// is given back or sold once, each payment is recorded once, and versions have no gaps.
func TestNoSequenceReopensAnOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := start
		o, _, err := order.Place(sample(), now)
		if err != nil {
			t.Fatal(err)
		}
		available, reserved, sold := 7, 3, 0
		references := make(map[string]bool)
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.Int64Range(0, int64(20*time.Minute)).Draw(t, "later")))
			var transition order.Transition
			switch rapid.SampledFrom([]string{"pay", "cancel", "expire", "extend", "more"}).Draw(t, "what") {
			case "pay":
				transition = order.Pay(order.Payment{Reference: rapid.SampledFrom([]string{"p-1", "p-2", "p-3"}).Draw(t, "reference")})
			case "cancel":
				transition = order.Cancel(order.By{})
			case "expire":
				transition = order.Expire
			case "extend":
				transition = order.Extend(now.Add(time.Duration(rapid.Int64Range(-1, int64(time.Hour)).Draw(t, "to"))), order.By{})
			case "more":
				transition = order.ExtendBy(time.Minute, order.By{})
			}
			before := o
			after, event, err := transition(before, now)
			if again, _, _ := transition(before, now); cmp.Diff(after, again) != "" {
				t.Fatal("a transition is not pure")
			}
			o = after
			if before.Status != order.Pending && (after.Status != before.Status || !after.ClosedAt.Equal(before.ClosedAt) || !after.Deadline.Equal(before.Deadline)) {
				t.Fatalf("%s became %s", before.Status, after.Status)
			}
			if event.None() != (after.Version == before.Version) || after.Version > before.Version+1 {
				t.Fatalf("version %d became %d, event %q", before.Version, after.Version, event.Type)
			}
			switch event.Type {
			case order.EventPaid:
				reserved, sold = reserved-3, sold+3
			case order.EventCancelled, order.EventExpired:
				reserved, available = reserved-3, available+3
			}
			if event.Type == order.EventExpired && now.Before(before.Deadline) {
				t.Fatalf("expired at %s, before %s", now, before.Deadline)
			}
			if event.Type == order.EventPaid || event.Type == order.EventLatePayment {
				if references[event.Payment.Reference] {
					t.Fatalf("payment %s was recorded twice", event.Payment.Reference)
				}
				references[event.Payment.Reference] = true
				if event.Payment.Late != (err != nil) {
					t.Fatalf("payment late: %v, error: %v", event.Payment.Late, err)
				}
			}
			if reserved < 0 || available+reserved+sold != 10 || (reserved == 3) != (o.Status == order.Pending) || (sold == 3) != (o.Status == order.Paid) {
				t.Fatalf("%s with %d available, %d reserved, %d sold", o.Status, available, reserved, sold)
			}
		}
	})
}

// Who asked learns why, whatever was wrong with the draft: what fits an order is in the event, and all that
// is longer is not.
func TestADraftIsRefused(t *testing.T) {
	cause := fmt.Errorf("%w: because", order.ErrInvalid)
	whole := order.Order{
		ID: "o-1", Customer: "customer-1", Region: "eu", Tags: []string{"vip", "web"}, Lines: sample().Lines,
		Total: eur(10498), Status: order.Pending, PlacedAt: start, Window: 30 * time.Minute, Deadline: start.Add(30 * time.Minute),
	}
	long := strings.Repeat("x", 1000)
	for _, test := range []struct {
		name  string
		draft func(*order.Draft)
		want  func(*order.Order)
	}{
		{"nothing", func(*order.Draft) {}, func(*order.Order) {}},
		{"no quantity", func(d *order.Draft) { d.Lines[0].Quantity = 0 }, func(o *order.Order) { o.Lines[0].Quantity, o.Total = 0, order.Money{} }},
		{"two currencies", func(d *order.Draft) { d.Lines[1].Price.Currency = "USD" }, func(o *order.Order) { o.Lines[1].Price.Currency, o.Total = "USD", order.Money{} }},
		{"a window that has passed", func(d *order.Draft) { d.Window = -time.Minute }, func(*order.Order) {}},
		{"a window for ever", func(d *order.Draft) { d.Window = 1<<63 - 1 }, func(*order.Order) {}},
		{"texts too long", func(d *order.Draft) { d.Customer, d.Region = long, long }, func(o *order.Order) { o.Customer, o.Region = "", "" }},
		{"a tag too long", func(d *order.Draft) { d.Tags[1] = long }, func(o *order.Order) { o.Tags = nil }},
		{"too many tags", func(d *order.Draft) { d.Tags = make([]string, 21) }, func(o *order.Order) { o.Tags = nil }},
		{"an sku too long", func(d *order.Draft) { d.Lines[1].SKU = long }, func(o *order.Order) { o.Lines, o.Total = nil, order.Money{} }},
		{"a currency too long", func(d *order.Draft) { d.Lines[1].Price.Currency = long }, func(o *order.Order) { o.Lines, o.Total = nil, order.Money{} }},
		{"too many lines", func(d *order.Draft) { d.Lines = make([]order.Line, 201) }, func(o *order.Order) { o.Lines, o.Total = nil, order.Money{} }},
	} {
		d, want := sample(), whole
		want.Lines = slices.Clone(whole.Lines)
		test.draft(&d)
		test.want(&want)
		e := order.RefuseDraft(d, cause, start)
		if e.Type != order.EventRefused || !errors.Is(e.Cause, cause) || !e.At.Equal(start) || e.Detail() != "invalid: because" {
			t.Errorf("%s: %+v", test.name, e)
		}
		if diff := cmp.Diff(want, e.Order); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.name, diff)
		}
	}
}

// The same request refused again is the same event, and another one is another.
func TestARequestIsRefusedOnce(t *testing.T) {
	refused := func(id, request string, at time.Time) string {
		return order.RefuseDraft(order.Draft{ID: id, Request: request}, order.ErrInvalid, at).ID
	}
	later := start.Add(time.Hour)
	for _, test := range []struct {
		a, b string
		same bool
	}{
		{refused("o-1", "r-1", start), refused("o-1", "r-1", later), true},
		{refused("o-1", "r-1", start), refused("o-1", "r-2", start), false},
		{refused("o-1", "r-1", start), refused("o-2", "r-1", start), false},
		{refused("o-1", "", start), refused("o-1", "", later), false},
	} {
		if (test.a == test.b) != test.same {
			t.Errorf("%s and %s", test.a, test.b)
		}
	}
	// A request may be any bytes, and an event's id may not.
	if id := refused("o-1", "\x00\xff "+strings.Repeat("r", 1000), start); order.ValidateID("id", id) != nil {
		t.Errorf("the event is %q", id)
	}
}

// An id may be refused many times, and each is an event of its own, whose id stays the same.
func TestEveryRefusalIsAnEventOfItsOwn(t *testing.T) {
	o, shortage := pending(t), &order.ShortageError{Short: []string{"shoe"}}
	first, same, later := order.Refuse(o, shortage, start), order.Refuse(o, shortage, start), order.Refuse(o, shortage, start.Add(time.Microsecond))
	if first.ID != same.ID || first.ID == later.ID || first.Order.Version != 0 {
		t.Errorf("%s, %s and later %s", first.ID, same.ID, later.ID)
	}
}
