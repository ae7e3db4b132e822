package main

import (
	"fmt"
	"os"
	"slices"

	"gorm.io/gorm"

	"github.com/lapse-go/lapse/amqp/database"
	"github.com/lapse-go/lapse/migrations"
	"github.com/lapse-go/lapse/order"
	"github.com/lapse-go/lapse/order/checkout"
	"github.com/lapse-go/lapse/order/orderdb"
)

// tableFlag says where the orders are.
type tableFlag struct {
	Table string `help:"File that describes the shop's own table of orders, in YAML. The orders are in Lapse's tables when empty."`
}

// mapping is the description of the shop's own table, nil if there is none.
func (f tableFlag) mapping() (*orderdb.Mapping, error) {
	if f.Table == "" {
		return nil, nil
	}
	file, err := os.Open(f.Table)
	if err != nil {
		return nil, fmt.Errorf("%w: --table: %w", errConfig, err)
	}
	defer file.Close()
	m, err := orderdb.ReadMapping(file)
	if err != nil {
		return nil, fmt.Errorf("%w: --table %s: %w", errConfig, f.Table, err)
	}
	return &m, nil
}

// sets are the migrations that the program needs, all if there are none.
func (f tableFlag) sets() ([]migrations.Set, error) {
	m, err := f.mapping()
	if m == nil || err != nil {
		return nil, err
	}
	return migrations.OwnTable, nil
}

// kept is the orders, wherever they are.
type kept struct {
	*checkout.Closer
	order.Switch
	shop  *checkout.Checkout // nil if the orders are in a table of the shop's own
	table *orderdb.Table     // nil if they are not
	name  string             // of that table
}

// keep opens what closes the orders.
func (f tableFlag) keep(db *gorm.DB, cfg checkout.Config) (kept, error) {
	m, err := f.mapping()
	if err != nil {
		return kept{}, err
	}
	if m != nil {
		closer, table, err := checkout.NewForTable(db, *m, cfg)
		if err != nil {
			return kept{}, fmt.Errorf("%w: %w", errUsage, err)
		}
		return kept{Closer: closer, Switch: order.Switch{PauseSwitch: table}, table: table, name: m.Table}, nil
	}
	shop, err := checkout.New(db, cfg)
	if err != nil {
		return kept{}, fmt.Errorf("%w: %w", errUsage, err)
	}
	return kept{Closer: shop.Closer, Switch: order.Switch{PauseSwitch: shop.Repository}, shop: shop}, nil
}

// roles are those of this process. Of all, those that have nothing to do are left out.
func (k kept) roles(asked roles) (roles, error) {
	if slices.Equal(asked, checkout.Roles) {
		return k.Roles(), nil
	}
	if slices.Contains(asked, checkout.Place) && k.shop == nil {
		return nil, fmt.Errorf("%w: --role=%s: place is for orders in Lapse's tables, but --table says that they are in the shop's own", errUsage, asked)
	}
	return asked, nil
}

// shopFlags are those of the commands that work on orders in the database.
type shopFlags struct {
	placeFlags
	outputFlag
}

// placeFlags say where the orders are.
type placeFlags struct {
	databaseFlags
	tableFlag
	namespaceFlag
}

// with opens the shop for one thing to do.
func (f shopFlags) with(do func(*checkout.Checkout) error) error {
	return f.configured(checkout.Config{}, do)
}

func (f shopFlags) configured(cfg checkout.Config, do func(*checkout.Checkout) error) error {
	return f.wherever(cfg, func(k kept) error {
		if k.shop == nil {
			return fmt.Errorf("%w: the orders are in the shop's own table (--table, LAPSE_TABLE), so this is the shop's business: Lapse only closes them", errUsage)
		}
		return do(k.shop)
	})
}

// wherever opens the orders for one thing to do, wherever they are.
func (f placeFlags) wherever(cfg checkout.Config, do func(kept) error) error {
	db, closing, err := f.open(database.Options{})
	if err != nil {
		return err
	}
	defer closing()
	cfg.Namespace = f.Namespace
	k, err := f.keep(db, cfg)
	if err != nil {
		return err
	}
	return do(k)
}
