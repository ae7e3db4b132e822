package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/lapse-go/lapse/order"
	"github.com/lapse-go/lapse/order/checkout"
	"github.com/lapse-go/lapse/order/orderdb"
	"github.com/lapse-go/lapse/order/web"
)

type orders struct {
	Place     orderPlace     `cmd:"" help:"Place an order, or all orders of a file."`
	Show      orderShow      `cmd:"" help:"Show an order and all that happened to it."`
	Pay       orderPay       `cmd:"" help:"Record a payment."`
	Cancel    orderCancel    `cmd:"" help:"Cancel pending orders and give their stock back."`
	Extend    orderExtend    `cmd:"" help:"Move the deadline of a pending order."`
	ExtendAll orderExtendAll `cmd:"" help:"Give all pending orders more time, or those with a tag."`
}

type orderShow struct {
	shopFlags
	ID string `arg:"" name:"id" help:"The order."`
}

func (c *orderShow) Run(ctx context.Context, to console) error {
	return c.wherever(checkout.Config{}, func(k kept) error {
		if k.table != nil {
			return c.showHead(ctx, to, k.table)
		}
		shop := k.shop
		o, err := shop.Get(ctx, c.ID)
		if err != nil {
			return err
		}
		timeline, err := shop.Timeline(ctx, c.ID)
		if err != nil {
			return err
		}
		if c.Output == "json" {
			return c.print(to, web.OrderOf(o, timeline...), nil)
		}
		if err := c.printOrder(to, o); err != nil {
			return err
		}
		var rows []table.Row
		for _, e := range timeline {
			rows = append(rows, table.Row{instant(e.At), e.Type, e.By.Who, e.By.Why, e.Detail})
		}
		return c.print(to, nil, table.Row{"when", "what", "who", "why", "detail"}, rows...)
	})
}

// head is what Lapse knows of an order in the shop's own table, as it is printed.
type head struct {
	ID       string    `json:"id"`
	Status   string    `json:"status"`
	Deadline time.Time `json:"deadline"`
}

func (c *orderShow) showHead(ctx context.Context, to console, t *orderdb.Table) error {
	found, err := t.Find(ctx, []string{c.ID})
	if err != nil {
		return err
	}
	o, ok := found[c.ID]
	if !ok {
		return fmt.Errorf("%w: %.80q", order.ErrNotFound, c.ID)
	}
	return c.print(to, head{o.ID, string(o.Status), o.Deadline}, table.Row{"order", "status", "deadline"}, table.Row{o.ID, o.Status, instant(o.Deadline)})
}

// printOrder prints an order as it is now.
func (f outputFlag) printOrder(to console, o order.Order) error {
	if f.Output == "json" {
		return f.print(to, web.OrderOf(o), nil)
	}
	rows := []table.Row{
		{"order", o.ID},
		{"status", o.Status},
		{"total", o.Total},
		{"placed", instant(o.PlacedAt)},
		{"deadline", instant(o.Deadline)},
	}
	if !o.ClosedAt.IsZero() {
		rows = append(rows, table.Row{"closed", instant(o.ClosedAt)})
	}
	for _, more := range []struct{ name, text string }{{"customer", o.Customer}, {"region", o.Region}, {"tags", strings.Join(o.Tags, " ")}} {
		if more.text != "" {
			rows = append(rows, table.Row{more.name, more.text})
		}
	}
	for _, line := range o.Lines {
		rows = append(rows, table.Row{"line", fmt.Sprintf("%d × %s at %s", line.Quantity, line.SKU, line.Price)})
	}
	for _, p := range o.Payments {
		text := fmt.Sprintf("%s by %s at %s", p.Amount, p.Reference, instant(p.At))
		if p.Late {
			text += ", too late: to be refunded"
		}
		rows = append(rows, table.Row{"payment", text})
	}
	return f.print(to, nil, nil, rows...)
}

type orderPay struct {
	shopFlags
	ID        string `arg:"" name:"id" help:"The order."`
	Reference string `required:"" env:"LAPSE_PAY_REFERENCE" help:"Of the payment at the payment provider. The same again is the same payment."`
	Amount    money  `env:"LAPSE_PAY_AMOUNT" help:"In minor units with the currency, such as 1999EUR; the order's total when not given."`
}

func (c *orderPay) Run(ctx context.Context, to console) error {
	return c.with(func(shop *checkout.Checkout) error {
		o, err := shop.Pay(ctx, c.ID, order.Payment{Reference: c.Reference, Amount: order.Money(c.Amount)})
		if err != nil {
			return err
		}
		return c.printOrder(to, o)
	})
}

type orderCancel struct {
	shopFlags
	byFlags
	IDs []string `arg:"" name:"id" help:"Orders."`
}

func (c *orderCancel) Run(ctx context.Context, to console) error {
	return c.with(func(shop *checkout.Checkout) error {
		var cancelled []order.Order
		var failed []error
		for _, id := range c.IDs {
			o, err := shop.Cancel(ctx, id, c.by())
			c.didOne(ctx, shop.Desk(), "order.cancel", id, err)
			if err != nil {
				failed = append(failed, err)
			} else {
				cancelled = append(cancelled, o)
			}
		}
		return errors.Join(c.printOrders(to, cancelled), partly(len(cancelled), failed))
	})
}

type orderExtend struct {
	shopFlags
	byFlags
	ID string    `arg:"" name:"id" help:"The order."`
	By duration  `xor:"to" required:"" env:"LAPSE_EXTEND_BY" help:"By how much from its present deadline, such as 20m. Not known when it comes again: after an error look at the order first."`
	To time.Time `xor:"to" required:"" env:"LAPSE_EXTEND_TO" help:"New deadline, such as 2030-01-31T12:30:00Z."`
}

func (c *orderExtend) Run(ctx context.Context, to console) error {
	return c.with(func(shop *checkout.Checkout) error {
		o, err := c.extend(ctx, shop)
		c.didOne(ctx, shop.Desk(), "order.extend", c.ID, err)
		if err != nil {
			return err
		}
		return c.printOrder(to, o)
	})
}

func (c *orderExtend) extend(ctx context.Context, shop *checkout.Checkout) (order.Order, error) {
	deadline := c.To
	if deadline.IsZero() {
		o, err := shop.Get(ctx, c.ID)
		if err != nil {
			return order.Order{}, err
		}
		deadline = o.Deadline.Add(c.By.time())
	}
	return shop.Extend(ctx, c.ID, deadline, c.by())
}

type orderExtendAll struct {
	shopFlags
	byFlags
	By  duration `required:"" env:"LAPSE_EXTEND_ALL_BY" help:"By how much, such as 20m."`
	Tag string   `env:"LAPSE_EXTEND_ALL_TAG" help:"Only the orders with this tag."`
	Key string   `env:"LAPSE_EXTEND_ALL_KEY" help:"Of the request, which is done once however often it is made. A new one when not given."`
}

func (c *orderExtendAll) Run(ctx context.Context, to console) error {
	return c.with(func(shop *checkout.Checkout) error {
		request := order.ExtendRequest{Key: c.Key, More: c.By.time(), Tag: c.Tag, By: c.by()}
		if request.Key == "" {
			request.Key = order.NewID()
		}
		progress, err := shop.ExtendAll(ctx, request)
		entry := web.ExtendAllEntry(request)
		entry.Count = progress.Extended
		c.did(ctx, shop.Desk(), entry, err)
		if errors.Is(err, order.ErrUnavailable) {
			return fmt.Errorf("%w\nSome orders may have more time already. To go on where it stopped: the same command with --key %s", err, request.Key)
		}
		if err != nil {
			return err
		}
		return c.print(to, web.ProgressOf(progress), table.Row{"key", "extended"}, table.Row{progress.Key, progress.Extended})
	})
}

// printOrders prints a list, a row each.
func (f outputFlag) printOrders(to console, list []order.Order) error {
	if len(list) == 0 && f.Output == "table" {
		return nil
	}
	data := make([]*web.Order, len(list))
	rows := make([]table.Row, 0, len(list))
	for i, o := range list {
		data[i] = web.OrderOf(o)
		rows = append(rows, table.Row{o.ID, o.Status, o.Total, instant(o.Deadline)})
	}
	return f.print(to, data, table.Row{"order", "status", "total", "deadline"}, rows...)
}

// partly is the error of several things done, of which these failed.
func partly(done int, failed []error) error {
	err := errors.Join(failed...)
	if done == 0 || err == nil {
		return err
	}
	return fmt.Errorf("%w: %d done, %d failed:\n%w", errPartly, done, len(failed), err)
}
