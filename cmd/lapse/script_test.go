package main

import (
	"context"
	"errors"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/amqp/amqptest"
	"github.com/lapse-go/lapse/order/checkout"
)

func TestMain(m *testing.M) { testscript.Main(m, map[string]func(){"lapse": main}) }

// TestScripts runs the program as people do. Each script has a database with all tables, a namespace on
// the broker, and three more commands:
//
//	exits CODE COMMAND...    runs the command, which has to exit with that code
//
//	sql STATEMENT            runs one on its database, or those of a file
//
//	select VARIABLE QUERY    has the variable be the text that the query finds
//
// $NO_TABLES is the DSN of a database that does not exist, but may be made, and $EXAMPLES is deploy/examples.
func TestScripts(t *testing.T) {
	scripts, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(scripts) == 0 {
		t.Fatal("no scripts", err)
	}
	ladder, err := amqp.NewLadder(append(amqp.DefaultLadder(), 3*time.Second)...) // all that a script uses
	if err != nil {
		t.Fatal(err)
	}
	for _, script := range scripts {
		name := strings.TrimSuffix(filepath.Base(script), ".txtar")
		t.Run(name, func(t *testing.T) {
			t.Parallel() // mostly they wait
			db := amqptest.Database(t)
			cfg := checkout.Config{Namespace: amqptest.Namespace(), Ladder: ladder, Kinds: []checkout.Kind{{Name: "order.pickup_reminder"}}}
			topology := cfg.Topology()
			conn := amqptest.Conn(t)
			t.Cleanup(func() {
				if err := topology.Delete(context.Background(), conn); err != nil {
					t.Error(err)
				}
			})
			var own string
			if err := db.Raw("SELECT DATABASE()").Scan(&own).Error; err != nil {
				t.Fatal(err)
			}
			other := own + "_new"
			t.Cleanup(func() {
				if err := db.Exec("DROP DATABASE IF EXISTS " + other).Error; err != nil {
					t.Error(err)
				}
			})
			testscript.Run(t, testscript.Params{
				Files: []string{script},
				Setup: func(env *testscript.Env) error {
					env.Setenv("LAPSE_AMQP_URL", amqptest.URL(t))
					env.Setenv("LAPSE_MYSQL_DSN", amqptest.DSN(t, db))
					env.Setenv("NO_TABLES", strings.Replace(amqptest.DSN(t, db), "/"+own, "/"+other, 1))
					env.Setenv("LAPSE_NAMESPACE", topology.Namespace)
					env.Setenv("LAPSE_WHO", "tester")
					examples, err := filepath.Abs("../../deploy/examples")
					env.Setenv("EXAMPLES", examples)
					return err
				},
				Cmds: map[string]func(*testscript.TestScript, bool, []string){"exits": exits, "sql": func(ts *testscript.TestScript, _ bool, args []string) {
					text := args[0]
					if strings.HasSuffix(text, ".sql") {
						text = ts.ReadFile(text)
					}
					for statement := range strings.SplitSeq(text, ";\n") {
						if strings.TrimSpace(statement) != "" {
							ts.Check(db.Exec(statement).Error)
						}
					}
				}, "select": func(ts *testscript.TestScript, _ bool, args []string) {
					var text string
					ts.Check(db.Raw(args[1]).Scan(&text).Error)
					ts.Setenv(args[0], text)
				}},
			})
		})
	}
}

func exits(ts *testscript.TestScript, neg bool, args []string) {
	want, err := strconv.Atoi(args[0])
	if err != nil || neg {
		ts.Fatalf("usage: exits CODE COMMAND...")
	}
	code := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		exit, ok := errors.AsType[*exec.ExitError](err)
		if !ok {
			ts.Fatalf("%v", err)
		}
		code = exit.ExitCode()
	}
	if code != want {
		ts.Fatalf("exit code %d, not %d", code, want)
	}
}
