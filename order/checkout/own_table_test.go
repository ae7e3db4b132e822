package checkout_test

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"gorm.io/gorm"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/amqp/amqptest"
	"github.com/lapse-go/lapse/amqp/database"
	owntable "github.com/lapse-go/lapse/deploy/examples/own-table"
	"github.com/lapse-go/lapse/order"
	"github.com/lapse-go/lapse/order/checkout"
	"github.com/lapse-go/lapse/order/orderdb"
	"github.com/lapse-go/lapse/order/ordertest"
)

// ownShop is a shop with a table of its own, and what the ledger has to know beside it: when orders were placed and
// extended, and payments.
type ownShop struct {
	*owntable.Shop
	*shop
	table *orderdb.Table
}

func openOwnShop(t testing.TB, example string) *ownShop {
	t.Helper()
	db := amqptest.Database(t)
	o := &ownShop{Shop: owntable.Open(t, db, example)}
	// Lapse's own tables of orders are none of this shop's business.
	for _, table := range []string{"orders", "order_lines", "order_tags", "stock", "timeline", "payments", "extend_requests"} {
		if err := db.Exec("DROP TABLE lapse_" + table).Error; err != nil {
			t.Fatal(err)
		}
	}
	o.shop = &shop{t: t, url: amqptest.URL(t), db: db, broker: amqptest.Dial(t, amqptest.URL(t)), cfg: rushConfig(t)}
	o.cfg.Namespace = amqptest.Namespace()
	open := func(db *gorm.DB, cfg checkout.Config) (_ *checkout.Checkout, err error) {
		closer, table, err := checkout.NewForTable(db, o.Mapping, cfg)
		o.table = table
		return &checkout.Checkout{Closer: closer}, err
	}
	o.keeps = keeping{
		open: open, books: o,
		pending: fmt.Sprintf("SELECT COUNT(*) FROM %s WHERE %s = '%s'", o.Mapping.Table, o.Mapping.Status, o.Mapping.Pending),
		events:  "SELECT COUNT(*) FROM order_history WHERE event = 'expired'",
	}
	var err error
	if o.Checkout, err = open(db, o.cfg); err != nil {
		t.Fatal(err)
	}
	amqptest.Declare(t, o.broker, o.Topology())
	o.exec("CREATE TABLE shop_placed (order_id VARCHAR(64) PRIMARY KEY, at DATETIME(6))")
	o.exec("CREATE TABLE shop_extended (order_id VARCHAR(64), at DATETIME(6), KEY (order_id))")
	o.exec("CREATE TABLE shop_payments (reference VARCHAR(64) PRIMARY KEY, order_id VARCHAR(64), at DATETIME(6), late BOOLEAN, KEY (order_id))")
	stock := make([]order.Stock, len(articles))
	for i, sku := range articles {
		stock[i] = order.Stock{SKU: sku, Available: pieces}
		o.exec("INSERT INTO stock VALUES (?, ?, 0, 0)", sku, pieces)
	}
	o.ledger = ordertest.NewLedger(stock...)
	o.ledger.Publishes(order.EventExpired)
	o.subscribe()
	return o
}

// draft is an order as this shop knows it: without prices.
func (o *ownShop) draft(name string, n int, window time.Duration) order.Draft {
	d := draft(o.ID(name), n, window)
	for i := range d.Lines {
		d.Lines[i].Price = order.Money{}
	}
	slices.SortFunc(d.Lines, func(a, b order.Line) int { return strings.Compare(a.SKU, b.SKU) })
	return d
}

func (o *ownShop) PlaceAll(ctx context.Context, drafts []order.Draft) ([]order.Placement, error) {
	placed := make([]order.Placement, len(drafts))
	for i, d := range drafts {
		lines := make(map[string]int)
		for _, line := range d.Lines {
			lines[line.SKU] += int(line.Quantity)
		}
		err := database.Transact(ctx, o.DB, func(tx *gorm.DB) error {
			if err := tx.Exec("INSERT INTO shop_placed VALUES (?, UTC_TIMESTAMP(6))", d.ID).Error; err != nil {
				return err
			}
			return o.PlaceIn(tx, owntable.Order{ID: d.ID, Due: d.Window, Lines: lines})
		})
		if err != nil {
			placed[i].Err = err
			continue
		}
		placed[i].Order, placed[i].Err = o.Get(ctx, d.ID)
		placed[i].Order.Window = d.Window
	}
	return placed, nil
}

func (o *ownShop) pay(ctx context.Context, id, reference string) (answer order.Order, err error) {
	defer func() { o.ledger.Paid(id, reference, answer, err) }()
	paid, err := o.Pay(ctx, id)
	if err != nil {
		return order.Order{}, err
	}
	// A provider sends a payment again. The shop knows it by its reference.
	err = o.DB.WithContext(ctx).Exec("INSERT INTO shop_payments VALUES (?, ?, UTC_TIMESTAMP(6), ?)", reference, id, !paid).Error
	if err != nil && !database.IsDuplicate(err) {
		return order.Order{}, err
	}
	if answer, err = o.Get(ctx, id); err != nil {
		return order.Order{}, err
	}
	for _, p := range answer.Payments {
		if p.Reference == reference && p.Late {
			return answer, order.ErrLatePayment
		}
	}
	return answer, nil
}

func (o *ownShop) cancel(ctx context.Context, id string) (answer order.Order, err error) {
	defer func() { o.ledger.Cancelled(id, answer, err) }()
	cancelled, err := o.Cancel(ctx, id)
	if err == nil {
		answer, err = o.Get(ctx, id)
	}
	if err == nil && !cancelled {
		return order.Order{}, order.ErrAlreadyExpired
	}
	return answer, err
}

func (o *ownShop) extend(ctx context.Context, id string, to time.Time) (answer order.Order, err error) {
	defer func() { o.ledger.Extended(id, answer, err) }()
	before, err := o.Get(ctx, id)
	if err != nil {
		return before, err
	}
	extended := false
	err = database.Transact(ctx, o.DB, func(tx *gorm.DB) (err error) {
		if extended, err = o.ExtendIn(tx, id, to.Sub(before.Deadline)); err != nil || !extended {
			return err
		}
		return tx.Exec("INSERT INTO shop_extended VALUES (?, UTC_TIMESTAMP(6))", id).Error
	})
	if err == nil {
		answer, err = o.Get(ctx, id)
	}
	if err == nil && !extended {
		return order.Order{}, order.ErrAlreadyExpired
	}
	return answer, err
}

// Get is the order as the ledger reads it.
func (o *ownShop) Get(ctx context.Context, id string) (order.Order, error) {
	got := order.Order{ID: id}
	db := o.DB.WithContext(ctx)
	heads, err := o.table.Find(ctx, []string{id})
	if err != nil {
		return got, err
	}
	head, found := heads[id]
	if !found {
		return got, order.ErrNotFound
	}
	got.Status, got.Deadline = head.Status, head.Deadline
	timeline, err := o.Timeline(ctx, id)
	if err != nil {
		return got, err
	}
	got.Version = int64(len(timeline))
	for _, e := range timeline {
		switch e.Type {
		case order.EventPlaced:
			got.PlacedAt = e.At
		case order.EventExpired, order.EventPaid, order.EventCancelled:
			got.ClosedAt = e.At
		}
	}
	var lines []struct {
		SKU      string
		Quantity int64
	}
	var payments []struct {
		Reference string
		Late      bool
	}
	err = db.Raw("SELECT sku, quantity FROM order_lines WHERE order_id = ? ORDER BY sku", o.Bind(id)).Scan(&lines).Error
	if err == nil {
		err = db.Raw("SELECT reference, late FROM shop_payments WHERE order_id = ?", id).Scan(&payments).Error
	}
	for _, line := range lines {
		got.Lines = append(got.Lines, order.Line{SKU: line.SKU, Quantity: line.Quantity})
	}
	for _, p := range payments {
		got.Payments = append(got.Payments, order.Payment{Reference: p.Reference, Late: p.Late})
	}
	return got, err
}

// Timeline is what happened to the order, by the shop's tables.
func (o *ownShop) Timeline(ctx context.Context, id string) (entries []order.Entry, err error) {
	var rows []struct {
		Type order.EventType
		At   time.Time
	}
	err = o.DB.WithContext(ctx).Raw(`SELECT 'order.placed' AS type, at FROM shop_placed WHERE order_id = ?
		UNION ALL SELECT 'order.extended', at FROM shop_extended WHERE order_id = ?
		UNION ALL SELECT CONCAT('order.', event), at FROM order_history WHERE order_id = ?
		ORDER BY at, type = 'order.placed' DESC`, id, id, o.Bind(id)).Scan(&rows).Error
	for i, row := range rows {
		entries = append(entries, order.Entry{Version: int64(i + 1), Type: row.Type, At: row.At})
	}
	return entries, err
}

// Stock is the shop's.
func (o *ownShop) Stock(ctx context.Context, _ ...string) (stock []order.Stock, err error) {
	err = o.DB.WithContext(ctx).Raw("SELECT sku, available, reserved, sold FROM stock ORDER BY sku").Scan(&stock).Error
	return stock, err
}

// A checkout in another language publishes timers before its transactions, as in
// github.com/iflytek/skillhub/issues/612: one commits seconds after the deadline, and one is rolled back.
func TestTheTimerOvertakesTheOrder(t *testing.T) {
	s := openOwnShop(t, "order-number")
	s.cfg.SweepEvery = noSweep
	s.cfg.Retry = amqp.RetryPolicy{Tries: 4, Initial: time.Second, Jitter: amqp.NoJitter}
	r := s.start(s.url, checkout.Timer, checkout.Relay)
	r.awaitReady()
	expired := s.tap("order.expired")
	for _, id := range []string{"slow", "rolled-back"} {
		deadline := time.Now().Add(s.clock() + time.Second).UTC().Format(time.RFC3339Nano)
		s.publishTo(s.Topology().Due(), "order.payment_timeout", amqp091.Publishing{
			ContentType: "application/json", DeliveryMode: amqp091.Persistent,
			Body: fmt.Appendf(nil, `{"order_id": %q, "deadline": %q}`, id, deadline),
		})
	}
	await(t, 10*time.Second, "both were tried again", func() bool { return r.metric("lapse_messages_total", "outcome", "retried") >= 2 })
	for id, end := range map[string]func(*gorm.DB) *gorm.DB{"slow": (*gorm.DB).Commit, "rolled-back": (*gorm.DB).Rollback} {
		tx := s.DB.Begin()
		if err := s.Insert(tx, owntable.Order{ID: id, Status: order.Pending}); err != nil {
			t.Fatal(err)
		}
		if err := end(tx).Error; err != nil {
			t.Fatal(err)
		}
	}
	select {
	case body := <-expired:
		if !bytes.Contains(body, []byte(`"subject":"slow"`)) {
			t.Errorf("another order expired: %s", body)
		}
	case <-time.After(15 * time.Second):
		t.Error("the order did not expire")
	}
	letter := s.letters(1)[0]
	reason := fmt.Sprint(letter.Headers[amqp.HeaderReason], " ", letter.Headers[amqp.HeaderError])
	if !bytes.Contains(letter.Body, []byte(`"rolled-back"`)) || !strings.HasPrefix(reason, "out-of-tries order rolled-back: no such order") {
		t.Errorf("%s is a dead letter: %s", letter.Body, reason)
	}
}

// TestOwnTables is [TestFiveThousandOrders] over the tables of three shops, each with two replicas with all that
// competes to expire orders and a relay that is cut off from the broker for two seconds.
func TestOwnTables(t *testing.T) {
	for _, example := range owntable.Names {
		t.Run(example, func(t *testing.T) {
			t.Parallel()
			s := openOwnShop(t, example)
			rounded := time.Duration(0)
			if example == "order-number" {
				// To whole seconds, half up and half down: those on a rung are not quite in their order.
				rounded = time.Second
			}
			s.endure(s, 1500, rounded) // fewer would say nothing of a percentile
		})
	}
}
