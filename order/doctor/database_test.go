package doctor_test

import (
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/amqp/amqptest"
	"github.com/lapse-go/lapse/amqp/deadletter"
	"github.com/lapse-go/lapse/order/doctor"
)

func dsn(t *testing.T, base string, change func(*mysql.Config)) string {
	t.Helper()
	config, err := mysql.ParseDSN(base)
	if err != nil {
		t.Fatal(err)
	}
	change(config)
	return config.FormatDSN()
}

func TestDatabaseLogin(t *testing.T) {
	server := amqptest.NewMySQL(t)
	db := server.Database(t)
	good := amqptest.DSN(t, db)
	for _, statement := range []string{"CREATE USER clerk@'127.0.0.1' IDENTIFIED BY 'hush'", "CREATE USER clerk@localhost IDENTIFIED BY 'hush'"} {
		if err := db.Exec(statement).Error; err != nil {
			t.Fatal(err)
		}
	}
	for name, test := range map[string]struct {
		change    func(*mysql.Config)
		saw, cure string
	}{
		"wrong password": {func(c *mysql.Config) { c.User, c.Passwd = "clerk", "hush, hush" }, "refuses the login", "password"},
		"no grant":       {func(c *mysql.Config) { c.User, c.Passwd = "clerk", "hush" }, "does not let this user into", "GRANT"},
		"no database":    {func(c *mysql.Config) { c.DBName = "nowhere" }, "no such database", "migrate"},
	} {
		t.Run(name, func(t *testing.T) {
			findings := examine(t, doctor.Config{Broker: deadBroker(t), DSN: dsn(t, good, test.change)})
			want(t, findings, doctor.Database, test.saw, doctor.Broker, away)
			if f := about(findings, doctor.Database, doctor.Problem); len(f) == 1 && !strings.Contains(f[0].Cure, test.cure) {
				t.Error(f[0].Cure)
			}
		})
	}

	// Without the privilege to look at transactions, the session tells.
	config, err := mysql.ParseDSN(good)
	if err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{"'127.0.0.1'", "localhost"} {
		if err := db.Exec("GRANT ALL ON " + config.DBName + ".* TO clerk@" + host).Error; err != nil {
			t.Fatal(err)
		}
	}
	findings := examine(t, doctor.Config{Broker: deadBroker(t), DSN: dsn(t, good, func(c *mysql.Config) { c.User, c.Passwd = "clerk", "hush" })})
	want(t, findings, doctor.Broker, away)
	if f := about(findings, doctor.Isolation, doctor.Fine); len(f) != 1 || !strings.Contains(f[0].Saw, "session") {
		t.Errorf("%v", f)
	}
}

func TestMigrationsPending(t *testing.T) {
	db := amqptest.Database(t)
	cfg := doctor.Config{Broker: deadBroker(t), DSN: amqptest.DSN(t, db)}
	if err := db.Exec("DELETE FROM lapse_schema_orders WHERE version_id > 0").Error; err != nil {
		t.Fatal(err)
	}
	findings := examine(t, cfg)
	want(t, findings, doctor.Migrations, "00001_orders.sql", doctor.Broker, away)
	if f := about(findings, doctor.Migrations, doctor.Problem); len(f) == 1 && !strings.Contains(f[0].Cure, "lapse migrate up") {
		t.Error(f[0].Cure)
	}
	if err := db.Exec("DROP TABLE lapse_schema_orders, lapse_schema_transport, lapse_outbox").Error; err != nil {
		t.Fatal(err)
	}
	want(t, examine(t, cfg), doctor.Migrations, "00001_outbox.sql", doctor.Broker, away)
}

// What a DSN says of sessions does not count.
func TestSessionsAreAsLapseMakesThem(t *testing.T) {
	db := amqptest.Database(t)
	odd := dsn(t, amqptest.DSN(t, db), func(c *mysql.Config) {
		c.Params = map[string]string{"time_zone": "'+02:00'", "transaction_isolation": "'SERIALIZABLE'"}
	})
	findings := examine(t, doctor.Config{Broker: deadBroker(t), DSN: odd})
	want(t, findings, doctor.Broker, away)
	if f := about(findings, doctor.Isolation, doctor.Fine); len(f) != 1 || f[0].Saw != "transactions are READ COMMITTED" {
		t.Errorf("%v", f)
	}
}

func TestOpenLetters(t *testing.T) {
	db := amqptest.Database(t)
	cfg := doctor.Config{Broker: deadBroker(t), DSN: amqptest.DSN(t, db)}
	findings := examine(t, cfg)
	want(t, findings, doctor.Broker, away)
	if f := about(findings, doctor.Desk, doctor.Fine); len(f) != 1 || f[0].Saw != "no dead letter is open" {
		t.Errorf("%v", f)
	}
	desk := deadletter.New(deadletter.Config{DB: db, Topology: amqp.Topology{}}).Handler("lapse.unrouted")
	if _, err := desk.Handle(t.Context(), make([]amqp.Message, 2)); err != nil {
		t.Fatal(err)
	}
	want(t, examine(t, cfg), doctor.Broker, away, doctor.Desk, "2 dead letters are open: 2 unroutable")
}

func TestOutbox(t *testing.T) {
	db := amqptest.Database(t)
	add := func(n int, age string, reason any) {
		t.Helper()
		for range n {
			err := db.Exec(`INSERT INTO lapse_outbox (message_id, kind, body, size, content_type, app_id, created_at, error)
				VALUES (UUID(), 'a', '{}', 2, '', '', UTC_TIMESTAMP(6) - INTERVAL `+age+`, ?)`, reason).Error
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	cfg := doctor.Config{Broker: deadBroker(t), DSN: amqptest.DSN(t, db)}
	add(2, "5 SECOND", nil)
	findings := examine(t, cfg)
	want(t, findings, doctor.Broker, away)
	if f := about(findings, doctor.Outbox, doctor.Fine); len(f) != 1 || !strings.Contains(f[0].Saw, "2 rows wait") {
		t.Errorf("%v", f)
	}
	add(1, "3 MINUTE", nil)
	add(4, "1 HOUR", "no exchange 'other.delay.30m'")
	want(t, examine(t, cfg), doctor.Broker, away,
		doctor.Outbox, "3 rows wait to be published, the oldest for 3m",
		doctor.Outbox, "4 rows are set aside because they could not be published, the latest one for: no exchange 'other.delay.30m'")
}
