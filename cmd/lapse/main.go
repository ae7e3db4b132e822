// Lapse closes the orders that nobody paid for, when their payment deadline has come.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/alecthomas/kong"

	"github.com/lapse-go/lapse/amqp"
)

// version is set when a release is built.
var version = "development"

// Exit codes.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // so a second signal ends the program at once
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// commands are all that lapse can do. Each is in the file of its name.
type commands struct {
	Serve   serve            `cmd:"" help:"Close orders when they are due, until told to stop."`
	Migrate migrate          `cmd:"" help:"Create or update the tables."`
	Demo    demo             `cmd:"" help:"Show it: place orders, pay some, and see the rest closed on time."`
	Version kong.VersionFlag `help:"Print the version."`
}

// console is where a command writes: data to Out, everything else to Err.
type console struct {
	Out, Err io.Writer
}

// exit is how kong, which has printed help or the version, asks to end.
type exit int

func run(ctx context.Context, args []string, stdout, stderr io.Writer) (code int) {
	defer func() {
		if asked := recover(); asked != nil {
			e, ok := asked.(exit)
			if !ok {
				panic(asked)
			}
			code = int(e)
		}
	}()
	var cmd commands
	parser, err := kong.New(&cmd,
		kong.Name("lapse"),
		kong.Description("Closes the orders that nobody paid for: on time, once, and with nothing lost."),
		kong.DefaultEnvars("LAPSE"),
		kong.Vars{"version": version, "rungs": amqp.DefaultLadder().String()},
		kong.Writers(stdout, stderr),
		kong.Exit(func(code int) { panic(exit(code)) }),
		kong.BindTo(ctx, (*context.Context)(nil)),
		kong.Bind(console{stdout, stderr}),
	)
	if err != nil {
		panic(err) // the commands above are wrong
	}
	command, err := parser.Parse(args)
	if err != nil {
		fmt.Fprintf(stderr, "lapse: %v\nTry: lapse --help\n", err)
		return exitUsage
	}
	if err := command.Run(); err != nil {
		fmt.Fprintf(stderr, "lapse: %v\n", err)
		if errors.Is(err, errUsage) {
			return exitUsage
		}
		return exitFailed
	}
	return exitOK
}
