package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
)

// outputFlag is how a command prints its data.
type outputFlag struct {
	Output string `enum:"table,json" default:"table" help:"table, or json for one JSON value alone on standard output."`
}

// print writes data as JSON, or else the rows under their header, which may be nil.
func (f outputFlag) print(to console, data any, header table.Row, rows ...table.Row) error {
	if f.Output == "json" {
		encoder := json.NewEncoder(to.Out)
		encoder.SetEscapeHTML(false)
		return encoder.Encode(data)
	}
	t := table.NewWriter()
	var columns []table.ColumnConfig
	t.SetStyle(table.StyleLight)
	t.Style().Format.Header = text.FormatDefault
	for column := range 8 { // as many as any table has
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
	_, err := fmt.Fprintln(to.Out, t.Render())
	return err
}

// printable has nothing in it that a terminal would take for an order: what customers are called comes from
// outside.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return unicode.ReplacementChar
		}
		return r
	}, text)
}

// instant is a time in a table.
func instant(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02 15:04:05.000Z")
}
