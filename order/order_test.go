package order_test

import (
	"errors"
	"math"
	"math/big"
	"regexp"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/lapse-go/lapse/order"
)

func TestDraftsAreRefused(t *testing.T) {
	for _, test := range []struct {
		says   string // what the error has to say
		change func(*order.Draft)
	}{
		{"no order id: give one", func(d *order.Draft) { d.ID = "" }},
		{"printable ASCII", func(d *order.Draft) { d.ID = "o 1" }},
		{"printable ASCII", func(d *order.Draft) { d.ID = "ö-1" }},
		{"printable ASCII", func(d *order.Draft) { d.ID = "o\x7f" }},
		{"1 to 64", func(d *order.Draft) { d.ID = strings.Repeat("o", 65) }},
		{"0 lines: give 1 to 200", func(d *order.Draft) { d.Lines = nil }},
		{"201 lines", func(d *order.Draft) { d.Lines = make([]order.Line, 201) }},
		{"line 2: quantity 0", func(d *order.Draft) { d.Lines[1].Quantity = 0 }},
		{"line 2: quantity 1000001", func(d *order.Draft) { d.Lines[1].Quantity = 1_000_001 }},
		{"line 1: invalid: no sku", func(d *order.Draft) { d.Lines[0].SKU = "" }},
		{"ISO 4217", func(d *order.Draft) { d.Lines[0].Price.Currency = "eur" }},
		{"not negative", func(d *order.Draft) { d.Lines[0].Price.Amount = -1 }},
		{"in one currency", func(d *order.Draft) { d.Lines[1].Price.Currency = "USD" }},
		{"more than can be counted", func(d *order.Draft) { d.Lines[0].Price.Amount = math.MaxInt64/2 + 1 }},
		{"more than can be counted", func(d *order.Draft) {
			d.Lines[0] = order.Line{SKU: "a", Quantity: 1, Price: eur(math.MaxInt64)}
		}},
		{"21 tags", func(d *order.Draft) { d.Tags = make([]string, 21) }},
		{"no tag: give one", func(d *order.Draft) { d.Tags = []string{""} }},
		{"customer has 256 bytes", func(d *order.Draft) { d.Customer = strings.Repeat("c", 256) }},
		{"valid UTF-8", func(d *order.Draft) { d.Region = "\xff" }},
		{"a window of -1s", func(d *order.Draft) { d.Window = -time.Second }},
		{"a window of 8760h0m1s", func(d *order.Draft) { d.Window = order.MaxWindow + time.Second }},
	} {
		d := sample()
		test.change(&d)
		if err := d.Validate(); !errors.Is(err, order.ErrInvalid) || !strings.Contains(err.Error(), test.says) {
			t.Errorf("want %q, got: %v", test.says, err)
		}
	}
	d := sample()
	d.ID, d.Customer, d.Window = strings.Repeat("~", 64), "👟", time.Millisecond
	if err := d.Validate(); err != nil {
		t.Error(err)
	}
}

func TestHashIsThatOfTheContent(t *testing.T) {
	same, other := sample(), sample()
	same.Tags, same.Window, same.ID, same.Request = []string{"vip", "web"}, time.Hour, "o-2", "r-1"
	if same.Hash() != sample().Hash() {
		t.Error("the order of the tags, the window, the id and the request are no content")
	}
	for i, change := range []func(*order.Draft){
		func(d *order.Draft) { d.Customer, d.Region = d.Customer+d.Region, "" },
		func(d *order.Draft) { d.Tags = []string{"vip"} },
		func(d *order.Draft) { d.Tags = []string{"vipweb"} },
		func(d *order.Draft) { d.Lines[0].Quantity++ },
		func(d *order.Draft) { d.Lines[0].Price.Amount++ },
		func(d *order.Draft) { d.Lines[0].Price.Currency = "USD" },
		func(d *order.Draft) { d.Lines[0], d.Lines[1] = d.Lines[1], d.Lines[0] },
		func(d *order.Draft) { d.Lines = d.Lines[:1] },
	} {
		other = sample()
		change(&other)
		if other.Hash() == sample().Hash() {
			t.Errorf("change %d leaves the hash as it is", i)
		}
	}
}

func TestMoneyCountsOrFails(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := rapid.Int64().Draw(t, "a"), rapid.Int64().Draw(t, "b")
		check := func(got order.Money, err error, want *big.Int) {
			if err == nil && want.Cmp(big.NewInt(got.Amount)) != 0 || err != nil && want.IsInt64() {
				t.Fatalf("%d and %d: %d, %v", a, b, got.Amount, err)
			}
		}
		sum, err := eur(a).Add(eur(b))
		check(sum, err, new(big.Int).Add(big.NewInt(a), big.NewInt(b)))
		a, b = max(a, -(a+1)), max(b, -(b+1))
		product, err := eur(a).Times(b)
		check(product, err, new(big.Int).Mul(big.NewInt(a), big.NewInt(b)))
	})
	for want, m := range map[string]order.Money{
		"EUR 12.34": eur(1234), "EUR 0.05": eur(5), "EUR -0.05": eur(-5), "EUR 0.00": eur(0),
		"JPY 500": {Amount: 500, Currency: "JPY"}, "KWD 0.012": {Amount: 12, Currency: "KWD"},
		"EUR -92233720368547758.08": eur(math.MinInt64), "no amount": {},
	} {
		if got := m.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestNewIDsAreUUIDs(t *testing.T) {
	form := regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
	a := order.NewID()
	time.Sleep(2 * time.Millisecond) // they are told apart by the millisecond
	if b := order.NewID(); !form.MatchString(a) || !form.MatchString(b) || a >= b {
		t.Errorf("%s, then %s", a, b)
	}
}
