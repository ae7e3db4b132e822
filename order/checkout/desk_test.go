package checkout_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/amqp/amqptest"
	"github.com/lapse-go/lapse/amqp/deadletter"
	"github.com/lapse-go/lapse/order"
	"github.com/lapse-go/lapse/order/checkout"
)

// What dies, and what nobody handles, is on the desk, with the order that it is about.
func TestDeadLettersAreOnTheDesk(t *testing.T) {
	s := openShop(t, place{}, checkout.Config{SweepEvery: noSweep})
	r := s.start(s.url, checkout.Timer, checkout.Desk)
	r.awaitReady()
	s.dueNow(order.Timer{OrderID: "gone", Deadline: time.Now().Add(-time.Hour)})
	s.deliver(
		amqp.Message{Kind: kindPaymentTimeout, ID: "bad", Body: []byte("nonsense")},
		amqp.Message{Kind: "order.unheard_of", ID: "mistyped", Body: []byte("{}")},
	)
	s.deliver(amqp.Message{Kind: kindPaymentTimeout, ID: "last", Body: []byte(`{"order_id":"gone","deadline":"2020-01-01T00:00:00Z"}`),
		Headers: map[string]any{amqp.HeaderAttempt: int64(8)}})
	var letters []deadletter.Letter
	await(t, 30*time.Second, "three letters", func() bool {
		var err error
		letters, _, err = s.Desk().List(t.Context(), deadletter.Filter{State: deadletter.Open}, deadletter.Page{})
		if err != nil {
			t.Fatal(err)
		}
		return len(letters) == 3
	})
	type summary struct {
		Kind, Subject string
		Reason        deadletter.Reason
	}
	got := map[string]summary{}
	for _, l := range letters {
		got[l.MessageID] = summary{l.Kind, l.Subject, l.Reason}
	}
	want := map[string]summary{
		"bad":      {kindPaymentTimeout, "", deadletter.Hopeless},
		"mistyped": {"order.unheard_of", "", deadletter.Unroutable},
		"last":     {kindPaymentTimeout, "gone", deadletter.OutOfTries},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	await(t, rounds, "they are counted", func() bool { return r.metric("lapse_desk_open_letters") == 3 })
}

// While the database is away, letters wait for it.
func TestTheDeskIsNotReadyWithoutTheDatabase(t *testing.T) {
	server := amqptest.NewMySQL(t)
	s := openShop(t, place{db: server.Database(t)}, checkout.Config{SweepEvery: noSweep})
	r := s.start(s.url, checkout.Desk)
	r.awaitReady()
	server.Kill()
	s.deliver(amqp.Message{Kind: "order.unheard_of", ID: "mistyped", Body: []byte("{}")})
	await(t, 30*time.Second, "it is not ready", func() bool { return r.Ready() != nil && !errors.Is(r.Ready(), amqp.ErrPaused) })
	await(t, rounds, "nobody knows how many letters are open", func() bool { return r.series("lapse_desk_open_letters") == 0 })
	server.Start()
	r.awaitReady()
	await(t, 30*time.Second, "the letter is there", func() bool {
		n, err := s.Desk().Count(t.Context(), deadletter.Filter{State: deadletter.Open})
		return err == nil && n == 1
	})
}
