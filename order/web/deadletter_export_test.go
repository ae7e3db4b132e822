package web_test

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/lapse-go/lapse/amqp/deadletter"
	"github.com/lapse-go/lapse/order/web"
)

func (s *service) export(f deadletter.Filter, format string) string {
	s.t.Helper()
	var text bytes.Buffer
	if err := s.ExportDeadLetters(s.t.Context(), f, format, &text); err != nil {
		s.t.Fatal(err)
	}
	return text.String()
}

func TestExport(t *testing.T) {
	s := start(t, nil)
	if text := s.export(deadletter.Filter{}, web.NDJSON); text != "" {
		t.Errorf("of nothing: %q", text)
	}
	if text := s.export(deadletter.Filter{}, web.CSV); !strings.HasPrefix(text, "id,message_id,kind,") || strings.Count(text, "\n") != 1 {
		t.Errorf("of nothing: %q", text)
	}
	large := bytes.Repeat([]byte("=1+1,\"\n"), 4<<20/7)
	s.letter(1, map[string]any{"body": large})
	s.letter(2, map[string]any{"body": []byte("\xff=\x00"), "error": "=HYPERLINK(\"https://evil.example\")", "subject": []byte("@SUM(A1)")})
	s.letter(3, map[string]any{"body": []byte{}, "state": "settled", "error": "+1", "kind": []byte("-1\xff")})

	var lines []web.DeadLetter
	decoder := json.NewDecoder(strings.NewReader(s.export(deadletter.Filter{}, web.NDJSON)))
	for {
		var line web.DeadLetter
		if err := decoder.Decode(&line); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, line)
	}
	if len(lines) != 3 || *lines[0].Body != string(large) || *lines[1].BodyBase64 != "/z0A" || *lines[2].Body != "" {
		t.Errorf("%d letters: %+v", len(lines), lines[1:])
	}
	for _, line := range lines {
		letter, err := s.shop.Desk().Get(t.Context(), line.ID)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(web.WholeDeadLetterOf(letter), line, cmpopts.IgnoreFields(web.DeadLetter{}, "Headers")); diff != "" {
			t.Error(diff)
		}
	}

	table, err := csv.NewReader(strings.NewReader(s.export(deadletter.Filter{}, web.CSV))).ReadAll()
	if err != nil || len(table) != 4 {
		t.Fatal(len(table), err)
	}
	cells := make(map[string]string)
	for i, name := range table[0] {
		cells[name] = table[2][i]
	}
	if cells["id"] != "2" || cells["error"] != `'=HYPERLINK("https://evil.example")` || cells["subject"] != "'@SUM(A1)" || cells["body"] != "" ||
		cells["body_base64"] != "/z0A" || cells["headers"] != `{"lapse-attempt":7}` || cells["died_at"] != "2030-01-31T12:00:02.123456Z" {
		t.Errorf("%v", cells)
	}
	for _, line := range table {
		for i, cell := range line {
			if cell != "" && strings.ContainsAny(cell[:1], "=+-@") {
				t.Errorf("a formula as %s: %.20s", table[0][i], cell)
			}
		}
	}
	// All names of JSON are columns.
	var names map[string]any
	if err := json.Unmarshal([]byte(s.text("/v1/dead-letters/2")), &names); err != nil {
		t.Fatal(err)
	}
	for name := range names {
		if _, ok := cells[name]; !ok && name != "history" {
			t.Errorf("no column for %s", name)
		}
	}
	if text := s.export(deadletter.Filter{State: deadletter.Settled}, web.CSV); strings.Count(text, "\n") != 2 || !strings.Contains(text, "'-1\\xff") {
		t.Errorf("the settled one: %q", text)
	}
	if status, header, _ := s.send("HEAD", "/v1/dead-letters/export?format=csv", ""); status != 200 || header.Get("Content-Type") != "text/csv; charset=utf-8" {
		t.Errorf("HEAD: %d %v", status, header)
	}
}

// An export that fails is a problem, or cut: it is not taken for a whole one.
func TestExportsThatFail(t *testing.T) {
	s := start(t, nil)
	broken := map[string]any{"headers": []byte(`{"a":x}`)}
	s.letter(1000, broken)
	for _, format := range []string{web.NDJSON, web.CSV} {
		var text bytes.Buffer
		err := s.ExportDeadLetters(t.Context(), deadletter.Filter{}, format, &text)
		wantProblem(t, err, "internal", http.StatusInternalServerError, nil)
		if text.Len() > 0 {
			t.Errorf("a problem after %d bytes", text.Len())
		}
		if _, header, _ := s.send("GET", "/v1/dead-letters/export?format="+format, ""); header.Get("Content-Disposition") != "" {
			t.Errorf("a problem to be saved: %v", header)
		}
	}
	for id := range int64(100) {
		s.letter(id+1, map[string]any{"body": bytes.Repeat([]byte("x"), 4<<10)})
	}
	for _, format := range []string{web.NDJSON, web.CSV} {
		var text bytes.Buffer
		if err := s.ExportDeadLetters(t.Context(), deadletter.Filter{}, format, &text); err == nil || !strings.Contains(err.Error(), "not complete") || text.Len() < 64<<10 {
			t.Errorf("%s: %d bytes, %v", format, text.Len(), err)
		}
	}
	s.wantRequests("export-dead-letters", "500", 6)
}

// Those who leave make place for others.
func TestExportsThatNobodyWaitsFor(t *testing.T) {
	s := start(t, nil)
	for id := range int64(20) {
		s.letter(id+1, map[string]any{"body": bytes.Repeat([]byte("x"), 1<<20)})
	}
	for range 5 {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url+"/v1/dead-letters/export", nil)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := s.http.Do(r)
		if err != nil || answer.StatusCode != http.StatusOK {
			t.Fatal(answer, err)
		}
		if _, err := io.ReadFull(answer.Body, make([]byte, 1<<20)); err != nil {
			t.Error(err)
		}
		answer.Body.Close()
	}
	s.wantRequests("export-dead-letters", "499", 5)
	if text := s.export(deadletter.Filter{}, web.NDJSON); len(text) < 20<<20 {
		t.Errorf("%d bytes", len(text))
	}
}

// wantRequests waits until so many requests have been counted.
func (s *service) wantRequests(operation, status string, count float64) {
	s.t.Helper()
	await(s.t, 10*time.Second, operation+" is counted as "+status, func() bool {
		families, err := s.requests.Gather()
		if err != nil {
			s.t.Fatal(err)
		}
		for _, family := range families {
			for _, m := range family.GetMetric() {
				labels := make(map[string]string)
				for _, label := range m.GetLabel() {
					labels[label.GetName()] = label.GetValue()
				}
				if family.GetName() == "lapse_http_requests_total" && labels["operation"] == operation && labels["status"] == status {
					return m.GetCounter().GetValue() == count
				}
			}
		}
		return false
	})
}

// watched counts what it is given, and how much memory is in use meanwhile.
type watched struct {
	bytes, lines int
	heap         uint64
}

func (w *watched) Write(text []byte) (int, error) {
	if w.bytes>>21 != (w.bytes+len(text))>>21 { // every 2 MB
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		w.heap = max(w.heap, m.HeapInuse)
	}
	w.bytes += len(text)
	w.lines += bytes.Count(text, []byte("\n"))
	return len(text), nil
}

func TestExportOfMany(t *testing.T) {
	const many, size = 20_000, 5_000
	s := start(t, nil)
	s.letter(1, map[string]any{"body": bytes.Repeat([]byte("x"), size)})
	for n := 1; n < many; n *= 2 {
		err := s.db.Exec(`INSERT INTO lapse_dead_letters (identity, message_id, kind, subject, queue, exchange, routing_key, reason, attempts, error, first_error, fingerprint,
				properties, headers, body, size, died_at, collected_at, replays, replayed_by, state)
			SELECT UUID(), message_id, kind, subject, queue, exchange, routing_key, reason, attempts, error, first_error, fingerprint,
				properties, headers, body, size, died_at, collected_at, replays, replayed_by, state FROM lapse_dead_letters ORDER BY id LIMIT ?`, min(n, many-n)).Error
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, format := range []string{web.NDJSON, web.CSV} {
		runtime.GC()
		var before runtime.MemStats
		runtime.ReadMemStats(&before)
		var w watched
		begin := time.Now()
		if err := s.ExportDeadLetters(t.Context(), deadletter.Filter{}, format, &w); err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %d letters, %d MB in %s, with %d MB more than before", format, w.lines, w.bytes>>20, time.Since(begin).Round(time.Millisecond), int64(w.heap-before.HeapInuse)>>20)
		if w.lines < many || w.bytes < many*size {
			t.Errorf("%s: %d lines, %d bytes", format, w.lines, w.bytes)
		}
		if most := before.HeapInuse + 48<<20; w.heap > most {
			t.Errorf("%s: %d MB of memory, and %d before", format, w.heap>>20, before.HeapInuse>>20)
		}
	}
}
