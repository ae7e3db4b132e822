package checkout_test

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/lapse-go/lapse/amqp/amqptest"
	"github.com/lapse-go/lapse/order"
	"github.com/lapse-go/lapse/order/checkout"
)

// TestClocksDiffer gives the database a clock that is two minutes off from that of the programs and the
// broker. The database's decides: nothing closes early by it or much later, and a timer that comes back
// too early does not spin, as one did in
// github.com/rabbitmq/rabbitmq-delayed-message-exchange/issues/167.
func TestClocksDiffer(t *testing.T) {
	for _, test := range []struct {
		name, faketime string
		offset         time.Duration
	}{
		{"the database is two minutes ahead", "+2m", 2 * time.Minute},
		{"the database is two minutes behind", "-2m", -2 * time.Minute},
	} {
		t.Run(test.name, func(t *testing.T) {
			// libfaketime moves the clock of C programs, so of the server that is started now, but not
			// of Go programs, so not of this one.
			t.Setenv("LD_PRELOAD", libfaketime(t))
			t.Setenv("FAKETIME", test.faketime)
			t.Setenv("FAKETIME_DONT_FAKE_MONOTONIC", "1")
			mysql := amqptest.NewMySQL(t)
			s := newShop(t, place{db: mysql.Database(t)}, checkout.Config{SweepEvery: noSweep})
			if off := s.clock() - test.offset; off.Abs() > 10*time.Second {
				t.Fatalf("the database's clock is not %s off, but %s more", test.offset, off)
			}
			r := s.startHere(s.url, checkout.Relay, checkout.Timer)
			r.awaitReady()
			var timers []order.Timer
			for i, window := range []time.Duration{500 * time.Millisecond, time.Second, 1700 * time.Millisecond, 2 * time.Second, 3300 * time.Millisecond, 5 * time.Second} {
				o := s.order(fmt.Sprint("o", i), window)
				// One more timer, by somebody who goes by the program's clock, and who has it come back at
				// once.
				timers = append(timers, order.Timer{OrderID: o.ID, Deadline: time.Now().Add(window)})
			}
			extended := s.order("extended", time.Second)
			if _, err := s.extend(t.Context(), "extended", extended.Deadline.Add(time.Second)); err != nil {
				t.Fatal(err)
			}
			s.dueNow(timers...)
			v := s.judge(20 * time.Second)
			if late := v.Lateness(nil); late.Orders != 7 || late.Max >= time.Second {
				t.Errorf("lateness: %s", late)
			}
			// Of 13 timers, each with a few hops at most.
			if hops := r.metric("lapse_messages_total", "outcome", "deferred"); hops < 6 || hops > 50 {
				t.Errorf("%v hops", hops)
			}
		})
	}
}

func libfaketime(t *testing.T) string {
	t.Helper()
	for _, pattern := range []string{"/usr/lib/*/faketime/libfaketimeMT.so.1", "/usr/lib*/faketime/libfaketimeMT.so.1", "/usr/local/lib/faketime/libfaketimeMT.so.1"} {
		if found, _ := filepath.Glob(pattern); len(found) > 0 {
			return found[0]
		}
	}
	t.Fatal("this test needs libfaketime: install faketime (Debian)")
	return ""
}
