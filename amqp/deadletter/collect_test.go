package deadletter

import (
	"bytes"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/prometheus/client_golang/prometheus/testutil"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"golang.org/x/sync/errgroup"
	"gorm.io/gorm"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/amqp/amqptest"
	"github.com/lapse-go/lapse/amqp/database"
)

func (c *collection) all() []Letter {
	c.t.Helper()
	var all []Letter
	err := c.desk.Each(c.t.Context(), Filter{}, func(l Letter) error { all = append(all, l); return nil })
	if err != nil {
		c.t.Fatal(err)
	}
	return all
}

func TestWhatLapseBuriesIsCollected(t *testing.T) {
	c := newCollection(t, amqptest.Database(t))
	made := time.Now().Add(-time.Hour).Truncate(time.Second).UTC()
	c.publish(c.topology.Due(),
		amqp.Message{ID: "1", Kind: kind, Body: []byte("about A-1"), AppID: "shop", Timestamp: made, Headers: map[string]any{
			"n": int32(5), amqp.HeaderAttempt: int64(3), amqp.HeaderFirstError: "at first", amqp.HeaderFirstErrorAt: "2026-01-02T03:04:05Z",
			amqp.HeaderReplay: "018f0000-0000-7000-8000-000000000000",
		}, Properties: amqp.Properties{ContentEncoding: "gzip", CorrelationID: "c", ReplyTo: "r", Type: "t", Priority: 3}},
	)
	c.bury(func(amqp.Message) amqp.Outcome { return amqp.Dead(errors.New("no order A-1")) })
	c.collect(c.topology.Dead())
	c.await(1)
	l := c.all()[0]
	want := Letter{
		MessageID: "1", Kind: kind, Subject: "A-1", Queue: c.topology.Dead(), Exchange: c.topology.Due(), RoutingKey: kind,
		Reason: Hopeless, Attempts: 3, Error: "no order A-1", FirstError: "at first", FirstErrorAt: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		Properties: Properties{ContentType: "application/json", ContentEncoding: "gzip", CorrelationID: "c", ReplyTo: "r", Type: "t", AppID: "shop", Priority: 3, Timestamp: made},
		Body:       []byte("about A-1"), Size: 9, ReplayedBy: "018f0000-0000-7000-8000-000000000000", State: Open,
	}
	want.Group, _ = Fingerprint(kind, Hopeless, "no order A-1")
	if diff := cmp.Diff(want, l, sameTable, cmpopts.IgnoreFields(Letter{}, "ID", "Headers", "DiedAt", "CollectedAt")); diff != "" {
		t.Error(diff)
	}
	if l.Headers["n"] != int32(5) || l.Headers[amqp.HeaderReason] != "hopeless" {
		t.Errorf("headers %v", l.Headers)
	}
	if since := time.Since(l.DiedAt); since < 0 || since > time.Minute || l.DiedAt.Nanosecond()%1e6 != 0 {
		t.Errorf("died %s", l.DiedAt)
	}
	if n := testutil.ToFloat64(c.desk.metrics.collected.WithLabelValues(string(Hopeless))); n != 1 {
		t.Errorf("%v counted as collected", n)
	}
	groups, err := c.desk.Groups(t.Context(), Filter{})
	if err != nil || len(groups) != 1 || groups[0].Pattern != "no order <id>" {
		t.Errorf("groups %+v: %v", groups, err)
	}
}

func TestAnyBytesAreCollected(t *testing.T) {
	c := newCollection(t, amqptest.Database(t))
	stamp := func(id string, more map[string]any) amqp091.Table {
		headers := amqp091.Table{amqp.HeaderLetter: id, amqp.HeaderReason: "out-of-tries"}
		maps.Copy(headers, more)
		return headers
	}
	large := bytes.Repeat([]byte("\x00'\\\xff"), 1<<20)
	sent := []amqp091.Publishing{
		{MessageId: "large", Body: large, Headers: stamp("a", nil)},
		{MessageId: "\xff\x00'", Body: []byte("\xff\xfe\x00"), Headers: stamp("b", map[string]any{"h": "caf\xe9", "odd \xff": "x", amqp.HeaderError: "caf\xe9"})},
		{Headers: stamp("c", nil)},
		{MessageId: "\U0001F600", Body: []byte("\U0001F600"), AppId: "\U0001F600", Headers: stamp("d", map[string]any{amqp.HeaderError: "no \U0001F600", "\U0001F600": "\U0001F600"})},
		{MessageId: "types", Headers: stamp("e", map[string]any{
			"bool": true, "8": int8(-8), "16": int16(-16), "32": int32(-32), "64": int64(-64), "f": float32(1.5), "d": 1.5, "bytes": []byte("\xff"),
			"time": time.Unix(1_700_000_000, 0), "nil": nil, "list": []any{int32(1), "a"}, "table": amqp091.Table{"a": amqp091.Table{}},
		})},
	}
	c.raw(c.topology.Dead(), "k\xff", sent...)
	c.collect(c.topology.Dead())
	c.await(len(sent))
	got := map[string]Letter{}
	for _, l := range c.all() {
		got[l.MessageID] = l
	}
	for _, m := range sent {
		l := got[m.MessageId]
		if !bytes.Equal(l.Body, m.Body) || l.Size != len(m.Body) || l.Kind != "k\xff" || l.RoutingKey != "k\xff" || l.Properties.AppID != m.AppId || l.Reason != OutOfTries {
			t.Errorf("%q: %d bytes, kind %q, %v", m.MessageId, len(l.Body), l.Kind, l.Properties)
		}
		if diff := cmp.Diff(map[string]any(m.Headers), l.Headers, sameTable); diff != "" {
			t.Errorf("%q: %s", m.MessageId, diff)
		}
	}
	if e := got["\xff\x00'"].Error; e != "caf\uFFFD" {
		t.Errorf("error %q", e)
	}
	if e := got["\U0001F600"].Error; e != "no \U0001F600" {
		t.Errorf("error %q", e)
	}
}

func TestALetterIsOneHoweverOftenItIsDelivered(t *testing.T) {
	const letters = 1000
	c := newCollection(t, amqptest.Database(t))
	var sent []amqp091.Publishing
	for i := range letters {
		m := amqp091.Publishing{MessageId: fmt.Sprint(i), Body: []byte("{}")}
		if i%2 == 0 {
			m.Headers = amqp091.Table{amqp.HeaderLetter: fmt.Sprint("letter-", i), amqp.HeaderReason: "hopeless"}
		}
		sent = append(sent, m)
	}
	c.raw(c.topology.Dead(), kind, sent...)

	handler, seen := c.desk.Handler(c.topology.Dead()), map[string]int{}
	c.consume(amqp.ConsumerConfig{Kind: "desk", Queue: c.topology.Dead(), Workers: 1, Batch: 1000, Probe: c.desk.Probe, Handler: amqp.HandlerFunc(
		func(ctx context.Context, batch []amqp.Message) ([]amqp.Outcome, error) {
			outcomes, err := handler.Handle(ctx, batch)
			again := false
			for _, m := range batch {
				seen[m.ID]++
				again = again || seen[m.ID] < 3
			}
			if again { // the channel is closed before anything is acknowledged
				return nil, errors.Join(amqp.ErrPaused, err)
			}
			return outcomes, err
		})})
	eventually(t, "all are settled", func() bool { return testutil.ToFloat64(c.metrics.Handled.WithLabelValues("desk", "done")) >= letters })
	eventually(t, "the queue is empty", func() bool { return c.depth(c.topology.Dead()) == 0 })
	c.await(letters)
	if n := c.number("SELECT COUNT(DISTINCT message_id) FROM lapse_dead_letters"); n != letters {
		t.Errorf("%d messages, want %d", n, letters)
	}
}

func TestEqualMessagesAreAsManyLetters(t *testing.T) {
	c := newCollection(t, amqptest.Database(t))
	m := amqp091.Publishing{Body: []byte("the same")}
	c.raw(c.topology.Unrouted(), "nobody", m, m, m)
	stop := c.collect(c.topology.Unrouted())
	c.await(3)
	c.raw(c.topology.Unrouted(), "nobody", m, m)
	c.await(5)
	stop()
	if n := testutil.ToFloat64(c.desk.metrics.collected.WithLabelValues(string(Unroutable))); n != 5 {
		t.Errorf("%v counted", n)
	}
}

// A message that somebody sends again after its letter was resolved dies again, and is another letter.
func TestWhatIsSentAgainAfterItWasResolved(t *testing.T) {
	c := newCollection(t, amqptest.Database(t))
	again := amqp091.Publishing{MessageId: "A-1", Body: []byte("{}"),
		Headers: amqp091.Table{amqp.HeaderLetter: "letter", amqp.HeaderReason: "hopeless"}}
	other := again
	other.MessageId, other.Headers = "A-2", amqp091.Table{amqp.HeaderLetter: "other", amqp.HeaderReason: "hopeless"}
	c.collect(c.topology.Dead())
	c.raw(c.topology.Dead(), kind, again, again)
	c.await(1)
	if _, err := c.desk.Discard(t.Context(), Selection{All: true}, By{"kim", "not worth it"}); err != nil {
		t.Fatal(err)
	}
	c.raw(c.topology.Dead(), kind, again, other, other)
	c.await(3)
	eventually(t, "all is collected", func() bool { return testutil.ToFloat64(c.metrics.Handled.WithLabelValues("desk", "done")) == 5 })
	if open := c.number("SELECT COUNT(*) FROM lapse_dead_letters WHERE state = 'open'"); open != 2 {
		t.Errorf("%d letters are open, want that which was sent again, and the other", open)
	}
}

// Two desks get the same letters when the one is slow and its channel is lost.
func TestTwoDesksStoreALetterOnce(t *testing.T) {
	c := newCollection(t, amqptest.Database(t))
	var batch []amqp.Message
	for i := range 100 {
		batch = append(batch, amqp.Message{ID: fmt.Sprint(i), Headers: map[string]any{
			amqp.HeaderLetter: fmt.Sprint("letter-", i), amqp.HeaderReason: "hopeless", amqp.HeaderError: strings.Repeat("e", i%10),
		}})
	}
	reversed := slices.Clone(batch)
	slices.Reverse(reversed)
	var group errgroup.Group
	for _, batch := range [][]amqp.Message{batch, reversed, batch, reversed} {
		group.Go(func() error {
			outcomes, err := c.desk.Handler(c.topology.Dead()).Handle(t.Context(), batch)
			if err == nil && slices.ContainsFunc(outcomes, func(o amqp.Outcome) bool { return o.String() != "done" }) {
				err = fmt.Errorf("%v", outcomes)
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	if n := c.letters(); n != len(batch) {
		t.Errorf("%d letters", n)
	}
	if n := c.number("SELECT COUNT(*) FROM lapse_dead_letter_groups"); n != 10 {
		t.Errorf("%d groups", n)
	}
	if n := testutil.ToFloat64(c.desk.metrics.collected.WithLabelValues(string(Hopeless))); n != 100 {
		t.Errorf("%v counted", n)
	}
}

// forgetful commits the first transactions, and loses the answers.
type forgetful struct {
	gorm.ConnPool
	losses *atomic.Int32
}

func (f forgetful) BeginTx(ctx context.Context, opts *sql.TxOptions) (gorm.ConnPool, error) {
	tx, err := f.ConnPool.(*sql.DB).BeginTx(ctx, opts)
	return &forgetfulTx{tx, f.losses}, err
}

type forgetfulTx struct {
	*sql.Tx
	losses *atomic.Int32
}

func (tx *forgetfulTx) Commit() error {
	err := tx.Tx.Commit()
	if tx.losses.Add(-1) >= 0 {
		return driver.ErrBadConn
	}
	return err
}

func TestACommitWhoseAnswerWasLostIsNotDoneTwice(t *testing.T) {
	db := amqptest.Database(t)
	c := newCollection(t, db)
	pool, err := db.DB()
	if err != nil {
		t.Fatal(err)
	}
	losses := &atomic.Int32{}
	lossy := db.Session(&gorm.Session{})
	lossy.Statement.ConnPool = forgetful{pool, losses}
	lossy.Config.ConnPool = lossy.Statement.ConnPool
	desk := New(Config{DB: lossy, Topology: c.topology})
	handler := desk.Handler(c.topology.Unrouted())
	m := amqp.Message{Body: []byte("the same")}
	for _, step := range []struct {
		losses int32
		batch  []amqp.Message
		want   int
	}{{0, []amqp.Message{m}, 1}, {1, []amqp.Message{m, m, m}, 4}, {2, []amqp.Message{m, m}, 6}, {0, []amqp.Message{m}, 7}} {
		losses.Store(step.losses)
		for {
			_, err := handler.Handle(t.Context(), step.batch)
			if err == nil {
				break
			}
			if !database.IsOutage(err) {
				t.Fatal(err)
			}
		}
		if n := c.letters(); n != step.want {
			t.Fatalf("%d letters, want %d", n, step.want)
		}
	}

	// One that is handed back goes to another process. What comes later is not that one.
	losses.Store(1)
	if _, err := handler.Handle(t.Context(), []amqp.Message{{Body: []byte("an equal one follows")}}); err == nil {
		t.Fatal("no commit was lost")
	}
	for _, body := range []string{"other", "an equal one follows"} {
		if _, err := handler.Handle(t.Context(), []amqp.Message{{Body: []byte(body)}}); err != nil {
			t.Fatal(err)
		}
	}
	if n := c.letters(); n != 10 {
		t.Errorf("%d letters, want 10", n)
	}
}

func TestUnroutedMessagesAreCollected(t *testing.T) {
	c := newCollection(t, amqptest.Database(t))
	c.publish(c.topology.Due(), amqp.Message{ID: "1", Kind: "nobody", Body: []byte("about A-1"), Headers: map[string]any{amqp.HeaderReason: "hopeless", amqp.HeaderLetter: "stale"}})
	// One that comes from a rung has an x-death.
	c.publish(c.topology.Delay(250*time.Millisecond), amqp.Message{ID: "2", Kind: "nobody either"})
	c.collect(c.topology.Unrouted())
	c.await(2)
	for _, l := range c.all() {
		if l.Reason != Unroutable || l.Exchange != c.topology.Due() || l.RoutingKey != l.Kind || l.Queue != c.topology.Unrouted() ||
			l.Kind != map[string]string{"1": "nobody", "2": "nobody either"}[l.MessageID] || !strings.Contains(l.Error, "for the routing key "+l.Kind) {
			t.Errorf("%+v", l)
		}
	}
}

// A subscription's message has the name of the event for a routing key. Replayed, it goes to this subscription only.
func TestWhatTheBrokerBuriesIsOfTheKindOfItsQueue(t *testing.T) {
	c := newCollection(t, amqptest.Database(t))
	queue := c.topology.DueQueue("mail")
	ch := c.channel()
	_, err := ch.QueueDeclare(queue, true, false, false, false, amqp091.Table{
		"x-queue-type": "quorum", "x-delivery-limit": int64(2), "x-dead-letter-exchange": c.topology.Dead(),
		"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish",
	})
	if err == nil {
		err = ch.QueueBind(queue, "order.expired", c.topology.Events(), false, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := ch.QueueDelete(queue, false, false, false); err != nil {
			t.Error(err)
		}
	})
	c.publish(c.topology.Events(), amqp.Message{ID: "1", Kind: "order.expired", Headers: map[string]any{
		// A former death, of which nobody has taken care before it was moved here.
		amqp.HeaderLetter: "former", amqp.HeaderReason: "hopeless", amqp.HeaderError: "former", amqp.HeaderDiedAt: "2020-01-01T00:00:00.000Z",
	}})
	deliveries, err := ch.Consume(queue, "", false, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for d := range deliveries {
			if d.Reject(true) != nil {
				return
			}
		}
	}()
	c.collect(c.topology.Dead())
	c.await(1)
	l := c.all()[0]
	if l.Kind != "mail" || l.Reason != DeliveryLimit || l.Exchange != c.topology.Due() || l.RoutingKey != "mail" || l.Error != "" || time.Since(l.DiedAt) > time.Minute {
		t.Errorf("%+v", l)
	}
}

func TestALetterThatTheDatabaseRefusesIsParkedAlone(t *testing.T) {
	c := newCollection(t, amqptest.Database(t))
	c.exec("ALTER TABLE lapse_dead_letters MODIFY error VARCHAR(20) NOT NULL")
	const letters, poison = 20, "7"
	for i := range letters {
		c.publish(c.topology.Due(), amqp.Message{ID: fmt.Sprint(i), Kind: kind, Body: []byte("about A-1"), Headers: map[string]any{"n": int32(i)}})
	}
	stop := c.bury(func(m amqp.Message) amqp.Outcome {
		if m.ID == poison {
			return amqp.Dead(errors.New(strings.Repeat("x", 21)))
		}
		return amqp.Dead(errors.New("no"))
	})
	c.collect(c.topology.Dead())
	c.await(letters - 1)
	eventually(t, "one is parked", func() bool { return c.depth(c.topology.Parked()) == 1 })
	stop()
	if n := testutil.ToFloat64(c.metrics.Handled.WithLabelValues("desk", "parked")); n != 1 {
		t.Errorf("%v counted as parked", n)
	}

	// Once it is mended, it is moved back as operators do it: straight to the queue.
	c.exec("ALTER TABLE lapse_dead_letters MODIFY error TEXT NOT NULL")
	parked := c.move(c.topology.Parked(), c.topology.Dead())
	if why, _ := parked.Headers[amqp.HeaderParked].(string); !strings.Contains(why, "Data too long for column 'error'") {
		t.Errorf("parked: %q", why)
	}
	c.await(letters)
	i := slices.IndexFunc(c.all(), func(l Letter) bool { return l.MessageID == poison })
	l := c.all()[i]
	if l.Kind != kind || l.Exchange != c.topology.Due() || l.Reason != Hopeless || l.Headers["n"] != int32(7) || l.Headers[amqp.HeaderParked] != nil {
		t.Errorf("%+v", l)
	}
}

// move moves a message from queue to queue, as the broker's own tools do.
func (c *collection) move(from, to string) amqp091.Delivery {
	c.t.Helper()
	ch := c.channel()
	defer ch.Close()
	d, ok, err := ch.Get(from, true)
	if err != nil || !ok {
		c.t.Fatalf("nothing in %s: %v", from, err)
	}
	c.raw("", to, amqp091.Publishing{
		Headers: d.Headers, MessageId: d.MessageId, Body: d.Body, ContentType: d.ContentType, Timestamp: d.Timestamp, DeliveryMode: d.DeliveryMode,
	})
	return d
}

func TestNothingIsLostWhileTheDatabaseIsAwayAndNothingIsTooLarge(t *testing.T) {
	server := amqptest.NewMySQL(t)
	db := server.Database(t)
	c := newCollection(t, db)
	stop := c.collect(c.topology.Dead())
	c.publish(c.topology.Dead(), amqp.Message{ID: "before", Kind: kind})
	c.await(1)

	server.Kill()
	const letters = 250
	for i := range letters {
		c.publish(c.topology.Dead(), amqp.Message{ID: fmt.Sprint(i), Kind: kind})
	}
	eventually(t, "the outage is noticed", func() bool { return testutil.ToFloat64(c.metrics.Outages.WithLabelValues("desk")) > 0 })
	if n := testutil.ToFloat64(c.metrics.Handled.WithLabelValues("desk", "done")); n != 1 {
		t.Errorf("%v settled without a database", n-1)
	}
	server.Start()
	c.await(1 + letters)
	eventually(t, "the queue is empty", func() bool { return c.depth(c.topology.Dead()) == 0 })

	// What does not fit together goes one by one, and what does not fit at all is parked.
	const packet = 4 << 20
	stop()
	c.exec("SET GLOBAL max_allowed_packet = ?", packet)
	pool, err := database.Open(amqptest.DSN(t, db), database.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer closePool(t, pool)
	c.desk = New(Config{DB: pool, Topology: c.topology, Logger: amqptest.Logger(t)})
	zeros := func(n int) []byte { return make([]byte, n) }
	for _, size := range []int{1 << 20, 3 << 19, packet, 1 << 20, packet - 64<<10, packet - 64<<10 + 1, 3 << 20, 1} {
		c.publish(c.topology.Dead(), amqp.Message{ID: fmt.Sprint("large ", size), Kind: kind, Body: zeros(size)})
	}
	stop = c.collect(c.topology.Dead())
	c.await(1 + letters + 6)
	eventually(t, "two are parked", func() bool { return c.depth(c.topology.Parked()) == 2 })
	stop()
	if n := c.number("SELECT MAX(LENGTH(body)) FROM lapse_dead_letters"); n != packet-64<<10 {
		t.Errorf("the largest letter has %d bytes", n)
	}
	parked := c.move(c.topology.Parked(), c.topology.Dead())
	if why, _ := parked.Headers[amqp.HeaderParked].(string); !strings.Contains(why, "max_allowed_packet is 4194304") {
		t.Errorf("parked: %q", why)
	}
}

func closePool(t *testing.T, db *gorm.DB) {
	t.Helper()
	pool, err := db.DB()
	if err == nil {
		err = pool.Close()
	}
	if err != nil {
		t.Error(err)
	}
}

func TestReplaysOfTheMessageAreCounted(t *testing.T) {
	c := newCollection(t, amqptest.Database(t))
	job := "018f0000-0000-7000-8000-000000000000"
	died := func(attempt int64, id, letter, replay string) amqp.Message {
		return amqp.Message{ID: id, Kind: kind, Headers: map[string]any{amqp.HeaderLetter: letter, amqp.HeaderReason: "hopeless", amqp.HeaderReplay: replay}}
	}
	handler := c.desk.Handler(c.topology.Dead())
	handle := func(m amqp.Message) {
		t.Helper()
		if outcomes, err := handler.Handle(t.Context(), []amqp.Message{m}); err != nil || outcomes[0].String() != "done" {
			t.Fatalf("%v: %v", outcomes, err)
		}
	}
	handle(died(1, "1", "a", ""))
	handle(died(1, "other", "b", ""))
	c.exec("UPDATE lapse_dead_letters SET state = 'replayed'")
	handle(died(1, "1", "c", job))
	// Published already, and not marked yet.
	c.exec("UPDATE lapse_dead_letters SET replay_id = ? WHERE identity = 'c'", job)
	handle(died(1, "1", "d", job))
	for identity, want := range map[string]int{"a": 0, "c": 1, "d": 2} {
		if n := c.number("SELECT replays FROM lapse_dead_letters WHERE identity = ?", identity); n != want {
			t.Errorf("%s: %d replays, want %d", identity, n, want)
		}
	}
}
