package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/lapse-go/lapse/order"
	"github.com/lapse-go/lapse/order/checkout"
	"github.com/lapse-go/lapse/order/orderamqp"
)

type orderPlace struct {
	shopFlags
	windowFlag
	ID       string   `arg:"" optional:"" name:"id" help:"Of the order: the same one with the same content is the same order. A new one when not given."`
	Line     []line   `sep:"none" env:"LAPSE_PLACE_LINE" help:"SKU:QUANTITY:PRICE of one piece in minor units with the currency, such as kettle:2:1999EUR. May be given several times."`
	Customer string   `env:"LAPSE_PLACE_CUSTOMER" help:"The shop's own name for the customer."`
	Region   string   `env:"LAPSE_PLACE_REGION" help:"The shop's own name for the region."`
	Tag      []string `env:"LAPSE_PLACE_TAG" help:"For extend-all. May be given several times."`
	File     string   `short:"f" env:"LAPSE_PLACE_FILE" help:"A file of orders instead: JSON objects like the body of POST /v1/orders, one after the other; - for standard input."`
}

// placedAtOnce is how many orders of a file are placed together.
const placedAtOnce = 200

func (c *orderPlace) Run(ctx context.Context, to console) error {
	if err := c.windowFlag.validate(); err != nil {
		return err
	}
	return c.configured(checkout.Config{Window: c.Window.time()}, func(shop *checkout.Checkout) error {
		if c.File != "" {
			return c.placeFile(ctx, to, shop)
		}
		if len(c.Line) == 0 {
			return fmt.Errorf("%w: no lines: give --line kettle:2:1999EUR, or --file", errUsage)
		}
		d := order.Draft{ID: c.ID, Customer: c.Customer, Region: c.Region, Tags: c.Tag}
		for _, l := range c.Line {
			d.Lines = append(d.Lines, order.Line(l))
		}
		placed, err := shop.PlaceAll(ctx, []order.Draft{d})
		if err != nil {
			return err
		}
		if placed[0].Err != nil {
			return placed[0].Err
		}
		if placed[0].Repeated {
			fmt.Fprintf(to.Err, "Order %s had been placed before; this is what became of it.\n", d.ID)
		}
		return c.printOrder(to, placed[0].Order)
	})
}

// placeFile places the orders of a file, which may be done again: those that were placed stay as they are.
func (c *orderPlace) placeFile(ctx context.Context, to console, shop *checkout.Checkout) error {
	if c.ID != "" || len(c.Line) > 0 || len(c.Tag) > 0 || c.Customer != "" || c.Region != "" {
		return fmt.Errorf("%w: give either one order or --file", errUsage)
	}
	drafts, err := c.read()
	if err != nil {
		return err
	}
	var placed []order.Order
	var failed []error
	for some := range slices.Chunk(drafts, placedAtOnce) {
		answers, err := shop.PlaceAll(ctx, some)
		if err != nil {
			failed = append(failed, fmt.Errorf("%w: the same command again goes on from here", err))
			break
		}
		for _, answer := range answers {
			if answer.Err != nil {
				failed = append(failed, answer.Err)
			} else {
				placed = append(placed, answer.Order)
			}
		}
	}
	return errors.Join(c.printOrders(to, placed), partly(len(placed), failed))
}

func (c *orderPlace) read() ([]order.Draft, error) {
	if c.File == "-" {
		return readDrafts(os.Stdin)
	}
	f, err := os.Open(c.File)
	if err != nil {
		return nil, fmt.Errorf("%w: --file: %w", errUsage, err)
	}
	defer f.Close()
	return readDrafts(f)
}

func readDrafts(r io.Reader) ([]order.Draft, error) {
	decoder := json.NewDecoder(r)
	var drafts []order.Draft
	for {
		var text json.RawMessage
		err := decoder.Decode(&text)
		if errors.Is(err, io.EOF) && len(drafts) > 0 {
			return drafts, nil
		}
		var d order.Draft
		if err == nil {
			d, err = orderamqp.ReadDraft(text)
		}
		if err == nil {
			err = order.ValidateID("order id", d.ID) // without one it would be another order each time
		}
		if err != nil {
			return nil, fmt.Errorf("%w: --file: order %d: %w; nothing was placed", errUsage, len(drafts)+1, err)
		}
		drafts = append(drafts, d)
	}
}
