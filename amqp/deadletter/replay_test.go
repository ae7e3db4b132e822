package deadletter

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/lapse-go/lapse/amqp"
)

// orders is a guard to which the orders in it are settled.
type orders struct {
	mu      sync.Mutex
	settled map[string]bool
	away    error
}

func (o *orders) Subject(m amqp.Message) string {
	_, rest, _ := strings.Cut(string(m.Body), `"order_id":"`)
	id, _, _ := strings.Cut(rest, `"`)
	return id
}

func (o *orders) Ask(_ context.Context, _ time.Time, batch []amqp.Message) ([]Verdict, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	verdicts := make([]Verdict, len(batch))
	for i, m := range batch {
		if verdicts[i].Answer = "would be expired"; o.settled[o.Subject(m)] {
			verdicts[i] = Verdict{"already paid", true}
		}
	}
	return verdicts, o.away
}

func (o *orders) change(do func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	do()
}

// drain takes what is in a queue, until as many messages have come as are wanted, and nothing more is there.
func drain(t testing.TB, conn *amqp.Conn, queue string, want int) (all []amqp091.Delivery) {
	t.Helper()
	channel, err := conn.Channel(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer channel.Close()
	for over := time.Now().Add(10 * time.Second); ; {
		d, ok, err := channel.Get(queue, true)
		if err != nil {
			t.Fatal(err)
		}
		if ok {
			all = append(all, d)
			continue
		}
		if len(all) >= want {
			return all
		}
		if time.Now().After(over) {
			t.Fatalf("%d messages in %s, want %d", len(all), queue, want)
		}
	}
}

func begin(t testing.TB, d *Desk, r Request) Replay {
	t.Helper()
	if r.By == (By{}) {
		r.By = By{"kim", "the bug is mended"}
	}
	replay, err := d.Start(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return replay
}

func TestReplay(t *testing.T) {
	guard := &orders{settled: map[string]bool{"order-3": true, "order-4": true}}
	d := desk(t, guard)
	conn, name := queue(t)
	put(t, d, 20, Route{"", name})
	run(t, d.cfg.DB, `UPDATE lapse_dead_letters SET headers = '{"lapse-attempt":8,"lapse-error":"no","lapse-first-error":"no","lapse-first-error-at":"2026-01-01T00:00:00Z",
		"lapse-reason":"hopeless","lapse-letter":"x","lapse-died-at":"x","x-other":1,"tenant":"t-1"}'`)
	run(t, d.cfg.DB, "UPDATE lapse_dead_letters SET message_id = '' WHERE id = 2")
	run(t, d.cfg.DB, "UPDATE lapse_dead_letters SET state = 'discarded' WHERE id = 20")

	for _, s := range []Selection{{All: true}, {Filter: &Filter{State: Open}}, {IDs: []int64{1, 2, 4, 5, 20}}} {
		forecast, err := d.DryRun(t.Context(), s, true)
		if err != nil {
			t.Fatal(err)
		}
		total := int64(19)
		if len(s.IDs) > 0 {
			total = 4
		}
		want := Forecast{Total: total, Settled: 2, Answers: map[string]int64{"would be expired": total - 2, "already paid": 2},
			SettledBy: map[string]int64{"already paid": 2},
			IDs:       map[string][]int64{"already paid": {4, 5}, "would be expired": forecast.IDs["would be expired"]}}
		if diff := cmp.Diff(want, forecast); diff != "" || int64(len(forecast.IDs["would be expired"])) != total-2 {
			t.Errorf("dry run of %+v: %s", s, diff)
		}
	}

	r := begin(t, d, Request{Selection: Selection{All: true}})
	if r.State != Running || r.Total != 19 || r.Left() != 19 || r.By.Why != "the bug is mended" {
		t.Errorf("%+v", r)
	}
	later(t, d, 3, name) // new ones do not belong to it
	running(t, d, conn)
	r = ended(t, d, r.ID, 10*time.Second)
	if r.State != Done || r.Published != 17 || r.Settled != 2 || r.Failed != 0 || r.Left() != 0 || r.EndedAt.Before(r.StartedAt) {
		t.Errorf("%+v", r)
	}
	messages := drain(t, conn, name, 17)
	ids := make(map[string]bool)
	for _, m := range messages {
		ids[m.MessageId] = true
		delete(m.Headers, "x-delivery-count") // is the queue's
		want := amqp091.Table{"tenant": "t-1", "lapse-replay": r.ID, "lapse-first-exchange": "", "lapse-first-key": name}
		if diff := cmp.Diff(want, m.Headers); diff != "" || m.Redelivered || m.DeliveryMode != amqp091.Persistent || m.MessageId == "" {
			t.Errorf("%+v: %s", m, diff)
		}
	}
	if len(messages) != 17 || len(ids) != 17 || ids["m-3"] || ids["m-1"] || !ids["m-0"] {
		t.Errorf("%d messages, %v", len(messages), slices.Sorted(maps.Keys(ids)))
	}
	counts := map[State]int64{Open: 3, Replayed: 17, Settled: 2, Discarded: 1}
	for state, want := range counts {
		if got, err := d.Count(t.Context(), Filter{State: state}); got != want || err != nil {
			t.Errorf("%s: %d, %v, want %d", state, got, err, want)
		}
	}
	for id, want := range map[int64]Letter{1: {State: Replayed, ResolvedBy: "kim", Resolution: "the bug is mended"}, 4: {State: Settled, ResolvedBy: "lapse", Resolution: "already paid"}} {
		l, err := d.Get(t.Context(), id)
		if err != nil || l.State != want.State || l.ResolvedBy != want.ResolvedBy || l.Resolution != want.Resolution || l.ResolvedAt.IsZero() || l.Replay != r.ID {
			t.Errorf("%+v, %v", l, err)
		}
	}
	if l, err := d.Get(t.Context(), 2); err != nil || l.MessageID == "" || !ids[l.MessageID] {
		t.Errorf("what came without an id is not known by the one that it was given: %+v, %v", l, err)
	}
	results, next, err := d.Results(t.Context(), r.ID, "settled", Page{Limit: 1})
	if err != nil || len(results) != 1 || results[0].Letter != 4 || results[0].Detail != "already paid" || next == "" {
		t.Errorf("%+v, %q, %v", results, next, err)
	}
	if results, next, err = d.Results(t.Context(), r.ID, "settled", Page{Limit: 1, After: next}); err != nil || len(results) != 1 || results[0].Letter != 5 || next != "" {
		t.Errorf("%+v, %q, %v", results, next, err)
	}
	entries, _, err := d.Audit(t.Context(), AuditFilter{Subject: r.ID}, Page{Oldest: true})
	if err != nil || len(entries) != 2 || entries[0].Action != "replay" || entries[0].Count != 19 || entries[1].Action != "replay.end" || entries[1].Count != 17 {
		t.Errorf("%+v, %v", entries, err)
	}
}

// later makes letters that came later.
func later(t testing.TB, d *Desk, n int, queue string) {
	t.Helper()
	for i := range n {
		run(t, d.cfg.DB, `INSERT INTO lapse_dead_letters (identity, message_id, kind, subject, queue, exchange, routing_key, reason, attempts, error, first_error,
			fingerprint, properties, headers, body, size, died_at, collected_at, replays, replayed_by, state)
			VALUES (?, ?, 'kind-1', ?, 'lapse.dead', '', ?, 'hopeless', 1, '', '', '0000000000000001', '{}', '{}', '{}', 2, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), 0, '', 'open')`,
			fmt.Sprintf("later-%d", i), fmt.Sprintf("l-%d", i), fmt.Sprintf("later-%d", i), queue)
	}
}

// Case: "replay all" five times, from two processes at once.
func TestOneReplayOfTheSameLetters(t *testing.T) {
	guard := &orders{}
	d := desk(t, guard)
	other := New(d.config())
	conn, name := queue(t)
	put(t, d, 500, Route{"", name})
	var mu sync.Mutex
	var started, busy []string
	var all sync.WaitGroup
	for i := range 10 {
		one := []*Desk{d, other}[i%2]
		selection := []Selection{{All: true}, {Filter: &Filter{Kind: "kind-1"}}, {IDs: []int64{8, 14, 20}}}[i%3] // they overlap
		if i < 5 {
			selection = Selection{All: true}
		}
		all.Go(func() {
			r, err := one.Start(t.Context(), Request{Selection: selection, By: By{"kim", "again"}})
			mu.Lock()
			defer mu.Unlock()
			if is, ok := errors.AsType[*BusyError](err); ok {
				busy = append(busy, is.Replay)
			} else if err != nil {
				t.Error(err)
			} else {
				started = append(started, r.ID)
			}
		})
	}
	all.Wait()
	if len(started) == 0 || len(started)+len(busy) != 10 {
		t.Fatalf("%d started, %d busy", len(started), len(busy))
	}
	for _, id := range busy {
		if !slices.Contains(started, id) {
			t.Errorf("the answer names %s, and %v run", id, started)
		}
	}
	var total int64
	running(t, d, conn)
	running(t, other, conn)
	for _, id := range started {
		total += ended(t, d, id, 20*time.Second).Published
	}
	messages := drain(t, conn, name, int(total))
	if int64(len(messages)) != total || number(t, d.cfg.DB, "SELECT COUNT(*) FROM lapse_dead_letters WHERE state = 'replayed'") != total {
		t.Errorf("%d messages, %d letters", len(messages), total)
	}
	// What is over holds up nobody.
	if _, err := d.Start(t.Context(), Request{Selection: Selection{All: true}, By: By{"kim", "again"}}); total < 500 && err != nil || total == 500 && !errors.Is(err, ErrInvalid) {
		t.Error(err)
	}
}

func TestReplayElsewhere(t *testing.T) {
	d := desk(t, nil)
	conn, name := queue(t)
	put(t, d, 2, Route{"gone", "nowhere"})
	running(t, d, conn)
	r := ended(t, d, begin(t, d, Request{Selection: Selection{All: true}}).ID, 10*time.Second)
	if r.Failed != 2 || r.Published != 0 || r.State != Done {
		t.Errorf("%+v", r)
	}
	results, _, err := d.Results(t.Context(), r.ID, "failed", Page{})
	if err != nil || len(results) != 2 || !strings.Contains(results[0].Detail, "unroutable") {
		t.Errorf("%+v, %v", results, err)
	}
	l, err := d.Get(t.Context(), 1)
	if err != nil || l.State != Open || l.Replay != "" {
		t.Errorf("%+v, %v", l, err)
	}
	r = ended(t, d, begin(t, d, Request{Selection: Selection{IDs: []int64{1, 2}}, To: &Route{"", name}}).ID, 10*time.Second)
	if entries, _, err := d.Audit(t.Context(), AuditFilter{Subject: r.ID, Action: "replay"}, Page{}); err != nil || len(entries) != 1 || !strings.Contains(entries[0].Result, name) {
		t.Errorf("the audit does not say where it went: %+v, %v", entries, err)
	}
	if r.Published != 2 || r.To == nil || *r.To != (Route{"", name}) {
		t.Errorf("%+v", r)
	}
	m := drain(t, conn, name, 2)[0]
	if m.Headers["lapse-first-exchange"] != "gone" || m.Headers["lapse-first-key"] != "nowhere" {
		t.Errorf("the first route is lost: %v", m.Headers)
	}
}

func TestCancel(t *testing.T) {
	for _, rate := range []int{1, 50, 0} {
		t.Run(fmt.Sprint(rate), func(t *testing.T) {
			t.Parallel()
			const letters = 20_000
			d := desk(t, nil)
			conn, name := queue(t)
			put(t, d, letters, Route{"", name})
			running(t, d, conn)
			r := begin(t, d, Request{Selection: Selection{All: true}, Rate: rate})
			for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
				now, err := d.Replay(t.Context(), r.ID)
				if err != nil || time.Now().After(deadline) {
					t.Fatalf("%+v, %v", now, err)
				}
				if now.Published > 0 && (rate > 0 || now.Published > letters/4) {
					break
				}
			}
			asked := time.Now()
			if err := d.Cancel(t.Context(), r.ID, By{"kim", "wrong ones"}); err != nil {
				t.Fatal(err)
			}
			r = ended(t, d, r.ID, 10*time.Second)
			took := time.Since(asked)
			if r.State != Cancelled || r.Published == 0 || r.Left() <= 0 || took > time.Second {
				t.Errorf("cancelled after %s: %+v", took, r)
			}
			if n := len(drainFast(t, conn, name)); int64(n) < r.Published || int64(n) > r.Published+2*maxBatch {
				t.Errorf("%d messages, and %d letters are marked", n, r.Published)
			}
			open, err := d.Count(t.Context(), Filter{State: Open})
			if open != letters-r.Published || err != nil {
				t.Errorf("%d are open, %v", open, err)
			}
			begin(t, d, Request{Selection: Selection{IDs: []int64{letters}}}) // the letters are free
			if err := d.Cancel(t.Context(), r.ID, By{"kim", "again"}); !errors.Is(err, ErrEnded) {
				t.Errorf("%v, want ErrEnded", err)
			}
		})
	}
}

func TestCancelWhatNobodyRuns(t *testing.T) {
	d := desk(t, nil)
	put(t, d, 3, Route{"", "x"})
	r := begin(t, d, Request{Selection: Selection{All: true}})
	if err := d.Cancel(t.Context(), r.ID, By{"kim", "wrong ones"}); err != nil {
		t.Fatal(err)
	}
	if r = ended(t, d, r.ID, time.Second); r.State != Cancelled || r.Left() != 3 {
		t.Errorf("%+v", r)
	}
	begin(t, d, Request{Selection: Selection{All: true}}) // the letters are free
}

// The process that ran it was killed, and it is cancelled before another takes it over.
func TestCancelWhatNobodyRunsAnyMore(t *testing.T) {
	d := desk(t, nil)
	conn, name := queue(t)
	put(t, d, 3, Route{"", name})
	r := begin(t, d, Request{Selection: Selection{All: true}})
	run(t, d.cfg.DB, "UPDATE lapse_replays SET owner = 'killed', leased_until = UTC_TIMESTAMP(6) + INTERVAL 1 SECOND WHERE id = ?", r.ID)
	if err := d.Cancel(t.Context(), r.ID, By{"kim", "wrong ones"}); err != nil {
		t.Fatal(err)
	}
	running(t, d, conn)
	if r = ended(t, d, r.ID, 20*time.Second); r.State != Cancelled || r.Left() != 3 {
		t.Errorf("%+v", r)
	}
	if n := len(drain(t, conn, name, 0)); n != 0 {
		t.Errorf("%d messages were published after it was cancelled", n)
	}
}

func TestWhatIsNoReplay(t *testing.T) {
	d := desk(t, nil)
	put(t, d, 3, Route{"", "x"})
	good := Request{Selection: Selection{All: true}, By: By{"kim", "why"}}
	for says, change := range map[string]func(*Request){
		"no reason": func(r *Request) { r.By.Why = "" }, "who does it": func(r *Request) { r.By.Who = "" },
		"a rate of -1": func(r *Request) { r.Rate = -1 }, "a rate of 100001": func(r *Request) { r.Rate = MaxRate + 1 },
		"no letters are selected": func(r *Request) { r.Selection = Selection{} },
		"only one of":             func(r *Request) { r.Selection.IDs = []int64{1} },
		"without a condition":     func(r *Request) { r.Selection = Selection{Filter: &Filter{}} },
		"none of the letters":     func(r *Request) { r.Selection = Selection{Filter: &Filter{Kind: "none"}} },
		"neither an exchange":     func(r *Request) { r.To = &Route{} },
		"at most 255":             func(r *Request) { r.To = &Route{Exchange: strings.Repeat("x", 256)} },
	} {
		r := good
		change(&r)
		if _, err := d.Start(t.Context(), r); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, want %s", err, says)
		}
	}
	r := good
	r.Selection = Selection{IDs: []int64{1, 99}}
	if _, err := d.Start(t.Context(), r); !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), "99") {
		t.Error(err)
	}
	if n := number(t, d.cfg.DB, "SELECT (SELECT COUNT(*) FROM lapse_replays) + (SELECT COUNT(*) FROM lapse_audit) + (SELECT COUNT(replay_id) FROM lapse_dead_letters)"); n != 0 {
		t.Errorf("%d traces of what was refused", n)
	}
	for _, id := range []string{"", "é", "01890000-0000-7000-8000-000000000000"} {
		if _, err := d.Replay(t.Context(), id); !errors.Is(err, ErrNotFound) {
			t.Errorf("%q: %v", id, err)
		}
	}
}

// The rate holds within a tenth, without a burst at the beginning.
func TestRate(t *testing.T) {
	for _, rate := range []int{50, 1000} {
		t.Run(fmt.Sprint(rate), func(t *testing.T) {
			t.Parallel()
			const seconds = 10
			d := desk(t, nil)
			conn, name := queue(t)
			put(t, d, rate*seconds, Route{"", name})
			running(t, d, conn)
			r := ended(t, d, begin(t, d, Request{Selection: Selection{All: true}, Rate: rate}).ID, 2*seconds*time.Second)
			took := r.EndedAt.Sub(r.StartedAt).Seconds()
			reached := float64(r.Published) / took
			t.Logf("%d letters in %.2f s: %.1f/s", r.Published, took, reached)
			if r.Published != int64(rate*seconds) || reached < 0.9*float64(rate) || reached > 1.1*float64(rate) {
				t.Errorf("%.1f messages a second, asked for %d", reached, rate)
			}
			// Also in each of its seconds.
			var busiest int64
			err := d.cfg.DB.Raw("SELECT MAX(n) FROM (SELECT COUNT(*) n FROM lapse_replay_results WHERE replay_id = ? GROUP BY UNIX_TIMESTAMP(at) DIV 1) s", r.ID).Row().Scan(&busiest)
			if err != nil || float64(busiest) > 1.3*float64(rate) {
				t.Errorf("%d in one second, %v", busiest, err)
			}
		})
	}
}
