package orderdb_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/google/go-cmp/cmp"
	gormmysql "gorm.io/driver/mysql"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/amqp/amqptest"
	"github.com/lapse-go/lapse/amqp/outbox"
	"github.com/lapse-go/lapse/order"
	"github.com/lapse-go/lapse/order/orderdb"
)

func TestPlace(t *testing.T) {
	s := newShop(t)
	s.setStock(10, "shoe", "sock")
	d := draft("o-1", "sock", "shoe", "sock")
	d.Customer, d.Tags = "Zoë 👟 O'Neill", []string{"web", "vip", "web"}

	o := s.place(d)
	want := order.Order{
		ID: "o-1", Customer: d.Customer, Region: "eu", Tags: []string{"vip", "web"}, Lines: d.Lines,
		Total: order.Money{Amount: 3000, Currency: "EUR"}, Status: order.Pending, PlacedAt: o.PlacedAt,
		Window: order.DefaultWindow, Deadline: o.PlacedAt.Add(order.DefaultWindow), Version: 1,
	}
	got, err := s.Get(t.Context(), "o-1")
	for _, have := range []order.Order{o, got, s.lastEvent("o-1").Order} {
		if diff := cmp.Diff(want, have); err != nil || diff != "" {
			t.Errorf("%v (-want +got):\n%s", err, diff)
		}
	}
	var early int
	if err := s.db.Raw("SELECT ABS(TIMESTAMPDIFF(SECOND, UTC_TIMESTAMP(6), ?)) FROM DUAL", o.PlacedAt).Scan(&early).Error; err != nil || early > 60 {
		t.Errorf("it was placed %d s from the database's now: %v", early, err)
	}
	s.wantStock("sock", 8, 2, 0)
	s.wantStock("shoe", 9, 1, 0)
	s.wantEvents("o-1", "order.placed")
	var timer struct {
		Deadline time.Time
		WindowUs int64
	}
	if err := s.db.Raw("SELECT deadline, window_us FROM timers WHERE order_id = 'o-1'").Scan(&timer).Error; err != nil ||
		!timer.Deadline.Equal(o.Deadline) || timer.WindowUs != order.DefaultWindow.Microseconds() {
		t.Errorf("its timer is %+v: %v", timer, err)
	}
	if n := s.committed.Load(); n != 1 {
		t.Errorf("told of %d commits", n)
	}

	// The same again, also with its tags in another order, another window, and after it was paid.
	d.Tags, d.Window = []string{"vip", "web"}, time.Hour
	if got := s.place(d); cmp.Diff(want, got) != "" {
		t.Errorf("placed again (-want +got):\n%s", cmp.Diff(want, got))
	}
	if err := s.pay(t.Context(), "o-1"); err != nil {
		t.Fatal(err)
	}
	paid, err := s.Get(t.Context(), "o-1")
	if err != nil || paid.Status != order.Paid {
		t.Fatalf("%s, %v", paid.Status, err)
	}
	if got := s.place(d); cmp.Diff(paid, got) != "" {
		t.Errorf("placed again once paid (-want +got):\n%s", cmp.Diff(paid, got))
	}
	d.Lines[0].Quantity++
	if _, err := s.Place(t.Context(), d); !errors.Is(err, order.ErrConflict) {
		t.Errorf("the same id with other content: %v", err)
	}
	s.wantStock("sock", 8, 0, 2)
	s.wantEvents("o-1", "order.placed", "order.paid")

	// Ids are compared byte by byte.
	s.place(draft("O-1", "shoe"))
	if got := s.place(draft("", "shoe")); len(got.ID) != 36 {
		t.Errorf("it got the id %q", got.ID)
	}
}

func TestPlaceIsRefusedForWantOfStock(t *testing.T) {
	s := newShop(t)
	s.setStock(1, "a", "b")
	s.setStock(5, "c")
	many := draft("o-1", "a", "b", "c", "b")
	many.Lines[0].Quantity = 2
	_, err := s.Place(t.Context(), many)
	shortage, ok := errors.AsType[*order.ShortageError](err)
	if !ok || !errors.Is(err, order.ErrOutOfStock) || !slices.Equal(shortage.Short, []string{"a", "b"}) || !strings.Contains(err.Error(), "a, b") {
		t.Errorf("too many: %v", err)
	}
	_, err = s.Place(t.Context(), draft("o-2", "c", "C", "x"))
	shortage, ok = errors.AsType[*order.ShortageError](err)
	if !ok || !errors.Is(err, order.ErrUnknownSKU) || !slices.Equal(shortage.Unknown, []string{"C", "x"}) {
		t.Errorf("unknown articles: %v", err)
	}
	s.wantEvents("o-1", "order.refused")
	if e := s.lastEvent("o-1"); e.Order.Version != 0 || e.Cause.Error() != "out of stock: a, b" || len(e.Order.Lines) != 4 {
		t.Errorf("the event says %+v", e)
	}
	for _, id := range []string{"o-1", "o-2"} {
		if _, err := s.Get(t.Context(), id); !errors.Is(err, order.ErrNotFound) {
			t.Errorf("%s was refused, and is: %v", id, err)
		}
	}
	s.wantStock("a", 1, 0, 0)
	s.wantStock("c", 5, 0, 0)
	var rows int
	if err := s.db.Raw(`SELECT (SELECT COUNT(*) FROM lapse_orders) + (SELECT COUNT(*) FROM lapse_order_lines) +
		(SELECT COUNT(*) FROM lapse_timeline) + (SELECT COUNT(*) FROM timers)`).Scan(&rows).Error; err != nil || rows != 0 {
		t.Errorf("%d rows are left: %v", rows, err)
	}
	// Refused again, it is another event.
	first := s.lastEvent("o-1")
	if _, err := s.Place(t.Context(), many); !errors.Is(err, order.ErrOutOfStock) {
		t.Error(err)
	}
	if again := s.lastEvent("o-1"); again.ID == first.ID || again.Order.Version != 0 {
		t.Errorf("refused twice: %s, then %s", first.ID, again.ID)
	}
	// With stock it can be placed after all.
	s.setStock(10, "a", "b")
	s.place(many)
	s.wantEvents("o-1", "order.refused", "order.refused", "order.placed")
}

// A batch gives each draft its own answer, and stock to those that come first.
func TestPlaceAll(t *testing.T) {
	s := newShop(t)
	s.setStock(2, "hot")
	s.setStock(100, "cold")
	s.place(draft("known", "cold"))
	s.place(draft("old", "cold"))
	wrong := draft("wrong", "cold")
	wrong.Lines[0].Quantity = -1
	drafts := []order.Draft{
		draft("z", "hot"), wrong, draft("known", "cold"), draft("m", "hot"), draft("a", "hot"), draft("b", "cold"),
		draft("b", "cold"), draft("b", "hot"), draft("known", "hot"), draft("none", "nothing"), draft("a", "hot"),
		// One that is refused does not stand for another with its id.
		draft("none", "cold"), draft("none", "cold", "cold"), draft("old", "hot"), draft("old", "cold"),
	}
	got, err := s.PlaceAll(t.Context(), drafts)
	if err != nil {
		t.Fatal(err)
	}
	answers := make([]string, len(got))
	for i, p := range got {
		answers[i] = drafts[i].ID + " placed"
		if p.Repeated {
			answers[i] = drafts[i].ID + " repeated"
		}
		if p.Err == nil && p.Order.ID != drafts[i].ID {
			t.Errorf("%s was answered with %s", drafts[i].ID, p.Order.ID)
		}
		for _, e := range []error{order.ErrInvalid, order.ErrConflict, order.ErrOutOfStock, order.ErrUnknownSKU} {
			if errors.Is(p.Err, e) {
				answers[i] = drafts[i].ID + " " + e.Error()
			}
		}
	}
	want := []string{"z placed", "wrong invalid", "known repeated", "m placed", "a out of stock", "b placed",
		"b repeated", "b conflict", "known conflict", "none unknown sku", "a out of stock",
		"none placed", "none conflict", "old conflict", "old repeated"}
	if diff := cmp.Diff(want, answers); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	s.wantStock("hot", 0, 2, 0)
	s.wantStock("cold", 96, 4, 0)
}

// An order that the database refuses does not keep the others of its batch from being placed.
func TestPlaceAllWithoutTheCulprit(t *testing.T) {
	s := newShop(t)
	s.setStock(100, "shoe")
	exec(t, s.db, "ALTER TABLE lapse_orders ADD CONSTRAINT no_thirteen CHECK (id <> 'o-0013')")
	var drafts []order.Draft
	for _, id := range names("o-", 30) {
		drafts = append(drafts, draft(id, "shoe"))
	}
	placed, err := s.PlaceAll(t.Context(), drafts)
	if err != nil {
		t.Fatal(err)
	}
	for i, p := range placed {
		if (p.Err != nil) != (i == 13) || errors.Is(p.Err, order.ErrUnavailable) {
			t.Errorf("%s: %v", drafts[i].ID, p.Err)
		}
	}
	s.wantStock("shoe", 71, 29, 0)
}

// A hundred orders for one article are one change of its row, when they are placed and when they
// expire; and a batch takes few statements, however large it is.
func TestOneStockUpdateForABatch(t *testing.T) {
	s := newShop(t)
	s.setStock(1000, "hot", "cold")
	var mu sync.Mutex
	var statements []string
	note := func(db *gorm.DB) {
		mu.Lock()
		defer mu.Unlock()
		statements = append(statements, db.Statement.SQL.String())
	}
	if err := s.db.Callback().Raw().After("gorm:raw").Register("test:note", note); err != nil {
		t.Fatal(err)
	}
	if err := s.db.Callback().Row().After("gorm:row").Register("test:note", note); err != nil {
		t.Fatal(err)
	}
	var drafts []order.Draft
	ids := names("o-", 100)
	for _, id := range ids {
		drafts = append(drafts, draft(id, "hot", "cold"))
	}
	wantFew := func(what string, most int) {
		t.Helper()
		updates, others := 0, 0
		for _, sql := range statements {
			switch {
			case strings.HasPrefix(sql, "UPDATE lapse_stock"):
				updates++
			case !strings.Contains(sql, "INTO published") && !strings.Contains(sql, "INTO timers"):
				others++
			}
		}
		if updates != 1 || others > most {
			t.Errorf("%s took %d updates of the stock and %d other statements:\n%.3000s", what, updates, others, strings.Join(statements, "\n"))
		}
		statements = nil
	}
	if _, err := s.PlaceAll(t.Context(), drafts); err != nil {
		t.Fatal(err)
	}
	wantFew("placing", 5) // clock, orders, stock, lines, timeline
	s.wantStock("hot", 900, 100, 0)
	s.makeDue(-time.Second, ids...)
	statements = nil
	if _, err := s.Expire(t.Context(), ids); err != nil {
		t.Fatal(err)
	}
	wantFew("expiring", 5) // pause, orders, their lines, status, timeline
	s.wantStock("hot", 1000, 0, 0)
}

// When many want the last pieces at once, they go to as many as there are, and the others are told.
func TestLastPieces(t *testing.T) {
	s := newShop(t)
	s.setStock(10, "a", "b")
	var placed, refused atomic.Int64
	var all sync.WaitGroup
	for i := range 40 {
		all.Go(func() {
			skus := []string{"a", "b"}
			if i%2 == 0 {
				skus = []string{"b", "a"}
			}
			switch _, err := s.Place(t.Context(), draft(fmt.Sprintf("o-%d", i), skus...)); {
			case err == nil:
				placed.Add(1)
			case errors.Is(err, order.ErrOutOfStock):
				refused.Add(1)
			default:
				t.Error(err)
			}
		})
	}
	all.Wait()
	if placed.Load() != 10 || refused.Load() != 30 {
		t.Errorf("%d were placed, %d refused", placed.Load(), refused.Load())
	}
	s.wantStock("a", 0, 10, 0)
	s.audit(10)
}

// An order of many articles among many such orders is no special case.
func TestLargeOrders(t *testing.T) {
	s := newShop(t)
	exec(t, s.db, "INSERT INTO lapse_stock VALUES ('s-0000', 5, 0, 0)")
	var drafts []order.Draft
	for i := range 60 {
		skus := names(fmt.Sprintf("s-%02d-", i), order.MaxLines)
		exec(t, s.db, "INSERT INTO lapse_stock VALUES (?, 5, 0, 0)"+strings.Repeat(", (?, 5, 0, 0)", len(skus)-1), anys(skus)...)
		drafts = append(drafts, draft(fmt.Sprintf("o-%02d", i), skus...))
	}
	placed, err := s.PlaceAll(t.Context(), drafts)
	if err != nil {
		t.Fatal(err)
	}
	ids := make([]string, len(drafts))
	for i, p := range placed {
		if p.Err != nil {
			t.Fatal(p.Err)
		}
		ids[i] = p.Order.ID
	}
	if got, err := s.Get(t.Context(), ids[0]); err != nil || cmp.Diff(placed[0].Order, got) != "" {
		t.Errorf("%v (-placed +got):\n%s", err, cmp.Diff(placed[0].Order, got))
	}
	s.makeDue(-time.Second, ids...)
	got, err := s.Expire(t.Context(), ids)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range got.Orders {
		if e.Outcome != order.OutcomeExpired {
			t.Errorf("%s: %s %v", e.ID, e.Outcome, e.Err)
		}
	}
	s.audit(5)
}

func anys(texts []string) (values []any) {
	for _, text := range texts {
		values = append(values, text)
	}
	return values
}

// foreign is a pool as a shop may have opened it: another time zone, isolation level and driver
// settings.
func foreign(t *testing.T, db *gorm.DB) *gorm.DB {
	t.Helper()
	config, err := mysql.ParseDSN(amqptest.DSN(t, db))
	if err != nil {
		t.Fatal(err)
	}
	config.ParseTime, config.ClientFoundRows, config.InterpolateParams = false, false, false
	// Where some times do not exist and others come twice.
	if config.Loc, err = time.LoadLocation("Europe/Berlin"); err != nil {
		t.Fatal(err)
	}
	config.Params = map[string]string{"time_zone": "'+05:30'", "sql_mode": "'ANSI,STRICT_ALL_TABLES'"}
	connector, err := mysql.NewConnector(config)
	if err != nil {
		t.Fatal(err)
	}
	pool := sql.OpenDB(connector)
	t.Cleanup(func() { pool.Close() })
	foreign, err := gorm.Open(gormmysql.New(gormmysql.Config{Conn: pool}), &gorm.Config{PrepareStmt: true, Logger: logger.Discard})
	if err != nil {
		t.Fatal(err)
	}
	return foreign
}

// A checkout writes its own rows and the order together or not at all, in a session of its own making.
func TestPlaceIn(t *testing.T) {
	s := newShop(t)
	s.setStock(10, "shoe")
	exec(t, s.db, "CREATE TABLE carts (id VARCHAR(64) PRIMARY KEY)")
	db := foreign(t, s.db)
	for _, isolation := range []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable} {
		t.Run(isolation.String(), func(t *testing.T) {
			checkout := func(id string, meanwhile func(), result error) (o order.Order, placeErr error) {
				err := db.Transaction(func(tx *gorm.DB) error {
					if err := tx.Exec("INSERT INTO carts VALUES (?)", "cart-"+id).Error; err != nil {
						return err
					}
					// The snapshot is taken here, where the isolation level has one.
					var n int
					if err := tx.Raw("SELECT COUNT(*) FROM lapse_timeline").Scan(&n).Error; err != nil {
						return err
					}
					meanwhile()
					o, placeErr = s.store.PlaceIn(tx, draft(id, "shoe"))
					return result
				}, &sql.TxOptions{Isolation: isolation})
				if !errors.Is(err, result) {
					t.Fatal(err)
				}
				return o, placeErr
			}
			prefix := fmt.Sprintf("%d-", isolation)
			before, err := s.Stock(t.Context(), "shoe")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := checkout(prefix+"1", func() {}, errors.New("card declined")); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Get(t.Context(), prefix+"1"); !errors.Is(err, order.ErrNotFound) {
				t.Errorf("rolled back, but: %v", err)
			}
			o, err := checkout(prefix+"2", func() {}, nil)
			got, getErr := s.Get(t.Context(), prefix+"2")
			if diff := cmp.Diff(o, got); err != nil || getErr != nil || diff != "" {
				t.Errorf("%v, %v (-answered +read):\n%s", err, getErr, diff)
			}
			if got.Deadline.Sub(got.PlacedAt) != order.DefaultWindow || time.Since(got.PlacedAt).Abs() > time.Minute {
				t.Errorf("placed at %s, due at %s", got.PlacedAt, got.Deadline)
			}
			s.wantEvents(prefix+"2", "order.placed")
			// The same order is placed and paid by others after the snapshot was taken.
			meanwhile := func() {
				s.place(draft(prefix+"3", "shoe"))
				if err := s.pay(t.Context(), prefix+"3"); err != nil {
					t.Fatal(err)
				}
			}
			if isolation == sql.LevelSerializable {
				meanwhile() // it would have to wait for the reader
				meanwhile = func() {}
			}
			o, err = checkout(prefix+"3", meanwhile, nil)
			if err != nil || o.Status != order.Paid || len(o.Payments) != 1 {
				t.Errorf("placed again: %+v, %v", o, err)
			}
			s.wantStock("shoe", before[0].Available-2, before[0].Reserved+1, before[0].Sold+1)
		})
	}
}

// What PlaceIn says no to leaves nothing in the caller's transaction, which goes on and commits.
func TestPlaceInRefusesAndTheCallerGoesOn(t *testing.T) {
	s := newShop(t)
	s.setStock(1, "shoe")
	s.place(draft("known", "shoe"))
	exec(t, s.db, "CREATE TABLE carts (id VARCHAR(64) PRIMARY KEY)")
	count := "SELECT CONCAT_WS(' ', (SELECT COUNT(*) FROM lapse_orders), (SELECT COUNT(*) FROM lapse_order_lines), " +
		"(SELECT COUNT(*) FROM lapse_order_tags), (SELECT COUNT(*) FROM lapse_timeline), (SELECT COUNT(*) FROM timers))"
	var before, after string
	if err := s.db.Raw(count).Scan(&before).Error; err != nil {
		t.Fatal(err)
	}
	unknown, invalid, other := draft("unknown", "shoe", "nothing"), draft("invalid", "shoe"), draft("known", "shoe")
	invalid.Lines[0].Quantity, other.Customer, unknown.Tags = 0, "customer-2", []string{"vip"}
	db := foreign(t, s.db)
	for _, test := range []struct {
		draft  order.Draft
		want   error
		events []string
	}{
		{invalid, order.ErrInvalid, nil},
		{other, order.ErrConflict, []string{"order.placed"}},
		{draft("short", "shoe"), order.ErrOutOfStock, []string{"order.refused"}},
		{unknown, order.ErrUnknownSKU, []string{"order.refused"}},
	} {
		err := db.Transaction(func(tx *gorm.DB) error {
			if _, err := s.store.PlaceIn(tx, test.draft); !errors.Is(err, test.want) {
				t.Errorf("%s: %v", test.draft.ID, err)
			}
			return tx.Exec("INSERT INTO carts VALUES (?)", test.draft.ID).Error
		})
		if err != nil {
			t.Errorf("%s: %v", test.draft.ID, err)
		}
		s.wantEvents(test.draft.ID, test.events...)
	}
	s.wantStock("shoe", 0, 1, 0)
	if err := s.db.Raw(count).Scan(&after).Error; err != nil || after != before {
		t.Errorf("orders, lines, tags, timeline and timers were %s and are %s: %v", before, after, err)
	}
	// Whatever else it says is about the database, and the caller can tell.
	ctx, cancel := context.WithCancel(t.Context())
	tx := db.WithContext(ctx).Begin()
	defer tx.Rollback()
	cancel()
	if _, err := s.store.PlaceIn(tx, draft("o-1", "shoe")); !errors.Is(err, order.ErrUnavailable) {
		t.Error(err)
	}
}

// A timer's window need not be a whole number of anything.
func TestEveryValidWindowCanBePlaced(t *testing.T) {
	s := newShop(t)
	s.setStock(100, "shoe")
	s.Repository = orderdb.New(s.db, orderdb.Config{Emit: func(tx *gorm.DB, events []order.Event, timers []order.Timer) error {
		var messages []outbox.Message
		for _, e := range events {
			messages = append(messages, outbox.Message{Message: amqp.Message{ID: e.ID, Kind: string(e.Type)}, Exchange: "lapse.events"})
		}
		for _, timer := range timers {
			messages = append(messages, outbox.Message{Message: amqp.Message{Kind: "timer"}, Deadline: timer.Deadline, Window: timer.Window})
		}
		return outbox.Add(tx, messages...)
	}})
	for _, window := range []time.Duration{
		0, order.MinWindow, order.MinWindow + 1, order.MinWindow + time.Microsecond, 30*time.Minute - 1,
		20*time.Minute + 123456789, order.MaxWindow - 1, order.MaxWindow - time.Microsecond, order.MaxWindow,
	} {
		d := draft(strings.Repeat("~", 54)+order.NewID()[26:], "shoe")
		d.Window = window
		o, err := s.Place(t.Context(), d)
		if err != nil {
			t.Errorf("%s: %v", window, err)
			continue
		}
		if got, err := s.Get(t.Context(), o.ID); err != nil || got.Window != o.Window || !got.Deadline.Equal(o.PlacedAt.Add(o.Window)) {
			t.Errorf("%s: %+v, %v", window, got, err)
		}
	}
}
