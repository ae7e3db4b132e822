package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/jedib0t/go-pretty/v6/table"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/lapse-go/lapse/amqp"
)

type topology struct {
	Plan   topologyPlan   `cmd:"" help:"Compare what is on the broker with what is wanted, and say what to do. Changes nothing; fails (1) if anything is to do."`
	Apply  topologyApply  `cmd:"" help:"Create what is missing. Neither changes nor deletes anything."`
	Export topologyExport `cmd:"" help:"Print the definitions, for rabbitmqctl import_definitions."`
}

// managementFlag names the broker's management API.
type managementFlag struct {
	ManagementURL string `secret:"" help:"URL of the broker's management API, such as http://user:password@host:15672. Without it some things are not checked."`
}

func (f managementFlag) management() (*amqp.Management, error) {
	if f.ManagementURL == "" {
		return nil, nil
	}
	m, err := amqp.NewManagement(f.ManagementURL)
	if err != nil {
		return nil, fmt.Errorf("%w: --management-url: %w", errUsage, err)
	}
	return m, nil
}

// wanted is the topology of the service.
func (f topologyFlags) wanted() (amqp.Topology, error) {
	cfg := f.checkout()
	if err := cfg.Validate(); err != nil {
		return amqp.Topology{}, fmt.Errorf("%w: %w", errUsage, err)
	}
	return cfg.Topology(), nil
}

// topologyTarget is a topology and where it belongs.
type topologyTarget struct {
	brokerFlags
	topologyFlags
}

func (t topologyTarget) open(ctx context.Context) (wanted amqp.Topology, conn *amqp.Conn, err error) {
	if wanted, err = t.wanted(); err == nil {
		conn, err = t.connect(ctx)
	}
	return wanted, conn, err
}

type topologyPlan struct {
	topologyTarget
	managementFlag
	outputFlag
}

func (c *topologyPlan) Run(ctx context.Context, to console) error {
	management, err := c.management()
	if err != nil {
		return err
	}
	wanted, conn, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	plan, err := wanted.Plan(ctx, conn, management)
	if err != nil {
		return err
	}
	rows, asWanted := planRows(plan)
	if err := c.print(to, plan, table.Row{"object", "name", "state", "what to do"}, rows...); err != nil {
		return err
	}
	fmt.Fprintf(to.Err, "%d exchanges, queues and bindings are as wanted, found by %s.\n", asWanted, plan.Via)
	if !plan.OK() {
		return errors.New("not all is as it has to be, or could be looked at: see above")
	}
	return nil
}

type topologyApply struct{ topologyTarget }

func (c *topologyApply) Run(ctx context.Context, to console) error {
	wanted, conn, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	differ, err := wanted.Apply(ctx, conn)
	if err != nil {
		return err
	}
	if len(differ) > 0 {
		errs := make([]error, len(differ))
		for i, mismatch := range differ {
			errs[i] = mismatch
		}
		return fmt.Errorf("%w: what was missing is there now, but not all is as it has to be:\n%w", errPartly, errors.Join(errs...))
	}
	fmt.Fprintln(to.Err, "All exchanges and queues are there.")
	return nil
}

type topologyExport struct{ topologyTarget }

func (c *topologyExport) Run(to console) error {
	wanted, err := c.wanted()
	if err != nil {
		return err
	}
	uri, err := amqp091.ParseURI(c.AMQPURL[0])
	if err != nil {
		return fmt.Errorf("%w: --amqp-url cannot be read", errUsage)
	}
	definitions, err := wanted.Definitions(uri.Vhost)
	if err != nil {
		return err
	}
	_, err = to.Out.Write(definitions)
	return err
}

// planRows leaves out what is as wanted, and puts together what was not checked for one reason.
func planRows(plan amqp.Plan) (rows []table.Row, asWanted int) {
	unchecked := map[string]int{} // by the advice, which row it is
	for _, item := range plan.Items {
		state := string(item.State)
		switch at, again := unchecked[item.Advice]; {
		case item.State == amqp.Exists:
			asWanted++
			continue
		case again:
			rows[at][1] = "several"
			continue
		case item.State == amqp.NotChecked:
			unchecked[item.Advice] = len(rows)
		case item.Argument != "":
			state = fmt.Sprintf("%s: %s is %s, not %s", item.State, item.Argument, item.Found, item.Wanted)
		}
		rows = append(rows, table.Row{item.Object, item.Name, state, item.Advice})
	}
	return rows, asWanted
}
