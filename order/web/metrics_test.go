package web_test

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

func TestMetrics(t *testing.T) {
	s := start(t, nil)
	s.stocked("kettle", 100)
	s.stocked("filter", 100)
	s.placed("A-1")
	s.send("GET", "/v1/orders/A-1", "")
	s.send("GET", "/v1/orders/some-other", "")
	s.send("GET", "/nothing/at-all", "")
	s.send("DELETE", "/v1/orders/A-1", "")
	s.send("GET", "/v1/pause", "", "Host", "evil.example")
	families, err := s.requests.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[string]float64)
	for _, family := range families {
		for _, m := range family.GetMetric() {
			key := family.GetName()
			for _, label := range m.GetLabel() {
				key += " " + label.GetValue()
			}
			got[key] = m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	const requests, duration = "lapse_http_requests_total ", "lapse_http_request_duration_seconds "
	for key, want := range map[string]float64{
		requests + "place-order 201": 1, requests + "get-order 200": 1, requests + "get-order 404": 1, requests + "none 404": 1,
		requests + "none 405": 1, requests + "get-pause 421": 1, duration + "place-order": 1, duration + "get-order": 2,
		duration + "none": 2, duration + "get-pause": 1,
	} {
		if got[key] != want {
			t.Errorf("%s: %v, want %v", key, got[key], want)
		}
		delete(got, key)
	}
	if len(got) > 0 {
		t.Errorf("also %v", got)
	}
	if problems, err := testutil.GatherAndLint(s.requests); err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
}
