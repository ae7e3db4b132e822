package main

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/order/checkout"
)

type serve struct {
	databaseFlags
	brokerFlags
	serviceFlags
	Role string `help:"Some of relay, timer, sweep, place and api, separated by commas; all when empty."`
}

// Run works until ctx ends, and then finishes what is in hand.
func (s *serve) Run(ctx context.Context, to console) error {
	logger := newLogger(to.Err, slog.LevelInfo)
	roles, err := checkout.ParseRoles(s.Role)
	if err != nil {
		return fmt.Errorf("%w: --role: %w", errUsage, err)
	}
	cfg, err := s.config(logger)
	if err != nil {
		return err
	}
	broker := amqp.Config{URIs: s.AMQPURL}
	if err := broker.Validate(); err != nil {
		return fmt.Errorf("%w: --amqp-url: %w", errUsage, err)
	}
	db, err := s.open(logger)
	if err != nil {
		return err
	}
	if pool, err := db.DB(); err == nil {
		defer pool.Close()
	}
	c, err := checkout.New(db, cfg)
	if err != nil {
		return fmt.Errorf("%w: %w", errUsage, err)
	}
	return c.Serve(ctx, broker, roles...)
}
