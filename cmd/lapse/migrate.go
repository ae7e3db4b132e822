package main

import (
	"context"
	"fmt"
)

type migrate struct {
	databaseFlags
}

// Run may be done by any number of processes at once, and at any time again.
func (m *migrate) Run(ctx context.Context, to console) error {
	if err := m.migrate(ctx); err != nil {
		return err
	}
	fmt.Fprintln(to.Err, "The tables are up to date.")
	return nil
}
