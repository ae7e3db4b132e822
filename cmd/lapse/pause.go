package main

import (
	"context"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/lapse-go/lapse/amqp/deadletter"
	"github.com/lapse-go/lapse/order/checkout"
	"github.com/lapse-go/lapse/order/web"
)

type pause struct {
	shopFlags
	byFlags
}

func (p *pause) Run(ctx context.Context, to console) error {
	return p.wherever(checkout.Config{}, func(k kept) error {
		err := k.Pause(ctx, p.by())
		p.did(ctx, k.Desk(), deadletter.Entry{Action: "pause"}, err)
		if err != nil {
			return err
		}
		return p.printState(ctx, to, k)
	})
}

type resume struct {
	shopFlags
	byFlags
}

func (r *resume) Run(ctx context.Context, to console) error {
	return r.wherever(checkout.Config{}, func(k kept) error {
		err := k.Resume(ctx, r.by())
		r.did(ctx, k.Desk(), deadletter.Entry{Action: "resume"}, err)
		if err != nil {
			return err
		}
		return r.printState(ctx, to, k)
	})
}

func (f shopFlags) printState(ctx context.Context, to console, k kept) error {
	state, err := k.Paused(ctx)
	if err != nil {
		return err
	}
	return f.print(to, web.PauseOf(state), table.Row{"paused", "since", "by", "why"},
		table.Row{yes(state.Paused), instant(state.Since), state.By.Who, state.By.Why})
}
