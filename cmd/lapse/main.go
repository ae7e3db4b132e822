// Lapse closes the orders that nobody paid for, when their payment deadline has come.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"os/user"
	"reflect"
	"syscall"

	"github.com/alecthomas/kong"
	completion "github.com/jotaen/kong-completion"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/order/checkout"
)

// version is set when a release is built.
var version = "development"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // so a second signal ends the program at once
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// commands are all that lapse can do. Each is in the file of its name.
type commands struct {
	Serve    serve    `cmd:"" help:"Close orders when they are due, and serve the API, until told to stop."`
	Migrate  migrate  `cmd:"" help:"The tables in the database."`
	Topology topology `cmd:"" help:"The exchanges and queues on the broker."`
	Doctor   diagnose `cmd:"" help:"Look at everything that Lapse needs, and say what is wrong with it and what cures it."`
	Overview overview `cmd:"" help:"How the service is: orders, queues, outbox and dead letters."`

	Order  orders `cmd:"" help:"Place, show and change orders."`
	Stock  stock  `cmd:"" help:"How many pieces there are of an article."`
	Pause  pause  `cmd:"" help:"Stop every expiry at once, everywhere; payment goes on."`
	Resume resume `cmd:"" help:"End a pause: what became due meanwhile is closed."`
	Sweep  sweep  `cmd:"" help:"Overdue orders whose timer did not come."`

	Dead    dead    `cmd:"" help:"Dead letters: find out why messages died, and replay them."`
	Replays replays `cmd:"" help:"The jobs that replay dead letters."`
	Audit   audit   `cmd:"" help:"Who did what, and why."`

	Token      token                 `cmd:"" help:"Who may use the API."`
	Config     config                `cmd:"" help:"Print what serve would work with, and where each value is from."`
	Demo       demo                  `cmd:"" help:"Show it: place orders, pay some, and see the rest closed on time."`
	Completion completion.Completion `cmd:"" help:"Print what makes a shell complete lapse's commands and flags."`
	Version    printVersion          `cmd:"" help:"Print the version."`
}

// console is where a command writes: data to Out, everything else to Err. Answers to its questions come from In.
type console struct {
	Out, Err io.Writer
	In       io.Reader
}

// output remembers that it could not be written.
type output struct {
	io.Writer
	err error
}

func (o *output) Write(text []byte) (int, error) {
	if _, err := o.Writer.Write(text); err != nil {
		o.err = err
	}
	return len(text), nil // whoever writes has done its work all the same
}

// exit is how kong, which has printed help, asks to end.
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
	out := &output{Writer: stdout}
	defer func() {
		if out.err != nil {
			fmt.Fprintf(stderr, "lapse: what it did stays done, but its output cannot be written: %v\n", out.err)
			code = exitFailed
		}
	}()
	parser := newParser(ctx, console{Out: out, Err: stderr, In: os.Stdin})
	completion.Register(parser)
	command, err := parser.Parse(args)
	if err != nil {
		fmt.Fprintf(stderr, "lapse: %v\n", err)
		if errors.Is(err, errConfig) {
			return exitConfig
		}
		if wrong, ok := errors.AsType[*kong.ParseError](err); ok {
			command = wrong.Context
		}
		fmt.Fprintln(stderr, helpFor(command))
		return exitUsage
	}
	if err := command.Run(); err != nil {
		fmt.Fprintf(stderr, "lapse: %v\n", advised(err))
		code := exitCode(ctx, err)
		if code == exitUsage {
			fmt.Fprintln(stderr, helpFor(command))
		}
		return code
	}
	return exitOK
}

// helpFor says how to learn more about the command that was meant, as far as it is known.
func helpFor(parsed *kong.Context) string {
	if parsed == nil || parsed.Selected() == nil {
		return "Try: lapse --help"
	}
	return "Try: " + parsed.Selected().FullPath() + " --help"
}

func newParser(ctx context.Context, to console) *kong.Kong {
	parser, err := kong.New(&commands{},
		kong.Name("lapse"),
		kong.Description("Closes the orders that nobody paid for: on time, once, and with nothing lost."),
		kong.DefaultEnvars("LAPSE"),
		kong.Resolvers(kong.ResolverFunc(secretFile)),
		kong.KindMapper(reflect.Int, kong.MapperFunc(wholeNumber)),
		kong.KindMapper(reflect.Int64, kong.MapperFunc(wholeNumber)),
		kong.Vars{"rungs": amqp.DefaultLadder().String(), "roles": roles(checkout.Roles).String(), "user": whoRuns()},
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, NoExpandSubcommands: true}),
		kong.Writers(to.Out, to.Err),
		kong.Exit(func(code int) { panic(exit(code)) }),
		kong.BindTo(ctx, (*context.Context)(nil)),
		kong.Bind(to),
	)
	if err != nil {
		panic(err) // the commands above are wrong
	}
	return parser
}

// whoRuns is the name for the timeline of whoever calls the program.
func whoRuns() string {
	if u, err := user.Current(); err == nil {
		return u.Username
	}
	return "cli"
}

type printVersion struct{}

func (printVersion) Run(to console) error {
	_, err := fmt.Fprintln(to.Out, version)
	return err
}
