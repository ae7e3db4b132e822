package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/lapse-go/lapse/order"
)

// TestMetrics looks at /metrics of a service that has placed, paid, expired and refused orders. What each
// series counts is tested where it is counted; here all of them are seen together, from outside.
func TestMetrics(t *testing.T) {
	s := newService(t)
	r := s.start("--sweep-every=200ms", "--tries=2", "--retry-delay=50ms")
	ctx := t.Context()
	if _, err := r.SetStock(ctx, "kettle", 10); err != nil {
		t.Fatal(err)
	}
	for i := range 5 {
		if _, err := r.Place(ctx, kettle(fmt.Sprintf("sync-%d", i), 700*time.Millisecond)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := r.PlaceAsync(ctx, kettle("async", 700*time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Pay(ctx, "sync-0", order.Payment{Reference: "psp-1"}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Get(ctx, "nobody"); !errors.Is(err, order.ErrNotFound) {
		t.Fatal(err)
	}
	s.deliver(`not JSON`,
		`{"order_id": "nobody", "deadline": "2020-01-01T00:00:00Z"}`,                                                    // fails, and is tried again
		fmt.Sprintf(`{"order_id": "nobody", "deadline": %q}`, time.Now().Add(2*time.Second).UTC().Format(time.RFC3339))) // hops
	await(t, 20*time.Second, "all orders are closed, everybody is told, and two messages are dead", func() bool {
		series := r.series(ctx)
		return s.count("status = 'expired'") == 5 && sum(series["lapse_dead_letters_total"]) >= 2 &&
			sum(series["lapse_outbox_relayed_total"]) >= 18 && series["lapse_queue_messages"] != nil
	})

	text := r.scrape(ctx)
	problems, err := promlint.New(bytes.NewReader(text)).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	series := r.series(ctx)
	for name, want := range map[string]float64{ // the sum over all labels, at least
		"lapse_build_info":                          1,
		"lapse_timers_published_total":              6,
		"lapse_timers_total":                        5,
		"lapse_lateness_seconds":                    1,
		"lapse_messages_total":                      11,
		"lapse_dead_letters_total":                  2,
		"lapse_batch_size":                          2,
		"lapse_placements_total":                    1,
		"lapse_published_total":                     13,
		"lapse_outbox_relayed_total":                18,
		"lapse_outbox_rows":                         0,
		"lapse_outbox_oldest_seconds":               0,
		"lapse_outbox_set_aside_rows":               0,
		"lapse_swept_total":                         0,
		"lapse_reconnections_total":                 0,
		"lapse_connection_blocked":                  0,
		"lapse_connection_blocked_seconds_total":    0,
		"lapse_loop_duration_seconds":               3,
		"lapse_loop_runs_total":                     3,
		"lapse_loop_last_success_timestamp_seconds": float64(time.Now().Add(-time.Minute).Unix()),
		"lapse_workers":                             4,
		"lapse_workers_busy":                        0,
		"lapse_due_age_seconds":                     0,
		"lapse_queue_messages":                      0,
		"lapse_paused":                              0,
		"lapse_overdue_orders":                      0,
		"lapse_overdue_oldest_seconds":              0,
		"lapse_http_requests_total":                 9,
		"lapse_http_request_duration_seconds":       9,
		"go_sql_open_connections":                   1,
		"go_goroutines":                             10,
	} {
		if series[name] == nil {
			t.Errorf("there is no %s", name)
		} else if got := sum(series[name]); got < want || got > 1e12 {
			t.Errorf("%s is %v, and should be %v at least", name, got, want)
		}
	}
	for outcome, want := range map[string]float64{"done": 6, "deferred": 1, "retried": 1, "dead": 2} {
		if got := sum(series["lapse_messages_total"], outcome); got < want {
			t.Errorf("%v messages were %s, and should be %v at least", got, outcome, want)
		}
	}
	for _, path := range []string{"/healthz", "/readyz"} {
		if code := r.ask(ctx, path, nil); code != http.StatusOK {
			t.Errorf("%s: %d", path, code)
		}
	}
}

// sum is that of a series' values, or of its observations: of those with this value of a label, if one is
// given.
func sum(f *dto.MetricFamily, label ...string) (total float64) {
	for _, m := range f.GetMetric() {
		if len(label) > 0 && !slices.ContainsFunc(m.GetLabel(), func(l *dto.LabelPair) bool { return l.GetValue() == label[0] }) {
			continue
		}
		total += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
	}
	return total
}

func (r *replica) scrape(ctx context.Context) []byte {
	r.t.Helper()
	var text bytes.Buffer
	if code := r.ask(ctx, "/metrics", &text); code != http.StatusOK {
		r.t.Fatalf("/metrics: %d", code)
	}
	return text.Bytes()
}

func (r *replica) series(ctx context.Context) map[string]*dto.MetricFamily {
	r.t.Helper()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	series, err := parser.TextToMetricFamilies(bytes.NewReader(r.scrape(ctx)))
	if err != nil {
		r.t.Fatal(err)
	}
	return series
}

// ask asks the listener for monitoring.
func (r *replica) ask(ctx context.Context, path string, body io.Writer) int {
	r.t.Helper()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+r.metrics+path, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0 // not there yet
	}
	defer answer.Body.Close()
	if body != nil {
		if _, err := io.Copy(body, answer.Body); err != nil {
			r.t.Fatal(err)
		}
	}
	return answer.StatusCode
}
