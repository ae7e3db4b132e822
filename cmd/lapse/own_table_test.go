package main

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/lapse-go/lapse/amqp/amqptest"
	"github.com/lapse-go/lapse/amqp/database"
	owntable "github.com/lapse-go/lapse/deploy/examples/own-table"
)

// A checkout in any language inserts an order and calls for its timer, in one transaction: the program closes it on
// time, and tells everybody.
func TestAnOrderInTheShopsOwnTable(t *testing.T) {
	s := newService(t)
	owntable.Open(t, s.db, "auto-increment")
	mapping, err := filepath.Abs("../../deploy/examples/own-table/auto-increment/lapse.yaml")
	if err != nil {
		t.Fatal(err)
	}
	expired := amqptest.Tap(t, amqptest.Conn(t), s.topology.Events(), "order.expired")
	r := s.start("--table=" + mapping)

	var id string
	begin := time.Now()
	err = database.Transact(t.Context(), s.db, func(tx *gorm.DB) error {
		if err := tx.Exec("INSERT INTO orders (status, pay_until) VALUES (0, UTC_TIMESTAMP(3) + INTERVAL 2 SECOND)").Error; err != nil {
			return err
		}
		if err := tx.Raw("SELECT LAST_INSERT_ID()").Scan(&id).Error; err != nil {
			return err
		}
		return tx.Exec("CALL lapse_timer('order.payment_timeout', LAST_INSERT_ID(), (SELECT pay_until FROM orders WHERE id = LAST_INSERT_ID()), 2)").Error
	})
	if err != nil {
		t.Fatal(err)
	}
	select {
	case body := <-expired:
		if took := time.Since(begin); took < 2*time.Second || took > 3500*time.Millisecond {
			t.Errorf("it was closed after %s", took)
		}
		if !strings.Contains(string(body), `"order_id":"`+id+`","version":0,"status":"expired","deadline":`) {
			t.Errorf("the event is %s", body)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the order is not closed")
	}
	var closed int
	err = s.db.Raw("SELECT COUNT(*) FROM orders WHERE id = ? AND status = 4 AND closed_at >= pay_until", id).Scan(&closed).Error
	if closed != 1 || err != nil {
		t.Errorf("the row is not as it should be: %v", err)
	}

	// The API does what there is to do.
	if _, err := r.Get(t.Context(), id); err == nil || !strings.Contains(err.Error(), "shop's own table") {
		t.Errorf("asking for the order says %v", err)
	}
	if p, err := r.Paused(t.Context()); err != nil || p.Paused {
		t.Errorf("paused: %v, %v", p, err)
	}
	r.stop()
}
