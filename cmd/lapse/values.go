package main

import (
	"bytes"
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/amqp/deadletter"
	"github.com/lapse-go/lapse/order"
	"github.com/lapse-go/lapse/order/checkout"
)

// The types of flags' values say what is wrong with a text, and what would be right.

// wholeNumber reads an int or an int64.
func wholeNumber(ctx *kong.DecodeContext, target reflect.Value) error {
	var text string
	if err := ctx.Scan.PopValueInto("number", &text); err != nil {
		return err
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return fmt.Errorf("%q is no whole number: give one such as %s", text, cmp.Or(ctx.Value.Default, "12"))
	}
	target.SetInt(n)
	return nil
}

// duration is a delay or a period.
type duration time.Duration

func (d *duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil {
		return fmt.Errorf("%q is no duration: give a number with its unit, such as 500ms, 30s, 5m or 1h30m", text)
	}
	*d = duration(v)
	return nil
}

func (d duration) time() time.Duration { return time.Duration(d) }

// String is the shortest form that means the same: 30m, not 30m0s.
func (d duration) String() string { return amqp.RungName(time.Duration(d)) }

// ladder is the delays for which there is a queue each.
type ladder amqp.Ladder

func (l *ladder) UnmarshalText(text []byte) error {
	v, err := amqp.ParseLadder(string(text))
	*l = ladder(v)
	return err
}

func (l ladder) String() string { return amqp.Ladder(l).String() }

// roles are what a process does.
type roles []checkout.Role

func (r *roles) UnmarshalText(text []byte) error {
	v, err := checkout.ParseRoles(string(text))
	*r = v
	return err
}

func (r roles) String() string {
	words := make([]string, len(r))
	for i, role := range r {
		words[i] = string(role)
	}
	return strings.Join(words, ",")
}

// money is an amount in minor units and its currency: 1999EUR.
type money order.Money

func (m *money) UnmarshalText(text []byte) error {
	digits := bytes.TrimRight(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZ")
	amount, err := strconv.ParseInt(string(digits), 10, 64)
	if err != nil || len(text)-len(digits) != 3 {
		return fmt.Errorf("%q is no amount: give minor units and the currency, such as 1999EUR for EUR 19.99", text)
	}
	*m = money{Amount: amount, Currency: string(text[len(digits):])}
	return nil
}

// line is one article of an order: kettle:2:1999EUR.
type line order.Line

func (l *line) UnmarshalText(text []byte) error {
	parts := strings.Split(string(text), ":")
	n := len(parts)
	if n < 3 {
		return fmt.Errorf("%q is no line: give SKU:QUANTITY:PRICE, such as kettle:2:1999EUR", text)
	}
	quantity, err := strconv.ParseInt(parts[n-2], 10, 64)
	if err != nil {
		return fmt.Errorf("%q is no quantity: give whole pieces, such as kettle:2:1999EUR", parts[n-2])
	}
	var price money
	if err := price.UnmarshalText([]byte(parts[n-1])); err != nil {
		return err
	}
	// A sku may have colons of its own.
	*l = line{SKU: strings.Join(parts[:n-2], ":"), Quantity: quantity, Price: order.Money(price)}
	return nil
}

// moment is an instant, or how long ago it was.
type moment time.Time

func (m *moment) UnmarshalText(text []byte) error {
	if t, err := time.Parse(time.RFC3339, string(text)); err == nil {
		*m = moment(t)
		return nil
	}
	ago, err := time.ParseDuration(strings.TrimSuffix(string(text), " ago"))
	if err != nil || ago < 0 {
		return fmt.Errorf("%q is no time: give a time such as 2026-05-01T12:00:00Z, or how long ago, such as 2h", text)
	}
	*m = moment(time.Now().Add(-ago))
	return nil
}

func (m moment) time() time.Time { return time.Time(m) }

// reason is why messages died.
type reason deadletter.Reason

func (r *reason) UnmarshalText(text []byte) error {
	if !slices.Contains(deadletter.Reasons, deadletter.Reason(text)) {
		return fmt.Errorf("%q is no reason: give one of %s", text, listed(deadletter.Reasons))
	}
	*r = reason(text)
	return nil
}

// listed is a list as people write it.
func listed[T ~string](all []T) string {
	words := make([]string, len(all))
	for i, word := range all {
		words[i] = string(word)
	}
	return strings.Join(words, ", ")
}
