package checkout_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/order/checkout"
	"github.com/lapse-go/lapse/order/orderamqp"
)

// A new subscriber reads what happened from an instant between two orders on, by the database's clock.
func TestHistoryOfOrders(t *testing.T) {
	s := newShop(t, place{}, checkout.Config{SweepEvery: noSweep, Logger: quiet(t)})
	s.startHere(s.url, checkout.Relay).awaitReady()
	s.orders("before", 50, time.Hour)
	// No event of the first batch is later.
	micros := s.sql("SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))")
	since := time.UnixMicro(micros)
	ids := s.orders("after", 50, time.Hour)
	await(t, 10*time.Second, "all is published", func() bool { return s.sql("SELECT COUNT(*) FROM lapse_outbox") == 0 })

	var got []string
	history := amqp.History{
		Conn: s.broker, Topology: s.Topology(), Since: since, When: orderamqp.EventTime, Idle: time.Second, Logger: s.cfg.Logger,
	}
	err := history.Read(t.Context(), func(_ context.Context, m amqp.Logged) error {
		e, err := orderamqp.DecodeEvent(m.Message)
		if err != nil {
			return err
		}
		if e.Time.Before(since) {
			return fmt.Errorf("%s happened at %s, before %s", e.ID, e.Time, since)
		}
		got = append(got, e.Subject)
		return nil
	})
	slices.Sort(got)
	if err != nil || !slices.Equal(got, ids) {
		t.Errorf("read %d events of %d orders, %v", len(got), len(ids), err)
	}
}
