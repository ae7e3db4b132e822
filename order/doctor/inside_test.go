package doctor

import (
	"database/sql"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	amqp091 "github.com/rabbitmq/amqp091-go"
	gormmysql "gorm.io/driver/mysql"
	"gorm.io/gorm"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/amqp/amqptest"
)

func TestVersions(t *testing.T) {
	for _, test := range []struct {
		product, version string
		want             State
		words            string
	}{
		{"RabbitMQ", "3.10.0", Fine, "RabbitMQ 3.10.0"},
		{"RabbitMQ", "3.10.8", Fine, ""},
		{"RabbitMQ", "3.9.29", Problem, "too old"},
		{"RabbitMQ", "3.8.0-rc.1", Problem, "too old"},
		{"RabbitMQ", "4.0.0-beta.1", Fine, ""},
		{"RabbitMQ", "4.3.6", Fine, ""},
		{"RabbitMQ", "10.0", Fine, ""},
		{"RabbitMQ", "", Problem, "no version"},
		{"RabbitMQ", "0.0.0+dirty", Problem, "too old"},
		{"RabbitMQ", "three", Problem, "no version"},
		{"LavinMQ", "4.0.0", Problem, "not made for"},
	} {
		var b brokerSide
		b.version(test.product, test.version)
		if f := b.findings; len(f) != 1 || f[0].State != test.want || !strings.Contains(f[0].Saw, test.words) {
			t.Errorf("%s %s: %+v", test.product, test.version, f)
		}
	}
	for version, want := range map[string]State{
		"8.0.11": Fine, "8.0.36-0ubuntu0.22.04.1": Fine, "9.7.0": Fine, "5.7.44-log": Problem, "5.6.51": Problem, "8": Problem,
		"10.6.0-MariaDB": Fine, "10.11.19-MariaDB-0+deb12u1": Fine, "11.8.2-MariaDB": Fine, "10.5.23-MariaDB-log": Problem, "10.10.2-MariaDB": Fine,
		"8.0.mysql_aurora.3.04.0": Fine, "": Problem,
	} {
		var d databaseSide
		d.version(version)
		if f := d.findings; len(f) != 1 || f[0].State != want {
			t.Errorf("%s: %+v", version, f)
		}
	}
}

func TestWhichClockIsOff(t *testing.T) {
	const s = time.Second
	at := func(low, high time.Duration) offset { return offset{true, low, high} }
	none := offset{}
	for name, test := range map[string]struct {
		db, broker offset
		state      State
		saw, cure  string
	}{
		"none is known":               {none, none, NotChecked, "neither", ""},
		"all agree":                   {at(0, s/100), at(-s/5, s), Fine, "agrees", ""},
		"apart by less than matters":  {at(-s, -s), at(0, s), Fine, "1s behind", ""},
		"database ahead":              {at(120*s, 120*s), at(-s/5, s), Problem, "2m0s ahead of this program", "database's host"},
		"database behind":             {at(-120*s, -120*s), at(-s/5, s), Problem, "database's is off", "customers"},
		"program off":                 {at(60*s, 60*s), at(60*s, 61*s), Problem, "This program's is off", "this host"},
		"broker off":                  {at(0, 0), at(-11*s, -10*s), Problem, "The broker's is off", "broker's host"},
		"all off":                     {at(60*s, 60*s), at(-61*s, -60*s), Problem, "No two", "all three"},
		"the broker's is not known":   {at(60*s, 60*s), none, Problem, "Either", "both"},
		"the database's is not known": {none, at(60*s, 61*s), Problem, "Either", "both"},
		// Slow answers say little.
		"nothing certain": {at(-3*s, 3*s), at(-s, s), Fine, "", ""},
	} {
		f := compareClocks(test.db, test.broker)
		if f.Check != Clocks || f.State != test.state || !strings.Contains(f.Saw, test.saw) || !strings.Contains(f.Cure, test.cure) || (f.Cure == "") != (test.state != Problem) {
			t.Errorf("%s: %+v", name, f)
		}
	}
}

// The broker tells whole seconds, and the message may have become due at any time until it was here.
func TestReadsTheBrokersClock(t *testing.T) {
	published := time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)
	received := published.Add(trialTTL + 50*time.Millisecond)
	death := func(at any) amqp091.Delivery {
		return amqp091.Delivery{Headers: amqp091.Table{"x-death": []any{amqp091.Table{"time": at}}}}
	}
	got := clockOf(death(published.Add(90*time.Second)), published, received)
	if want := (offset{true, 90*time.Second - 150*time.Millisecond, 91*time.Second - trialTTL}); got != want {
		t.Errorf("%v; want %v", got, want)
	}
	for _, d := range []amqp091.Delivery{{}, death(nil), {Headers: amqp091.Table{"x-death": "x"}}, {Headers: amqp091.Table{"x-death": []any{"x"}}}} {
		if clockOf(d, published, received).known {
			t.Errorf("%v tells a time", d.Headers)
		}
	}
}

// What a broker does that falls back to at most once, a rung without the strategy does on any.
func TestTrialSeesWhatIsNotKept(t *testing.T) {
	t.Parallel() // mostly it waits
	conn := amqptest.Conn(t)
	for _, strategy := range []string{"at-least-once", "at-most-once"} {
		trial := newTrial(amqp.Topology{}, amqptest.Namespace())
		trial.jammed["x-dead-letter-strategy"] = strategy
		err := trial.run(t.Context(), conn)
		if !trial.clock.known {
			t.Error("it did not see the broker's clock")
		}
		var failed *trialError
		if dropped := errors.As(err, &failed) && strings.Contains(failed.saw, "at most once"); dropped != (strategy == "at-most-once") || !dropped && err != nil {
			t.Errorf("%s: %v", strategy, err)
		}
		if err := trial.remove(t.Context(), conn); err != nil {
			t.Error(err)
		}
	}
}

// A target that takes nothing is seen by what does not come.
func TestTrialSeesWhatDoesNotCome(t *testing.T) {
	conn := amqptest.Conn(t)
	trial := newTrial(amqp.Topology{}, amqptest.Namespace())
	trial.delayed["x-dead-letter-exchange"] = trial.nowhere
	trial.patience = time.Second
	err := trial.run(t.Context(), conn)
	var failed *trialError
	if !errors.As(err, &failed) || !strings.Contains(failed.saw, "did not come through") {
		t.Error(err)
	}
	if err := trial.remove(t.Context(), conn); err != nil {
		t.Error(err)
	}
}

// Lapse's own pools cannot be so: these are another program's, as a pooler between might make them.
func TestSessionsOfAnotherProgram(t *testing.T) {
	own := amqptest.Database(t)
	config, err := mysql.ParseDSN(amqptest.DSN(t, own))
	if err != nil {
		t.Fatal(err)
	}
	config.Params = map[string]string{"time_zone": "'+02:00'"}
	connector, err := mysql.NewConnector(config)
	if err != nil {
		t.Fatal(err)
	}
	pool := sql.OpenDB(connector)
	defer pool.Close()
	var d databaseSide
	d.timeZone(t.Context(), pool)
	if f := d.findings; len(f) != 1 || f[0].State != Problem || !strings.Contains(f[0].Saw, "2h0m0s off") {
		t.Errorf("%+v", f)
	}

	db, err := gorm.Open(gormmysql.New(gormmysql.Config{Conn: pool, SkipInitializeWithVersion: true}))
	if err != nil {
		t.Fatal(err)
	}
	for level, want := range map[sql.IsolationLevel]string{
		sql.LevelRepeatableRead: "REPEATABLE READ", sql.LevelSerializable: "SERIALIZABLE", sql.LevelReadCommitted: readCommitted,
	} {
		time.Sleep(150 * time.Millisecond) // the engine would tell of the transaction before
		tx := db.Begin(&sql.TxOptions{Isolation: level})
		if got, err := isolationOf(tx); err != nil || got != want {
			t.Errorf("%s: %q, %v", level, got, err)
		}
		tx.Rollback()
	}
}

// A queue that is down is a problem however it was found out, and no reason to apply the topology.
func TestQueueThatIsDown(t *testing.T) {
	down := amqp.Difference{Object: "queue", Name: "lapse.parked", State: amqp.Unknown, Messages: -1, Advice: "it exists, but it is down"}
	for via, permitted := range map[string]bool{"probing": true, "management API": false} {
		var b brokerSide
		b.drift(amqp.Plan{Via: via, Items: []amqp.Difference{down}}, permitted)
		if f := b.findings; len(f) != 1 || f[0].State != Problem || f[0].Cure != down.Advice || !strings.Contains(f[0].Saw, down.Name) {
			t.Errorf("by %s: %+v", via, f)
		}
	}
}
