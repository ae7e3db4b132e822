package checkout_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lapse-go/lapse/amqp/database"
	"github.com/lapse-go/lapse/order/checkout"
)

const alerts = "../../deploy/prometheus/"

// promtool is the one on the PATH, or the one that deploy/dev/up --tests fetched.
func promtool(t *testing.T, args ...string) {
	t.Helper()
	path, err := exec.LookPath("promtool")
	if err != nil {
		path, err = filepath.Abs("../../.run/bin/promtool")
		if err == nil {
			_, err = os.Stat(path)
		}
	}
	if err != nil {
		t.Fatal("this test needs promtool: deploy/dev/up --tests fetches it on Debian; else install Prometheus (Debian's package is prometheus)")
	}
	command := exec.CommandContext(t.Context(), path, args...)
	command.Dir = alerts
	out, err := command.CombinedOutput()
	if err != nil {
		t.Errorf("%s: %v\n%s", command, err, out)
	}
}

func TestAlertsFireWhenTheyShould(t *testing.T) {
	promtool(t, "check", "rules", "rules.yaml")
	promtool(t, "test", "rules", "rules.test.yaml")
}

var (
	alertLine  = regexp.MustCompile(`(?m)^ *- alert: (\w+)$`)
	metricName = regexp.MustCompile(`\blapse_[a-z_]+`)
)

// Each alert has a test of when it fires and of when it does not, a severity, words, and a runbook.
func TestEachAlertIsComplete(t *testing.T) {
	rules, tests, runbooks := read(t, "rules.yaml"), read(t, "rules.test.yaml"), read(t, "runbooks.md")
	names := alertLine.FindAllStringSubmatchIndex(rules, -1)
	if len(names) == 0 {
		t.Fatal("there are no alerts")
	}
	for i, at := range names {
		name, end := rules[at[2]:at[3]], len(rules)
		if i+1 < len(names) {
			end = names[i+1][0]
		}
		rule := rules[at[0]:end]
		for _, part := range []string{
			"expr: ", "for: ", "severity: ", "summary: ", "description: ",
			"runbook_url: https://github.com/lapse-go/lapse/blob/main/deploy/prometheus/runbooks.md#" + strings.ToLower(name) + "\n",
		} {
			if !strings.Contains(rule, part) {
				t.Errorf("%s lacks %q", name, part)
			}
		}
		if !strings.Contains(runbooks, "\n## "+name+"\n") {
			t.Errorf("%s has no section in runbooks.md", name)
		}
		question := `expr: ALERTS{alertname="` + name + `",alertstate="firing"}` + "\n"
		fires, silent := false, false
		for _, answer := range strings.Split(tests, question)[1:] {
			_, answer, _ = strings.Cut(answer, "exp_samples:")
			silent = silent || strings.HasPrefix(answer, " []")
			fires = fires || strings.HasPrefix(answer, "\n          - labels: ")
		}
		if !fires || !silent {
			t.Errorf("%s is tested for firing: %t, for not firing: %t", name, fires, silent)
		}
	}
	if sections := strings.Count(runbooks, "\n## "); sections != len(names) {
		t.Errorf("%d sections in runbooks.md for %d alerts", sections, len(names))
	}
}

// A rule over a metric that does not exist never fires.
func TestAlertsNameMetricsThatExist(t *testing.T) {
	db, err := database.Open("nobody@tcp(127.0.0.1:1)/nothing", database.Options{})
	if err != nil {
		t.Fatal(err)
	}
	pool, err := db.DB()
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	registry := prometheus.NewRegistry()
	if _, err := checkout.New(db, checkout.Config{Registerer: registry}); err != nil {
		t.Fatal(err)
	}
	descriptions := make(chan *prometheus.Desc)
	go func() {
		defer close(descriptions)
		registry.Describe(descriptions)
	}()
	exist := map[string]bool{}
	for d := range descriptions {
		name := regexp.MustCompile(`fqName: "(\w+)"`).FindStringSubmatch(d.String())[1]
		exist[name] = true
		if strings.Contains(name, "_seconds") || strings.Contains(name, "_size") {
			exist[name+"_bucket"], exist[name+"_sum"], exist[name+"_count"] = true, true, true
		}
	}
	for _, file := range []string{"rules.yaml", "rules.test.yaml", "runbooks.md"} {
		for _, name := range metricName.FindAllString(read(t, file), -1) {
			if !exist[name] && !tables[name] {
				t.Errorf("%s names %s, which is no metric", file, name)
			}
		}
	}
}

// tables are of the database, and named in the runbooks.
var tables = map[string]bool{"lapse_orders": true, "lapse_outbox": true, "lapse_control": true}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(alerts + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
