package ordertest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lapse-go/lapse/order"
)

// Ledger notes, from outside, what clients of a shop were answered and what subscribers of its events
// received, and judges in the end whether the shop's database agrees. It knows nothing of how the shop
// works, so it may stand beside one whose servers are killed meanwhile. Safe for concurrent use.
type Ledger struct {
	mu     sync.Mutex
	stock  map[string]order.Stock // at first
	orders map[string]*account
	// What no order can be blamed for.
	strays []string
	// redelivered are events that came again, as they may.
	redelivered, refusals int
	publishes             []order.EventType // nil for all
}

// account is what is known of one order.
type account struct {
	draft     order.Draft
	attempted bool // placing it was tried
	confirmed bool // a client was told that it is placed
	refused   bool // a client was told that it is not, and no try had an unknown outcome
	unknown   bool // a client got no answer to some operation
	told      []order.Order
	payments  map[string]payment
	events    map[string]received // by event id
}

// payment is what a client was told of a payment, by its reference.
type payment string

const (
	accepted      payment = "accepted"
	tooLate       payment = "too late"
	refusedPay    payment = "refused"
	unknownAnswer payment = "without an answer"
)

// received is what the ledger reads of an event. It reads the published JSON and not a type of this
// module, as a subscriber in another language would.
type received struct {
	ID      string          `json:"id"`
	Type    order.EventType `json:"type"`
	Subject string          `json:"subject"`
	Time    time.Time       `json:"time"`
	Data    struct {
		OrderID  string       `json:"order_id"`
		Version  int64        `json:"version"`
		Status   order.Status `json:"status"`
		Deadline time.Time    `json:"deadline"`
		Payment  *struct {
			Reference string `json:"reference"`
		} `json:"payment"`
	} `json:"data"`
}

// NewLedger is a ledger for a shop that has this stock, and neither orders nor events.
func NewLedger(stock ...order.Stock) *Ledger {
	l := &Ledger{stock: make(map[string]order.Stock), orders: make(map[string]*account)}
	for _, s := range stock {
		l.stock[s.SKU] = s
	}
	return l
}

// Publishes says that the shop publishes events of these types only, and that they need have no versions.
func (l *Ledger) Publishes(types ...order.EventType) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.publishes = types
}

// Placed notes the answer to placing the draft, which has to have an id. An error that says neither
// that the order was placed nor that it was not, such as [order.ErrUnavailable] or a lost connection,
// leaves the outcome unknown; that holds for the other answers too.
func (l *Ledger) Placed(d order.Draft, answer order.Order, err error) {
	l.note(d.ID, func(a *account) {
		if a.attempted && a.confirmed && err != nil && refusal(err) {
			return // the same id with other content, most likely
		}
		if !a.confirmed {
			a.draft = d
		}
		a.attempted = true
		switch {
		case err == nil:
			a.confirmed, a.refused = true, false
			a.told = append(a.told, answer)
		case !refusal(err):
			a.unknown, a.refused = true, false
		case !a.unknown:
			a.refused = true
		}
	})
}

// Paid notes the answer to a payment.
func (l *Ledger) Paid(id, reference string, answer order.Order, err error) {
	l.note(id, func(a *account) {
		said := accepted
		switch {
		case err == nil:
			a.told = append(a.told, answer)
		case errors.Is(err, order.ErrLatePayment), errors.Is(err, order.ErrAlreadyPaid):
			said = tooLate
			a.told = append(a.told, answer)
		case refusal(err):
			said = refusedPay
		default:
			said, a.unknown = unknownAnswer, true
		}
		// A payment that is sent again may be refused, for instance with another amount, after it was
		// taken; an answer is never unknown again.
		if before := a.payments[reference]; before == "" || before == unknownAnswer && said != refusedPay {
			a.payments[reference] = said
		} else if before != said && said != unknownAnswer && said != refusedPay {
			l.stray("payment %s of order %s was first %s and then %s", reference, id, before, said)
		}
	})
}

// Cancelled notes the answer to cancelling.
func (l *Ledger) Cancelled(id string, answer order.Order, err error) { l.changed(id, answer, err) }

// Extended notes the answer to extending.
func (l *Ledger) Extended(id string, answer order.Order, err error) { l.changed(id, answer, err) }

func (l *Ledger) changed(id string, answer order.Order, err error) {
	l.note(id, func(a *account) {
		switch {
		case err == nil:
			a.told = append(a.told, answer)
		case !refusal(err):
			a.unknown = true
		}
	})
}

// Received notes the body of an event, a CloudEvent in JSON. An event may come more than once.
func (l *Ledger) Received(body []byte) {
	var e received
	err := json.Unmarshal(body, &e)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil || e.ID == "" || e.Data.OrderID == "" || e.Subject != e.Data.OrderID {
		l.stray("an event that makes no sense: %.200q (%v)", body, err)
		return
	}
	if e.Type == order.EventRefused {
		l.refusals++
		return
	}
	a := l.account(e.Data.OrderID)
	if before, again := a.events[e.ID]; again {
		l.redelivered++
		if before.Type != e.Type || before.Data.Version != e.Data.Version || !before.Time.Equal(e.Time) {
			l.stray("event %s came as %s and as %s", e.ID, before, e)
		}
		return
	}
	a.events[e.ID] = e
}

func (e received) String() string { return fmt.Sprintf("%s with version %d", e.Type, e.Data.Version) }

// Events is the number of different events that were received, those of refused orders left out.
func (l *Ledger) Events() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, a := range l.orders {
		n += len(a.events)
	}
	return n
}

func (l *Ledger) note(id string, change func(*account)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change(l.account(id))
}

func (l *Ledger) account(id string) *account {
	a := l.orders[id]
	if a == nil {
		a = &account{payments: make(map[string]payment), events: make(map[string]received)}
		l.orders[id] = a
	}
	return a
}

func (l *Ledger) stray(format string, args ...any) {
	l.strays = append(l.strays, fmt.Sprintf(format, args...))
}

// refusal is whether an error says for certain that what was asked for was not done.
func refusal(err error) bool {
	for _, target := range []error{
		order.ErrInvalid, order.ErrNotFound, order.ErrConflict, order.ErrOutOfStock, order.ErrUnknownSKU,
		order.ErrAlreadyPaid, order.ErrAlreadyCancelled, order.ErrAlreadyExpired, order.ErrLatePayment, order.ErrNotDue,
	} {
		if errors.Is(err, target) {
			return true
		}
	}
	return false
}

// Books is what a ledger reads in the end. An [order.Service] has them.
type Books interface {
	Get(ctx context.Context, id string) (order.Order, error)
	Timeline(ctx context.Context, id string) ([]order.Entry, error)
	Stock(ctx context.Context, skus ...string) ([]order.Stock, error)
}

var _ Books = (*order.Service)(nil)

// found is an order as the database has it.
type found struct {
	order.Order
	timeline []order.Entry
	missing  bool
}

// Judge compares what is noted with the books. It is meant for when all is over: no deadline is still to
// come, and all events were received. It fails only if the books cannot be read.
func (l *Ledger) Judge(ctx context.Context, books Books) (*Verdict, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	ids := slices.Sorted(maps.Keys(l.orders))
	orders, err := readAll(ctx, books, ids)
	if err != nil {
		return nil, err
	}
	v := &Verdict{Redelivered: l.redelivered, Refusals: l.refusals}
	for _, stray := range l.strays {
		v.problem(&v.Unexpected, "%s", stray)
	}
	for i, id := range ids {
		l.orders[id].judge(v, id, orders[i], l.publishes)
	}
	if err := l.judgeStock(ctx, v, books, orders); err != nil {
		return nil, err
	}
	v.OK = v.problems == 0
	return v, nil
}

func readAll(ctx context.Context, books Books, ids []string) ([]found, error) {
	orders := make([]found, len(ids))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(8)
	for i, id := range ids {
		group.Go(func() (err error) {
			if orders[i].Order, err = books.Get(ctx, id); errors.Is(err, order.ErrNotFound) {
				orders[i].missing = true
				return nil
			}
			if err == nil {
				orders[i].timeline, err = books.Timeline(ctx, id)
			}
			if err != nil {
				return fmt.Errorf("reading order %s for the ledger: %w", id, err)
			}
			return nil
		})
	}
	return orders, group.Wait()
}

func (a *account) judge(v *Verdict, id string, o found, publishes []order.EventType) {
	v.Attempted += count(a.attempted)
	v.Confirmed += count(a.confirmed)
	v.Refused += count(a.refused)
	v.Unknown += count(a.unknown)
	v.Events += len(a.events)
	switch {
	case o.missing && a.confirmed:
		v.problem(&v.Lost, "%s: placed, but not in the database", id)
		return
	case o.missing && len(a.events) > 0:
		v.problem(&v.Unexpected, "%s: has events, but is not in the database", id)
		return
	case o.missing:
		return
	case !a.attempted:
		v.problem(&v.Unexpected, "%s: nobody placed it", id)
	case a.refused:
		v.problem(&v.Unexpected, "%s: refused, but in the database", id)
	case a.attempted && !slices.Equal(a.draft.Lines, o.Lines):
		v.problem(&v.Unexpected, "%s: has other lines than were ordered", id)
	}
	v.Recovered += count(a.unknown)
	switch o.Status {
	case order.Paid:
		v.Paid++
	case order.Cancelled:
		v.Cancelled++
	case order.Expired:
		v.Expired++
		v.expired = append(v.expired, o.Order)
	default:
		v.Pending++
		v.problem(&v.Unfinished, "%s: still %s", id, o.Status)
	}
	a.judgeTimeline(v, o)
	a.judgeAnswers(v, o)
	a.judgePayments(v, o)
	if publishes != nil {
		a.judgeEventsOf(v, o, publishes)
	} else {
		a.judgeEvents(v, o)
	}
}

var closing = map[order.EventType]order.Status{
	order.EventPaid: order.Paid, order.EventCancelled: order.Cancelled, order.EventExpired: order.Expired,
}

// judgeTimeline holds the timeline against the order.
func (a *account) judgeTimeline(v *Verdict, o found) {
	closings := make(map[order.Status]int)
	for i, e := range o.timeline {
		if e.Version != int64(i+1) || (e.Type == order.EventPlaced) != (i == 0) {
			v.problem(&v.Unexpected, "%s: entry %d of its timeline is %s with version %d", o.ID, i+1, e.Type, e.Version)
		}
		if status, closes := closing[e.Type]; closes {
			closings[status]++
			if e.Type == order.EventExpired && e.At.Before(o.Deadline) {
				v.problem(&v.Early, "%s: expired at %s by its timeline, before its deadline %s", o.ID, clock(e.At), clock(o.Deadline))
			}
		}
	}
	if n := int64(len(o.timeline)); o.Version != n {
		v.problem(&v.Unexpected, "%s: has version %d and %d entries in its timeline", o.ID, o.Version, n)
	}
	if len(closings) > 1 || closings[order.Expired] > 1 || closings[order.Cancelled] > 1 || closings[order.Paid] > 1 {
		v.problem(&v.Duplicated, "%s: closed more than once: %v", o.ID, closings)
	}
	if closings[order.Expired] > 0 && (o.Status == order.Paid || closings[order.Paid] > 0) {
		v.problem(&v.PaidButExpired, "%s: its timeline has it expired, and it is paid", o.ID)
	}
	if o.Status != order.Pending && closings[o.Status] == 0 {
		v.problem(&v.Lost, "%s: %s, but its timeline does not say so", o.ID, o.Status)
	}
	if o.Status == order.Pending && len(closings) > 0 {
		v.problem(&v.Unexpected, "%s: still pending, but closed by its timeline", o.ID)
	}
	if o.Status == order.Expired && o.ClosedAt.Before(o.Deadline) {
		v.problem(&v.Early, "%s: expired at %s, before its deadline %s", o.ID, clock(o.ClosedAt), clock(o.Deadline))
	}
}

// judgeAnswers holds what clients were told of the order against what it is now. What they were told
// last of its deadline counts until it was extended again.
func (a *account) judgeAnswers(v *Verdict, o found) {
	var last order.Order
	for _, told := range a.told {
		if told.Version > last.Version {
			last = told
		}
		switch {
		case told.Version > o.Version:
			v.problem(&v.Lost, "%s: told to be %s with version %d, but it has version %d", o.ID, told.Status, told.Version, o.Version)
		case told.Status == order.Pending, told.Status == o.Status:
		case told.Status == order.Paid && o.Status == order.Expired:
			v.problem(&v.PaidButExpired, "%s: told to be paid, but expired", o.ID)
		default:
			v.problem(&v.Lost, "%s: told to be %s, but %s", o.ID, told.Status, o.Status)
		}
	}
	moved := slices.ContainsFunc(o.timeline, func(e order.Entry) bool {
		return e.Version > last.Version && e.Type == order.EventExtended
	})
	if last.Version == 0 || moved || last.Deadline.Equal(o.Deadline) {
		return
	}
	v.problem(&v.Unexpected, "%s: told to be due at %s, but its deadline is %s", o.ID, clock(last.Deadline), clock(o.Deadline))
	if o.Status == order.Expired && o.ClosedAt.Before(last.Deadline) {
		v.problem(&v.Early, "%s: expired at %s, before the deadline that was told, %s", o.ID, clock(o.ClosedAt), clock(last.Deadline))
	}
}

// judgePayments holds what payers were told against the payments that are recorded.
func (a *account) judgePayments(v *Verdict, o found) {
	recorded := make(map[string]order.Payment)
	inTime := 0
	for _, p := range o.Payments {
		if _, twice := recorded[p.Reference]; twice {
			v.problem(&v.Duplicated, "%s: payment %s is recorded twice", o.ID, p.Reference)
		}
		recorded[p.Reference] = p
		v.LatePayments += count(p.Late)
		inTime += count(!p.Late)
	}
	if inTime != count(o.Status == order.Paid) {
		v.problem(&v.Unexpected, "%s: %s, with %d payments in time", o.ID, o.Status, inTime)
		v.PaidButExpired += count(o.Status == order.Expired && inTime > 0)
	}
	for reference, said := range a.payments {
		p, known := recorded[reference]
		delete(recorded, reference)
		switch {
		case !known && (said == accepted || said == tooLate):
			v.problem(&v.Lost, "%s: payment %s was %s, but is not recorded", o.ID, reference, said)
		case known && said == refusedPay:
			v.problem(&v.Unexpected, "%s: payment %s was refused, but is recorded", o.ID, reference)
		case said == accepted && p.Late, said == tooLate && !p.Late:
			v.problem(&v.Unexpected, "%s: payment %s was %s, but is recorded with late = %t", o.ID, reference, said, p.Late)
		}
	}
	for reference := range recorded {
		v.problem(&v.Unexpected, "%s: payment %s is recorded, but nobody made it", o.ID, reference)
	}
}

// judgeEvents holds what subscribers received against the timeline: one event for each entry, the
// version telling which.
func (a *account) judgeEvents(v *Verdict, o found) {
	byVersion := make(map[int64]received)
	paid := make(map[string]int)
	for _, id := range slices.Sorted(maps.Keys(a.events)) {
		e := a.events[id]
		if before, twice := byVersion[e.Data.Version]; twice {
			v.problem(&v.Duplicated, "%s: events %s (%s) and %s (%s) are about the same", o.ID, before.ID, before, e.ID, e)
			continue
		}
		byVersion[e.Data.Version] = e
		if e.Data.Payment != nil {
			if paid[e.Data.Payment.Reference]++; paid[e.Data.Payment.Reference] > 1 {
				v.problem(&v.Duplicated, "%s: payment %s has two events", o.ID, e.Data.Payment.Reference)
			}
		}
		if e.Type == order.EventExpired && e.Time.Before(e.Data.Deadline) {
			v.problem(&v.Early, "%s: event %s says that it was expired at %s, before %s", o.ID, e.ID, clock(e.Time), clock(e.Data.Deadline))
		}
	}
	for _, entry := range o.timeline {
		e, known := byVersion[entry.Version]
		delete(byVersion, entry.Version)
		switch {
		case !known:
			v.problem(&v.Lost, "%s: the event %s with version %d did not come", o.ID, entry.Type, entry.Version)
		case e.Type != entry.Type:
			v.problem(&v.Unexpected, "%s: event %s is %s, but its timeline says %s", o.ID, e.ID, e, entry.Type)
		}
	}
	for _, e := range byVersion {
		if _, closes := closing[e.Type]; closes {
			v.problem(&v.Duplicated, "%s: closed by its timeline, and again by event %s, %s", o.ID, e.ID, e)
		} else {
			v.problem(&v.Unexpected, "%s: event %s, %s, is not in its timeline", o.ID, e.ID, e)
		}
	}
}

// judgeEventsOf holds what subscribers received against the timeline where only some types are published: as
// many events of each as there are entries.
func (a *account) judgeEventsOf(v *Verdict, o found, types []order.EventType) {
	came := make(map[order.EventType]int)
	for _, e := range a.events {
		came[e.Type]++
		if e.Type == order.EventExpired && (e.Time.Before(e.Data.Deadline) || e.Time.Before(o.Deadline)) {
			v.problem(&v.Early, "%s: event %s says that it was expired at %s, before %s", o.ID, e.ID, clock(e.Time), clock(o.Deadline))
		}
	}
	for _, t := range types {
		entries := 0
		for _, e := range o.timeline {
			entries += count(e.Type == t)
		}
		switch n := came[t]; {
		case n < entries:
			v.problem(&v.Lost, "%s: %d events %s came, and its timeline has %d", o.ID, n, t, entries)
		case n > entries:
			v.problem(&v.Duplicated, "%s: %d events %s came, and its timeline has %d", o.ID, n, t, entries)
		}
		delete(came, t)
	}
	for t := range came {
		v.problem(&v.Unexpected, "%s: an event %s came, which nobody publishes", o.ID, t)
	}
}

// judgeStock counts all pieces: those of pending orders are reserved, those of paid orders sold, and
// all others available.
func (l *Ledger) judgeStock(ctx context.Context, v *Verdict, books Books, orders []found) error {
	if len(l.stock) == 0 {
		return nil
	}
	skus := slices.Sorted(maps.Keys(l.stock))
	have, err := books.Stock(ctx, skus...)
	if err != nil {
		return fmt.Errorf("reading stock for the ledger: %w", err)
	}
	want := maps.Clone(l.stock)
	for _, o := range orders {
		for _, line := range o.Lines {
			s, known := want[line.SKU]
			if !known {
				continue
			}
			switch o.Status {
			case order.Pending:
				s.Available, s.Reserved = s.Available-line.Quantity, s.Reserved+line.Quantity
			case order.Paid:
				s.Available, s.Sold = s.Available-line.Quantity, s.Sold+line.Quantity
			}
			want[line.SKU] = s
		}
	}
	for _, s := range have {
		w := want[s.SKU]
		delete(want, s.SKU)
		if s == w {
			continue
		}
		counter := &v.Unexpected
		if s.Available > w.Available {
			counter = &v.Duplicated // given back more often than once
		}
		v.problem(counter, "stock of %s: %s, but by its orders %s", s.SKU, pieces(s), pieces(w))
	}
	for sku := range want {
		v.problem(&v.Lost, "stock of %s is gone", sku)
	}
	return nil
}

func pieces(s order.Stock) string {
	return fmt.Sprintf("%d available, %d reserved, %d sold", s.Available, s.Reserved, s.Sold)
}

func clock(t time.Time) string { return t.UTC().Format("15:04:05.000000") }

func count(is bool) int {
	if is {
		return 1
	}
	return 0
}

// Verdict is what a [Ledger] came to. Counts are of orders unless they say otherwise.
type Verdict struct {
	// OK is whether there is no problem at all.
	OK bool

	Attempted int // placing them was tried
	Confirmed int // a client was told that they are placed
	Refused   int // every client was told that they are not
	Unknown   int // some operation was left without an answer
	Recovered int // those of them that are in the database

	Paid, Cancelled, Expired, Pending int // as the database has them
	LatePayments                      int // payments that have to be refunded
	Events                            int // different ones that were received
	Redelivered                       int // events that came again, as they may
	Refusals                          int // order.refused events

	// What must not be. Each is counted once for every way in which it shows.
	Lost           int // confirmed, but missing from the database, or an event that did not come
	Duplicated     int // effects that happened more than once: closings, stock, events, payments
	Unexpected     int // what nobody asked for, or what contradicts an answer
	Unfinished     int // still pending
	PaidButExpired int
	Early          int // expired before their deadline by the database's clock

	// Problems says what is wrong, at most [MaxProblems] of it.
	Problems []string

	problems int
	expired  []order.Order
}

// MaxProblems is how many problems a [Verdict] describes. All are counted.
const MaxProblems = 50

func (v *Verdict) problem(counter *int, format string, args ...any) {
	*counter++
	v.problems++
	if len(v.Problems) < MaxProblems {
		v.Problems = append(v.Problems, fmt.Sprintf(format, args...))
	}
}

// Lateness is how long after their deadlines orders were expired, by the database's clock.
type Lateness struct {
	Orders        int
	P50, P99, Max time.Duration
}

// Lateness is that of the expired orders that are chosen, of all when chosen is nil.
func (v *Verdict) Lateness(chosen func(order.Order) bool) Lateness {
	var late []time.Duration
	for _, o := range v.expired {
		if chosen == nil || chosen(o) {
			late = append(late, o.ClosedAt.Sub(o.Deadline))
		}
	}
	if len(late) == 0 {
		return Lateness{}
	}
	slices.Sort(late)
	// The smallest value that at least so many percent do not exceed.
	quantile := func(percent int) time.Duration { return late[(len(late)*percent+99)/100-1] }
	return Lateness{Orders: len(late), P50: quantile(50), P99: quantile(99), Max: late[len(late)-1]}
}

func (l Lateness) String() string {
	return fmt.Sprintf("%s / %s / %s (%d orders)", l.P50.Round(100*time.Microsecond), l.P99.Round(100*time.Microsecond), l.Max.Round(100*time.Microsecond), l.Orders)
}

// String is a table of the counts, and the problems.
func (v *Verdict) String() string {
	var b strings.Builder
	row := func(name string, value any) { fmt.Fprintf(&b, "%-34s %v\n", name, value) }
	row("orders attempted", v.Attempted)
	row("  confirmed", v.Confirmed)
	row("  refused", v.Refused)
	row("  outcome unknown at first", v.Unknown)
	row("    recovered", v.Recovered)
	row("paid", v.Paid)
	row("cancelled", v.Cancelled)
	row("expired", v.Expired)
	row("late payments", v.LatePayments)
	row("events", v.Events)
	row("  delivered again", v.Redelivered)
	row("lateness, p50 / p99 / max", v.Lateness(nil))
	row("lost", v.Lost)
	row("duplicated effects", v.Duplicated)
	row("unexpected", v.Unexpected)
	row("unfinished", v.Unfinished)
	row("paid but expired", v.PaidButExpired)
	row("early", v.Early)
	for _, p := range v.Problems {
		row("PROBLEM", p)
	}
	if more := v.problems - len(v.Problems); more > 0 {
		row("PROBLEM", fmt.Sprintf("and %d more", more))
	}
	row("all adds up", v.OK)
	return b.String()
}
