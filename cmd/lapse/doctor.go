package main

import (
	"context"
	"errors"
	"log/slog"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/lapse-go/lapse/order/doctor"
)

type diagnose struct {
	databaseFlags
	tableFlag
	brokerFlags
	topologyFlags
	managementFlag
	outputFlag
}

// Run fails unless all is well.
func (d *diagnose) Run(ctx context.Context, to console) error {
	wanted, err := d.wanted()
	if err != nil {
		return err
	}
	management, err := d.management()
	if err != nil {
		return err
	}
	broker, err := d.config("lapse-doctor", slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	dsn, err := d.dsn()
	if err != nil {
		return err
	}
	own, err := d.mapping()
	if err != nil {
		return err
	}
	findings := doctor.Run(ctx, doctor.Config{Broker: broker, Management: management, DSN: dsn, Topology: wanted, Table: own})
	var rows []table.Row
	for _, f := range findings {
		rows = append(rows, table.Row{f.Check, f.State, f.Saw, f.Cure})
	}
	if err := d.print(to, findings, table.Row{"check", "", "found", "cure"}, rows...); err != nil {
		return err
	}
	if !doctor.OK(findings) {
		return errors.New("not all is well: see above")
	}
	return nil
}
