package main

import (
	"fmt"
	"os"
	"reflect"
	"strings"

	"github.com/alecthomas/kong"
	"github.com/jedib0t/go-pretty/v6/table"
)

// config has the flags of serve, and what names the third server, and shows them.
type config struct {
	serveFlags
	managementFlag
	outputFlag
}

// setting is a flag as it is printed.
type setting struct {
	Flag     string `json:"flag"`
	Variable string `json:"variable"`
	Value    string `json:"value"`
	From     string `json:"from"` // flag, environment, file or default
}

func (c *config) Run(parsed *kong.Context, to console) error {
	if err := c.validate(); err != nil {
		return err
	}
	var list []setting
	var rows []table.Row
	for _, flag := range parsed.Selected().Flags {
		if flag.Name == "output" {
			continue
		}
		s := setting{Flag: "--" + flag.Name, Variable: flag.Envs[0], Value: shown(flag), From: source(parsed, flag)}
		list = append(list, s)
		rows = append(rows, table.Row{s.Variable, s.Value, s.From})
	}
	for _, name := range strangers(parsed.Model) {
		fmt.Fprintf(to.Err, "%s is no setting: is it mistyped?\n", name)
	}
	return c.print(to, list, table.Row{"variable", "value", "from"}, rows...)
}

// validate is what serve would say of the values.
func (c *config) validate() error {
	cfg, err := c.serveFlags.config(nil)
	if err != nil {
		return err
	}
	if err := cfg.Validate(); err != nil {
		return fmt.Errorf("%w: %w", errUsage, err)
	}
	if _, err := c.brokerFlags.config("", nil); err != nil {
		return err
	}
	if _, err := c.mapping(); err != nil {
		return err
	}
	_, err = c.dsn()
	return err
}

// shown is a flag's value, without what is secret in it.
func shown(flag *kong.Flag) string {
	show := func(text string) string { return text }
	if flag.Tag.Has("secret") {
		show = redacted
	}
	switch v := flag.Target.Interface().(type) {
	case string:
		if v == "" {
			return ""
		}
		return show(v)
	case []string:
		parts := make([]string, len(v))
		for i, part := range v {
			parts[i] = show(part)
		}
		return strings.Join(parts, ",")
	default:
		return fmt.Sprint(reflect.Indirect(flag.Target).Interface())
	}
}

// source is where a value is from.
func source(parsed *kong.Context, flag *kong.Flag) string {
	for _, element := range parsed.Path {
		if element.Flag == flag && !element.Resolved {
			return "flag"
		}
	}
	for _, env := range flag.Envs {
		if os.Getenv(env+"_FILE") != "" && flag.Tag.Has("secret") {
			return "file"
		}
		if _, given := os.LookupEnv(env); given {
			return "environment"
		}
	}
	return "default"
}
