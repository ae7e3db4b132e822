package main

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"testing"
)

// lapse runs the program in this process.
func lapse(ctx context.Context, args ...string) (code int, stdout, stderr string) {
	var out, err bytes.Buffer
	code = run(ctx, args, &out, &err)
	return code, out.String(), err.String()
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
