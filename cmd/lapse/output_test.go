package main

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jedib0t/go-pretty/v6/table"
)

func TestWhatATerminalWouldObeyIsEscaped(t *testing.T) {
	for text, want := range map[string]string{
		"Grüße 😀👩‍👩‍👧":        "Grüße 😀👩‍👩‍👧",
		"\x1b[31mred\a":       `\x1b[31mred\x07`,
		"a\nb\r\tc\x7f":       `a\nb\r\tc\x7f`,
		"\u009b31m":           `\u009b31m`, // CSI in one character
		"\u202eevil\u2066":    `\u202eevil\u2066`,
		"\u061c\u200f\u2028":  `\u061c\u200f\u2028`,
		"not \xff\xc3( UTF-8": `not \xff\xc3( UTF-8`,
	} {
		if got := printable(text); got != want {
			t.Errorf("%q is shown as %s, not %s", text, got, want)
		}
	}
	if got := printableLines("a\r\n\tb\x1b"); got != "a\\r\n\\tb\\x1b" {
		t.Errorf("lines are shown as %q", got)
	}
}

func TestJSONIsEscapedAndMeansTheSame(t *testing.T) {
	text := "\x1b[31m \u009b \u202e \x7f <b> 😀 \n"
	var out bytes.Buffer
	if err := printJSON(&out, text); err != nil {
		t.Fatal(err)
	}
	if strings.ContainsFunc(strings.TrimSuffix(out.String(), "\n"), obeyed) {
		t.Errorf("a terminal would obey %q", out.String())
	}
	var read string
	if err := json.Unmarshal(out.Bytes(), &read); err != nil || read != text {
		t.Errorf("it is read as %q: %v", read, err)
	}
}

func TestASpreadsheetTakesNoCellForAFormula(t *testing.T) {
	var out bytes.Buffer
	f := listFlag{Output: "csv"}
	rows := []table.Row{{int64(1), "=1+1", "+1", "-1", "@now", "\t=1", "a=1", "", "a\n\"b\""}}
	if err := f.print(console{Out: &out}, nil, table.Row{"a", "b", "c", "d", "e", "f", "g", "h", "i"}, rows...); err != nil {
		t.Fatal(err)
	}
	got, err := csv.NewReader(&out).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"1", "'=1+1", "'+1", "'-1", "'@now", "'\t=1", "a=1", "", "a\n\"b\""}
	if diff := cmp.Diff(want, got[1]); diff != "" {
		t.Error(diff)
	}
}
