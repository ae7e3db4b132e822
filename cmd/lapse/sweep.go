package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/lapse-go/lapse/amqp/deadletter"
	"github.com/lapse-go/lapse/order"
	"github.com/lapse-go/lapse/order/checkout"
	"github.com/lapse-go/lapse/order/web"
)

type sweep struct {
	Once sweepRun `cmd:"" name:"run" help:"Expire at once what is overdue, in one round."`
}

type sweepRun struct {
	shopFlags
	grace
	byFlags
}

func (s *sweepRun) Run(ctx context.Context, to console) error {
	if err := s.grace.validate(); err != nil {
		return err
	}
	return s.wherever(checkout.Config{SweepGrace: s.SweepGrace.time()}, func(k kept) error {
		sum, err := k.Sweeper().Once(ctx)
		entry := deadletter.Entry{Action: "sweep", Count: int64(sum.Expired)}
		if err != nil {
			s.did(ctx, k.Desk(), entry, err)
			return err
		}
		err = swept(sum)
		s.did(ctx, k.Desk(), entry, err)
		return errors.Join(s.print(to, web.SummaryOf(sum), table.Row{"found", "expired", "failed"}, table.Row{sum.Found, sum.Expired, sum.Failed}), err)
	})
}

// swept is what kept a round from expiring all that is overdue.
func swept(sum order.Summary) error {
	switch {
	case sum.Paused:
		return fmt.Errorf("%w: `lapse resume` ends that", order.ErrPaused)
	case sum.Failed > 0:
		return fmt.Errorf("%w: %d orders could not be expired and are tried again by the next round", errPartly, sum.Failed)
	}
	return nil
}
