package checkout_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"gorm.io/gorm"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/amqp/amqptest"
	"github.com/lapse-go/lapse/amqp/deadletter"
	owntable "github.com/lapse-go/lapse/deploy/examples/own-table"
	"github.com/lapse-go/lapse/order"
	"github.com/lapse-go/lapse/order/checkout"
	"github.com/lapse-go/lapse/order/orderamqp"
)

// letterOf puts a letter on the desk.
func letterOf(t testing.TB, db *gorm.DB, kind, subject, body string) {
	t.Helper()
	err := db.Exec(`INSERT INTO lapse_dead_letters (identity, message_id, kind, subject, queue, exchange, routing_key, reason, attempts, error, first_error,
		fingerprint, properties, headers, body, size, died_at, collected_at, replays, replayed_by, state)
		VALUES (UUID(), UUID(), ?, ?, 'lapse.dead', 'lapse.due', ?, 'out-of-tries', 8, '', '', '0000000000000000', '{}', '{}', ?, ?,
		UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), 0, '', 'open')`, kind, subject, kind, body, len(body)).Error
	if err != nil {
		t.Fatal(err)
	}
}

func timerLetter(t testing.TB, db *gorm.DB, id string) {
	t.Helper()
	letterOf(t, db, orderamqp.KindPaymentTimeout, id, fmt.Sprintf(`{"order_id": %q, "deadline": "2020-01-01T00:00:00Z"}`, id))
}

// forecast is what a replay of all would come to.
func forecast(t testing.TB, desk *deadletter.Desk) map[string]int64 {
	t.Helper()
	f, err := desk.DryRun(t.Context(), deadletter.Selection{All: true}, false)
	if err != nil {
		t.Fatal(err)
	}
	return f.Answers
}

// settledBy has the desk run until that many letters are settled, by these answers.
func settledBy(t testing.TB, db *gorm.DB, desk *deadletter.Desk, want map[string]int64) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- desk.Run(ctx, nil) }() // there are no replays
	total := int64(0)
	for _, n := range want {
		total += n
	}
	await(t, 20*time.Second, "letters are settled", func() bool {
		n, err := desk.Count(t.Context(), deadletter.Filter{State: deadletter.Settled})
		return err == nil && n >= total
	})
	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	var rows []struct {
		Resolution, ResolvedBy string
		N                      int64
	}
	err := db.Raw(`SELECT resolution, resolved_by, COUNT(*) AS n FROM lapse_dead_letters WHERE state = 'settled' GROUP BY resolution, resolved_by`).Scan(&rows).Error
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]int64{}
	for _, r := range rows {
		if got[r.Resolution] = r.N; r.ResolvedBy != "lapse" {
			t.Errorf("%s by %s", r.Resolution, r.ResolvedBy)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("settled (-want +got):\n%s", diff)
	}
}

// What orders have become is known of the timers that died; what is settled meanwhile, by a payment or by the sweep, is
// resolved by itself.
func TestTheGuardAsksTheOrders(t *testing.T) {
	db := amqptest.Database(t)
	shop, err := checkout.New(db, checkout.Config{Namespace: amqptest.Namespace(), SweepGrace: time.Millisecond, Logger: amqptest.Logger(t)})
	if err != nil {
		t.Fatal(err)
	}
	for _, sku := range articles[:20] {
		if _, err := shop.SetStock(t.Context(), sku, 100); err != nil {
			t.Fatal(err)
		}
	}
	for id, window := range map[string]time.Duration{"due": time.Millisecond, "Due": time.Millisecond, "early": time.Hour, "paid": time.Hour, "cancelled": time.Hour} {
		if _, err := shop.Place(t.Context(), draft(id, 0, window)); err != nil {
			t.Fatal(err)
		}
	}
	_, paid := shop.Pay(t.Context(), "paid", order.Payment{Reference: "p-1"})
	_, cancelled := shop.Cancel(t.Context(), "cancelled", order.By{})
	if err := errors.Join(paid, cancelled, shop.Pause(t.Context(), order.By{})); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"due", "due", "Due", "early", "paid", "cancelled", "gone"} {
		timerLetter(t, db, id)
	}
	for _, id := range []string{"due", "new"} {
		m, err := orderamqp.EncodePlace(draft(id, 0, time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		letterOf(t, db, m.Kind, id, string(m.Body))
	}
	letterOf(t, db, orderamqp.KindPaymentTimeout, "", "nonsense")
	letterOf(t, db, "shop.mail", "paid", `{"data": {"order_id": "paid"}}`)
	want := map[string]int64{
		"would be expired": 3, "not due yet": 1, "already paid": 1, "already cancelled": 1, "not found": 1,
		"an order of that id exists": 1, "would be placed": 1, "malformed": 1, "not checked": 1,
	}
	if diff := cmp.Diff(want, forecast(t, shop.Desk())); diff != "" {
		t.Errorf("dry run (-want +got):\n%s", diff)
	}
	settledBy(t, db, shop.Desk(), map[string]int64{"already paid": 1, "already cancelled": 1})

	// The two are not the same order.
	if _, err := shop.Pay(t.Context(), "Due", order.Payment{Reference: "p-2"}); err != nil {
		t.Fatal(err)
	}
	if err := shop.Resume(t.Context(), order.By{}); err != nil {
		t.Fatal(err)
	}
	if sum, err := shop.Sweeper().Once(t.Context()); err != nil || sum.Expired != 1 {
		t.Fatalf("%+v, %v", sum, err)
	}
	settledBy(t, db, shop.Desk(), map[string]int64{"already paid": 2, "already cancelled": 1, "already expired": 2})
	want = map[string]int64{"not due yet": 1, "not found": 1, "an order of that id exists": 1, "would be placed": 1, "malformed": 1, "not checked": 1}
	if diff := cmp.Diff(want, forecast(t, shop.Desk())); diff != "" {
		t.Errorf("dry run of what is left (-want +got):\n%s", diff)
	}

	if err := db.Exec("RENAME TABLE lapse_orders TO away").Error; err != nil {
		t.Fatal(err)
	}
	guard := orderamqp.Guard{Store: shop.Repository}
	timer, err := orderamqp.EncodeTimer(order.Timer{OrderID: "due", Deadline: time.Now()})
	if err != nil {
		t.Fatal(err)
	}
	if verdicts, err := guard.Ask(t.Context(), time.Now(), []amqp.Message{timer}); !errors.Is(err, order.ErrUnavailable) {
		t.Errorf("while the orders are away: %v, %v", verdicts, err)
	}
}

// Orders in tables of the shop's own are asked in the same way.
func TestTheGuardAsksTheShopsOwnTable(t *testing.T) {
	for _, example := range owntable.Names {
		t.Run(example, func(t *testing.T) {
			db := amqptest.Database(t)
			shop := owntable.Open(t, db, example)
			closer, table, err := checkout.NewForTable(db, shop.Mapping, checkout.Config{
				Namespace: amqptest.Namespace(), SweepGrace: time.Millisecond, Logger: amqptest.Logger(t),
			})
			if err != nil {
				t.Fatal(err)
			}
			names := []string{"1", "2", "3", "4", "5"}
			ids := make([]string, len(names))
			for i, name := range names {
				ids[i] = shop.ID(name)
				timerLetter(t, db, ids[i])
			}
			err = shop.Insert(db,
				owntable.Order{ID: ids[0], Status: order.Pending, Due: -time.Hour},
				owntable.Order{ID: ids[1], Status: order.Pending, Due: time.Hour},
				owntable.Order{ID: ids[2], Status: order.Paid, Due: time.Hour},
				owntable.Order{ID: ids[3], Status: order.Cancelled, Due: time.Hour})
			if err != nil {
				t.Fatal(err)
			}
			timerLetter(t, db, "no-id-of-this-table")
			letterOf(t, db, orderamqp.KindPlace, "1", `{"id": "1", "lines": [{"sku": "kettle", "quantity": 2, "price": {"amount": 1999, "currency": "EUR"}}]}`)
			want := map[string]int64{"would be expired": 1, "not due yet": 1, "already paid": 1, "already cancelled": 1, "not found": 2, "not checked": 1}
			if diff := cmp.Diff(want, forecast(t, closer.Desk())); diff != "" {
				t.Errorf("dry run (-want +got):\n%s", diff)
			}
			if sum, err := closer.Sweeper().Once(t.Context()); err != nil || sum.Expired != 1 {
				t.Fatalf("%+v, %v", sum, err)
			}
			settledBy(t, db, closer.Desk(), map[string]int64{"already paid": 1, "already cancelled": 1, "already expired": 1})

			// One row that makes no sense does not hide the others.
			m := shop.Mapping
			if err := db.Exec(fmt.Sprintf("UPDATE %s SET %s = '77' WHERE %s = ?", m.Table, m.Status, m.ID), shop.Bind(ids[0])).Error; err != nil {
				return // the column is an ENUM, which holds none
			}
			guard := orderamqp.Guard{Store: table}
			var batch []amqp.Message
			for _, id := range []string{ids[0], ids[2]} {
				timer, err := orderamqp.EncodeTimer(order.Timer{OrderID: id, Deadline: time.Now()})
				if err != nil {
					t.Fatal(err)
				}
				batch = append(batch, timer)
			}
			verdicts, err := guard.Ask(t.Context(), time.Now(), batch)
			if diff := cmp.Diff([]deadletter.Verdict{{Answer: "not found, or cannot be read"}, {Answer: "already paid", Settled: true}}, verdicts); err != nil || diff != "" {
				t.Errorf("%v, %s", err, diff)
			}
		})
	}
}
