package deadletter

import (
	"bufio"
	"context"
	"fmt"
	"os"
	osexec "os/exec"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/amqp/amqptest"
	"github.com/lapse-go/lapse/amqp/database"
)

// childEnv has the test program be a desk that runs replays until it is killed.
const childEnv = "LAPSE_TEST_DESK"

func child() {
	db, err := database.Open(os.Getenv(childEnv), database.Options{})
	if err != nil {
		panic(err)
	}
	conn, err := amqp.Open(context.Background(), amqp.Config{URIs: []string{os.Getenv(childEnv + "_BROKER")}})
	if err != nil {
		panic(err)
	}
	d := New(Config{DB: db})
	panic(d.Run(context.Background(), amqp.NewPublisher(conn, amqp.PublisherConfig{})))
}

// A process is killed in the middle of a replay, and another goes on where it stopped.
func TestTakeover(t *testing.T) {
	const letters = 10_000
	d := desk(t, nil)
	conn, name := queue(t)
	put(t, d, letters, Route{"", name})
	r := begin(t, d, Request{Selection: Selection{All: true}, Rate: 3000})

	process := osexec.Command(os.Args[0])
	process.Env = append(os.Environ(), childEnv+"="+amqptest.DSN(t, d.cfg.DB), childEnv+"_BROKER="+amqptest.URL(t))
	output, err := process.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		for lines := bufio.NewScanner(output); lines.Scan(); {
			fmt.Fprintln(os.Stderr, lines.Text())
		}
	}()
	for over := time.Now().Add(20 * time.Second); r.Published < letters/2; time.Sleep(5 * time.Millisecond) {
		if r, err = d.Replay(t.Context(), r.ID); err != nil || time.Now().After(over) {
			t.Fatalf("%+v, %v", r, err)
		}
	}
	first := r.Owner
	if err := process.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = process.Wait()
	r, err = d.Replay(t.Context(), r.ID)
	if err != nil {
		t.Fatal(err)
	}
	if r.State != Running || r.Published >= letters {
		t.Fatalf("it was killed too late: %+v", r)
	}
	t.Logf("killed at %d of %d", r.Published, letters)
	begin := time.Now()
	running(t, d, conn)
	r = ended(t, d, r.ID, time.Minute)
	if r.State != Done || r.Published != letters || r.Failed != 0 || first == "" {
		t.Errorf("%+v", r)
	}
	published := make(map[string]int)
	messages := drainFast(t, conn, name)
	for _, m := range messages {
		published[m.MessageId]++
	}
	t.Logf("taken over and done after %s; %d messages for %d letters", time.Since(begin).Round(time.Millisecond), len(messages), letters)
	if len(published) != letters {
		t.Errorf("%d letters were published, of %d", len(published), letters)
	}
	if twice := len(messages) - letters; twice > (publishers+2)*maxBatch {
		t.Errorf("%d messages were published twice", twice)
	}
	if n := number(t, d.cfg.DB, "SELECT COUNT(*) FROM lapse_replay_results WHERE replay_id = ? AND result = 'published'", r.ID); n != letters {
		t.Errorf("%d results", n)
	}
}

// drainFast takes all that is in a queue to which nobody publishes any more.
func drainFast(t testing.TB, conn *amqp.Conn, queue string) (all []amqp091.Delivery) {
	t.Helper()
	channel, err := conn.Channel(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer channel.Close()
	there, err := channel.QueueDeclarePassive(queue, true, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	deliveries, err := channel.Consume(queue, "", true, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	for len(all) < there.Messages {
		select {
		case m := <-deliveries:
			all = append(all, m)
		case <-time.After(10 * time.Second):
			t.Fatalf("%d of %d messages came", len(all), there.Messages)
		}
	}
	return all
}

// The broker is cut off in the middle, and then the database: the replay waits, says so, and goes on.
func TestOutagesOfAReplay(t *testing.T) {
	const letters = 2000
	t.Run("broker", func(t *testing.T) {
		d := desk(t, nil)
		conn, name := queue(t)
		put(t, d, letters, Route{"", name})
		proxy, url := amqptest.NewBrokerProxy(t, amqptest.URL(t))
		running(t, d, amqptest.Dial(t, url))
		r := begin(t, d, Request{Selection: Selection{All: true}, Rate: 1000})
		outlive(t, d, r, letters/4, func() { proxy.Refuse(); proxy.Reset() }, proxy.Restore, true)
		if n := len(drainFast(t, conn, name)); n < letters {
			t.Errorf("%d messages", n)
		}
	})
	t.Run("database", func(t *testing.T) {
		d := desk(t, nil)
		conn, name := queue(t)
		put(t, d, letters, Route{"", name})
		proxy, dsn := mysqlProxy(t, amqptest.DSN(t, d.cfg.DB))
		db, err := database.Open(dsn, database.Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if pool, err := db.DB(); err == nil {
				pool.Close()
			}
		})
		cfg := d.config()
		cfg.DB = db
		running(t, New(cfg), conn)
		r := begin(t, d, Request{Selection: Selection{All: true}, Rate: 1000})
		outlive(t, d, r, letters/4, func() { proxy.Refuse(); proxy.Reset() }, proxy.Restore, false)
		if n := len(drainFast(t, conn, name)); n < letters || n > letters+4*maxBatch {
			t.Errorf("%d messages", n)
		}
	})
}

func outlive(t *testing.T, d *Desk, r Replay, at int64, cut, restore func(), says bool) {
	t.Helper()
	await := func(what string, so func(Replay) bool) {
		t.Helper()
		for over := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			now, err := d.Replay(t.Context(), r.ID)
			if err != nil {
				t.Fatal(err)
			}
			if so(now) {
				return
			}
			if time.Now().After(over) {
				t.Fatalf("waited in vain for %s: %+v", what, now)
			}
		}
	}
	await("its beginning", func(r Replay) bool { return r.Published >= at })
	cut()
	if says {
		await("what it waits for", func(r Replay) bool { return r.Trouble != "" })
	} else {
		time.Sleep(2 * time.Second) // nobody can say that the database is away
	}
	restore()
	await("its end", func(r Replay) bool { return r.State.Ended() })
	if r = ended(t, d, r.ID, time.Second); r.State != Done || r.Published != r.Total || r.Failed != 0 {
		t.Errorf("%+v", r)
	}
}

func mysqlProxy(t testing.TB, dsn string) (*amqptest.Proxy, string) {
	t.Helper()
	cfg, err := mysql.ParseDSN(dsn)
	if err != nil {
		t.Fatal(err)
	}
	proxy := amqptest.NewProxy(t, cfg.Addr)
	cfg.Addr = proxy.Addr()
	return proxy, cfg.FormatDSN()
}
