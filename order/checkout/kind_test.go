package checkout_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/amqp/amqptest"
	"github.com/lapse-go/lapse/order/checkout"
)

// told notes what customers are told, and when. What it is to fail with first is by customer.
type told struct {
	mu    sync.Mutex
	fails map[string]int
	texts map[string][]string
	at    map[string]time.Time
}

func (n *told) tell(_ context.Context, customer, text string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.fails[customer] > 0 {
		n.fails[customer]--
		return errors.New("the mail server is full")
	}
	n.texts[customer] = append(n.texts[customer], text)
	n.at[customer] = time.Now()
	return nil
}

func (n *told) of(customer string) (texts int, at time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.texts[customer]), n.at[customer]
}

func TestKindsOfTheShopsOwn(t *testing.T) {
	n := &told{
		fails: map[string]int{"flaky": 2, "never": 100},
		texts: make(map[string][]string), at: make(map[string]time.Time),
	}
	reminders := &Reminders{db: amqptest.Database(t), tell: n.tell}
	s := newShop(t, place{db: reminders.db}, checkout.Config{
		SweepEvery: noSweep, Kinds: reminders.Kinds(),
		Retry: amqp.RetryPolicy{Tries: 3, Initial: 250 * time.Millisecond, Jitter: amqp.NoJitter},
	})
	s.exec("CREATE TABLE shelf (order_id VARCHAR(64) PRIMARY KEY, customer VARCHAR(64))")
	s.exec("CREATE TABLE coupons (id VARCHAR(64) PRIMARY KEY, customer VARCHAR(64), warn_at DATETIME(6))")
	r := s.start(s.url, checkout.Relay, checkout.Kinds)
	r.awaitReady()

	begin := time.Now()
	soon := begin.Add(s.clock() + time.Second).UTC()
	do := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	const second = time.Second
	do(reminders.Shelve(t.Context(), "A-1", "ann", second))
	do(reminders.Shelve(t.Context(), "A-2", "flaky", second))
	do(reminders.Shelve(t.Context(), "A-3", "never", second))
	do(reminders.Shelve(t.Context(), "A-4", "gone", second))
	s.exec("DELETE FROM shelf WHERE order_id = 'A-4'") // picked up
	do(reminders.Issue(t.Context(), "C-1", "cid", soon))
	do(reminders.Issue(t.Context(), "C-2", "late", soon))
	s.exec("UPDATE coupons SET warn_at = warn_at + INTERVAL 1 SECOND WHERE id = 'C-2'")
	do(reminders.Issue(t.Context(), "C-3", "nobody", soon))
	s.exec("DELETE FROM coupons WHERE id = 'C-3'")

	handled := func(kind, outcome string) float64 {
		return r.metric("lapse_messages_total", "kind", kind, "outcome", outcome)
	}
	const reminder, coupon = "order.pickup_reminder", "coupon.expiring"
	letters := s.letters(2)
	await(t, 10*time.Second, "all are told", func() bool {
		return handled(reminder, "done") == 3 && handled(coupon, "done") == 2
	})
	for customer, due := range map[string]time.Duration{"ann": second, "flaky": second + 750*time.Millisecond, "cid": second, "late": 2 * second} {
		texts, at := n.of(customer)
		late := at.Sub(begin) - due
		// The windows began a moment after the test did, and retries take the shortest rung that is long enough.
		if texts != 1 || late < 0 || late > 1500*time.Millisecond {
			t.Errorf("%s was told %d times, %s late", customer, texts, late)
		}
	}
	for _, customer := range []string{"gone", "never", "nobody"} {
		if texts, _ := n.of(customer); texts != 0 {
			t.Errorf("%s was told something", customer)
		}
	}
	said := make(map[string]string)
	for _, letter := range letters {
		said[letter.RoutingKey] = fmt.Sprint(letter.Headers[amqp.HeaderReason], ": ", letter.Headers[amqp.HeaderError])
	}
	if got := said[reminder]; got != "out-of-tries: the mail server is full" {
		t.Errorf("the reminder that never went out: %s", got)
	}
	if got := said[coupon]; got != "hopeless: no such coupon" {
		t.Errorf("the warning of no coupon: %s", got)
	}
	for what, want := range map[[2]string]float64{
		{reminder, "retried"}: 4, {reminder, "dead"}: 1, {coupon, "deferred"}: 1, {coupon, "dead"}: 1, {coupon, "retried"}: 0,
	} {
		if got := handled(what[0], what[1]); got != want {
			t.Errorf("%s, %s: %v times, want %v", what[0], what[1], got, want)
		}
	}
}

func TestKindsThatCannotBe(t *testing.T) {
	db := amqptest.Database(t)
	for says, kinds := range map[string][]checkout.Kind{
		"Lapse's own":    {{Name: "order.place"}},
		"there twice":    {{Name: "a"}, {Name: "a"}},
		"up to 100":      {{Name: "a kind"}},
		"give 1 to 255":  {{Name: "a", Events: []string{""}}},
		"pattern \"x\" ": {{Name: "a", Events: []string{"x", "x"}}},
	} {
		_, err := checkout.New(db, checkout.Config{Kinds: kinds})
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%+v: %v, want %s", kinds, err, says)
		}
	}
}

// A closer refuses the roles that it cannot do, before it connects to anything.
func TestRolesThatCannotBe(t *testing.T) {
	subscriber, err := checkout.NewCloser(nil, nil, checkout.Config{Namespace: amqptest.Namespace()})
	if err != nil {
		t.Fatal(err)
	}
	for _, role := range []checkout.Role{checkout.Relay, checkout.Timer, checkout.Sweep, checkout.Place, "nonsense"} {
		err := subscriber.Serve(t.Context(), amqp.Config{URIs: []string{"amqp://127.0.0.1:1/"}}, role)
		if err == nil || !strings.Contains(err.Error(), "role "+string(role)) {
			t.Errorf("%s: %v", role, err)
		}
	}
}

// Every event comes three times, and once more when the acknowledgement is lost: each customer is told once. A
// second subscriber joins without anybody knowing of it.
func TestSubscribers(t *testing.T) {
	const n = 100
	mails := amqptest.Database(t)
	if err := mails.Exec("CREATE TABLE mails (sender VARCHAR(64), customer VARCHAR(64), order_id VARCHAR(64))").Error; err != nil {
		t.Fatal(err)
	}
	s := newShop(t, place{}, checkout.Config{SweepEvery: noSweep})
	s.start(s.url, checkout.Relay, checkout.Timer).awaitReady()
	bodies := s.tap("order.expired")

	// The connection of the first replica breaks after work was committed, and before it is acknowledged.
	proxy, cuttable := amqptest.NewBrokerProxy(t, s.url)
	var once sync.Once
	for i, url := range []string{cuttable, s.url} {
		kind := (&Notifier{db: mails, name: "notify"}).Kind()
		kind.Workers = 4
		if i == 0 {
			handler := kind.Handler
			kind.Handler = amqp.HandlerFunc(func(ctx context.Context, batch []amqp.Message) ([]amqp.Outcome, error) {
				outcomes, err := handler.Handle(ctx, batch)
				once.Do(proxy.Reset)
				return outcomes, err
			})
		}
		s.subscriber(url, kind)
	}
	told := func(sender string) (mailed, different int64) {
		err := mails.Raw("SELECT COUNT(*), COUNT(DISTINCT order_id) FROM mails WHERE sender = ?", sender).Row().Scan(&mailed, &different)
		if err != nil {
			t.Fatal(err)
		}
		return mailed, different
	}
	seen := make(map[string]bool)
	round := func(prefix string) {
		s.orders(prefix, n, 250*time.Millisecond)
		var events [][]byte
		for len(events) < n {
			select {
			case body := <-bodies:
				if !seen[string(body)] {
					seen[string(body)] = true
					events = append(events, body)
				}
			case <-time.After(20 * time.Second):
				t.Fatalf("%d of %d orders expired", len(events), n)
			}
		}
		for range 2 {
			s.publishEvents("order.expired", events)
		}
	}
	quiet := func(name string) bool { return s.queued(s.Topology().DueQueue(name)) == 0 }

	round("first-")
	s.subscriber(s.url, (&Notifier{db: mails, name: "archive"}).Kind())
	round("second-")
	await(t, 20*time.Second, "everybody is told", func() bool {
		notified, _ := told("notify")
		archived, _ := told("archive")
		return notified >= 2*n && archived >= n && quiet("notify") && quiet("archive")
	})
	for sender, want := range map[string]int64{"notify": 2 * n, "archive": n} {
		if mailed, different := told(sender); mailed != want || different != want {
			t.Errorf("%s: %d mails about %d orders, want one each about %d", sender, mailed, different, want)
		}
	}
}

// subscriber is a program that knows of the shop only where its events are.
func (s *shop) subscriber(url string, kind checkout.Kind) *replica {
	s.t.Helper()
	c, err := checkout.NewCloser(nil, nil, checkout.Config{Namespace: s.Topology().Namespace, Kinds: []checkout.Kind{kind}, Logger: s.cfg.Logger})
	if err != nil {
		s.t.Fatal(err)
	}
	amqptest.Declare(s.t, s.broker, c.Topology())
	r := serve(s.t, &checkout.Checkout{Closer: c}, nil, url)
	r.awaitReady()
	return r
}

// tap is the bodies of the events of a type, as they come.
func (s *shop) tap(eventType string) <-chan []byte {
	s.t.Helper()
	return s.tapOn(s.Topology().Events(), eventType)
}

// tapOn is the bodies of what is published to an exchange.
func (s *shop) tapOn(exchange, key string) <-chan []byte {
	s.t.Helper()
	return amqptest.Tap(s.t, s.broker, exchange, key)
}

// publishEvents publishes them once more.
func (s *shop) publishEvents(eventType string, bodies [][]byte) {
	s.t.Helper()
	publisher := amqp.NewPublisher(s.broker, amqp.PublisherConfig{})
	defer publisher.Close()
	batch := make([]amqp.Publishing, len(bodies))
	for i, body := range bodies {
		batch[i] = amqp.Publishing{Message: amqp.Message{Kind: eventType, Body: body}, Exchange: s.Topology().Events()}
	}
	for _, err := range publisher.Publish(s.t.Context(), batch...) {
		if err != nil {
			s.t.Fatal(err)
		}
	}
}
