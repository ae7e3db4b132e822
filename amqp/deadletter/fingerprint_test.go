package deadletter

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

func TestPatterns(t *testing.T) {
	for _, c := range []struct{ text, pattern string }{
		{"order A-1: not found; was its transaction rolled back?", "order <id>: not found; was its transaction rolled back?"},
		{"order order-42x: not found", "order <id>: not found"},
		{"order 0190b1c2-7d2e-7cc1-8000-1234567890ab: not found", "order <id>: not found"},
		{`order_id "with a space": give printable ASCII`, `order_id <text>: give printable ASCII`},
		{"the timer of order demo-01 has no deadline: give one in RFC 3339, UTC", "the timer of order <id> has no deadline: give one in RFC <n>, UTC"},
		{"deadline 2030-01-31T12:00:00.5Z is late, since 2030-01-31 12:00:00", "deadline <time> is late, since <time>"},
		{"Error 1213 (40001): Deadlock found when trying to get lock; try restarting transaction", "Error <n> (<n>): Deadlock found when trying to get lock; try restarting transaction"},
		{"dial tcp 10.1.2.3:3306: connect: connection refused", "dial tcp <address>: connect: connection refused"},
		{"dial tcp [::1]:3306: i/o timeout after 1m30s", "dial tcp <address>: i/o timeout after <duration>"},
		{"lookup db.internal:3306 failed", "lookup <address> failed"},
		{"POST https://pay.example/v1/charges/ch_3: 503", "POST <address>: <n>"},
		{"mail to jo@example.com bounced", "mail to <address> bounced"},
		{"invalid character 'x' looking for beginning of value", "invalid character <text> looking for beginning of value"},
		{"takes  too\nmuch \t room", "takes too much room"},
		{"pointer 0xc000123 is nil", "pointer <n> is nil"},
		{"a loss of 12.5 or -3", "a loss of <n> or <n>"},
		{"", ""},
		// As they come from Lapse and what it stands on.
		{"order 9f1c: order not found, and the deadline in its timer, 2046-01-01T00:00:00Z, is more than ten years away", "order <id>: order not found, and the deadline in its timer, <time>, is more than ten years away"},
		{`not a timer, which looks like {"order_id": "A-1", "deadline": "2030-01-31T12:00:00Z"}: EOF`, "not a timer, which looks like {<text>: <text>: <text>}: EOF"},
		{`an order with the id "a \"b\" c": give 1 to 64 printable ASCII characters without spaces`, "an order with the id <text>: give <n> to <n> printable ASCII characters without spaces"},
		{"Error 1062 (23000): Duplicate entry 'A-1' for key 'lapse_orders.PRIMARY'", "Error <n> (<n>): Duplicate entry <text> for key <text>"},
		{"Error 1205 (HY000): Lock wait timeout exceeded; try restarting transaction", "Error <n> (<id>): Lock wait timeout exceeded; try restarting transaction"},
		{"read tcp 127.0.0.1:51234->127.0.0.1:3306: i/o timeout", "read tcp <address>-><address>: i/o timeout"},
		{`Post "https://pay.example/v1": context deadline exceeded (Client.Timeout exceeded while awaiting headers)`, "Post <text>: context deadline exceeded (Client.Timeout exceeded while awaiting headers)"},
		{"Exception (404) Reason: \"NOT_FOUND - no queue 'q'\"", "Exception (<n>) Reason: <text>"},
		// Ids of all sorts are one, and lists of any length.
		{"e3b0c44298fc1c149afbf4c8996fb924 1a2b 12ab 01ARZ3NDEKTSV4 ch_3Pq demo-01", "<id>"},
		{"not in stock: sku-1, sku-2, sku-3", "not in stock: <id>"},
		{"rows 1,234 of 17", "rows <n> of <n>"},
		{"-3, +14 or -1.5e-9 and 80%", "<n> or <n> and <n>%"},
		{"2030-01-31 12:00:00.123456 +0000 UTC", "<time> <n> UTC"},
		{"at 12:00:00Z, 12:00 and 2030-01-31T12:00:00+02:00", "at <time> and <time>"},
		// What is part of a text that does not differ stays.
		{"code:404 message:gone/v2/order#17", "code:<n> message:gone/<id>/<id>"},
		{"std::vector at fe80::1", "std::vector at <address>"},
		{"can't and won't, but it's 'so'", "can't and won't, but it's <text>"},
		{"5\" of rain\nand \"more\"", "<n>\" of rain and <text>"},
		{"\xff\xfeA-1: кот-7 и кот", "\uFFFD<id>: <id> и кот"},
	} {
		if _, got := Fingerprint("k", Hopeless, c.text); got != c.pattern {
			t.Errorf("%q\n  is %q\nwant %q", c.text, got, c.pattern)
		}
	}
}

func TestFingerprints(t *testing.T) {
	of := func(kind string, reason Reason, text string) string {
		f, _ := Fingerprint(kind, reason, text)
		return f
	}
	base := of("a", Hopeless, "order A-1: not found")
	if len(base) != 16 {
		t.Errorf("%q has %d characters", base, len(base))
	}
	if of("a", Hopeless, "order B-77: not found") != base {
		t.Error("two orders make two groups")
	}
	if of("a\x00", Hopeless, "") == of("a", "\x00"+Hopeless, "") {
		t.Error("where the kind ends makes no difference")
	}
	for _, other := range []string{of("b", Hopeless, "order A-1: not found"), of("a", OutOfTries, "order A-1: not found"), of("a", Hopeless, "order A-1: paid")} {
		if other == base {
			t.Error("another kind, reason or error is in the same group")
		}
	}
}

// What an error of any length costs is in proportion to it, and only its beginning makes the group.
func TestLongErrors(t *testing.T) {
	for _, part := range []string{"a1:", "a:b1@", "'a ", "\"a\\", "`\n", "[::", "1.", "A-1, ", "http://a ", "é9", "-", "\xff"} {
		text := strings.Repeat(part, maxError/len(part))
		begin := time.Now()
		if _, pattern := Fingerprint("k", Hopeless, text); len(pattern) > maxPattern {
			t.Errorf("of %q there are %d bytes in the pattern", part, len(pattern))
		}
		if took := time.Since(begin); took > 5*time.Second {
			t.Errorf("%q took %s", part, took)
		}
	}
	_, one := Fingerprint("k", Hopeless, strings.Repeat("word ", 1000)+"A")
	_, two := Fingerprint("k", Hopeless, strings.Repeat("word ", 1000)+"B")
	if one != two {
		t.Error("what differs far behind makes another group")
	}
}

func BenchmarkFingerprint(b *testing.B) {
	for b.Loop() {
		Fingerprint("k", Hopeless, "order order-42: Error 1213 (40001): Deadlock found when trying to get lock; try restarting transaction at 2030-01-31T12:00:00Z from 10.0.0.1:3306")
	}
}

func FuzzFingerprint(f *testing.F) {
	f.Add("order A-1: not found")
	f.Add(strings.Repeat("a1-", 300))
	f.Add("\xff\xfe" + strings.Repeat("é9", 300))
	f.Fuzz(func(t *testing.T, text string) {
		one, pattern := Fingerprint("k", Hopeless, text)
		two, _ := Fingerprint("k", Hopeless, text)
		if one != two || len(one) != 16 || len(pattern) > maxPattern || !utf8.ValidString(pattern) {
			t.Errorf("%q, %q, %q", one, two, pattern)
		}
	})
}
