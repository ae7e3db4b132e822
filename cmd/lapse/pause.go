package main

import (
	"context"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/lapse-go/lapse/order/checkout"
	"github.com/lapse-go/lapse/order/web"
)

type pause struct {
	shopFlags
	byFlags
}

func (p *pause) Run(ctx context.Context, to console) error {
	return p.with(func(shop *checkout.Checkout) error {
		if err := shop.Pause(ctx, p.by()); err != nil {
			return err
		}
		return p.printState(ctx, to, shop)
	})
}

type resume struct {
	shopFlags
	byFlags
}

func (r *resume) Run(ctx context.Context, to console) error {
	return r.with(func(shop *checkout.Checkout) error {
		if err := shop.Resume(ctx, r.by()); err != nil {
			return err
		}
		return r.printState(ctx, to, shop)
	})
}

func (f shopFlags) printState(ctx context.Context, to console, shop *checkout.Checkout) error {
	state, err := shop.Paused(ctx)
	if err != nil {
		return err
	}
	return f.print(to, web.PauseOf(state), table.Row{"paused", "since", "by", "why"},
		table.Row{yes(state.Paused), instant(state.Since), state.By.Who, state.By.Why})
}
