package main

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/lapse-go/lapse/amqp/amqptest"
	"github.com/lapse-go/lapse/order/orderamqp"
)

// lapse runs the program in this process.
func lapse(ctx context.Context, args ...string) (code int, stdout, stderr string) {
	var out, err bytes.Buffer
	code = run(ctx, args, &out, &err)
	return code, out.String(), err.String()
}

func TestUsage(t *testing.T) {
	for _, test := range []struct {
		args string
		code int
		want string // on standard output, or on standard error if the code says that something is wrong
	}{
		{"--help", 0, "Usage: lapse"},
		{"--version", 0, version},
		{"serve --help", 0, "LAPSE_MYSQL_DSN"},
		{"", 2, "expected one of"},
		{"sing", 2, "sing"},
		{"serve --queue-type=lazy", 2, "lazy"},
		{"serve --role=timer,dance", 2, `role "dance"`},
		{"serve --role=timer,timer", 2, "twice"},
		{"serve --rungs=1s,60s,1m", 2, "rung 1m is there twice"},
		{"serve --rungs=fast", 2, `rung "fast" is not a duration`},
		{"serve --rungs=100000h", 2, "ten years"},
		{"serve --window=0s", 2, "--window=0s"},
		{"serve --window=-5m", 2, "--window=-5m"},
		{"serve --window=30", 2, "--window"},
		{"serve --window=9000h", 2, "up to a year"},
		{"serve --workers=0", 2, "--workers=0"},
		{"serve --namespace=amq.x", 2, "amq."},
		{"serve --mysql-dsn=root:secret@nowhere", 2, "--mysql-dsn cannot be read"},
		{"serve --amqp-url=http://guest:secret@host", 2, "amqp://"},
	} {
		code, stdout, stderr := lapse(t.Context(), strings.Fields(test.args)...)
		said := stdout
		if test.code != 0 {
			said = stderr
			if stdout != "" {
				t.Errorf("lapse %s: standard output has %q", test.args, stdout)
			}
		}
		if code != test.code || !strings.Contains(said, test.want) {
			t.Errorf("lapse %s: exit code %d, said %q; want %d and %q", test.args, code, said, test.code, test.want)
		}
		if strings.Contains(stderr, "secret") {
			t.Errorf("lapse %s tells a password: %s", test.args, stderr)
		}
	}
}

func TestDemoAddsUp(t *testing.T) {
	code, stdout, stderr := lapse(t.Context(), "demo", "--output", "json")
	if code != 0 {
		t.Fatalf("exit code %d\n%s%s", code, stdout, stderr)
	}
	decoder := json.NewDecoder(strings.NewReader(stdout))
	decoder.DisallowUnknownFields()
	var r demoResult
	if err := decoder.Decode(&r); err != nil || decoder.More() {
		t.Fatalf("standard output is not one JSON object: %v\n%s", err, stdout)
	}
	if !r.OK || !r.StockConserved || r.Placed != 60 || r.Paid != 20 || r.Pending != 0 || r.LatePayments != 1 || r.DeadLetters != 5 ||
		r.Paid+r.Cancelled+r.Expired != 60 || r.Cancelled == 0 || r.Extended == 0 {
		t.Errorf("%+v", r)
	}
}

// serve waits for nothing once it is told to stop, and says what is wrong where waiting is senseless.
func TestServe(t *testing.T) {
	db := amqptest.Database(t)
	topology := amqptest.Topology(t, nil, orderamqp.KindPaymentTimeout, orderamqp.KindPlace)
	args := []string{"serve", "--mysql-dsn", amqptest.DSN(t, db), "--namespace", topology.Namespace}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	start := time.Now()
	code, stdout, stderr := lapse(ctx, args...)
	if code != 0 || stdout != "" || time.Since(start) > 10*time.Second {
		t.Errorf("exit code %d after %s\n%s%s", code, time.Since(start), stdout, stderr)
	}
	if !strings.Contains(stderr, `"msg":"serving"`) {
		t.Errorf("it does not say that it serves: %s", stderr)
	}

	if err := db.Exec("DROP TABLE lapse_schema_orders").Error; err != nil {
		t.Fatal(err)
	}
	code, _, stderr = lapse(t.Context(), args...)
	if code != 1 || !strings.Contains(stderr, "lapse migrate") {
		t.Errorf("without tables: exit code %d, %s", code, stderr)
	}
}
