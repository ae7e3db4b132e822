package main

import (
	"fmt"

	"github.com/lapse-go/lapse/order/web"
)

type token struct {
	New tokenNew `cmd:"" help:"Make a token. It is printed once; only its hash goes into the tokens file."`
}

type tokenNew struct {
	outputFlag
	Name string   `arg:"" help:"Who will use it: the name in timelines and logs."`
	Role web.Role `required:"" env:"LAPSE_TOKEN_ROLE" enum:"viewer,checkout,operator" help:"viewer looks, checkout places and changes single orders too, operator may do everything."`
}

// Run needs no server.
func (t *tokenNew) Run(to console) error {
	secret, line, err := web.NewToken(t.Name, t.Role)
	if err != nil {
		return fmt.Errorf("%w: %w", errUsage, err)
	}
	fmt.Fprintln(to.Err, "Give the token to its user, and add the line to the file that LAPSE_TOKENS_FILE names.")
	if t.Output == "json" {
		return t.print(to, map[string]string{"token": secret, "line": line}, nil)
	}
	_, err = fmt.Fprintf(to.Out, "token: %s\nline:  %s\n", secret, line) // to be copied whole, so in no table
	return err
}
