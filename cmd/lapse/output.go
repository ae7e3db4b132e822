package main

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/lapse-go/lapse/order/web"
)

// outputFlag is how a command prints its data.
type outputFlag struct {
	Output string `enum:"table,json" default:"table" help:"table, or json for one JSON value alone on standard output."`
}

// listFlag is how a command prints a list, which a spreadsheet can read, too.
type listFlag struct {
	Output string `enum:"table,json,csv" default:"table" help:"table, json for one JSON value alone on standard output, or csv."`
}

// print writes data as JSON, or else the rows under their header, which may be nil.
func (f outputFlag) print(to console, data any, header table.Row, rows ...table.Row) error {
	if f.Output == "json" {
		return printJSON(to.Out, data)
	}
	return printRows(to, header, rows)
}

func (f listFlag) print(to console, data any, header table.Row, rows ...table.Row) error {
	switch f.Output {
	case "json":
		return printJSON(to.Out, data)
	case "csv":
		w := csv.NewWriter(to.Out)
		for _, row := range append([]table.Row{header}, rows...) {
			if err := w.Write(record(row...)); err != nil {
				return err
			}
		}
		w.Flush()
		return w.Error()
	}
	return printRows(to, header, rows)
}

// printRows says that there are none, instead of an empty table.
func printRows(to console, header table.Row, rows []table.Row) error {
	if len(rows) == 0 {
		_, err := fmt.Fprintln(to.Err, "none")
		return err
	}
	return printTable(to.Out, header, rows)
}

func printTable(to io.Writer, header table.Row, rows []table.Row) error {
	t := table.NewWriter()
	var columns []table.ColumnConfig
	t.SetStyle(table.StyleLight)
	t.Style().Format.Header = text.FormatDefault
	for column := range 12 { // as many as any table has
		columns = append(columns, table.ColumnConfig{Number: column + 1, WidthMax: 80, WidthMaxEnforcer: text.WrapSoft})
	}
	t.SetColumnConfigs(columns)
	if header != nil {
		t.AppendHeader(header)
	}
	for _, row := range rows {
		for i, cell := range row {
			row[i] = printable(fmt.Sprint(cell))
		}
		t.AppendRow(row)
	}
	_, err := fmt.Fprintln(to, t.Render())
	return err
}

func printJSON(to io.Writer, data any) error {
	encoder := json.NewEncoder(jsonWriter{to})
	encoder.SetEscapeHTML(false)
	return encoder.Encode(data)
}

// jsonWriter escapes what encoding/json leaves as it is and a terminal would obey. Such can only be inside of strings,
// where it means the same.
type jsonWriter struct{ io.Writer }

func (w jsonWriter) Write(content []byte) (int, error) {
	if _, err := io.WriteString(w.Writer, escape(string(content), "\n", func(r rune) string { return fmt.Sprintf(`\u%04x`, r) })); err != nil {
		return 0, err
	}
	return len(content), nil
}

// record is a row for CSV.
func record(row ...any) []string {
	cells := make([]string, len(row))
	for i, cell := range row {
		cells[i] = web.Defused(fmt.Sprint(cell))
	}
	return cells
}

// printable has nothing in it that a terminal would take for an order: what customers are called, and what is in
// messages, comes from outside.
func printable(text string) string { return escape(text, "", escaped) }

// printableLines keeps the lines of a text.
func printableLines(text string) string { return escape(text, "\n", escaped) }

func escaped(r rune) string {
	switch {
	case r == '\n':
		return `\n`
	case r == '\r':
		return `\r`
	case r == '\t':
		return `\t`
	case r < utf8.RuneSelf:
		return fmt.Sprintf(`\x%02x`, r)
	}
	return fmt.Sprintf(`\u%04x`, r)
}

// escape replaces what is not text: control characters, those that change the direction of writing, and bytes that are no
// UTF-8.
func escape(text, keep string, escaped func(rune) string) string {
	var b strings.Builder
	for i := 0; i < len(text); {
		r, size := utf8.DecodeRuneInString(text[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `\x%02x`, text[i])
		case obeyed(r) && !strings.ContainsRune(keep, r):
			b.WriteString(escaped(r))
		default:
			b.WriteString(text[i : i+size])
		}
		i += size
	}
	return b.String()
}

// obeyed is whether a terminal does something on a character instead of showing it.
func obeyed(r rune) bool {
	return unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) || r == '\u2028' || r == '\u2029'
}

// instant is a time in a table.
func instant(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02 15:04:05.000Z")
}

// each is what f makes of every element.
func each[A, B any](list []A, f func(A) B) []B {
	all := make([]B, len(list))
	for i, one := range list {
		all[i] = f(one)
	}
	return all
}
