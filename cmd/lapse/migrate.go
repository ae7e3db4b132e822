package main

import (
	"context"
	"fmt"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/lapse-go/lapse/amqp/database"
	"github.com/lapse-go/lapse/migrations"
)

type migrate struct {
	Up     migrateUp     `cmd:"" help:"Create the database and its tables, or bring them up to date. Safe from any number of processes at once."`
	Status migrateStatus `cmd:"" help:"List the migrations, and fail (78) while any is not applied. Changes nothing."`
}

type migrateUp struct {
	databaseFlags
	tableFlag
}

func (m *migrateUp) Run(ctx context.Context, to console) error {
	sets, err := m.sets()
	if err != nil {
		return err
	}
	if err := m.migrate(ctx, sets...); err != nil {
		return err
	}
	fmt.Fprintln(to.Err, "The tables are up to date.")
	return nil
}

type migrateStatus struct {
	databaseFlags
	tableFlag
	outputFlag
}

// migration is one, as it is printed.
type migration struct {
	Set     string `json:"set"`
	Name    string `json:"name"`
	Applied bool   `json:"applied"`
}

func (m *migrateStatus) Run(ctx context.Context, to console) error {
	sets, err := m.sets()
	if err != nil {
		return err
	}
	db, closing, err := m.open(database.Options{})
	if err != nil {
		return err
	}
	defer closing()
	pool, err := db.DB()
	if err != nil {
		return err
	}
	all, err := migrations.Status(ctx, pool, sets...)
	if err != nil {
		return err
	}
	list := make([]migration, len(all))
	rows := make([]table.Row, len(all))
	pending := 0
	for i, step := range all {
		list[i] = migration{step.Set.Name(), step.Name, step.Applied}
		rows[i] = table.Row{list[i].Set, step.Name, yes(step.Applied)}
		if !step.Applied {
			pending++
		}
	}
	if err := m.print(to, list, table.Row{"set", "migration", "applied"}, rows...); err != nil {
		return err
	}
	if pending > 0 {
		return fmt.Errorf("%w: %d of %d migrations are not applied", migrations.ErrPending, pending, len(all))
	}
	return nil
}
