package deadletter

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// add stores letters with these rows, in their order, and returns them with their ids.
func add(t testing.TB, d *Desk, rows ...row) []row {
	t.Helper()
	var letters []*arrived
	for _, r := range rows {
		r.Identity = rand.Text()
		r.Size = len(r.Body)
		if r.Headers == nil {
			r.Headers = []byte("{}")
		}
		r.Properties = []byte("{}")
		if r.State == "" {
			r.State = string(Open)
		}
		a := &arrived{row: r}
		a.row.Fingerprint, a.pattern = Fingerprint(string(r.Kind), Reason(r.Reason), string(r.Error))
		letters = append(letters, a)
	}
	db := d.cfg.DB.WithContext(t.Context())
	if err := errors.Join(insertGroups(db, letters), insertRows(db, letters, false)); err != nil {
		t.Fatal(err)
	}
	var ids []struct {
		ID       int64
		Identity string
	}
	if err := db.Raw("SELECT id, identity FROM lapse_dead_letters").Scan(&ids).Error; err != nil {
		t.Fatal(err)
	}
	stored := make([]row, len(letters))
	for i, a := range letters {
		stored[i] = a.row
		for _, one := range ids {
			if one.Identity == a.row.Identity {
				stored[i].ID = one.ID
			}
		}
	}
	return stored
}

// matches is what a filter means.
func (r row) matches(f Filter) bool {
	at := time.Time(r.DiedAt)
	headers, _ := decodeTable(r.Headers)
	anywhere := bytes.Join([][]byte{r.Body, r.Headers, []byte(text(headers["text"])), r.Error, r.FirstError}, []byte("\x00\x00\x00"))
	return (f.State == "" || string(f.State) == r.State) &&
		(f.Kind == "" || f.Kind == string(r.Kind)) &&
		(f.Reason == "" || string(f.Reason) == r.Reason) &&
		(f.Group == "" || f.Group == r.Fingerprint) &&
		(f.Subject == "" || f.Subject == string(r.Subject)) &&
		(f.MessageID == "" || f.MessageID == string(r.MessageID)) &&
		(f.From.IsZero() || !at.Before(f.From)) &&
		(f.To.IsZero() || at.Before(f.To)) &&
		(f.Text == "" || bytes.Contains(anywhere, []byte(f.Text)))
}

// What is listed, counted, grouped and read is what a filter means, page by page, whichever letters there are: with
// ids that look like patterns or are not text, and deaths at the edges of a time.
func TestFilters(t *testing.T) {
	d := desk(t, nil)
	names := []string{"a", "A", "a%", "a_", `a\`, "a'b", "ä", "\xff\xfe", "a\x00b", "{?}", "@p"}
	texts := []string{"", "plain", "PLAIN", "50% off", "50x off", "a_b", `back\slash`, `"quoted"`, "naïve", "naive", "\xffraw", "nul\x00byte"}
	origin := time.Date(2026, 3, 1, 23, 59, 59, 999_998_000, time.UTC)
	var rows []row
	for i := range 120 {
		pick := func(from []string, step int) []byte { return []byte(from[i*step%len(from)]) }
		valid := func(text []byte) []byte { return []byte(strings.ToValidUTF8(string(text), "?")) }
		headers, err := encodeTable(map[string]any{"text": string(pick(texts, 11))})
		if err != nil {
			t.Fatal(err)
		}
		rows = append(rows, row{
			Headers: headers, MessageID: pick(names, 3), Kind: pick(names, 5), Subject: pick(names, 7),
			Reason: string(Reasons[i*i%len(Reasons)]), State: string(States[i/3%len(States)]),
			Error: valid(pick(texts, 5)), FirstError: valid(pick(texts, 7)), Body: pick(texts, 1),
			DiedAt: instant(origin.Add(time.Duration(i*7%11) * time.Microsecond)), CollectedAt: instant(origin),
		})
	}
	rows = add(t, d, rows...)
	slices.SortFunc(rows, func(a, b row) int {
		if order := time.Time(a.DiedAt).Compare(time.Time(b.DiedAt)); order != 0 {
			return order
		}
		return int(a.ID - b.ID)
	})
	rapid.Check(t, func(t *rapid.T) {
		maybe := func(label string, from []string) string {
			if rapid.IntRange(0, 3).Draw(t, label+"?") > 0 {
				return ""
			}
			return rapid.SampledFrom(from).Draw(t, label)
		}
		at := func(label string) (at time.Time) {
			if rapid.Bool().Draw(t, label+"?") {
				at = origin.Add(time.Duration(rapid.IntRange(-2, 26).Draw(t, label)) * 500 * time.Nanosecond)
			}
			return at.In(time.FixedZone("elsewhere", 3600))
		}
		f := Filter{Kind: maybe("kind", names), Subject: maybe("subject", names), MessageID: maybe("message", append(names, "no such")), From: at("from"), To: at("to")}
		if one := rapid.IntRange(-9, len(States)-1).Draw(t, "state"); one >= 0 {
			f.State = States[one]
		}
		if one := rapid.IntRange(-20, len(Reasons)-1).Draw(t, "reason"); one >= 0 {
			f.Reason = Reasons[one]
		}
		if one := rapid.IntRange(-300, len(rows)-1).Draw(t, "group"); one >= 0 {
			f.Group = rows[one].Fingerprint
		}
		if !f.From.IsZero() {
			f.Text = maybe("text", append(texts, "%", "_", `\`, `\"`, "off", "a", "'", `"text":"p`))
		} else {
			f.From = time.Time{}
		}
		if f.To.IsZero() {
			f.To = time.Time{}
		}
		if f.Validate() != nil {
			t.Skip("it ends before it begins")
		}
		p := Page{Limit: rapid.IntRange(1, 30).Draw(t, "limit"), Oldest: rapid.Bool().Draw(t, "oldest")}
		look(t, d, rows, f, p)
	})
	for _, name := range names {
		for _, f := range []Filter{{Kind: name}, {Subject: name}, {MessageID: name}} {
			look(t, d, rows, f, Page{Limit: 30})
		}
	}
	for _, text := range texts[1:] {
		look(t, d, rows, Filter{From: origin, Text: text}, Page{Limit: 30})
	}
}

// look compares what the desk says with what the filter means. The rows are in the order of their deaths.
func look(t rapid.TB, d *Desk, rows []row, f Filter, p Page) {
	t.Helper()
	var want []int64
	groups := map[string]Group{}
	for _, r := range rows {
		if !r.matches(f) {
			continue
		}
		want = append(want, r.ID)
		g := groups[r.Fingerprint]
		if g.Count++; g.Count == 1 {
			g.FirstSeen = time.Time(r.DiedAt)
		}
		g.ID, g.Kind, g.Reason, g.LastSeen, g.Example = r.Fingerprint, string(r.Kind), Reason(r.Reason), time.Time(r.DiedAt), max(g.Example, r.ID)
		_, g.Pattern = Fingerprint(g.Kind, g.Reason, string(r.Error))
		groups[r.Fingerprint] = g
	}
	ctx := context.Background()
	n, err := d.Count(ctx, f)
	if err != nil || n != int64(len(want)) {
		t.Fatalf("%+v: %d are counted, %v, want %d", f, n, err, len(want))
	}
	counted, err := d.Groups(ctx, f)
	if err != nil || len(counted) != len(groups) {
		t.Fatalf("%+v: %d groups, %v, want %d", f, len(counted), err, len(groups))
	}
	for i, g := range counted {
		if diff := cmp.Diff(groups[g.ID], g); diff != "" || i > 0 && g.Count > counted[i-1].Count {
			t.Fatalf("%+v: (-want +got)\n%s", f, diff)
		}
	}
	var each []int64
	err = d.Each(ctx, f, func(l Letter) error { each = append(each, l.ID); return nil })
	if err != nil || !slices.Equal(each, want) {
		t.Fatalf("%+v: %v, each %v, want %v", f, err, each, want)
	}
	if !p.Oldest {
		slices.Reverse(want)
	}
	listed, err := pages(ctx, d, f, p, nil)
	if err != nil || !slices.Equal(listed, want) {
		t.Fatalf("%+v: %v, listed %v, want %v", f, err, listed, want)
	}
}
