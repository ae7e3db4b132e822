package orderdb_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/google/go-cmp/cmp"
	gormmysql "gorm.io/driver/mysql"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/lapse-go/lapse/amqp/amqptest"
	"github.com/lapse-go/lapse/amqp/database"
	"github.com/lapse-go/lapse/order"
	"github.com/lapse-go/lapse/order/orderdb"
)

// As in github.com/photoprism/photoprism/issues/357 and github.com/redaxo/redaxo/issues/5719: a statement
// in the middle of the transaction loses a conflict. The server has rolled back everything (1213) or
// that statement only (1205); either way the whole is done again, and never half of it.
func TestConflictInTheMiddle(t *testing.T) {
	for _, test := range []struct {
		code string
		// provoke makes the next update of the article's stock fail. It is called in the transaction,
		// before that.
		provoke func(t *testing.T, blocker *sql.Tx, id string)
	}{
		{"1205", func(t *testing.T, blocker *sql.Tx, _ string) {}},
		{"1213", func(t *testing.T, blocker *sql.Tx, id string) {
			// The blocker has the stock and now wants the order, whose row the transaction has. The
			// server ends the transaction because it has changed less.
			go func() {
				_, err := blocker.ExecContext(t.Context(), "SELECT id FROM lapse_orders WHERE id = ? FOR UPDATE", id)
				if err == nil {
					err = blocker.Rollback()
				}
				if err != nil {
					t.Error(err)
				}
			}()
		}},
	} {
		for name, do := range map[string]func(s *shop, id string) error{
			"expire": func(s *shop, id string) error {
				got, err := s.Expire(t.Context(), []string{id})
				if err == nil && got.Orders[0].Outcome != order.OutcomeExpired {
					return errors.New(string(got.Orders[0].Outcome))
				}
				return err
			},
			"pay": func(s *shop, id string) error { return s.pay(t.Context(), id) },
			"cancel": func(s *shop, id string) error {
				_, err := s.Cancel(t.Context(), id, order.By{})
				return err
			},
		} {
			t.Run(test.code+" "+name, func(t *testing.T) {
				s := newShop(t)
				exec(t, s.db, "CREATE TABLE ballast (n INT)")
				s.setStock(5, "shoe")
				id := order.NewID()
				s.place(draft(id, "shoe"))
				s.makeDue(-time.Minute, id)

				pool, err := s.db.DB()
				if err != nil {
					t.Fatal(err)
				}
				blocker, err := pool.BeginTx(t.Context(), nil)
				if err != nil {
					t.Fatal(err)
				}
				defer blocker.Rollback()
				if _, err := blocker.Exec("INSERT INTO ballast VALUES (0)" + strings.Repeat(",(0)", 2000)); err != nil {
					t.Fatal(err)
				}
				if _, err := blocker.Exec("UPDATE lapse_stock SET available = available WHERE sku = 'shoe'"); err != nil {
					t.Fatal(err)
				}
				if _, err := blocker.Exec("SELECT sku FROM lapse_stock WHERE sku = 'shoe' FOR UPDATE"); err != nil {
					t.Fatal(err)
				}

				victim := s.replica("?innodb_lock_wait_timeout=1")
				tries := 0
				victim.store = orderdb.New(victim.db, orderdb.Config{Emit: func(tx *gorm.DB, events []order.Event, timers []order.Timer) error {
					switch tries++; {
					case tries == 1:
						test.provoke(t, blocker, id)
						if test.code == "1213" {
							s.waitForLock(id)
						}
					case test.code == "1205":
						blocker.Rollback()
					}
					return publish(tx, events, timers)
				}})
				victim.Repository = victim.store
				if err := do(victim, id); err != nil {
					t.Fatal(err)
				}
				if tries != 2 || victim.reruns(test.code) != 1 {
					t.Errorf("%d tries, %d reruns for %s", tries, victim.reruns(test.code), test.code)
				}
				if got := s.events(id); len(got) != 2 {
					t.Errorf("its events are %v", got)
				}
				s.audit(5)
			})
		}
	}
}

// As in github.com/go-sql-driver/mysql/issues/1407: the connection breaks after COMMIT was sent and
// before its answer has come. The caller is told that the outcome is not known, tries again, and finds
// that it was done.
func TestAnswerToCommitIsLost(t *testing.T) {
	s := newShop(t)
	s.setStock(5, "shoe")
	s.place(draft("paid", "shoe"))
	s.place(draft("cancelled", "shoe"))
	s.place(draft("extended", "shoe"))
	s.place(draft("due", "shoe"))
	s.makeDue(-time.Minute, "due")
	proxy := newCommitCutter(t, s)
	deadline := time.Now().Add(time.Hour)
	for name, do := range map[string]func() error{
		"place": func() error { _, err := proxy.Place(t.Context(), draft("placed", "shoe")); return err },
		"pay":   func() error { return proxy.pay(t.Context(), "paid") },
		"cancel": func() error {
			_, err := proxy.Cancel(t.Context(), "cancelled", order.By{})
			return err
		},
		"extend": func() error { _, err := proxy.Extend(t.Context(), "extended", deadline, order.By{}); return err },
		"expire": func() error { _, err := proxy.Expire(t.Context(), []string{"due"}); return err },
		"refuse": func() error {
			d := order.Draft{ID: "refused", Request: "request-1"}
			return proxy.Refuse(t.Context(), []order.Draft{d}, []error{order.ErrInvalid})
		},
		"place without stock": func() error {
			d := draft("without-stock", "boot")
			d.Request = "request-1"
			if _, err := proxy.Place(t.Context(), d); !errors.Is(err, order.ErrUnknownSKU) {
				return err
			}
			return nil
		},
		"extend all": func() error {
			_, err := proxy.ExtendAll(t.Context(), order.ExtendRequest{Key: "k-1", More: time.Minute, Tag: "none"})
			return err
		},
	} {
		proxy.armed.Store(true)
		if err := do(); !errors.Is(err, order.ErrUnavailable) {
			t.Errorf("%s: the answer was lost, and it says %v", name, err)
		}
		if proxy.armed.Load() {
			t.Errorf("%s: nothing was committed", name)
		}
		if err := do(); err != nil {
			t.Errorf("%s again: %v", name, err)
		}
	}
	s.wantEvents("placed", "order.placed")
	s.wantEvents("paid", "order.placed", "order.paid")
	s.wantEvents("cancelled", "order.placed", "order.cancelled")
	s.wantEvents("extended", "order.placed", "order.extended")
	s.wantEvents("due", "order.placed", "order.expired")
	for _, id := range []string{"refused", "without-stock"} {
		s.wantEvents(id, "order.refused", "order.refused")
		if e := s.allEvents(id); e[0].ID != e[1].ID {
			t.Errorf("%s: one refusal came as %s and %s", id, e[0].ID, e[1].ID)
		}
	}
	s.wantStock("shoe", 2, 2, 1)
	s.audit(5)
}

// commitCutter is a shop whose connections lead through a proxy. When it is armed, the next COMMIT
// reaches the server, and its answer is cut off.
type commitCutter struct {
	*shop
	armed atomic.Bool
}

func newCommitCutter(t *testing.T, s *shop) *commitCutter {
	t.Helper()
	config, err := mysql.ParseDSN(amqptest.DSN(t, s.db))
	if err != nil {
		t.Fatal(err)
	}
	server := config.Addr
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var c commitCutter
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			go c.serve(client, server)
		}
	}()
	config.Addr = listener.Addr().String()
	db, err := database.Open(config.FormatDSN(), database.Options{MaxOpen: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		listener.Close()
		if pool, err := db.DB(); err == nil {
			pool.Close()
		}
	})
	c.shop = newShopOn(t, db)
	return &c
}

func (c *commitCutter) serve(client net.Conn, addr string) {
	defer client.Close()
	server, err := net.Dial("tcp", addr)
	if err != nil {
		return
	}
	defer server.Close()
	var cut atomic.Bool
	go func() {
		defer server.Close()
		buffer := make([]byte, 64<<10)
		for {
			n, err := client.Read(buffer)
			if err != nil {
				return
			}
			// A packet has four bytes of header, then COM_QUERY, then the statement.
			if n > 5 && bytes.Equal(buffer[4:n], []byte("\x03COMMIT")) && c.armed.CompareAndSwap(true, false) {
				cut.Store(true)
			}
			if _, err := server.Write(buffer[:n]); err != nil {
				return
			}
		}
	}()
	_, _ = io.Copy(writer(func(p []byte) (int, error) {
		if cut.Load() {
			return 0, net.ErrClosed // the server has answered, so it has committed
		}
		return client.Write(p)
	}), server)
}

type writer func([]byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }

// As in github.com/go-gorm/gorm/issues/7384: an update to the value that is there already counts no row,
// unless the connection asks for the rows that were found. Nothing depends on it.
func TestTheSameAgainWithAndWithoutFoundRows(t *testing.T) {
	for _, found := range []bool{true, false} {
		t.Run(map[bool]string{true: "found rows", false: "changed rows"}[found], func(t *testing.T) {
			s := newShop(t)
			config, err := mysql.ParseDSN(amqptest.DSN(t, s.db))
			if err != nil {
				t.Fatal(err)
			}
			config.ClientFoundRows = found
			connector, err := mysql.NewConnector(config)
			if err != nil {
				t.Fatal(err)
			}
			pool := sql.OpenDB(connector)
			defer pool.Close()
			db, err := gorm.Open(gormmysql.New(gormmysql.Config{Conn: pool}), &gorm.Config{Logger: logger.Discard})
			if err != nil {
				t.Fatal(err)
			}
			on := newShopOn(t, db)
			s.setStock(10, "shoe")
			for _, id := range []string{"due", "paid", "paid-first", "extended"} {
				s.place(draft(id, "shoe"))
			}
			s.placeMany([]string{"vip"}, "vip")
			s.makeDue(-time.Minute, "due", "paid-first")
			if err := s.pay(t.Context(), "paid-first"); err != nil {
				t.Fatal(err)
			}
			deadline := time.Now().Add(time.Hour)
			outcome := func(id string, want order.Outcome) error {
				got, err := on.Expire(t.Context(), []string{id})
				if err == nil && got.Orders[0].Outcome != want {
					t.Errorf("%s: %s, want %s", id, got.Orders[0].Outcome, want)
				}
				return err
			}
			want := order.OutcomeExpired
			for round := range 2 {
				for name, do := range map[string]func() error{
					"stock":     func() error { _, err := on.SetStock(t.Context(), "shoe", 10); return err },
					"resume":    func() error { return on.Resume(t.Context(), order.By{}) },
					"missing":   func() error { return outcome("missing", order.OutcomeNotFound) },
					"extend":    func() error { _, err := on.Extend(t.Context(), "extended", deadline, order.By{}); return err },
					"pay":       func() error { return on.pay(t.Context(), "paid") },
					"pay first": func() error { return outcome("paid-first", order.OutcomeAlreadyPaid) },
					"expire":    func() error { return outcome("due", want) },
					"extend all": func() error {
						p, err := on.ExtendAll(t.Context(), order.ExtendRequest{Key: "k", More: time.Minute, Tag: "vip"})
						if p.Extended != 1 {
							t.Errorf("it says that it extended %d", p.Extended)
						}
						return err
					},
				} {
					if err := do(); err != nil {
						t.Errorf("%s, round %d: %v", name, round, err)
					}
				}
				want = order.OutcomeAlreadyExpired
			}
			s.wantEvents("due", "order.placed", "order.expired")
			s.wantEvents("paid", "order.placed", "order.paid")
			s.wantEvents("extended", "order.placed", "order.extended")
			s.wantEvents("vip", "order.placed", "order.extended")
		})
	}
}

// What cannot be published for one order is that order's fault, and nothing of it is kept.
func TestAnEventThatCannotBePublished(t *testing.T) {
	s := newShop(t)
	s.setStock(100, "shoe")
	ids := names("o-", 20)
	s.placeMany(ids)
	s.makeDue(-time.Minute, ids...)
	refusal := errors.New("too large to be published")
	s.store = orderdb.New(s.db, orderdb.Config{Emit: func(tx *gorm.DB, events []order.Event, timers []order.Timer) error {
		for _, e := range events {
			if e.Order.ID == ids[7] {
				return refusal
			}
		}
		return publish(tx, events, timers)
	}})
	s.Repository = s.store
	got, err := s.Expire(t.Context(), ids)
	if err != nil {
		t.Fatal(err)
	}
	for i, e := range got.Orders {
		if failed := errors.Is(e.Err, refusal) && e.Outcome == order.OutcomeFailed; failed != (i == 7) {
			t.Errorf("%s: %s %v", e.ID, e.Outcome, e.Err)
		}
	}
	if _, err := s.Cancel(t.Context(), ids[7], order.By{}); !errors.Is(err, refusal) {
		t.Errorf("cancelling it: %v", err)
	}
	if o, err := s.Get(t.Context(), ids[7]); err != nil || o.Status != order.Pending {
		t.Errorf("%s, %v", o.Status, err)
	}
	s.audit(100)
}

// A batch that keeps losing a conflict is not halved: each half with the row that others have would wait
// as long again. The order that loses it alone is not to blame.
func TestAConflictThatLasts(t *testing.T) {
	s := newShop(t)
	s.setStock(100, "shoe")
	ids := names("o-", 20)
	runs := make(map[int]int) // by the number of orders
	s.store = orderdb.New(s.db, orderdb.Config{Emit: func(tx *gorm.DB, events []order.Event, timers []order.Timer) error {
		runs[len(events)]++
		if err := conflictOver(ids[7], events); err != nil {
			return err
		}
		return publish(tx, events, timers)
	}})
	s.Repository = s.store
	want := map[int]int{20: 11, 1: 19 + 11}

	var drafts []order.Draft
	for _, id := range ids {
		drafts = append(drafts, draft(id, "shoe"))
	}
	placed, err := s.PlaceAll(t.Context(), drafts)
	if err != nil {
		t.Fatal(err)
	}
	for i, p := range placed {
		if errors.Is(p.Err, order.ErrUnavailable) != (i == 7) || (p.Err != nil) != (i == 7) {
			t.Errorf("%s: %v", ids[i], p.Err)
		}
	}
	if diff := cmp.Diff(want, runs); diff != "" {
		t.Errorf("runs of batches when placing (-want +got):\n%s", diff)
	}

	newShopOn(t, s.db).place(drafts[7])
	s.makeDue(-time.Minute, ids...)
	clear(runs)
	got, err := s.Expire(t.Context(), ids)
	if err != nil {
		t.Fatal(err)
	}
	for i, e := range got.Orders {
		if errors.Is(e.Err, order.ErrUnavailable) != (i == 7) || (e.Outcome == order.OutcomeExpired) != (i != 7) {
			t.Errorf("%s: %s %v", e.ID, e.Outcome, e.Err)
		}
	}
	if diff := cmp.Diff(want, runs); diff != "" {
		t.Errorf("runs of batches when expiring (-want +got):\n%s", diff)
	}
	s.audit(100)
}

// Somebody has an order and an article locked, for good. Those who need them cost the others the time of
// one batch, however many they are.
func TestRowsThatSomebodyKeepsLocked(t *testing.T) {
	s := newShop(t)
	s.setStock(10, "hot", "cold")
	ids := []string{"a", "b", "c", "d", "e", "f"}
	for i, id := range ids {
		s.place(draft(id, []string{"hot", "cold"}[i%2]))
	}
	s.makeDue(-time.Minute, ids...)
	blocker := s.db.Begin()
	defer blocker.Rollback()
	exec(t, blocker, "UPDATE lapse_stock SET available = available WHERE sku = 'hot'")
	exec(t, blocker, "SELECT id FROM lapse_orders WHERE id = 'f' FOR UPDATE")

	victim := s.replica("?innodb_lock_wait_timeout=1")
	began := time.Now()
	got, err := victim.Expire(t.Context(), ids)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range got.Orders {
		free := e.ID == "b" || e.ID == "d"
		if free != (e.Outcome == order.OutcomeExpired) || free == errors.Is(e.Err, order.ErrUnavailable) {
			t.Errorf("%s: %s %v", e.ID, e.Outcome, e.Err)
		}
	}
	// The batch has waited for a second eleven times. Any other that waited, too, would have doubled it.
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("it took %s", took)
	}
	blocker.Rollback()
	if got, err := victim.Expire(t.Context(), ids); err != nil || got.Orders[0].Outcome != order.OutcomeExpired || got.Orders[5].Outcome != order.OutcomeExpired {
		t.Errorf("%+v, %v", got, err)
	}
	s.wantStock("hot", 10, 0, 0)
}

// The switch is there from the migration on. Without it nobody knows whether expiry is paused.
func TestThePauseSwitchIsMissing(t *testing.T) {
	s := newShop(t)
	s.setStock(1, "shoe")
	s.place(draft("o-1", "shoe"))
	s.makeDue(-time.Minute, "o-1")
	exec(t, s.db, "DELETE FROM lapse_control")
	for name, do := range map[string]func() error{
		"expire": func() error { _, err := s.Expire(t.Context(), []string{"o-1"}); return err },
		"paused": func() error { _, err := s.Paused(t.Context()); return err },
		"pause":  func() error { return s.Pause(t.Context(), order.By{}) },
	} {
		err := do()
		if !errors.Is(err, order.ErrUnavailable) || !strings.Contains(err.Error(), "lapse_control") {
			t.Errorf("%s: %v", name, err)
			continue
		}
		// What it says to do helps.
		_, insert, _ := strings.Cut(err.Error(), ": INSERT")
		exec(t, s.db, "INSERT"+insert)
		if paused, err := s.Paused(t.Context()); err != nil || paused.Paused {
			t.Errorf("%s: it is mended, and says %+v, %v", name, paused, err)
		}
		exec(t, s.db, "DELETE FROM lapse_control")
	}
	s.wantEvents("o-1", "order.placed")
}

// Whoever gives up waiting is told so, and nothing is half done.
func TestContextEnds(t *testing.T) {
	s := newShop(t)
	s.setStock(1, "shoe")
	s.place(draft("o-1", "shoe"))
	s.makeDue(-time.Minute, "o-1")
	locked, release := make(chan struct{}), make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() {
		_, err := s.store.Change(t.Context(), "o-1", func(o order.Order, now time.Time) (order.Order, order.Event, error) {
			close(locked)
			<-release
			return o, order.Event{}, nil
		})
		if err != nil {
			t.Error(err)
		}
	})
	<-locked
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := s.Expire(ctx, []string{"o-1"}); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, order.ErrUnavailable) {
		t.Errorf("it says %v", err)
	}
	close(release)
	all.Wait()
	s.wantEvents("o-1", "order.placed")
	s.audit(1)
}
