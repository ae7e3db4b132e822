package amqp

import (
	"encoding/json"
	"testing"
)

// The management API, and what stands between, write numbers as they like.
func TestArgumentsAreComparedByValue(t *testing.T) {
	for _, test := range []struct {
		wanted any
		found  string
		alike  bool
	}{
		{int64(60_000), `60000`, true}, {int64(60_000), `60000.0`, true}, {int64(60_000), `6e4`, true}, {int64(315_360_000_000), `3.1536e11`, true},
		{int64(60_000), `60001`, false}, {int64(60_000), `"60000"`, true}, {int64(0), `null`, false}, {nil, `null`, true}, {nil, `0`, false},
		{"lapse.due", `"lapse.due"`, true}, {"lapse.due", `"lapse.Due"`, false}, {"604800s", `"7D"`, false}, {true, `true`, true}, {false, `"undefined"`, false},
	} {
		var found managedTable
		if err := json.Unmarshal([]byte(`{"x": `+test.found+`}`), &found); err != nil {
			t.Fatal(err)
		}
		var all []Difference
		if unlike(&all, "x", test.wanted, found["x"]); (len(all) == 0) != test.alike {
			t.Errorf("%v and %s: %v", test.wanted, test.found, all)
		}
	}
	var empty managedTable
	if err := json.Unmarshal([]byte(`[]`), &empty); err != nil || empty == nil || len(empty) > 0 {
		t.Errorf("an empty table is %v, %v", empty, err)
	}
}
