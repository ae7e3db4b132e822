package main

import (
	"fmt"
	"net/url"
	"os"
	"strings"

	"github.com/alecthomas/kong"
	"github.com/go-sql-driver/mysql"
)

// secretFile is the resolver of kong's that reads a flag marked secret from the file that LAPSE_…_FILE
// names. What is given on the command line goes first.
func secretFile(_ *kong.Context, _ *kong.Path, flag *kong.Flag) (any, error) {
	if !flag.Tag.Has("secret") {
		return nil, nil
	}
	for _, env := range flag.Envs {
		file := os.Getenv(env + "_FILE")
		if file == "" {
			continue
		}
		if os.Getenv(env) != "" {
			return nil, fmt.Errorf("%w: %s and %s_FILE are both set: unset one", errConfig, env, env)
		}
		content, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("%w: %s_FILE: %w", errConfig, env, err)
		}
		text := strings.TrimSpace(string(content))
		if text == "" {
			return nil, fmt.Errorf("%w: %s_FILE: %s is empty", errConfig, env, file)
		}
		return text, nil
	}
	return nil, nil
}

// strangers are the environment variables that look like Lapse's and are of no flag: mistyped ones, or what
// Kubernetes sets for a service of this name.
func strangers(app *kong.Application) []string {
	known := map[string]bool{}
	for _, leaf := range app.Leaves(true) {
		for _, flag := range leaf.Flags {
			for _, env := range flag.Envs {
				known[env] = true
				known[env+"_FILE"] = flag.Tag.Has("secret")
			}
		}
	}
	var names []string
	for _, variable := range os.Environ() {
		name, _, _ := strings.Cut(variable, "=")
		if strings.HasPrefix(name, "LAPSE_") && !known[name] {
			names = append(names, name)
		}
	}
	return names
}

// redacted is a secret's value as it may be shown: a URI or a DSN without its password.
func redacted(text string) string {
	if uri, err := url.Parse(text); err == nil && uri.Scheme != "" && uri.Host != "" {
		uri.RawQuery = "" // a URI's parameters may have a password, too
		return uri.Redacted()
	}
	dsn, err := mysql.ParseDSN(text)
	if err != nil {
		return "(cannot be read)"
	}
	if dsn.Passwd != "" {
		dsn.Passwd = "xxxxx"
	}
	return dsn.FormatDSN()
}
