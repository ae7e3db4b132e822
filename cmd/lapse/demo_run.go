package main

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	"gorm.io/gorm"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/amqp/deadletter"
	"github.com/lapse-go/lapse/order"
	"github.com/lapse-go/lapse/order/web"
)

// demoRun is one demonstration on its way.
type demoRun struct {
	*web.Client
	topology amqp.Topology
	db       *gorm.DB
	broker   *amqp.Conn
	to       console

	letters  []deadletter.Letter // of the bad messages
	job      deadletter.Replay
	returned []deadletter.Letter // open once they were replayed
	result   demoResult
}

func (d *demoRun) run(ctx context.Context) error {
	for _, sku := range demoArticles {
		if _, err := d.SetStock(ctx, sku, demoStock); err != nil {
			return err
		}
	}
	plans := demoPlans()
	customers, acting := errgroup.WithContext(ctx)
	for i, p := range plans {
		placed, err := d.Place(ctx, order.Draft{
			ID: p.id, Customer: "demo", Window: p.window,
			Lines: []order.Line{
				{SKU: demoArticles[i%4], Quantity: 1, Price: order.Money{Amount: 1999, Currency: "EUR"}},
				{SKU: demoArticles[(i+1)%4], Quantity: 2, Price: order.Money{Amount: 450, Currency: "EUR"}},
			},
		})
		if err != nil {
			return err
		}
		if p.do != nil {
			customers.Go(func() error {
				if err := rest(acting, p.after); err != nil {
					return err
				}
				return p.do(acting, d, placed)
			})
		}
	}
	if err := d.publishBad(ctx); err != nil {
		return err
	}
	if err := d.awaitEnd(ctx); err != nil {
		return err
	}
	if err := customers.Wait(); err != nil {
		return err
	}
	if err := d.work(ctx); err != nil {
		return err
	}
	return d.judge(ctx, plans)
}

// awaitEnd shows progress until no order is pending and all that cannot succeed is a dead letter.
func (d *demoRun) awaitEnd(ctx context.Context) error {
	start := time.Now()
	for {
		counts, err := d.counts(ctx)
		if err != nil {
			return err
		}
		letters, _, n, err := d.DeadLetters(ctx, deadletter.Filter{State: deadletter.Open}, deadletter.Page{Oldest: true})
		if err != nil {
			return err
		}
		fmt.Fprintf(d.to.Err, "%4.0fs  pending %2d  paid %2d  cancelled %d  expired %2d  dead letters %d\n", time.Since(start).Seconds(),
			counts[order.Pending], counts[order.Paid], counts[order.Cancelled], counts[order.Expired], n)
		if counts[order.Pending] == 0 && len(letters) >= len(bad) {
			d.letters = letters
			return nil
		}
		if err := rest(ctx, time.Second); err != nil {
			return fmt.Errorf("orders or dead letters are still missing: %w", context.Cause(ctx))
		}
	}
}

func (d *demoRun) counts(ctx context.Context) (map[order.Status]int, error) {
	var rows []struct {
		Status order.Status
		N      int
	}
	err := d.db.WithContext(ctx).Raw("SELECT status, COUNT(*) AS n FROM lapse_orders GROUP BY status").Scan(&rows).Error
	counts := map[order.Status]int{}
	for _, row := range rows {
		counts[row.Status] = row.N
	}
	return counts, err
}

func rest(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
