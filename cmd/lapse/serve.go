package main

import (
	"context"
	"log/slog"
	"slices"

	"github.com/alecthomas/kong"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"golang.org/x/sync/errgroup"

	"github.com/lapse-go/lapse/amqp/database"
	"github.com/lapse-go/lapse/order/checkout"
)

type serve struct {
	serveFlags
}

type serveFlags struct {
	databaseFlags
	tableFlag
	brokerFlags
	topologyFlags
	windowFlag
	workFlags
	apiFlags
	opsFlags
	Role     roles      `default:"${roles}" help:"What this process does, separated by commas."`
	LogLevel slog.Level `default:"info" help:"debug, info, warn or error."`
}

// Run works until ctx ends, and then finishes what is in hand.
func (s *serve) Run(ctx context.Context, parsed *kong.Context, to console) error {
	logger := newLogger(to.Err, s.LogLevel)
	if names := strangers(parsed.Model); len(names) > 0 {
		logger.Info("some environment variables look like settings, and are none", "names", names)
	}
	broker, err := s.brokerFlags.config("", logger)
	if err != nil {
		return err
	}
	cfg, err := s.config(logger)
	if err != nil {
		return err
	}
	registry := newRegistry()
	cfg.Registerer = registry
	// Fifteen are for the API, twelve for replays, one is for each worker, and the rest for the other loops.
	db, closing, err := s.open(database.Options{
		Logger: logger, Metrics: database.NewMetrics(registry), MaxOpen: 36 + s.Workers + s.PlaceWorkers,
	})
	if err != nil {
		return err
	}
	defer closing()
	if pool, err := db.DB(); err == nil {
		registry.MustRegister(collectors.NewDBStatsCollector(pool, "lapse"))
	}
	orders, err := s.keep(db, cfg)
	if err != nil {
		return err
	}
	if s.Role, err = orders.roles(s.Role); err != nil {
		return err
	}
	if orders.table != nil {
		logger.Info("the orders are in the shop's own table", "table", orders.name, "described_in", s.Table)
	}
	api, err := s.api(s.Role, orders, cfg.Shutdown, registry, logger)
	if err != nil {
		return err
	}
	defer api.close()
	ops, err := s.ops(orders.Closer, registry, logger)
	if err != nil {
		return err
	}
	defer ops.close()

	// They end in this order: the API, which takes in; the loops, once they have finished what they have;
	// and what tells how they are.
	group, ctx := errgroup.WithContext(ctx)
	drained, drain := context.WithCancel(context.WithoutCancel(ctx))
	finished, finish := context.WithCancel(context.WithoutCancel(ctx))
	group.Go(func() error { defer drain(); return api.run(ctx) })
	group.Go(func() error { defer finish(); return orders.Serve(drained, broker, s.Role...) })
	group.Go(func() error { return ops.run(finished) })
	return group.Wait()
}

func (s *serveFlags) config(logger *slog.Logger) (checkout.Config, error) {
	if err := s.windowFlag.validate(); err != nil {
		return checkout.Config{}, err
	}
	if err := s.workFlags.validate(); err != nil {
		return checkout.Config{}, err
	}
	cfg := s.workFlags.apply(s.topologyFlags.checkout(), logger)
	cfg.Window = s.Window.time()
	if slices.Contains(s.Role, checkout.API) {
		cfg.Shutdown /= 2 // the loops end after the API
	}
	return cfg, nil
}
