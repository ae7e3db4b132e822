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
		file, given := os.LookupEnv(env + "_FILE")
		if !given {
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
