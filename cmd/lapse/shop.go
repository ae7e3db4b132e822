package main

import (
	"fmt"

	"github.com/lapse-go/lapse/amqp/database"
	"github.com/lapse-go/lapse/order/checkout"
)

// shopFlags are those of the commands that work on orders in the database.
type shopFlags struct {
	databaseFlags
	namespaceFlag
	outputFlag
}

// with opens the shop for one thing to do.
func (f shopFlags) with(do func(*checkout.Checkout) error) error {
	return f.configured(checkout.Config{}, do)
}

func (f shopFlags) configured(cfg checkout.Config, do func(*checkout.Checkout) error) error {
	db, closing, err := f.open(database.Options{})
	if err != nil {
		return err
	}
	defer closing()
	cfg.Namespace = f.Namespace
	shop, err := checkout.New(db, cfg)
	if err != nil {
		return fmt.Errorf("%w: %w", errUsage, err)
	}
	return do(shop)
}
