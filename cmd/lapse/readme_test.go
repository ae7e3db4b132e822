package main

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
)

var update = flag.Bool("update", false, "write the README's tables anew")

// TestReadme holds the README's tables against the program. With -update it writes them.
func TestReadme(t *testing.T) {
	const file = "../../README.md"
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	app := newParser(t.Context(), console{}).Model
	readme := string(content)
	for name, table := range map[string]string{"commands": commandTable(app), "configuration": configurationTable(app)} {
		begin, end := fmt.Sprintf("<!-- %s: made by the program -->\n", name), fmt.Sprintf("<!-- end of %s -->\n", name)
		before, rest, found := strings.Cut(readme, begin)
		_, after, ended := strings.Cut(rest, end)
		if !found || !ended {
			t.Fatalf("the README has no place for the %s: %s… %s", name, begin, end)
		}
		readme = before + begin + "\n" + table + "\n" + end + after
	}
	if readme == string(content) {
		return
	}
	if !*update {
		t.Fatal("the README's tables are stale: go test ./cmd/lapse -run TestReadme -update")
	}
	if err := os.WriteFile(file, []byte(readme), 0o644); err != nil {
		t.Fatal(err)
	}
}

func commandTable(app *kong.Application) string {
	var b strings.Builder
	b.WriteString("| command | |\n|---|---|\n")
	for _, leaf := range app.Leaves(true) {
		usage := "lapse " + leaf.Path()
		for _, argument := range leaf.Positional {
			usage += " " + argument.Summary()
		}
		fmt.Fprintf(&b, "| `%s` | %s |\n", cell(usage), cell(leaf.Help))
	}
	return b.String()
}

// configurationTable lists by their variables the flags of serve, and what many other commands have.
func configurationTable(app *kong.Application) string {
	var b strings.Builder
	b.WriteString("| variable | default | |\n|---|---|---|\n")
	seen := map[string]bool{}
	list := func(node *kong.Node) {
		for _, f := range node.Flags {
			if len(f.Envs) == 0 || seen[f.Name] || f.Name == "help" {
				continue
			}
			seen[f.Name] = true
			help := f.Help
			if f.Tag.Has("secret") {
				help += fmt.Sprintf(" `%s_FILE` names a file that has it.", f.Envs[0])
			}
			value := ""
			if f.Default != "" && f.Name != "who" {
				value = "`" + f.Default + "`"
			}
			fmt.Fprintf(&b, "| `%s` | %s | %s |\n", f.Envs[0], cell(value), cell(help))
		}
	}
	for _, name := range []string{"config", "cancel"} {
		for _, leaf := range app.Leaves(true) {
			if leaf.Name == name {
				list(leaf)
			}
		}
	}
	return b.String()
}

func cell(text string) string { return strings.ReplaceAll(text, "|", `\|`) }
