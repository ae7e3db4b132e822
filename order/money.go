package order

import (
	"fmt"
	"math/bits"
	"strconv"
	"strings"
)

// Money is an amount in a currency. The zero Money means that no amount was given.
type Money struct {
	// Amount is in the currency's minor unit: cents for EUR, yen for JPY.
	Amount int64
	// Currency is an ISO 4217 code, for instance EUR.
	Currency string
}

// minorDigits are the currencies whose minor unit is not a hundredth (ISO 4217).
var minorDigits = map[string]int{
	"BIF": 0, "CLP": 0, "DJF": 0, "GNF": 0, "ISK": 0, "JPY": 0, "KMF": 0, "KRW": 0, "PYG": 0,
	"RWF": 0, "UGX": 0, "UYI": 0, "VND": 0, "VUV": 0, "XAF": 0, "XOF": 0, "XPF": 0,
	"BHD": 3, "IQD": 3, "JOD": 3, "KWD": 3, "LYD": 3, "OMR": 3, "TND": 3,
	"CLF": 4, "UYW": 4,
}

// Add is m + n. It fails if the currencies differ or the sum does not fit in 64 bits.
func (m Money) Add(n Money) (Money, error) {
	if m.Currency != n.Currency {
		return Money{}, invalid("%s and %s cannot be added: give all prices of an order in one currency", m.Currency, n.Currency)
	}
	sum := m.Amount + n.Amount
	if (sum > m.Amount) != (n.Amount > 0) {
		return Money{}, invalid("%s plus %s is more than can be counted", m, n)
	}
	return Money{Amount: sum, Currency: m.Currency}, nil
}

// Times is m × n for n ≥ 0. It fails if the product does not fit in 64 bits or m is negative.
func (m Money) Times(n int64) (Money, error) {
	if m.Amount < 0 || n < 0 {
		return Money{}, invalid("%d times %s: give amounts that are not negative", n, m)
	}
	high, low := bits.Mul64(uint64(m.Amount), uint64(n))
	if high != 0 || low > 1<<63-1 {
		return Money{}, invalid("%d times %s is more than can be counted", n, m)
	}
	return Money{Amount: int64(low), Currency: m.Currency}, nil
}

// String is for people: "EUR 12.34".
func (m Money) String() string {
	if m == (Money{}) {
		return "no amount"
	}
	digits, unusual := minorDigits[m.Currency]
	if !unusual {
		digits = 2
	}
	sign, amount := "", strconv.FormatInt(m.Amount, 10)
	if m.Amount < 0 {
		sign, amount = "-", amount[1:]
	}
	if digits > 0 {
		if missing := digits + 1 - len(amount); missing > 0 {
			amount = strings.Repeat("0", missing) + amount
		}
		point := len(amount) - digits
		amount = amount[:point] + "." + amount[point:]
	}
	return fmt.Sprintf("%s %s%s", m.Currency, sign, amount)
}

func (m Money) validate() error {
	if len(m.Currency) != 3 || strings.Trim(m.Currency, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") != "" {
		return invalid("currency %.80q: give an ISO 4217 code such as EUR", m.Currency)
	}
	if m.Amount < 0 {
		return invalid("amount %s: give one that is not negative", m)
	}
	return nil
}
