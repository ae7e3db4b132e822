package web

import (
	"fmt"
	"io/fs"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/lapse-go/lapse/amqp/deadletter"
)

func TestVisible(t *testing.T) {
	for text, want := range map[string]string{
		"A-1":                     "A-1",
		`<script>"&'`:             "&lt;script&gt;&#34;&amp;&#39;",
		"Grüße 😀\n\ttab":          "Grüße 😀\n\ttab",
		"\x1b[31m":                `<mark class="char">U+001B</mark>[31m`,
		"a\x00b":                  `a<mark class="char">U+0000</mark>b`,
		"\u202egnp.exe":           `<mark class="char">U+202E</mark>gnp.exe`,
		"zero\u200bwidth\u2028":   `zero<mark class="char">U+200B</mark>width<mark class="char">U+2028</mark>`,
		"\xff<\xfe":               `<mark class="char">\xff</mark>&lt;<mark class="char">\xfe</mark>`,
		"\ufffd":                  "\ufffd",
		"\u0085\u009b2J\r\x7fend": `<mark class="char">U+0085</mark><mark class="char">U+009B</mark>2J<mark class="char">U+000D</mark><mark class="char">U+007F</mark>end`,
	} {
		if got := string(visible(text)); got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}

func TestBodies(t *testing.T) {
	for _, test := range []struct {
		name, raw, as, text string
		cut                 bool
	}{
		{"nothing", "", "nothing", "", false},
		{"64 bits", `{"id":9223372036854775807,"big":123456789012345678901234567890,"f":1.10}`, "JSON",
			"{\n  \"id\": 9223372036854775807,\n  \"big\": 123456789012345678901234567890,\n  \"f\": 1.10\n}", false},
		{"markup in JSON", `{"a":"<b>&"}`, "JSON", "{\n  \"a\": \"<b>&\"\n}", false},
		{"twice the same name", `{"a":1,"a":2}`, "JSON", "{\n  \"a\": 1,\n  \"a\": 2\n}", false},
		{"text", "Grüße\n", "text", "Grüße\n", false},
		{"half a JSON", `{"a":`, "text", `{"a":`, false},
		{"JSON that is not UTF-8", "{\"a\":\"\xff\"}", "bytes", "", false},
		{"nested deep", strings.Repeat("[", 5000) + strings.Repeat("]", 5000), "text", "", false},
		{"long text", strings.Repeat("ü", maxShown), "text", strings.Repeat("ü", maxShown/2), true},
		{"long text, cut within a character", "x" + strings.Repeat("ü", maxShown), "text", "x" + strings.Repeat("ü", maxShown/2-1), true},
		{"many bytes", strings.Repeat("\xff", maxShown), "bytes", "", true},
		{"4 MB", `{"a":"` + strings.Repeat("x", 4<<20) + `"}`, "text", "", true},
	} {
		got := bodyOf([]byte(test.raw))
		if got.As != test.as || got.Cut != test.cut || test.text != "" && got.Text != test.text {
			t.Errorf("%s: %s, cut %v: %.200s", test.name, got.As, got.Cut, got.Text)
		}
		if len(got.Text) > maxShown*2*maxDepth {
			t.Errorf("%s: %d bytes are shown", test.name, len(got.Text))
		}
	}
}

func TestRelativeTimes(t *testing.T) {
	for ago, want := range map[time.Duration]string{
		0: "now", time.Second: "1 s ago", 90 * time.Second: "1 min ago", 2 * time.Minute: "2 min ago", 119 * time.Minute: "119 min ago",
		2 * time.Hour: "2 h ago", 47 * time.Hour: "47 h ago", 49 * time.Hour: "2 d ago", -30 * time.Minute: "in 30 min", -time.Millisecond: "now",
	} {
		if got := relative(ago); got != want {
			t.Errorf("%s: %s, want %s", ago, got, want)
		}
	}
}

// What a page says was done is said by it alone, and not by whoever made the address.
func TestNotices(t *testing.T) {
	for query, want := range map[string]string{
		"done=discarded&n=1234":          "1,234 letters were discarded. They are kept, and can be restored, until their retention is over.",
		"done=swept&n=3&n=2&n=1":         "The sweep found 3 overdue orders, and expired 2 of them. 1 failed.",
		"done=paused":                    "Expiry is paused, everywhere.",
		"done=paid":                      "",
		"done=discarded":                 "",
		"done=discarded&n=all+your":      "",
		"done=discarded&n=<b>1</b>":      "",
		"done=Call+0900-1234+for+help!!": "",
	} {
		q, err := url.ParseQuery(query)
		if err != nil {
			t.Fatal(err)
		}
		if got := notice(q); got != want {
			t.Errorf("%s: %q, want %q", query, got, want)
		}
	}
}

func TestInside(t *testing.T) {
	for to, want := range map[string]string{
		"/letters?state=all": "/letters?state=all", "": "/", "//evil.example": "/", `/\evil.example`: "/", "https://evil.example/": "/",
		"letters": "/", "/sign-in?to=%2F": "/", "/a\r\nSet-Cookie: x": "/", "/\t/evil.example": "/",
	} {
		if got := inside(to); got != want {
			t.Errorf("%q: %q, want %q", to, got, want)
		}
	}
}

func TestTimesOfForms(t *testing.T) {
	want := time.Date(2026, 5, 1, 13, 30, 0, 0, time.UTC)
	for _, text := range []string{"2026-05-01T13:30", "2026-05-01 13:30", " 2026-05-01T13:30:00 ", "2026-05-01T15:30:00+02:00"} {
		if got, err := parseTime("from", text); err != nil || !got.Equal(want) {
			t.Errorf("%q: %s, %v", text, got, err)
		}
	}
	if got, err := parseTime("from", "24h"); err != nil || time.Since(got).Round(time.Minute) != 24*time.Hour {
		t.Errorf("24h: %s, %v", got, err)
	}
	for _, text := range []string{"tomorrow", "-1h", "13:30"} {
		if got, err := parseTime("from", text); err == nil {
			t.Errorf("%q: %s", text, got)
		}
	}
}

// The policy forbids scripts and styles within a page, and nothing is asked of others.
func TestTemplatesHaveNothingInline(t *testing.T) {
	inline := regexp.MustCompile(`(?i)<style|\sstyle=|\son[a-z]+=|<script(?:\s+(?:defer|async))*\s*>|javascript:|hx-on|https?://`)
	files, err := fs.Glob(pageFiles, "page/templates/*.html")
	if err != nil || len(files) < 10 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		text, err := pageFiles.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if found := inline.FindString(string(text)); found != "" {
			t.Errorf("%s has %s", file, found)
		}
	}
	for name, content := range static.content {
		if strings.HasSuffix(name, ".css") && regexp.MustCompile(`@import|url\(["']?(https?:)?//`).Match(content) {
			t.Errorf("%s asks others", name)
		}
	}
}

// The title of a page says the type of the problem, so the text does not, wherever it is wrapped in; what was given is left as it is.
func TestProblemsInWords(t *testing.T) {
	for _, test := range []struct {
		err  error
		want string
	}{
		{fmt.Errorf("reading a replay: %w: there is no replay %q", deadletter.ErrNotFound, "x"), `there is no replay "x"`},
		{deadletter.Filter{State: "invalid: x"}.Validate(), `state "invalid: x": give open, replayed, settled or discarded`},
		{problem(invalid, "from: %q is no time", "invalid: x"), `from: "invalid: x" is no time`},
		{problem(invalid, "no reason: say why it is done"), "no reason: say why it is done"},
	} {
		if got := says(problemOf(test.err, "")); got != test.want {
			t.Errorf("%v: %s, want %s", test.err, got, test.want)
		}
	}
}
