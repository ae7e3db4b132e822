package orderamqp

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/amqp/deadletter"
	"github.com/lapse-go/lapse/order"
)

// heads is a store of orders that are looked up; package checkout has the guard ask real ones.
type heads struct {
	order.Repository
	found map[string]order.Head
	err   error
	asked [][]string
}

func (h *heads) Find(_ context.Context, ids []string) (map[string]order.Head, error) {
	h.asked = append(h.asked, ids)
	return h.found, h.err
}

// onlyStore places no orders.
type onlyStore struct{ order.Store }

var guardNow = time.Date(2030, 1, 31, 12, 0, 0, 0, time.UTC)

func guardHeads() map[string]order.Head {
	found := make(map[string]order.Head)
	for id, h := range map[string]order.Head{
		"due":       {Status: order.Pending, Deadline: guardNow},
		"early":     {Status: order.Pending, Deadline: guardNow.Add(time.Microsecond)},
		"paid":      {Status: order.Paid},
		"cancelled": {Status: order.Cancelled},
		"expired":   {Status: order.Expired},
		"odd":       {Status: "lost"},
	} {
		h.ID = id
		found[id] = h
	}
	return found
}

func guardTimer(id string) amqp.Message {
	return amqp.Message{Kind: KindPaymentTimeout, Body: fmt.Appendf(nil, `{"order_id": %q, "deadline": "2030-01-31T11:00:00Z", "id": 7}`, id)}
}

func guardPlace(id string) amqp.Message {
	return amqp.Message{Kind: KindPlace, Body: fmt.Appendf(nil, `{"id": %q, "lines": [{"sku": "kettle", "quantity": 2, "price": {"amount": 1999, "currency": "EUR"}}]}`, id)}
}

func TestTheGuardAnswersForEachMessage(t *testing.T) {
	event := []byte(`{"specversion": "1.0", "id": "1", "type": "order.paid", "data": {"order_id": "paid"}}`)
	invalid := amqp.Message{Kind: KindPlace, Body: []byte(`{"id": "no-lines", "lines": []}`)}
	cases := []struct {
		message amqp.Message
		subject string
		want    deadletter.Verdict
	}{
		{guardTimer("due"), "due", deadletter.Verdict{Answer: "would be expired"}},
		{guardTimer("early"), "early", deadletter.Verdict{Answer: "not due yet"}},
		{guardTimer("paid"), "paid", deadletter.Verdict{Answer: "already paid", Settled: true}},
		{guardTimer("cancelled"), "cancelled", deadletter.Verdict{Answer: "already cancelled", Settled: true}},
		{guardTimer("expired"), "expired", deadletter.Verdict{Answer: "already expired", Settled: true}},
		{guardTimer("paid"), "paid", deadletter.Verdict{Answer: "already paid", Settled: true}},
		{guardTimer("missing"), "missing", deadletter.Verdict{Answer: "not found"}},
		{guardTimer("odd"), "odd", deadletter.Verdict{Answer: "not checked"}},
		{guardTimer("a b"), "", deadletter.Verdict{Answer: "malformed"}},
		{guardTimer(strings.Repeat("x", 65)), "", deadletter.Verdict{Answer: "malformed"}},
		{amqp.Message{Kind: KindPaymentTimeout, Body: []byte(`{"order_id": "paid"}`)}, "paid", deadletter.Verdict{Answer: "malformed"}},
		{amqp.Message{Kind: KindPaymentTimeout, Body: []byte("\xff{")}, "", deadletter.Verdict{Answer: "malformed"}},
		{amqp.Message{Kind: KindPaymentTimeout}, "", deadletter.Verdict{Answer: "malformed"}},
		{amqp.Message{Kind: KindPaymentTimeout, Body: event}, "", deadletter.Verdict{Answer: "malformed"}},
		{guardPlace("paid"), "paid", deadletter.Verdict{Answer: "an order of that id exists"}},
		{guardPlace("new"), "new", deadletter.Verdict{Answer: "would be placed"}},
		{invalid, "no-lines", deadletter.Verdict{Answer: "would be refused"}},
		{amqp.Message{Kind: KindPlace, Body: guardTimer("due").Body}, "", deadletter.Verdict{Answer: "malformed"}},
		{amqp.Message{Kind: "mail", Body: event}, "paid", deadletter.Verdict{Answer: "not checked"}},
		{amqp.Message{Kind: "mail", Body: guardTimer("paid").Body}, "paid", deadletter.Verdict{Answer: "not checked"}},
		{amqp.Message{Kind: "mail", Body: []byte(`{"order_id": "` + strings.Repeat(`{"a":`, 20000))}, "", deadletter.Verdict{Answer: "not checked"}},
		{amqp.Message{Kind: "", Body: []byte(`[{"order_id": "paid"}]`)}, "", deadletter.Verdict{Answer: "not checked"}},
	}
	store := &heads{found: guardHeads()}
	guard := Guard{Store: store}
	batch := make([]amqp.Message, len(cases))
	want := make([]deadletter.Verdict, len(cases))
	for i, c := range cases {
		batch[i], want[i] = c.message, c.want
		if got := guard.Subject(c.message); got != c.subject {
			t.Errorf("%s %.100s is about %q, want %q", c.message.Kind, c.message.Body, got, c.subject)
		}
	}
	got, err := guard.Ask(t.Context(), guardNow, batch)
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v, (-want +got):\n%s", err, diff)
	}
	if len(store.asked) != 1 {
		t.Errorf("the store was asked %d times for one batch", len(store.asked))
	}
}

func TestTheGuardWithoutOrders(t *testing.T) {
	batch := []amqp.Message{guardTimer("paid"), guardPlace("paid"), {}}
	got, err := Guard{}.Ask(t.Context(), guardNow, batch)
	unknown := deadletter.Verdict{Answer: "not checked"}
	if diff := cmp.Diff([]deadletter.Verdict{unknown, unknown, unknown}, got); err != nil || diff != "" {
		t.Errorf("%v, %s", err, diff)
	}
	if got := (Guard{}).Subject(guardTimer("paid")); got != "" {
		t.Errorf("about %s, although there are no orders", got)
	}
	// In a table of the shop's own nobody places orders by message.
	got, err = Guard{Store: onlyStore{&heads{found: guardHeads()}}}.Ask(t.Context(), guardNow, batch)
	want := []deadletter.Verdict{{Answer: "already paid", Settled: true}, unknown, unknown}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v, %s", err, diff)
	}
}

func TestTheGuardWhenOrdersCannotBeRead(t *testing.T) {
	batch := []amqp.Message{guardTimer("paid"), guardTimer("missing")}
	away := fmt.Errorf("%w: no route", order.ErrUnavailable)
	for _, store := range []*heads{{err: away}, {err: away, found: guardHeads()}, {err: errors.New("broken")}} {
		if got, err := (Guard{Store: store}).Ask(t.Context(), guardNow, batch); !errors.Is(err, store.err) || got != nil {
			t.Errorf("%v: %v, %v", store.err, got, err)
		}
	}
	// Some make no sense, which is no reason not to tell of the others.
	store := &heads{found: guardHeads(), err: errors.New("order missing: status lost")}
	got, err := Guard{Store: store}.Ask(t.Context(), guardNow, batch)
	want := []deadletter.Verdict{{Answer: "already paid", Settled: true}, {Answer: "not found, or cannot be read"}}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v, %s", err, diff)
	}
}

func FuzzGuard(f *testing.F) {
	f.Add(KindPaymentTimeout, guardTimer("due").Body)
	f.Add(KindPlace, guardPlace("due").Body)
	f.Add("mail", []byte(`{"data": {"order_id": "due"}}`))
	guard := Guard{Store: &heads{found: guardHeads()}}
	f.Fuzz(func(t *testing.T, kind string, body []byte) {
		m := amqp.Message{Kind: kind, Body: body}
		if id := guard.Subject(m); id != "" && order.ValidateID("id", id) != nil {
			t.Errorf("about %q", id)
		}
		if got, err := guard.Ask(t.Context(), guardNow, []amqp.Message{m}); err != nil || len(got) != 1 || got[0].Answer == "" {
			t.Errorf("%v, %v", got, err)
		}
	})
}
