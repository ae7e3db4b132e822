package checkout_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/order"
	"github.com/lapse-go/lapse/order/checkout"
	"github.com/lapse-go/lapse/order/orderamqp"
)

// publish sends messages to the due exchange as a program in any language may, and waits for the confirms.
func (s *shop) publish(messages ...amqp091.Publishing) {
	s.t.Helper()
	s.publishTo(s.Topology().Due(), "order.place", messages...)
}

func (s *shop) publishTo(exchange, key string, messages ...amqp091.Publishing) {
	s.t.Helper()
	channel, err := s.broker.Channel(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	defer channel.Close()
	if err := channel.Confirm(false); err != nil {
		s.t.Fatal(err)
	}
	confirms := make([]*amqp091.DeferredConfirmation, len(messages))
	for i, m := range messages {
		confirms[i], err = channel.PublishWithDeferredConfirm(exchange, key, true, false, m)
		if err != nil {
			s.t.Fatal(err)
		}
	}
	for i, confirm := range confirms {
		if acked, err := confirm.WaitContext(s.t.Context()); err != nil || !acked {
			s.t.Fatalf("message %d is not confirmed: %v", i, err)
		}
	}
}

// asks is a message that asks to place the order, with an id of its own.
func asks(t testing.TB, d order.Draft) amqp091.Publishing {
	t.Helper()
	m, err := orderamqp.EncodePlace(d)
	if err != nil {
		t.Fatal(err)
	}
	return amqp091.Publishing{MessageId: order.NewID(), ContentType: "application/json", DeliveryMode: amqp091.Persistent, Body: m.Body}
}

// refusals are all that subscribers were told of refused orders: how often each was refused, with the last
// one's data. They are read from a queue that was bound by bindRefusals.
func (s *shop) refusals(queue string) (times map[string]int, last map[string]orderamqp.EventData) {
	s.t.Helper()
	times, last = make(map[string]int), make(map[string]orderamqp.EventData)
	seen := make(map[string]bool)
	for _, delivery := range s.drain(queue) {
		var e orderamqp.Event
		if err := json.Unmarshal(delivery.Body, &e); err != nil {
			s.t.Fatal(err)
		}
		if !seen[e.ID] {
			seen[e.ID] = true
			times[e.Subject]++
			last[e.Subject] = e.Data
		}
	}
	return times, last
}

func (s *shop) bindRefusals() (queue string) {
	s.t.Helper()
	channel, err := s.broker.Channel(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	queue = s.Topology().Namespace + ".refusals"
	_, err = channel.QueueDeclare(queue, true, false, false, false, nil)
	if err == nil {
		err = channel.QueueBind(queue, "order.refused", s.Topology().Events(), false, nil)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	channel.Close()
	s.t.Cleanup(func() {
		channel, err := s.broker.Channel(context.WithoutCancel(s.t.Context()))
		if err == nil {
			_, err = channel.QueueDelete(queue, false, false, false)
			channel.Close()
		}
		if err != nil {
			s.t.Error(err)
		}
	})
	return queue
}

// drain takes all messages from a queue.
func (s *shop) drain(queue string) (deliveries []amqp091.Delivery) {
	s.t.Helper()
	channel, err := s.broker.Channel(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	defer channel.Close()
	for {
		delivery, ok, err := channel.Get(queue, true)
		if err != nil {
			s.t.Fatal(err)
		}
		if !ok {
			return deliveries
		}
		deliveries = append(deliveries, delivery)
	}
}

// total is a metric summed over replicas.
func total(replicas []*replica, name string, labels ...string) (sum float64) {
	for _, r := range replicas {
		sum += r.metric(name, labels...)
	}
	return sum
}

// Messages of every kind of content, in two replicas: what is an order is placed once, with a timer and
// events like any other; what is refused has one event that says why; and what nobody can tell whose order it
// is rests with the dead letters.
func TestOrdersArePlacedByMessage(t *testing.T) {
	const good = 300
	s := newShop(t, place{}, checkout.Config{SweepEvery: noSweep, Window: 3 * time.Second, PlaceWorkers: 3, Logger: quiet(t)})
	queue := s.bindRefusals()
	// Nobody collects the dead letters.
	roles := []checkout.Role{checkout.Place, checkout.Relay, checkout.Timer}
	replicas := []*replica{s.start(s.url, roles...), s.start(s.url, roles...)}
	for _, r := range replicas {
		r.awaitReady()
	}
	taken := s.order("taken", 4*time.Second)

	var messages []amqp091.Publishing
	var placed []order.Draft
	for i := range good {
		d := draft(fmt.Sprintf("good-%03d", i), i, 0)
		if i%3 == 0 {
			d.Window = 2 * time.Second
		}
		placed = append(placed, d)
		messages = append(messages, asks(t, d), asks(t, d)) // as after a confirm that did not come
	}
	// Messages of programs that know AMQP differently.
	valid := string(asks(t, draft("foreign-0", 0, 0)).Body)
	for i, m := range []amqp091.Publishing{
		{},
		{ContentType: "text/plain; charset=latin-1", Type: "order", ReplyTo: "nobody", CorrelationId: "c", Priority: 9, DeliveryMode: amqp091.Transient},
		{MessageId: strings.Repeat("ö", 100), ContentEncoding: "utf-8", AppId: "a till", Headers: amqp091.Table{"lapse-attempt": "three", "x-shop": int32(7)}},
	} {
		id := fmt.Sprint("foreign-", i)
		m.Body = []byte(strings.Replace(valid, "foreign-0", id, 1))
		placed, messages = append(placed, draft(id, 0, 0)), append(messages, m)
	}

	refused := map[string]orderamqp.EventData{}
	refuse := func(id string, reason orderamqp.Reason, says string, change func(*order.Draft)) {
		d := draft(id, 0, 0)
		change(&d)
		messages = append(messages, asks(t, d))
		refused[id] = orderamqp.EventData{Reason: reason, Error: says}
	}
	refuse("taken", orderamqp.ReasonConflict, "another content", func(d *order.Draft) { d.Lines[0].Quantity = 7 })
	refuse("short", orderamqp.ReasonOutOfStock, "out of stock: "+articles[0], func(d *order.Draft) {
		d.Lines[0].Quantity, d.Lines[0].Price.Amount = 1_000_000, 1
		d.Lines[1].SKU = articles[0]
	})
	refuse("unknown", orderamqp.ReasonUnknownSKU, "unknown sku teapot", func(d *order.Draft) { d.Lines[1].SKU = "teapot" })
	refuse("no-lines", orderamqp.ReasonInvalid, "0 lines: give 1 to 200", func(d *order.Draft) { d.Lines = nil })
	refuse("201-lines", orderamqp.ReasonInvalid, "201 lines", func(d *order.Draft) { d.Lines = make([]order.Line, 201) })
	refuse("no-quantity", orderamqp.ReasonInvalid, "quantity 0: give 1", func(d *order.Draft) { d.Lines[0].Quantity = 0 })
	refuse("currencies", orderamqp.ReasonInvalid, "in one currency", func(d *order.Draft) { d.Lines[1].Price.Currency = "USD" })
	refuse("currency", orderamqp.ReasonInvalid, "ISO 4217", func(d *order.Draft) { d.Lines[1].Price.Currency = strings.Repeat("€", 10_000) })
	refuse("negative", orderamqp.ReasonInvalid, "not negative", func(d *order.Draft) { d.Lines[1].Price.Amount = -1 })
	refuse("too-much", orderamqp.ReasonInvalid, "more than can be counted", func(d *order.Draft) { d.Lines[1].Price.Amount = 1<<63 - 1 })
	refuse("sku", orderamqp.ReasonInvalid, "printable ASCII", func(d *order.Draft) { d.Lines[1].SKU = "tea pot" })
	refuse("tag", orderamqp.ReasonInvalid, "no tag", func(d *order.Draft) { d.Tags = []string{""} })
	refuse("customer", orderamqp.ReasonInvalid, "customer has 1000000 bytes", func(d *order.Draft) { d.Customer = strings.Repeat("x", 1_000_000) })
	refuse("past", orderamqp.ReasonInvalid, "a window of -5m0s", func(d *order.Draft) { d.Window = -5 * time.Minute })
	refuse("two-years", orderamqp.ReasonInvalid, "a window of 17520h0m0s", func(d *order.Draft) { d.Window = 2 * order.MaxWindow })
	for id, window := range map[string]string{"window-unit": "30", "window-word": "soon", "window-zero": "0s"} {
		m := asks(t, draft(id, 0, time.Second))
		m.Body = []byte(strings.Replace(string(m.Body), `"1s"`, fmt.Sprintf("%q", window), 1))
		messages = append(messages, m)
		refused[id] = orderamqp.EventData{Reason: orderamqp.ReasonInvalid, Error: fmt.Sprintf("a window of %q: give a duration", window)}
	}
	// Of two different orders with one id, one is placed.
	either := []order.Draft{draft("either", 1, 0), draft("either", 2, 0)}
	messages = append(messages, asks(t, either[0]), asks(t, either[1]))
	refused["either"] = orderamqp.EventData{Reason: orderamqp.ReasonConflict, Error: "another content"}

	messages = append(messages, amqp091.Publishing{
		Body: []byte(strings.Replace(strings.Replace(valid, "foreign-0", "mistyped", 1), `"lines":`, `"windw":"5s","lines":`, 1)),
	})
	refused["mistyped"] = orderamqp.EventData{Reason: orderamqp.ReasonInvalid, Error: `unknown field "windw"`}
	for id, quantity := range map[string]string{"text": `"1"`, "fraction": "1.5"} {
		body := strings.Replace(strings.Replace(valid, "foreign-0", id, 1), `"quantity":1`, `"quantity":`+quantity, 1)
		messages = append(messages, amqp091.Publishing{Body: []byte(body)})
		refused[id] = orderamqp.EventData{Reason: orderamqp.ReasonInvalid, Error: "lines.quantity cannot be a JSON"}
	}

	malformed := []string{
		``, `not JSON`, `[]`, `null`, valid + "{}", valid[:len(valid)-1], "\x1f\x8b\x08\x00", `{"id": 7}`, `{"lines": []}`,
		strings.Replace(valid, `"foreign-0"`, `""`, 1), strings.Replace(valid, `"foreign-0"`, `"a b"`, 1),
		strings.Replace(valid, `"foreign-0"`, `"`+strings.Repeat("x", 65)+`"`, 1),
		`{"order_id":"taken","deadline":"2030-01-31T12:00:00Z"}`,
	}
	for i, body := range malformed {
		m := amqp091.Publishing{Body: []byte(body)}
		if i%2 == 0 {
			m.MessageId = order.NewID()
		}
		messages = append(messages, m)
	}
	rand.Shuffle(len(messages), func(i, j int) { messages[i], messages[j] = messages[j], messages[i] })
	s.publish(messages...)

	await(t, 20*time.Second, "every message is settled", func() bool {
		return total(replicas, "lapse_messages_total", "kind", "order.place") == float64(len(messages))
	})
	for outcome, want := range map[string]int{
		"placed": len(placed) + 1, "repeated": good, "refused": len(refused), "failed": len(malformed),
	} {
		if n := total(replicas, "lapse_placements_total", "outcome", outcome); n != float64(want) {
			t.Errorf("%v orders are %s, want %d", n, outcome, want)
		}
	}
	for outcome, want := range map[string]int{"done": len(messages) - len(malformed), "dead": len(malformed)} {
		if n := total(replicas, "lapse_messages_total", "kind", "order.place", "outcome", outcome); n != float64(want) {
			t.Errorf("%v messages are %s, want %d", n, outcome, want)
		}
	}
	for _, d := range placed {
		o := s.get(d.ID)
		s.ledger.Placed(d, o, nil)
		want := 3 * time.Second
		if d.Window != 0 {
			want = d.Window
		}
		if o.Window != want || !o.Deadline.Equal(o.PlacedAt.Add(want)) {
			t.Errorf("%s was placed at %s with a window of %s and a deadline of %s", d.ID, o.PlacedAt, o.Window, o.Deadline)
		}
	}
	won := s.get("either")
	index := slices.IndexFunc(either, func(d order.Draft) bool { return d.Lines[0] == won.Lines[0] })
	s.ledger.Placed(either[index], won, nil)
	for id, why := range refused {
		if id != "taken" && id != "either" {
			s.ledger.Placed(order.Draft{ID: id}, order.Order{}, fmt.Errorf("%w: %s", order.ErrInvalid, why.Error))
		}
	}

	v := s.judge(20 * time.Second)
	if want := len(placed) + 2; v.Expired != want || v.Events != 2*want || v.Refused != len(refused)-2 {
		t.Errorf("%d expired and %d refused, with %d events; want %d and %d", v.Expired, v.Refused, v.Events, want, len(refused)-2)
	}
	if o := s.get("taken"); !slices.Equal(o.Lines, taken.Lines) {
		t.Errorf("the order that had its id first has other lines: %+v", o)
	}
	times, last := s.refusals(queue)
	for id, want := range refused {
		got := last[id]
		if times[id] != 1 || got.Reason != want.Reason || !strings.Contains(got.Error, want.Error) || len(got.Error) > 1000 || got.OrderID != id || got.Version != 0 {
			t.Errorf("%s was refused %d times: %s: %s; want %s: %s", id, times[id], got.Reason, got.Error, want.Reason, want.Error)
		}
	}
	if len(times) != len(refused) {
		t.Errorf("refused %v, want %d orders", times, len(refused))
	}

	var dead []string
	for _, letter := range s.drain(s.Topology().Dead()) {
		dead = append(dead, string(letter.Body))
		why, _ := letter.Headers[amqp.HeaderError].(string)
		if letter.RoutingKey != "order.place" || letter.Headers[amqp.HeaderReason] != "hopeless" || !strings.Contains(why, `{"id": "A-1", "lines": [{"sku": "kettle"`) {
			t.Errorf("dead letter %.100q with key %s: %s", letter.Body, letter.RoutingKey, why)
		}
	}
	slices.Sort(dead)
	slices.Sort(malformed)
	if diff := cmp.Diff(malformed, dead); diff != "" {
		t.Errorf("dead letters (-want +got):\n%s", diff)
	}
}

// forgetful does the work, and then loses the answer as often as it is told to.
type forgetful struct {
	orderamqp.Orders
	placing, refusing int
}

func (f *forgetful) PlaceAll(ctx context.Context, drafts []order.Draft) ([]order.Placement, error) {
	placed, err := f.Orders.PlaceAll(ctx, drafts)
	if f.placing--; f.placing >= 0 {
		return nil, fmt.Errorf("%w: the answer to the commit was lost", order.ErrUnavailable)
	}
	return placed, err
}

func (f *forgetful) Refuse(ctx context.Context, drafts []order.Draft, errs []error) error {
	err := f.Orders.Refuse(ctx, drafts, errs)
	if f.refusing--; f.refusing >= 0 {
		return fmt.Errorf("%w: the answer to the commit was lost", order.ErrUnavailable)
	}
	return err
}

// A batch that is handled again, because nobody knows what became of it, has no second effect.
func TestABatchOfWhichTheAnswerIsLost(t *testing.T) {
	s := openShop(t, place{}, checkout.Config{})
	var batch []amqp.Message
	add := func(d order.Draft) {
		m, err := orderamqp.EncodePlace(d)
		if err != nil {
			t.Fatal(err)
		}
		if m.ID = "message-" + d.ID; d.ID == "no-message-id" {
			m.ID = ""
		}
		batch = append(batch, m)
	}
	for i := range 20 {
		add(draft(fmt.Sprint("good-", i), i, 0))
	}
	add(draft("good-0", 7, 0)) // a conflict
	for _, id := range []string{"invalid", "no-message-id"} {
		d := draft(id, 0, 0)
		d.Lines = nil
		add(d)
	}
	short := draft("short", 0, 0)
	short.Lines[0].Quantity, short.Lines[1].SKU = 1_000_000, short.Lines[0].SKU
	add(short)

	orders := &forgetful{s.Service, 2, 2}
	placer := &orderamqp.Placer{Orders: orders}
	for range 4 {
		if _, err := placer.Handle(t.Context(), batch); !errors.Is(err, order.ErrUnavailable) {
			t.Fatalf("the answer is lost, and it says %v", err)
		}
	}
	for range 2 { // and once more, because the acknowledgement was lost as well
		outcomes, err := placer.Handle(t.Context(), batch)
		if err != nil {
			t.Fatal(err)
		}
		for i, outcome := range outcomes {
			if outcome != amqp.Done() {
				t.Errorf("%s: %s", batch[i].Body, outcome)
			}
		}
	}
	for kind, want := range map[string]int64{"order.placed": 20, "order.payment_timeout": 20, "order.refused": 4} {
		if n := s.sql("SELECT COUNT(DISTINCT message_id) FROM lapse_outbox WHERE kind = ?", kind); n != want {
			t.Errorf("%d messages of kind %s, want %d", n, kind, want)
		}
	}
	if n := s.sql("SELECT COUNT(*) FROM lapse_outbox WHERE kind <> 'order.refused'"); n != 40 {
		t.Errorf("%d events and timers, want one of each for every order", n)
	}
	if n := s.sql("SELECT SUM(reserved) FROM lapse_stock"); n != 20*3 {
		t.Errorf("%d pieces are reserved", n)
	}
}

// A pause of expiry stops no placing.
func TestOrdersArePlacedDuringAPause(t *testing.T) {
	s := newShop(t, place{}, checkout.Config{SweepEvery: noSweep, Logger: quiet(t)})
	r := s.start(s.url)
	r.awaitReady()
	if err := s.Pause(t.Context(), order.By{Who: "test"}); err != nil {
		t.Fatal(err)
	}
	d := draft("o", 0, 500*time.Millisecond)
	s.publish(asks(t, d))
	await(t, 10*time.Second, "the order is placed, and its timer waits", func() bool {
		return s.sql("SELECT COUNT(*) FROM lapse_orders") == 1 && s.queued(s.Topology().DueQueue(orderamqp.KindPaymentTimeout)) == 1
	})
	s.ledger.Placed(d, s.get("o"), nil)
	if err := s.Resume(t.Context(), order.By{Who: "test"}); err != nil {
		t.Fatal(err)
	}
	s.judge(10 * time.Second)
}
