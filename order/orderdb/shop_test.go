package orderdb_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/google/go-cmp/cmp"
	"gorm.io/gorm"

	"github.com/lapse-go/lapse/amqp/amqptest"
	"github.com/lapse-go/lapse/amqp/database"
	"github.com/lapse-go/lapse/order"
	"github.com/lapse-go/lapse/order/orderdb"
	"github.com/lapse-go/lapse/order/ordertest"
)

// shop is a service on a fresh database. What it publishes goes to a table, in the transaction of the
// change, like the real thing.
type shop struct {
	*order.Service
	t         testing.TB
	db        *gorm.DB
	store     *orderdb.Store
	committed atomic.Int64
}

func newShop(t testing.TB) *shop {
	t.Helper()
	db := amqptest.Database(t)
	exec(t, db, `CREATE TABLE published (id BIGINT AUTO_INCREMENT PRIMARY KEY,
		order_id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin, version BIGINT,
		type VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin, event MEDIUMTEXT, KEY (order_id, version)) CHARACTER SET utf8mb4`)
	exec(t, db, "CREATE TABLE timers (id BIGINT AUTO_INCREMENT PRIMARY KEY, order_id VARCHAR(64), deadline DATETIME(6), window_us BIGINT)")
	return newShopOn(t, db)
}

// newShopOn is one more shop on the database of another.
func newShopOn(t testing.TB, db *gorm.DB) *shop {
	s := &shop{t: t, db: db}
	s.store = orderdb.New(db, orderdb.Config{Emit: publish, Committed: func() { s.committed.Add(1) }})
	s.Service = &order.Service{Repository: s.store}
	return s
}

// published is an event as JSON, which keeps the words of its cause only.
type published struct {
	order.Event
	Cause string
}

func publish(tx *gorm.DB, events []order.Event, timers []order.Timer) error {
	var args []any
	for _, e := range events {
		kept := published{Event: e}
		if e.Cause != nil {
			kept.Cause = e.Cause.Error()
		}
		text, err := json.Marshal(kept)
		if err != nil {
			return err
		}
		args = append(args, e.Order.ID, e.Order.Version, e.Type, text)
	}
	err := tx.Exec("INSERT INTO published (order_id, version, type, event) VALUES (?, ?, ?, ?)"+strings.Repeat(", (?, ?, ?, ?)", len(events)-1), args...).Error
	if err != nil || len(timers) == 0 {
		return err
	}
	args = nil
	for _, t := range timers {
		args = append(args, t.OrderID, t.Deadline.Format("2006-01-02 15:04:05.999999"), t.Window.Microseconds())
	}
	return tx.Exec("INSERT INTO timers (order_id, deadline, window_us) VALUES (?, ?, ?)"+strings.Repeat(", (?, ?, ?)", len(timers)-1), args...).Error
}

func exec(t testing.TB, db *gorm.DB, sql string, args ...any) {
	t.Helper()
	if err := db.WithContext(t.Context()).Exec(sql, args...).Error; err != nil {
		t.Fatal(err)
	}
}

// events are the types of the events of an order that were published, in their order.
func (s *shop) events(id string) (types []string) {
	s.t.Helper()
	if err := s.db.Raw("SELECT type FROM published WHERE order_id = ? ORDER BY id", id).Scan(&types).Error; err != nil {
		s.t.Fatal(err)
	}
	return types
}

// allEvents are the events of an order that were published, in their order.
func (s *shop) allEvents(id string) []order.Event {
	s.t.Helper()
	var texts []string
	if err := s.db.Raw("SELECT event FROM published WHERE order_id = ? ORDER BY id", id).Scan(&texts).Error; err != nil {
		s.t.Fatal(err)
	}
	events := make([]order.Event, len(texts))
	for i, text := range texts {
		var kept published
		if err := json.Unmarshal([]byte(text), &kept); err != nil {
			s.t.Fatal(err)
		}
		if events[i] = kept.Event; kept.Cause != "" {
			events[i].Cause = errors.New(kept.Cause)
		}
	}
	return events
}

// lastEvent is the event of an order that was published last.
func (s *shop) lastEvent(id string) order.Event {
	s.t.Helper()
	events := s.allEvents(id)
	if len(events) == 0 {
		s.t.Fatalf("%s has no events", id)
	}
	return events[len(events)-1]
}

func (s *shop) wantEvents(id string, want ...string) {
	s.t.Helper()
	if diff := cmp.Diff(want, s.events(id)); diff != "" {
		s.t.Errorf("events of %s (-want +got):\n%s", id, diff)
	}
}

func (s *shop) wantStock(sku string, available, reserved, sold int64) {
	s.t.Helper()
	got, err := s.Stock(context.Background(), sku)
	want := []order.Stock{{SKU: sku, Available: available, Reserved: reserved, Sold: sold}}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		s.t.Errorf("stock %v (-want +got):\n%s", err, diff)
	}
}

func (s *shop) setStock(pieces int64, skus ...string) {
	s.t.Helper()
	for _, sku := range skus {
		if _, err := s.SetStock(s.t.Context(), sku, pieces); err != nil {
			s.t.Fatal(err)
		}
	}
}

// place places an order and fails the test if that fails.
func (s *shop) place(d order.Draft) order.Order {
	s.t.Helper()
	o, err := s.Place(s.t.Context(), d)
	if err != nil {
		s.t.Fatal(err)
	}
	return o
}

// makeDue moves the deadlines of orders to due from now.
func (s *shop) makeDue(due time.Duration, ids ...string) {
	s.t.Helper()
	exec(s.t, s.db, "UPDATE lapse_orders SET deadline = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND WHERE id IN ?", due.Microseconds(), ids)
}

// draft is an order of one piece of each article, at EUR 10.00.
func draft(id string, skus ...string) order.Draft {
	d := order.Draft{ID: id, Customer: "customer-1", Region: "eu"}
	for _, sku := range skus {
		d.Lines = append(d.Lines, order.Line{SKU: sku, Quantity: 1, Price: order.Money{Amount: 1000, Currency: "EUR"}})
	}
	return d
}

func (s *shop) plant(t testing.TB, planted ...ordertest.Planted) {
	t.Helper()
	drafts := make([]order.Draft, len(planted))
	for i, p := range planted {
		sku := "sku-" + p.ID
		if err := s.db.Exec("INSERT INTO lapse_stock VALUES (?, 1, 0, 0)", sku).Error; err != nil {
			t.Fatal(err)
		}
		drafts[i] = draft(p.ID, sku)
	}
	placed, err := s.PlaceAll(t.Context(), drafts)
	if err != nil {
		t.Fatal(err)
	}
	now := placed[0].Order.PlacedAt
	for i, p := range planted {
		if placed[i].Err != nil {
			t.Fatal(placed[i].Err)
		}
		exec(t, s.db, "UPDATE lapse_orders SET deadline = ? WHERE id = ?", now.Add(min(p.Due, 0)), p.ID)
		switch p.Status {
		case order.Paid:
			err = s.pay(t.Context(), p.ID)
		case order.Cancelled:
			_, err = s.Cancel(t.Context(), p.ID, order.By{})
		case order.Expired:
			_, err = s.Expire(t.Context(), []string{p.ID})
		}
		if err != nil {
			t.Fatal(err)
		}
		exec(t, s.db, "UPDATE lapse_orders SET deadline = ? WHERE id = ?", now.Add(p.Due), p.ID)
	}
}

func (s *shop) pay(ctx context.Context, id string) error {
	_, err := s.Pay(ctx, id, order.Payment{Reference: "pay-" + id})
	return err
}

func TestConformance(t *testing.T) {
	ordertest.TestStore(t, func(t *testing.T) ordertest.Subject {
		s := newShop(t)
		contended := ""
		s.store = orderdb.New(s.db, orderdb.Config{Emit: func(tx *gorm.DB, events []order.Event, timers []order.Timer) error {
			if err := conflictOver(contended, events); err != nil {
				return err
			}
			return publish(tx, events, timers)
		}})
		s.Repository = s.store
		nowhere, err := database.Open("nobody@tcp(127.0.0.1:1)/nothing", database.Options{})
		if err != nil {
			t.Fatal(err)
		}
		return ordertest.Subject{
			Store: s.store,
			Plant: s.plant,
			Pay:   s.pay,
			SetPaused: func(t testing.TB, paused bool) {
				if err := s.store.SetPause(t.Context(), order.Pause{Paused: paused, By: order.By{Who: "tester"}}); err != nil {
					t.Fatal(err)
				}
			},
			Poison: func(t testing.TB, id string) {
				// Giving its stock back would make a count negative.
				exec(t, s.db, "UPDATE lapse_stock SET reserved = 0 WHERE sku = ?", "sku-"+id)
			},
			Book:      s.store,
			Published: func(_ testing.TB, id string) []order.Event { return s.allEvents(id) },
			Contend:   func(_ testing.TB, id string) { contended = id },
			Away:      orderdb.New(nowhere, orderdb.Config{}),
		}
	})
}

// conflictOver is the server's answer to a transaction that lost a row of the order to another, if one
// of the events is the order's.
func conflictOver(id string, events []order.Event) error {
	if slices.ContainsFunc(events, func(e order.Event) bool { return e.Order.ID == id }) {
		return &mysql.MySQLError{Number: 1205, SQLState: [5]byte([]byte("HY000")), Message: "Lock wait timeout exceeded; try restarting transaction"}
	}
	return nil
}

func names(prefix string, n int) []string {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprintf("%s%04d", prefix, i)
	}
	return ids
}
