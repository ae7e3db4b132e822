package web_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/amqp/amqptest"
	"github.com/lapse-go/lapse/amqp/outbox"
	"github.com/lapse-go/lapse/order"
	"github.com/lapse-go/lapse/order/checkout"
	"github.com/lapse-go/lapse/order/orderdb"
	"github.com/lapse-go/lapse/order/web"
)

func TestOverview(t *testing.T) {
	s := start(t, nil)
	s.stocked("kettle", 10)
	s.stocked("filter", 10)
	s.placed("A-1")
	s.letter(1, nil)
	if err := s.Pause(t.Context(), order.By{Why: "night"}); err != nil {
		t.Fatal(err)
	}
	o, err := s.Overview(t.Context())
	if err != nil || time.Since(o.At).Abs() > time.Minute || !strings.Contains(o.Trouble, "not serving yet") {
		t.Errorf("%+v, %v", o, err)
	}
	if o.Pause == nil || !o.Pause.Value.Paused || o.Pause.Value.Why != "night" {
		t.Errorf("pause: %+v", o.Pause)
	}
	want := map[order.Status]web.Count{order.Pending: {Count: 1}, order.Paid: {}, order.Cancelled: {}, order.Expired: {}}
	if diff := cmp.Diff(want, o.Orders.Value, cmp.AllowUnexported(web.Count{})); diff != "" {
		t.Error("orders (-want +got): ", diff)
	}
	if o.Letters.Value.Count != 1 || o.Outbox.Value.Count.Count == 0 || o.Closing.Unknown != "" || o.Overdue.Unknown != "" {
		t.Errorf("letters %+v, outbox %+v, closing %+v, overdue %+v", o.Letters, o.Outbox, o.Closing, o.Overdue)
	}
	if o.Queues.Unknown != "the queues have not been looked at yet" || o.Queues.Value.Queues != nil {
		t.Errorf("queues: %+v", o.Queues)
	}
}

func TestOverviewWhileTheDatabaseIsAway(t *testing.T) {
	proxy, db := proxied(t, amqptest.Database(t))
	s := start(t, db)
	c := &checked{t: t, by: documented(t, s.document()), next: s.http.Transport}
	s.http.Transport = c
	s.Client = s.client("")
	proxy.Refuse()
	o, err := s.Overview(t.Context())
	if err != nil || c.count != 1 {
		t.Fatal(err, c.count)
	}
	for part, unknown := range map[string]string{
		"pause": o.Pause.Unknown, "orders": o.Orders.Unknown, "overdue": o.Overdue.Unknown, "closing": o.Closing.Unknown, "outbox": o.Outbox.Unknown, "letters": o.Letters.Unknown,
	} {
		if unknown != "the database is busy or away" {
			t.Errorf("%s: %q", part, unknown)
		}
	}
}

func TestOverviewIsServedWhereThereIsOne(t *testing.T) {
	s := start(t, nil, func(cfg *web.Config) { cfg.Overview = nil })
	_, err := s.Overview(t.Context())
	wantProblem(t, err, "no-such-path", http.StatusNotFound, nil)
}

// Each number comes where it belongs, what is not known has none, and what is nothing is not there.
func TestOverviewAsJSON(t *testing.T) {
	at := time.Date(2030, 1, 31, 13, 30, 0, 0, time.FixedZone("", 3600))
	for _, test := range []struct {
		o    checkout.Overview
		want string
	}{
		{checkout.Overview{At: at}, `{"at":"2030-01-31T12:30:00Z"}`},
		{checkout.Overview{
			At: at, Trouble: "why \xff",
			Pause:   known(order.Pause{}),
			Orders:  known(map[order.Status]int{order.Pending: checkout.MostCounted, order.Paid: 2}),
			Overdue: known(checkout.Overdue{Orders: checkout.MostOverdue, Oldest: 1500 * time.Millisecond}),
			Closing: known(orderdb.Closing{Since: time.Minute, Orders: 3, P50: 4 * time.Millisecond, P99: 5 * time.Millisecond, Rate: 0.5}),
			Queues:  known(checkout.Queues{At: at, Depths: []amqp.Depth{{Queue: "q", Role: "due", Messages: 7}, {Queue: "lapse.dead", Role: "dead", Missing: true}}}),
			Outbox:  known(outbox.Backlog{Rows: 8, SetAside: 9, Oldest: 10 * time.Second}),
			Letters: known[int64](11),
		}, `{"at":"2030-01-31T12:30:00Z","trouble":"why \\xff","pause":{"paused":false},"orders":{"paid":{"count":2},"pending":{"count":100000,"over":true}},` +
			`"overdue":{"count":1000,"over":true,"oldest_ms":1500},"closing":{"within_ms":60000,"orders":3,"p50_ms":4,"p99_ms":5,"rate":0.5},` +
			`"queues":{"at":"2030-01-31T12:30:00Z","queues":[{"queue":"q","role":"due","messages":7},{"queue":"lapse.dead","role":"dead","messages":0,"missing":true}]},` +
			`"outbox":{"count":8,"set_aside":9,"oldest_ms":10000},"letters":{"count":11}}`},
		{checkout.Overview{
			At: at, Letters: &checkout.Known[int64]{Value: 3, Err: order.ErrUnavailable}, Queues: &checkout.Known[checkout.Queues]{Err: checkout.ErrBroker},
		}, `{"at":"2030-01-31T12:30:00Z","queues":{"unknown":"the broker is busy or away"},"letters":{"unknown":"the database is busy or away"}}`},
	} {
		got, err := json.Marshal(web.OverviewOf(test.o))
		if diff := cmp.Diff(test.want, string(got)); err != nil || diff != "" {
			t.Error(err, diff)
		}
		var read web.Overview
		if err := json.Unmarshal(got, &read); err != nil {
			t.Error(err)
		}
		if again, err := json.Marshal(read); err != nil || string(again) != string(got) {
			t.Errorf("it is read as %s, %v", again, err)
		}
	}
}

func known[T any](value T) *checkout.Known[T] { return &checkout.Known[T]{Value: value} }
