package ordertest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lapse-go/lapse/order"
)

// Planted is an order that a test needs.
type Planted struct {
	ID     string
	Status order.Status
	// Due is when its deadline is, from now on by the database's clock; negative for one that has
	// passed. Those that are planted together with the same Due have the same deadline.
	Due time.Duration
}

// Subject is a store under test, empty, and what it takes to test it. The store is used for one test.
type Subject struct {
	Store order.Store
	// ID is the store's id for the name that a test gives an order: any ids that the store can have, in the order
	// of the names' bytes. The names themselves when nil.
	ID func(name string) string
	// Strange are ids that no order has, but that the database may take for that of "order-a1", or refuse to compare.
	// What looks like the name itself when nil.
	Strange []string
	// Plant makes orders.
	Plant func(t testing.TB, orders ...Planted)
	// Pay pays an order with a reference of its own. It fails if the order is not pending any more.
	Pay func(ctx context.Context, id string) error
	// SetPaused pauses or resumes expiry.
	SetPaused func(t testing.TB, paused bool)
	// Poison, if set, makes a planted order one that cannot be expired, without any fault of the
	// others. The tests of [order.OutcomeFailed] are left out when nil.
	Poison func(t testing.TB, id string)
	// Contend, if set, makes a planted order one whose expiry loses every conflict with others, as if they
	// had it locked for good. The test is left out when nil.
	Contend func(t testing.TB, id string)
	// Book, if set, is the same store, on which orders are also placed, and Published lists the events of an
	// order that it had published, in their order. The tests of [order.Book].Refuse are left out when nil.
	Book      order.Book
	Published func(t testing.TB, id string) []order.Event
	// Away is a store like this whose database cannot be reached. The test is left out when nil.
	Away order.Store
}

// TestStore tests that a store keeps the contract of [order.Store], and what it promises of refusals if it
// is an [order.Book]. Open makes a new subject for each
// of the tests, which run one after the other.
func TestStore(t *testing.T, open func(t *testing.T) Subject) {
	for _, test := range []struct {
		name string
		run  func(*testing.T, Subject)
	}{
		{"orders are found by their exact ids", testFind},
		{"each id gets its own answer, in their order", testOutcomes},
		{"nothing given, nothing expired", testNothing},
		{"an order is expired once, however many try at once", testOnce},
		{"a payment that commits first wins", testPayment},
		{"nothing is expired while expiry is paused", testPaused},
		{"overdue orders are listed page by page", testOverdue},
		{"an order that fails costs the others nothing", testPoison},
		{"an order that others keep locked costs the rest nothing, and is not to blame", testContended},
		{"the sweep goes past an order that fails", testSweep},
		{"who is refused is told so", testRefuse},
		{"a request that is refused again is told the same", testRefusedAgain},
		{"a database that is away is nobody's fault", testAway},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := open(t)
			if s.ID == nil {
				s.ID = func(name string) string { return name }
			}
			if s.Strange == nil {
				s.Strange = strange
			}
			test.run(t, s)
		})
	}
}

// strange looks like "order-a1".
var strange = []string{"Order-A1", "order-a1 ", " order-a1", "order-a1\x00", "ordér-a1", "🛒", "", "\xff", strings.Repeat("x", 65), "'"}

func testFind(t *testing.T, s Subject) {
	a1, upperA2 := s.ID("order-a1"), s.ID("ORDER-A2")
	s.Plant(t, Planted{a1, order.Pending, time.Hour}, Planted{upperA2, order.Paid, time.Hour})
	got, err := s.Store.Find(t.Context(), append(slices.Clone(s.Strange), a1, upperA2, s.ID("order-a2"), a1))
	if err != nil {
		t.Fatal(err)
	}
	statuses := make(map[string]order.Status)
	for id, head := range got {
		statuses[id] = head.Status
		if head.ID != id || head.Deadline.IsZero() || head.Deadline.Location() != time.UTC {
			t.Errorf("%s was found as %+v", id, head)
		}
	}
	if diff := cmp.Diff(map[string]order.Status{a1: order.Pending, upperA2: order.Paid}, statuses); diff != "" {
		t.Errorf("found (-want +got):\n%s", diff)
	}
}

func testOutcomes(t *testing.T, s Subject) {
	s.Plant(t,
		Planted{s.ID("due"), order.Pending, -time.Second},
		Planted{s.ID("order-a1"), order.Pending, -time.Second},
		Planted{s.ID("early"), order.Pending, time.Hour},
		Planted{s.ID("paid"), order.Paid, -time.Second},
		Planted{s.ID("cancelled"), order.Cancelled, -time.Second},
		Planted{s.ID("expired"), order.Expired, -time.Second})
	want := []order.Expiry{
		{ID: s.ID("paid"), Outcome: order.OutcomeAlreadyPaid},
		{ID: s.ID("due"), Outcome: order.OutcomeExpired},
		{ID: s.ID("missing"), Outcome: order.OutcomeNotFound},
		{ID: s.ID("early"), Outcome: order.OutcomeNotDue},
		{ID: s.ID("cancelled"), Outcome: order.OutcomeAlreadyCancelled},
		{ID: s.ID("due"), Outcome: order.OutcomeAlreadyExpired},
		{ID: s.ID("expired"), Outcome: order.OutcomeAlreadyExpired},
		{ID: s.ID("early"), Outcome: order.OutcomeNotDue},
	}
	for _, id := range s.Strange {
		want = append(want, order.Expiry{ID: id, Outcome: order.OutcomeNotFound})
	}
	ids := make([]string, len(want))
	for i, w := range want {
		ids[i] = w.ID
	}
	got := expire(t, s.Store, ids...)
	for i := range got.Orders {
		e := &got.Orders[i]
		if known := e.Outcome != order.OutcomeNotFound; known == e.Deadline.IsZero() {
			t.Errorf("%s %s: its deadline is %s", e.ID, e.Outcome, e.Deadline)
		}
		if e.Outcome == order.OutcomeNotDue && e.Remaining != e.Deadline.Sub(got.Now) {
			t.Errorf("%s: %s remain until %s, but it is %s", e.ID, e.Remaining, e.Deadline, got.Now)
		}
		if e.Outcome == order.OutcomeExpired && got.Now.Before(e.Deadline) {
			t.Errorf("%s was expired at %s, before %s", e.ID, got.Now, e.Deadline)
		}
		e.Deadline, e.Remaining = time.Time{}, 0
	}
	if diff := cmp.Diff(want, got.Orders); diff != "" {
		t.Errorf("outcomes (-want +got):\n%s", diff)
	}
	wantStatuses(t, s.Store, map[string]order.Status{
		s.ID("due"): order.Expired, s.ID("order-a1"): order.Pending, s.ID("early"): order.Pending,
		s.ID("paid"): order.Paid, s.ID("cancelled"): order.Cancelled, s.ID("expired"): order.Expired,
	})
	wantOutcomes(t, expire(t, s.Store, s.ID("due")), order.OutcomeAlreadyExpired)
}

func testNothing(t *testing.T, s Subject) {
	if got := expire(t, s.Store); len(got.Orders) != 0 || got.Now.IsZero() {
		t.Errorf("expiring nothing gave %+v", got)
	}
	if found, err := s.Store.Find(t.Context(), nil); err != nil || len(found) != 0 {
		t.Errorf("finding nothing gave %v, %v", found, err)
	}
}

// Two replicas with the same orders, the sweep and an operator at the same time, as in
// github.com/magento/magento2/issues/9969.
func testOnce(t *testing.T, s Subject) {
	const orders, callers = 500, 4
	ids := make([]string, orders)
	planted := make([]Planted, orders)
	for i := range ids {
		ids[i] = s.ID(fmt.Sprintf("o%03d", i))
		planted[i] = Planted{ids[i], order.Pending, -time.Second}
	}
	s.Plant(t, planted...)
	var mu sync.Mutex
	expired := make(map[string]int)
	var all sync.WaitGroup
	for caller := range callers {
		all.Go(func() {
			mine := append([]string(nil), ids...)
			if caller%2 == 1 {
				for i, j := 0, len(mine)-1; i < j; i, j = i+1, j-1 {
					mine[i], mine[j] = mine[j], mine[i]
				}
			}
			got, err := s.Store.Expire(t.Context(), mine)
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			for _, e := range got.Orders {
				switch e.Outcome {
				case order.OutcomeExpired:
					expired[e.ID]++
				case order.OutcomeAlreadyExpired:
				default:
					t.Errorf("%s: %s %v", e.ID, e.Outcome, e.Err)
				}
			}
		})
	}
	all.Wait()
	for _, id := range ids {
		if expired[id] != 1 {
			t.Errorf("%s was expired %d times", id, expired[id])
		}
	}
}

// As in github.com/woocommerce/woocommerce-gateway-stripe/issues/5268: the payment commits between
// the moment at which the order was found unpaid and the one at which it is expired.
func testPayment(t *testing.T, s Subject) {
	rounds := 300
	if testing.Short() {
		rounds = 50
	}
	planted := make([]Planted, rounds)
	for i := range planted {
		planted[i] = Planted{s.ID(fmt.Sprintf("o%04d", i)), order.Pending, -time.Second}
	}
	s.Plant(t, planted...)
	paid := 0
	for _, p := range planted {
		var payErr error
		var got order.Expiries
		var both sync.WaitGroup
		both.Go(func() { payErr = s.Pay(t.Context(), p.ID) })
		both.Go(func() { got = expire(t, s.Store, p.ID) })
		both.Wait()
		if len(got.Orders) != 1 {
			t.Fatalf("%s: no answer", p.ID)
		}
		outcome, want := got.Orders[0].Outcome, order.Expired
		if payErr == nil {
			want = order.Paid
			paid++
		}
		if (outcome == order.OutcomeExpired) == (payErr == nil) {
			t.Errorf("%s: expiry says %q, payment says %v", p.ID, outcome, payErr)
		}
		wantStatuses(t, s.Store, map[string]order.Status{p.ID: want})
	}
	t.Logf("the payment won %d of %d times", paid, rounds)
}

func testPaused(t *testing.T, s Subject) {
	due := s.ID("due")
	s.Plant(t, Planted{due, order.Pending, -time.Hour})
	s.SetPaused(t, true)
	if paused, err := s.Store.Paused(t.Context()); err != nil || !paused {
		t.Errorf("paused: %v, %v", paused, err)
	}
	if got, err := s.Store.Expire(t.Context(), []string{due}); !errors.Is(err, order.ErrPaused) {
		t.Errorf("expiring gave %+v, %v", got, err)
	}
	summary, err := sweep(s.Store).Once(t.Context())
	if diff := cmp.Diff(order.Summary{Paused: true}, summary); err != nil || diff != "" {
		t.Errorf("the sweep said %v (-want +got):\n%s", err, diff)
	}
	wantStatuses(t, s.Store, map[string]order.Status{due: order.Pending})
	s.SetPaused(t, false)
	wantOutcomes(t, expire(t, s.Store, due), order.OutcomeExpired)
}

func testOverdue(t *testing.T, s Subject) {
	s.Plant(t,
		Planted{s.ID("just"), order.Pending, -2 * time.Second}, Planted{s.ID("early"), order.Pending, time.Hour},
		Planted{s.ID("paid"), order.Paid, -time.Hour}, Planted{s.ID("cancelled"), order.Cancelled, -time.Hour}, Planted{s.ID("expired"), order.Expired, -time.Hour},
		Planted{s.ID("b"), order.Pending, -time.Minute}, Planted{s.ID("a"), order.Pending, -time.Minute}, Planted{s.ID("B"), order.Pending, -time.Minute},
		Planted{s.ID("z"), order.Pending, -time.Hour}, Planted{s.ID("y"), order.Pending, -2 * time.Minute})
	want := []string{s.ID("z"), s.ID("y"), s.ID("B"), s.ID("a"), s.ID("b")}
	for _, limit := range []int{1, 2, 100} {
		var got []string
		var after order.Cursor
		for {
			page, err := s.Store.Overdue(t.Context(), 30*time.Second, after, limit)
			if err != nil {
				t.Fatal(err)
			}
			if len(page) > limit {
				t.Fatalf("a page of %d has %d", limit, len(page))
			}
			if len(page) == 0 || len(got) > 10 {
				break
			}
			for _, o := range page {
				got = append(got, o.ID)
				if o.Late < 30*time.Second || o.Late > 2*time.Hour {
					t.Errorf("%s is %s late", o.ID, o.Late)
				}
			}
			after = page[len(page)-1].Cursor()
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("overdue, in pages of %d (-want +got):\n%s", limit, diff)
		}
	}
}

func testPoison(t *testing.T, s Subject) {
	ids := plantPoison(t, s)
	before, o13, after := ids[12], ids[13], ids[14]
	for _, e := range expire(t, s.Store, ids...).Orders {
		switch {
		case e.ID != o13 && e.Outcome != order.OutcomeExpired:
			t.Errorf("%s: %s %v", e.ID, e.Outcome, e.Err)
		case e.ID == o13 && (e.Outcome != order.OutcomeFailed || e.Err == nil || errors.Is(e.Err, order.ErrUnavailable)):
			t.Errorf("the poisoned order: %s %v", e.Outcome, e.Err)
		}
	}
	wantStatuses(t, s.Store, map[string]order.Status{before: order.Expired, o13: order.Pending, after: order.Expired})
}

func testContended(t *testing.T, s Subject) {
	if s.Contend == nil {
		t.Skip("the subject has no Contend")
	}
	ids := plantMany(t, s)
	before, o13, after := ids[12], ids[13], ids[14]
	s.Contend(t, o13)
	for _, batch := range [][]string{ids, {o13}} {
		for _, e := range expire(t, s.Store, batch...).Orders {
			switch {
			case e.ID != o13 && e.Outcome != order.OutcomeExpired:
				t.Errorf("%s: %s %v", e.ID, e.Outcome, e.Err)
			case e.ID == o13 && (e.Outcome != order.OutcomeFailed || !errors.Is(e.Err, order.ErrUnavailable)):
				t.Errorf("the order that others have, in a batch of %d: %s %v", len(batch), e.Outcome, e.Err)
			}
		}
	}
	wantStatuses(t, s.Store, map[string]order.Status{before: order.Expired, o13: order.Pending, after: order.Expired})
}

func testSweep(t *testing.T, s Subject) {
	ids := plantPoison(t, s)
	sweep := sweep(s.Store)
	sweep.Batch = 7
	for _, want := range []order.Summary{
		{Found: len(ids), Expired: len(ids) - 1, Failed: 1},
		{Found: 1, Failed: 1},
	} {
		got, err := sweep.Once(t.Context())
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("the sweep said %v (-want +got):\n%s", err, diff)
		}
	}
}

// plantPoison plants 30 overdue orders, of which o13 cannot be expired.
func plantPoison(t *testing.T, s Subject) []string {
	if s.Poison == nil {
		t.Skip("the subject has no Poison")
	}
	ids := plantMany(t, s)
	s.Poison(t, ids[13])
	return ids
}

// plantMany plants 30 overdue orders, o00 to o29.
func plantMany(t *testing.T, s Subject) []string {
	ids := make([]string, 30)
	planted := make([]Planted, len(ids))
	for i := range ids {
		ids[i] = s.ID(fmt.Sprintf("o%02d", i))
		planted[i] = Planted{ids[i], order.Pending, -time.Hour}
	}
	s.Plant(t, planted...)
	return ids
}

func testRefuse(t *testing.T, s Subject) {
	if s.Book == nil {
		t.Skip("the subject has no Book")
	}
	s.Plant(t, Planted{"taken", order.Pending, time.Hour})
	before, err := s.Book.Get(t.Context(), "taken")
	if err != nil {
		t.Fatal(err)
	}
	published := len(s.Published(t, "taken"))

	refused := []struct {
		draft order.Draft
		cause error
	}{
		{order.Draft{ID: "taken", Customer: "another"}, fmt.Errorf("%w: the id is taken", order.ErrConflict)},
		{order.Draft{ID: "empty"}, fmt.Errorf("%w: no lines", order.ErrInvalid)},
		{order.Draft{ID: "endless", Window: 1<<63 - 1, Customer: strings.Repeat("x", 1<<20)}, fmt.Errorf("%w: too much", order.ErrInvalid)},
		{order.Draft{ID: "odd", Customer: "\xff\x00🛒", Region: "'"}, fmt.Errorf("%w: no UTF-8: \xff", order.ErrInvalid)},
		{order.Draft{ID: "short", Lines: before.Lines}, &order.ShortageError{Short: []string{before.Lines[0].SKU}}},
	}
	var drafts []order.Draft
	var errs []error
	for _, r := range refused {
		drafts, errs = append(drafts, r.draft), append(errs, r.cause)
	}
	if err := s.Book.Refuse(t.Context(), drafts, errs); err != nil {
		t.Fatal(err)
	}
	for _, r := range refused {
		events := s.Published(t, r.draft.ID)
		if r.draft.ID == "taken" {
			events = events[published:]
		}
		if len(events) != 1 {
			t.Errorf("%s: its events are %+v", r.draft.ID, events)
			continue
		}
		e := events[0]
		if e.Type != order.EventRefused || e.ID == "" || e.Order.ID != r.draft.ID || e.Order.Version != 0 || e.At.IsZero() {
			t.Errorf("%s: its event is %+v", r.draft.ID, e)
		}
		if said := strings.ToValidUTF8(r.cause.Error(), "\uFFFD"); e.Cause == nil || strings.ToValidUTF8(e.Cause.Error(), "\uFFFD") != said {
			t.Errorf("%s: its event says %v, want %s", r.draft.ID, e.Cause, said)
		}
		if _, err := s.Book.Get(t.Context(), r.draft.ID); r.draft.ID != "taken" && !errors.Is(err, order.ErrNotFound) {
			t.Errorf("%s was refused, and is: %v", r.draft.ID, err)
		}
	}
	after, err := s.Book.Get(t.Context(), "taken")
	if diff := cmp.Diff(before, after); err != nil || diff != "" {
		t.Errorf("the order that has the id is %v (-before +after):\n%s", err, diff)
	}
	if entries, err := s.Book.Timeline(t.Context(), "taken"); err != nil || len(entries) != 1 {
		t.Errorf("its timeline is %+v, %v", entries, err)
	}
	if err := s.Book.Refuse(t.Context(), nil, nil); err != nil {
		t.Errorf("refusing nobody: %v", err)
	}
}

// Whether a draft lacks stock or something else, its request has one event; without a request each
// refusal is another.
func testRefusedAgain(t *testing.T, s Subject) {
	if s.Book == nil {
		t.Skip("the subject has no Book")
	}
	line := order.Line{SKU: "never-in-stock", Quantity: 1, Price: order.Money{Amount: 100, Currency: "EUR"}}
	lacking := func(id, request string) order.Draft {
		return order.Draft{ID: id, Request: request, Lines: []order.Line{line}}
	}
	const requests = 2
	for i := range 2 * requests {
		request := fmt.Sprint("request-", i/2)
		placed, err := s.Book.Place(t.Context(), []order.Draft{lacking("known", request), lacking("unknown", "")})
		if err != nil || !errors.Is(placed[0].Err, order.ErrUnknownSKU) || !errors.Is(placed[1].Err, order.ErrUnknownSKU) {
			t.Fatalf("placing: %+v, %v", placed, err)
		}
		refused := order.Draft{ID: "invalid", Request: request}
		if err := s.Book.Refuse(t.Context(), []order.Draft{refused}, []error{order.ErrInvalid}); err != nil {
			t.Fatal(err)
		}
	}
	for id, want := range map[string]int{"known": requests, "invalid": requests, "unknown": 2 * requests} {
		events := s.Published(t, id)
		ids := make(map[string]bool)
		for _, e := range events {
			ids[e.ID] = true
		}
		if len(events) != 2*requests || len(ids) != want {
			t.Errorf("%s was refused %d times, by events %v", id, len(events), ids)
		}
	}
}

func testAway(t *testing.T, s Subject) {
	if s.Away == nil {
		t.Skip("the subject has no Away")
	}
	for name, call := range map[string]func() error{
		"Find":    func() error { _, err := s.Away.Find(t.Context(), []string{"a"}); return err },
		"Expire":  func() error { _, err := s.Away.Expire(t.Context(), []string{"a", "b"}); return err },
		"Overdue": func() error { _, err := s.Away.Overdue(t.Context(), 0, order.Cursor{}, 1); return err },
		"Paused":  func() error { _, err := s.Away.Paused(t.Context()); return err },
		"Refuse": func() error {
			if away, ok := s.Away.(order.Book); ok && s.Book != nil {
				return away.Refuse(t.Context(), []order.Draft{{ID: "a"}}, []error{order.ErrInvalid})
			}
			return order.ErrUnavailable
		},
		"Sweep": func() error { _, err := sweep(s.Away).Once(t.Context()); return err },
	} {
		if err := call(); !errors.Is(err, order.ErrUnavailable) {
			t.Errorf("%s said %v, which is not %v", name, err, order.ErrUnavailable)
		}
	}
}

func sweep(s order.Store) *order.Sweep {
	return &order.Sweep{Store: s, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))}
}

func expire(t testing.TB, s order.Store, ids ...string) order.Expiries {
	t.Helper()
	got, err := s.Expire(t.Context(), ids)
	if err != nil {
		t.Errorf("expiring: %v", err)
	}
	return got
}

func wantOutcomes(t testing.TB, got order.Expiries, want ...order.Outcome) {
	t.Helper()
	outcomes := make([]order.Outcome, len(got.Orders))
	for i, e := range got.Orders {
		outcomes[i] = e.Outcome
	}
	if diff := cmp.Diff(want, outcomes); diff != "" {
		t.Errorf("outcomes (-want +got):\n%s", diff)
	}
}

func wantStatuses(t testing.TB, s order.Store, want map[string]order.Status) {
	t.Helper()
	ids := make([]string, 0, len(want))
	for id := range want {
		ids = append(ids, id)
	}
	heads, err := s.Find(t.Context(), ids)
	if err != nil {
		t.Error(err)
	}
	got := make(map[string]order.Status, len(heads))
	for id, head := range heads {
		got[id] = head.Status
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("statuses (-want +got):\n%s", diff)
	}
}
