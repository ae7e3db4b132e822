package checkout_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/lapse-go/lapse/amqp/database"
	"github.com/lapse-go/lapse/order"
	"github.com/lapse-go/lapse/order/checkout"
)

// Shop is a checkout that keeps its carts in the same database.
type Shop struct {
	db     *gorm.DB
	orders *checkout.Checkout
}

func NewShop(dsn string) (*Shop, error) {
	db, err := database.Open(dsn, database.Options{})
	if err != nil {
		return nil, err
	}
	orders, err := checkout.New(db, checkout.Config{Namespace: "lapse", Window: 30 * time.Minute})
	if err != nil {
		return nil, err
	}
	return &Shop{db, orders}, nil
}

// Buy places the order and removes the cart, both or neither. Lines look like
//
//	order.Line{SKU: "kettle", Quantity: 2, Price: order.Money{Amount: 1999, Currency: "EUR"}} // cents
//
// and _, err := s.orders.SetStock(ctx, "kettle", 100) has to come before the first order for a kettle.
func (s *Shop) Buy(ctx context.Context, cart string, lines []order.Line) error {
	return database.Transact(ctx, s.db, func(tx *gorm.DB) error {
		if _, err := s.orders.PlaceIn(tx, order.Draft{ID: cart, Lines: lines}); err != nil {
			return err // for instance order.ErrOutOfStock
		}
		return tx.Exec("DELETE FROM carts WHERE id = ?", cart).Error
	})
}

// Paid is called by the payment provider, as often as it likes.
func (s *Shop) Paid(ctx context.Context, id, reference string, amount order.Money) (refund bool, err error) {
	_, err = s.orders.Pay(ctx, id, order.Payment{Reference: reference, Amount: amount})
	if errors.Is(err, order.ErrLatePayment) || errors.Is(err, order.ErrAlreadyPaid) {
		return true, nil
	}
	return false, err
}

// The README shows the code above, and that of the subscriber, and it works.
func TestTheReadmesExample(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	for file, bounds := range map[string][2]string{
		"example_test.go":            {"// Shop is a checkout", "// The README shows"},
		"subscriber_example_test.go": {"// Notifier tells", ""},
	} {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		_, code, _ := strings.Cut(string(source), bounds[0])
		if bounds[1] != "" {
			code, _, _ = strings.Cut(code, bounds[1])
		}
		if code = bounds[0] + strings.TrimRight(code, "\n"); !strings.Contains(string(readme), code) {
			t.Errorf("the README does not show the example in %s as it is there:\n%s", file, code)
		}
	}

	s := newShop(t, place{}, checkout.Config{})
	shop := &Shop{s.db, s.Checkout}
	if err := s.db.Exec("CREATE TABLE carts (id VARCHAR(64) PRIMARY KEY)").Error; err != nil {
		t.Fatal(err)
	}
	total := order.Money{Amount: 2 * 1999, Currency: "EUR"}
	lines := []order.Line{{SKU: articles[0], Quantity: 2, Price: order.Money{Amount: 1999, Currency: "EUR"}}}
	if err := shop.Buy(t.Context(), "cart-1", lines); err != nil {
		t.Fatal(err)
	}
	if refund, err := shop.Paid(t.Context(), "cart-1", "psp-1", total); refund || err != nil {
		t.Errorf("the payment was answered with %v, %v", refund, err)
	}
	if refund, err := shop.Paid(t.Context(), "cart-1", "psp-2", total); !refund || err != nil {
		t.Errorf("the second payment was answered with %v, %v", refund, err)
	}
	if o, err := s.Get(t.Context(), "cart-1"); err != nil || o.Status != order.Paid {
		t.Errorf("the order is %s, %v", o.Status, err)
	}
}
