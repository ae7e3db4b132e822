package web_test

import (
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/lapse-go/lapse/amqp/deadletter"
	"github.com/lapse-go/lapse/order"
	"github.com/lapse-go/lapse/order/web"
)

func TestLettersOnThePage(t *testing.T) {
	s := start(t, nil)
	r := s.reader()
	const evil = "<script>alert(1)</script>\x1b[31m\u202e"
	s.letter(1, map[string]any{"error": evil, "subject": []byte(`"><img src=x>`), "message_id": []byte("M-\xff"), "kind": []byte("<b>kind</b>"),
		"headers": []byte(`{"<i>":"<b>","big":9223372036854775807}`), "body": []byte(`{"id":9007199254740993,"x":"<u>"}`), "fingerprint": "00000000000000aa"})
	s.letter(2, map[string]any{"body": []byte("\xff\x00binary")})
	s.letter(3, map[string]any{"body": []byte{}, "state": "discarded", "resolved_by": "ann", "resolution": "<b>old</b>", "resolved_at": "2030-01-31 13:00:00"})
	for id := int64(4); id <= 8; id++ {
		s.letter(id, map[string]any{"reason": "hopeless"})
	}
	clean := []string{"!<script>alert", "!<img src=x", "!<b>kind", "!\x1b", "!\u202e", "!<b>old"}

	got := r.want("the list", r.read("/letters"), 200, append(clean, "7 letters", "&lt;script&gt;alert(1)", `data-id="8"`, `!data-id="3"`)...)
	if strings.Index(got.text, `data-id="8"`) > strings.Index(got.text, `data-id="4"`) {
		t.Error("the newest is not first")
	}
	r.want("a filter", r.read("/letters?reason=hopeless&kind=order.payment_timeout"), 200, "5 letters", `<option selected>hopeless</option>`, `value="order.payment_timeout"`)
	r.want("all states", r.read("/letters?state=all"), 200, append(clean, "8 letters")...)
	r.want("a time", r.read("/letters?from=2030-01-31+12:00:05&to=2030-01-31T12:00:07Z"), 200, "2 letters", `value="2030-01-31 12:00:05"`)
	r.want("a text", r.read("/letters?from=2030-01-01&text=900719925474099"), 200, "1 letter<", `data-id="1"`)
	r.want("an order", r.read("/letters?subject="+url.QueryEscape(`"><img src=x>`)), 200, append(clean, "1 letter<")...)
	r.want("none", r.read("/letters?kind=nothing"), 200, "No letter matches")
	r.want("a wrong state", r.read("/letters?state=lost"), 422, `id="problem"`, "state &#34;lost&#34;: give open")
	r.want("a wrong time", r.read("/letters?from=yesterday&to=2030&kind=mail"), 422, `id="filter"`, `value="yesterday"`, `value="2030"`, `value="mail"`,
		"is no time: give how long ago, such as &#34;24h&#34;, or a time in UTC, such as &#34;2026-05-01 13:30&#34;", `!id="letters"`, `!id="groups"`, "!0 letters")
	r.want("a wrong group", r.read("/letters?group=x"), 422, `id="filter"`, "16 hexadecimal digits", `name="group" value="x"`, "!invalid:")
	r.want("a text without a time", r.read("/letters?text=x"), 422, "say from when on", `name="text" value="x"`)
	r.want("a misspelt condition", r.read("/letters?knid=mail&kind=mail"), 422, "&#34;knid&#34; is nothing by which", `value="mail"`)
	r.want("a wrong cursor", r.read("/letters?after=x"), 422, `id="filter"`)
	r.want("a wrong time in the audit", r.read("/audit?from=yesterday&actor=ann"), 422, `id="audit-filter"`, "is no time", `value="yesterday"`, `value="ann"`)

	export := r.want("an export", r.read("/letters/export?format=csv&reason=hopeless"), 200, "order.payment_timeout")
	if n := strings.Count(export.text, "\n"); n != 6 || export.header.Get("Content-Disposition") != `attachment; filename="dead-letters.csv"` {
		t.Errorf("the export has %d lines: %v", n, export.header)
	}
	r.want("an export as nothing", r.read("/letters/export"), 422, "give ndjson or csv")

	next := regexp.MustCompile(`id="next" rel="next" href="([^"]+)"`)
	var listed []string
	for path := "/letters?limit=3&reason=hopeless"; path != ""; {
		got := r.want("a page", r.read(path), 200)
		listed = append(listed, regexp.MustCompile(`name="id" value="(\d+)"`).FindAllString(got.text, -1)...)
		found := next.FindStringSubmatch(got.text)
		if path = ""; found != nil {
			path = strings.ReplaceAll(found[1], "&amp;", "&")
		}
	}
	if len(listed) != 5 {
		t.Errorf("pages list %v", listed)
	}

	r.want("a letter", r.read("/letters/1"), 200, append(clean, "9007199254740993", "9223372036854775807", "&lt;u&gt;", `M-<mark class="char">\xff</mark>`,
		`<mark class="char">U+001B</mark>[31m<mark class="char">U+202E</mark>`, `id="letter-forecast">malformed`)...)
	r.want("bytes", r.read("/letters/2"), 200, "ff 00 62 69 6e 61 72 79", "as numbers")
	r.want("an empty body", r.read("/letters/3"), 200, "Nothing.", "by ann: &lt;b&gt;old", `id="restore"`, `!id="replay"`)
	r.want("no letter", r.read("/letters/99"), 404, "there is no letter 99", "!not found:")
	r.want("no number", r.read("/letters/x"), 404)
	got = r.want("the body", r.read("/letters/2/body"), 200)
	if got.text != "\xff\x00binary" || got.header.Get("Content-Disposition") != `attachment; filename="letter-2"` || got.header.Get("Content-Type") != "application/octet-stream" {
		t.Errorf("%q %v", got.text, got.header)
	}
}

func TestReplayOnThePage(t *testing.T) {
	tokens := make(map[web.Role]string)
	s := start(t, nil, withTokens(t, tokens))
	s.stocked("kettle", 10)
	s.stocked("filter", 10)
	s.Client = s.client(tokens[web.Operator])
	s.placed("pending")
	s.placed("paid")
	if _, err := s.Pay(t.Context(), "paid", order.Payment{Reference: "P-1"}); err != nil {
		t.Fatal(err)
	}
	s.timers("pending", "paid", "none", "")
	r := s.reader()
	r.send("/sign-in", url.Values{"token": {tokens[web.Operator]}})

	list := r.want("the list", r.read("/letters?state=open"), 200, "4 letters")
	r.want("nothing ticked", r.send("/letters/replay", with(list.fields("letters"), "scope", "ids")), 422, "no letters are selected")
	r.want("a filter that got lost", r.send("/letters/replay", url.Values{"scope": {"filter"}}), 422, "does not say which letters")
	r.want("a filter without its state", r.send("/letters/replay", url.Values{"scope": {"filter"}, "filter": {"kind=x"}}), 422, "does not say which letters")
	r.want("no letter", r.send("/letters/replay", url.Values{"scope": {"ids"}, "id": {"99"}}), 404)
	dry := r.want("the dry run", r.send("/letters/replay", with(list.fields("letters"), "scope", "filter")), 200,
		"<td>resolved, not published</td>", "<td>published</td>", "<td>published<small>will most likely die again</small></td>", `data-total="4"`, "1 already paid, 1 malformed, 1 not due yet, 1 not found", "3 messages would be published", "1 letter resolved without")
	if replays, _, err := s.Replays(t.Context(), deadletter.Page{}); err != nil || len(replays) > 0 {
		t.Errorf("a dry run starts something: %v, %v", replays, err)
	}
	r.want("which letters", r.send("/letters/replay", with(dry.fields("with-ids"))), 200, `<a href="/letters/2">2</a>`)

	s.letter(9, nil) // while somebody makes up his mind
	r.want("no reason", r.send("/replays", with(dry.fields("replay-confirm"), "rate", "50")), 422, "say why it is done")
	r.want("a wrong rate", r.send("/replays", with(dry.fields("replay-confirm"), "why", "mended", "rate", "fast")), 422, "give messages a second")
	started := r.want("the replay", r.send("/replays", with(dry.fields("replay-confirm"), "why", "mended <b>it</b>", "rate", "1000")), 200,
		"The replay has begun.", `data-state="running"`, "mended &lt;b&gt;it", "operator-1", `http-equiv="refresh"`, `hx-trigger="every 1s"`, "of 4 letters")
	id := regexp.MustCompile(`/replays/([0-9a-f-]{36})`).FindStringSubmatch(started.at)[1]
	r.want("a second replay", r.send("/replays", url.Values{"scope": {"ids"}, "id": {"1"}, "why": {"again"}, "rate": {"50"}}), 409, `href="/replays/`+id+`"`)
	r.want("discarding meanwhile", r.send("/letters/discard", url.Values{"scope": {"ids"}, "id": {"1"}, "why": {"again"}}), 409, `href="/replays/`+id+`"`)
	fragment := r.want("progress", r.do("GET", "/replays/"+id, nil, "HX-Request", "true"), 200, `id="replay-progress"`, "!<html", `hx-get="/replays/`+id)
	if fragment.header.Get("HX-Retarget") != "" || strings.Contains(fragment.text, "replay-cancel") {
		t.Errorf("a fragment of what still runs replaces more: %v", fragment.header)
	}

	s.runDesk()
	await(t, 20*time.Second, "the replay ends", func() bool {
		return strings.Contains(r.read("/replays/"+id).text, `data-state="done"`)
	})
	end := r.want("the last fragment", r.do("GET", "/replays/"+id, nil, "HX-Request", "true"), 200, "!<html", "!hx-get", `!id="replay-cancel"`, `<tr data-id="2"`)
	if end.header.Get("HX-Retarget") != "#replay-whole" {
		t.Errorf("the last fragment: %v", end.header)
	}
	r.want("its end", r.read("/replays/"+id), 200, "4 of 4 letters", "!http-equiv", `!id="replay-cancel"`, `<tr data-id="2"`)
	r.want("what was settled", r.read("/replays/"+id+"?result=settled"), 200, `<tr data-id="2"`, `!<tr data-id="1"`)
	r.want("cancelling too late", r.send("/replays/"+id+"/cancel", url.Values{"why": {"x"}}), 409)
	r.want("all replays", r.read("/replays"), 200, `data-id="`+id+`"`, `title="`+id+`"><code>`+id[:13]+`…</code></a>`, `data-state="done">done</span>`, "mended &lt;b&gt;it")
	r.want("the new letter", r.read("/letters/9"), 200, `data-state="open"`)
	r.want("the audit", r.read("/audit?action=replay"), 200, "operator-1", "mended &lt;b&gt;it", `href="/replays/`+id+`"`, "started", "!cancelled:")
	r.want("no replay", r.read("/replays/nothing"), 404)

	other := r.want("a replay to elsewhere", r.send("/replays", url.Values{"scope": {"ids"}, "id": {"9"}, "why": {"look"}, "rate": {"0"}, "exchange": {""}, "routing_key": {"nowhere<b>"}}), 200, "(default exchange)", "nowhere&lt;b&gt;", "as fast as the broker confirms")
	path := strings.Split(other.at, "?")[0]
	r.want("cancelling", r.send(path+"/cancel", url.Values{"why": {""}}), 422)
	await(t, 20*time.Second, "it ends", func() bool { return strings.Contains(r.read(path).text, `data-state="done"`) })
	const failed = `class="state warn" data-state="done">done, 1 failed</span>`
	r.want("one that failed", r.read(path), 200, `<span id="replay-state" `+failed)
	r.want("all replays", r.read("/replays"), 200, failed, `class="num warn" data-label="Failed">1<`)
}

func TestDiscardAndRestoreOnThePage(t *testing.T) {
	s := start(t, nil)
	r := s.reader()
	for id := int64(1); id <= 3; id++ {
		s.letter(id, nil)
	}
	confirm := r.want("discarding", r.send("/letters/discard", url.Values{"scope": {"ids"}, "id": {"1", "2"}}), 200, `id="discard-confirm"`, "2 letters", "letter 1 · letter 2")
	r.want("a reason of blanks", r.send("/letters/discard", with(confirm.fields("discard-confirm"), "why", "  ")), 422)
	got := r.want("with a reason", r.send("/letters/discard", with(confirm.fields("discard-confirm"), "why", "test orders")), 200, "2 letters were discarded", "1 letter<")
	if got.at != "/letters?done=discarded&n=2" {
		t.Errorf("it leads to %s", got.at)
	}
	confirm = r.want("restoring", r.send("/letters/restore", url.Values{"scope": {"filter"}, "filter": {"state=discarded"}}), 200, `id="restore-confirm"`, "2 letters", "state discarded")
	r.want("restored", r.send("/letters/restore", with(confirm.fields("restore-confirm"), "why", "not those")), 200, "2 letters are open again", "3 letters")
	r.want("the audit", r.read("/audit"), 200, "test orders", "not those", "local", "<small>letter 1 · letter 2</small>", "<small>state discarded · died before ")
}
