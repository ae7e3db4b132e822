package ordertest_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"gorm.io/gorm"

	"github.com/lapse-go/lapse/amqp/amqptest"
	"github.com/lapse-go/lapse/order"
	"github.com/lapse-go/lapse/order/orderamqp"
	"github.com/lapse-go/lapse/order/orderdb"
	"github.com/lapse-go/lapse/order/ordertest"
)

// TestLedger lets a real shop do a little of everything, of which a ledger has to find that all is well.
// Then it falsifies, one at a time, what the ledger reads in the database or what subscribers received, and
// each lie has to be found.
func TestLedger(t *testing.T) {
	db := amqptest.Database(t)
	var events [][]byte
	service := &order.Service{Repository: orderdb.New(db, orderdb.Config{Emit: func(_ *gorm.DB, emitted []order.Event, _ []order.Timer) error {
		for _, e := range emitted {
			m, err := orderamqp.EncodeEvent("test", e)
			if err != nil {
				return err
			}
			events = append(events, m.Body)
		}
		return nil
	}})}

	// The same answers are given to each ledger; all of them come from the service.
	var told []func(*ordertest.Ledger)
	tell := func(f func(*ordertest.Ledger)) { told = append(told, f) }
	stock, err := service.SetStock(t.Context(), "tea", 100)
	if err != nil {
		t.Fatal(err)
	}
	place := func(id string, answered bool) order.Order {
		d := order.Draft{ID: id, Window: time.Millisecond, Lines: []order.Line{{SKU: "tea", Quantity: 2, Price: order.Money{Amount: 300, Currency: "EUR"}}}}
		if strings.HasPrefix(id, "refused") {
			d.Lines[0].Quantity = 1000
		}
		o, err := service.Place(t.Context(), d)
		if !answered {
			tell(func(l *ordertest.Ledger) { l.Placed(d, order.Order{}, context.DeadlineExceeded) })
		} else {
			tell(func(l *ordertest.Ledger) { l.Placed(d, o, err) })
		}
		return o
	}
	pay := func(id, reference string) {
		o, err := service.Pay(t.Context(), id, order.Payment{Reference: reference})
		tell(func(l *ordertest.Ledger) { l.Paid(id, reference, o, err) })
	}
	for _, id := range []string{"paid", "paid-twice", "cancelled", "extended", "expired", "late", "refused"} {
		place(id, true)
	}
	place("unanswered", false)
	tell(func(l *ordertest.Ledger) { // one of which nothing is known, and that is not there
		l.Placed(order.Draft{ID: "vanished"}, order.Order{}, fmt.Errorf("read: %w", order.ErrUnavailable))
	})
	pay("paid", "p1")
	pay("paid", "p1")
	pay("paid-twice", "p2")
	pay("paid-twice", "p3")
	cancelled, err := service.Cancel(t.Context(), "cancelled", order.By{Who: "test"})
	tell(func(l *ordertest.Ledger) { l.Cancelled("cancelled", cancelled, err) })
	later := time.Now().Add(100 * time.Millisecond)
	extended, err := service.Extend(t.Context(), "extended", later, order.By{Who: "test"})
	tell(func(l *ordertest.Ledger) { l.Extended("extended", extended, err) })
	for _, id := range []string{"expired", "late", "unanswered", "extended"} {
		for {
			got, err := service.Expire(t.Context(), []string{id})
			if err != nil {
				t.Fatal(err)
			}
			if got.Orders[0].Outcome == order.OutcomeExpired {
				break
			}
			time.Sleep(got.Orders[0].Remaining)
		}
	}
	pay("late", "p4")

	event := func(id string) []byte {
		i := slices.IndexFunc(events, func(body []byte) bool { return strings.Contains(string(body), `"id":"`+id+`"`) })
		if i < 0 {
			t.Fatalf("no event %s", id)
		}
		return events[i]
	}
	judge := func(l lie) *ordertest.Verdict {
		t.Helper()
		ledger := ordertest.NewLedger(stock)
		for _, f := range told {
			f(ledger)
		}
		for _, body := range events {
			if l.only != "" && !strings.Contains(string(body), `"type":"`+string(l.only)+`"`) {
				continue
			}
			if l.unheard == "" || !strings.Contains(string(body), `"id":"`+l.unheard+`"`) {
				ledger.Received(body)
			}
		}
		if l.only != "" {
			ledger.Publishes(l.only)
		}
		if l.told != nil {
			l.told(ledger)
		}
		v, err := ledger.Judge(t.Context(), falsified{service, l})
		if err != nil {
			t.Fatal(err)
		}
		return v
	}

	v := judge(lie{told: func(l *ordertest.Ledger) { l.Received(event("expired.2")) }})
	t.Logf("\n%s", v)
	if late := v.Lateness(func(o order.Order) bool { return o.ID == "extended" }); late.Orders != 1 || late.Max < 0 || late.P99 != late.Max {
		t.Errorf("the lateness of one order is %+v", late)
	}
	wantCounts(t, v, ordertest.Verdict{
		OK: true, Attempted: 9, Confirmed: 6, Refused: 1, Unknown: 2, Recovered: 1,
		Paid: 2, Cancelled: 1, Expired: 4, LatePayments: 2, Events: 17, Redelivered: 1, Refusals: 1,
	})

	if v := judge(lie{only: order.EventExpired}); !v.OK || v.Events != 4 {
		t.Errorf("of a shop that publishes expiries only:\n%s", v)
	}

	counts := func(v *ordertest.Verdict) map[string]bool {
		return map[string]bool{
			"lost": v.Lost > 0, "duplicated": v.Duplicated > 0, "unexpected": v.Unexpected > 0,
			"unfinished": v.Unfinished > 0, "paid but expired": v.PaidButExpired > 0, "early": v.Early > 0,
		}
	}
	replace := func(body []byte, pairs ...string) []byte {
		return []byte(strings.NewReplacer(pairs...).Replace(string(body)))
	}
	for _, test := range []struct {
		name string
		lie
		found string
	}{
		{"a confirmed order is gone", lie{gone: "expired"}, "lost"},
		{"an event did not come", lie{unheard: "expired.2"}, "lost"},
		{"a payment is gone", lie{id: "late", order: func(o *order.Order) { o.Payments = nil }}, "lost"},
		{"a cancelled order is not", lie{id: "cancelled", order: func(o *order.Order) { o.Status, o.Version = order.Pending, 1 }}, "lost"},
		{"stock came back twice", lie{stock: func(s *order.Stock) { s.Available += 2 }}, "duplicated"},
		{"stock did not come back", lie{stock: func(s *order.Stock) { s.Available, s.Reserved = s.Available-2, 2 }}, "unexpected"},
		{"an expiry has two events", lie{told: func(l *ordertest.Ledger) {
			l.Received(replace(event("expired.2"), `"id":"expired.2"`, `"id":"another"`))
		}}, "duplicated"},
		{"an expiry has a second event with a version of its own", lie{told: func(l *ordertest.Ledger) {
			l.Received(replace(event("expired.2"), `"id":"expired.2"`, `"id":"another"`, `"version":2`, `"version":3`))
		}}, "duplicated"},
		{"a late payment has two events", lie{told: func(l *ordertest.Ledger) {
			l.Received(replace(event("late.3"), `"id":"late.3"`, `"id":"another"`, `"version":3`, `"version":4`))
		}}, "duplicated"},
		{"an order is closed twice", lie{id: "expired", timeline: func(entries []order.Entry) []order.Entry {
			again := entries[len(entries)-1]
			again.Version++
			return append(entries, again)
		}}, "duplicated"},
		{"versions have a gap", lie{id: "paid", timeline: func(entries []order.Entry) []order.Entry {
			entries[1].Version = 3
			return entries
		}}, "unexpected"},
		{"an order expired before its deadline", lie{id: "expired", order: func(o *order.Order) {
			o.ClosedAt = o.Deadline.Add(-time.Microsecond)
		}}, "early"},
		{"an order expired by a deadline of which nobody was told", lie{id: "extended", order: func(o *order.Order) {
			o.Deadline, o.ClosedAt = o.Deadline.Add(-time.Second), o.Deadline.Add(-time.Second)
		}}, "early"},
		{"a paid order expired", lie{id: "paid", order: func(o *order.Order) {
			o.Status, o.Payments[0].Late = order.Expired, true
		}}, "paid but expired"},
		{"an expired order became paid", lie{id: "late", order: func(o *order.Order) {
			o.Status, o.Payments[0].Late = order.Paid, false
		}}, "paid but expired"},
		{"an order is still pending", lie{id: "unanswered", order: func(o *order.Order) { o.Status = order.Pending }}, "unfinished"},
		{"a refused order is there", lie{told: func(l *ordertest.Ledger) {
			l.Placed(order.Draft{ID: "expired-2"}, order.Order{}, order.ErrOutOfStock)
		}, alias: map[string]string{"expired-2": "expired"}}, "unexpected"},
		{"nobody placed an order that has an event", lie{told: func(l *ordertest.Ledger) {
			l.Received(replace(event("expired.1"), "expired", "ghost"))
		}}, "unexpected"},
		{"one of the few events did not come", lie{only: order.EventExpired, unheard: "expired.2"}, "lost"},
		{"one of the few events came for two", lie{only: order.EventExpired, told: func(l *ordertest.Ledger) {
			l.Received(replace(event("expired.2"), `"id":"expired.2"`, `"id":"another"`))
		}}, "duplicated"},
		{"one of the few events is of another type", lie{only: order.EventExpired, told: func(l *ordertest.Ledger) {
			l.Received(event("paid.2"))
		}}, "unexpected"},
		{"one of the few events is early", lie{only: order.EventExpired, id: "expired", order: func(o *order.Order) {
			o.Deadline = o.Deadline.Add(time.Hour)
		}}, "early"},
	} {
		t.Run(test.name, func(t *testing.T) {
			v := judge(test.lie)
			if v.OK || len(v.Problems) == 0 || !counts(v)[test.found] {
				t.Errorf("it was not found to be %s:\n%s", test.found, v)
			}
		})
	}
}

// lie is what a ledger is made to believe.
type lie struct {
	gone     string // the order is not in the database
	unheard  string // the event did not come
	id       string // of the order that is falsified
	order    func(*order.Order)
	timeline func([]order.Entry) []order.Entry
	stock    func(*order.Stock)
	alias    map[string]string
	told     func(*ordertest.Ledger)
	only     order.EventType // the shop publishes no others
}

// falsified is books that tell a lie.
type falsified struct {
	ordertest.Books
	lie lie
}

func (f falsified) Get(ctx context.Context, id string) (order.Order, error) {
	if id == f.lie.gone {
		return order.Order{}, order.ErrNotFound
	}
	if real, ok := f.lie.alias[id]; ok {
		id = real
	}
	o, err := f.Books.Get(ctx, id)
	if id == f.lie.id && f.lie.order != nil {
		f.lie.order(&o)
	}
	return o, err
}

func (f falsified) Timeline(ctx context.Context, id string) ([]order.Entry, error) {
	if real, ok := f.lie.alias[id]; ok {
		id = real
	}
	entries, err := f.Books.Timeline(ctx, id)
	if id == f.lie.id && f.lie.timeline != nil {
		entries = f.lie.timeline(entries)
	}
	return entries, err
}

func (f falsified) Stock(ctx context.Context, skus ...string) ([]order.Stock, error) {
	stock, err := f.Books.Stock(ctx, skus...)
	if f.lie.stock != nil {
		f.lie.stock(&stock[0])
	}
	return stock, err
}

func wantCounts(t *testing.T, v *ordertest.Verdict, want ordertest.Verdict) {
	t.Helper()
	got := *v
	exported := cmp.FilterPath(func(p cmp.Path) bool {
		field, ok := p.Last().(cmp.StructField)
		return ok && (field.Name() == "problems" || field.Name() == "expired" || field.Name() == "Problems")
	}, cmp.Ignore())
	if diff := cmp.Diff(want, got, exported); diff != "" {
		t.Errorf("verdict (-want +got):\n%s%s", diff, strings.Join(v.Problems, "\n"))
	}
}

// However bad it is, the problems that are described are few, and all are counted.
func TestLedgerWithManyProblems(t *testing.T) {
	ledger := ordertest.NewLedger()
	for i := range 1000 {
		ledger.Placed(order.Draft{ID: fmt.Sprint("o", i)}, order.Order{}, nil)
	}
	v, err := ledger.Judge(t.Context(), nothing{})
	if err != nil {
		t.Fatal(err)
	}
	if v.OK || v.Lost != 1000 || len(v.Problems) != ordertest.MaxProblems || !strings.Contains(v.String(), "and 950 more") {
		t.Errorf("the verdict is\n%s", v)
	}
}

// nothing is books that are empty.
type nothing struct{ ordertest.Books }

func (nothing) Get(context.Context, string) (order.Order, error) {
	return order.Order{}, order.ErrNotFound
}
