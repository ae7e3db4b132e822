package web

import (
	"encoding/csv"
	"encoding/json"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// csvColumns are named as in JSON.
var csvColumns = []struct {
	name string
	cell func(l DeadLetter) string
}{
	{"id", func(l DeadLetter) string { return strconv.FormatInt(l.ID, 10) }},
	{"message_id", func(l DeadLetter) string { return l.MessageID }},
	{"kind", func(l DeadLetter) string { return l.Kind }},
	{"subject", func(l DeadLetter) string { return l.Subject }},
	{"queue", func(l DeadLetter) string { return l.Queue }},
	{"exchange", func(l DeadLetter) string { return l.Exchange }},
	{"routing_key", func(l DeadLetter) string { return l.RoutingKey }},
	{"reason", func(l DeadLetter) string { return string(l.Reason) }},
	{"attempts", func(l DeadLetter) string { return strconv.Itoa(l.Attempts) }},
	{"error", func(l DeadLetter) string { return l.Error }},
	{"first_error", func(l DeadLetter) string { return l.FirstError }},
	{"first_error_at", func(l DeadLetter) string { return csvTime(l.FirstErrorAt) }},
	{"group", func(l DeadLetter) string { return l.Group }},
	{"died_at", func(l DeadLetter) string { return csvTime(&l.DiedAt) }},
	{"collected_at", func(l DeadLetter) string { return csvTime(&l.CollectedAt) }},
	{"replays", func(l DeadLetter) string { return strconv.Itoa(l.Replays) }},
	{"replayed_by", func(l DeadLetter) string { return l.ReplayedBy }},
	{"state", func(l DeadLetter) string { return string(l.State) }},
	{"resolved_at", func(l DeadLetter) string { return csvTime(l.ResolvedAt) }},
	{"resolved_by", func(l DeadLetter) string { return l.ResolvedBy }},
	{"resolution", func(l DeadLetter) string { return l.Resolution }},
	{"replay", func(l DeadLetter) string { return l.Replay }},
	{"size", func(l DeadLetter) string { return strconv.Itoa(l.Size) }},
	{"properties", func(l DeadLetter) string { return csvJSON(l.Properties) }},
	{"headers", func(l DeadLetter) string { return csvJSON(l.Headers) }},
	{"body", func(l DeadLetter) string { return csvText(l.Body) }},
	{"body_base64", func(l DeadLetter) string { return csvText(l.BodyBase64) }},
}

// csvExporter writes a line with the names of the columns first.
type csvExporter struct {
	w    *csv.Writer
	line []string
}

func newCSVExporter(w io.Writer) *csvExporter {
	e := &csvExporter{csv.NewWriter(w), make([]string, len(csvColumns))}
	for i, column := range csvColumns {
		e.line[i] = column.name
	}
	_ = e.w.Write(e.line) // [csv.Writer] keeps its error
	return e
}

// Write writes a line.
func (e *csvExporter) Write(l DeadLetter) error {
	for i, column := range csvColumns {
		e.line[i] = Defused(column.cell(l))
	}
	return e.w.Write(e.line)
}

// End writes what is left.
func (e *csvExporter) End() error {
	e.w.Flush()
	return e.w.Error()
}

// Defused keeps spreadsheets from taking a cell for a formula, as OWASP advises
// (https://owasp.org/www-community/attacks/CSV_Injection).
func Defused(cell string) string {
	if first, _ := utf8.DecodeRuneInString(cell); cell != "" && strings.ContainsRune("=+-@\t\r\n＝＋－＠", first) {
		return "'" + cell
	}
	return cell
}

func csvTime(at *time.Time) string {
	if at == nil {
		return ""
	}
	return at.Format(time.RFC3339Nano)
}

func csvText(text *string) string {
	if text == nil {
		return ""
	}
	return *text
}

func csvJSON(v any) string {
	text, _ := json.Marshal(v) // of what was JSON
	return string(text)
}
