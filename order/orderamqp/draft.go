package orderamqp

import (
	"fmt"
	"time"

	"github.com/lapse-go/lapse/order"
)

// Draft is an order as it is asked for, by a message of [KindPlace] or over HTTP. The tags that are not
// for JSON describe it in the API's schema; order.Draft.Validate is what holds.
type Draft struct {
	ID       string   `json:"id,omitempty" minLength:"1" maxLength:"64" pattern:"^[!-~]+$" example:"A-1" doc:"Identifies the order: 1 to 64 printable ASCII characters without spaces, compared byte by byte. The same id with the same content is the same order, however often it is placed."`
	Customer string   `json:"customer,omitempty" maxLength:"255" doc:"The shop's own word for the customer, at most 255 bytes."`
	Region   string   `json:"region,omitempty" maxLength:"255" doc:"The shop's own word for the region, at most 255 bytes."`
	Tags     []string `json:"tags,omitempty" maxItems:"20" doc:"By which pending orders can be extended together: 1 to 64 printable ASCII characters without spaces each."`
	Lines    []Line   `json:"lines" minItems:"1" maxItems:"200" doc:"What is ordered, with all prices in one currency."`
	Window   string   `json:"window,omitempty" example:"30m" doc:"The time to pay, counted from when the order is placed by the database's clock: a duration from 1ms to 8760h, such as 90s, 30m or 1h30m. The service's default when absent."`
}

// Line is one article of an order.
type Line struct {
	SKU      string `json:"sku" minLength:"1" maxLength:"64" pattern:"^[!-~]+$" example:"kettle" doc:"The article: 1 to 64 printable ASCII characters without spaces. Several lines may have the same."`
	Quantity int64  `json:"quantity" minimum:"1" maximum:"1000000" example:"2" doc:"How many pieces."`
	Price    Money  `json:"price" doc:"Of one piece."`
}

// Money is an amount in minor units (cents) and its currency (ISO 4217).
type Money struct {
	Amount   int64  `json:"amount" minimum:"0" example:"1999" doc:"In the currency's minor unit: cents for EUR, yen for JPY."`
	Currency string `json:"currency" minLength:"3" maxLength:"3" pattern:"^[A-Z]{3}$" example:"EUR" doc:"An ISO 4217 code."`
}

// DraftOf is an order.Draft on the wire.
func DraftOf(d order.Draft) Draft {
	wire := Draft{ID: d.ID, Customer: d.Customer, Region: d.Region, Tags: d.Tags, Lines: linesOf(d.Lines)}
	if d.Window != 0 {
		wire.Window = d.Window.String()
	}
	return wire
}

func linesOf(lines []order.Line) []Line {
	wire := make([]Line, len(lines))
	for i, line := range lines {
		wire[i] = Line{line.SKU, line.Quantity, Money(line.Price)}
	}
	return wire
}

// Order is the draft without its wire form, not validated. The error wraps [order.ErrInvalid]: the window
// is no duration, or none at all. The rest of the draft is there all the same.
func (d Draft) Order() (order.Draft, error) {
	o := order.Draft{ID: d.ID, Customer: d.Customer, Region: d.Region, Tags: d.Tags, Lines: make([]order.Line, len(d.Lines))}
	for i, line := range d.Lines {
		o.Lines[i] = order.Line{SKU: line.SKU, Quantity: line.Quantity, Price: order.Money(line.Price)}
	}
	if d.Window == "" {
		return o, nil
	}
	window, err := time.ParseDuration(d.Window)
	if err != nil || window == 0 {
		return o, fmt.Errorf("%w: a window of %.80q: give a duration with its unit, such as 90s, 30m or 1h30m, or leave it out", order.ErrInvalid, d.Window)
	}
	o.Window = window
	return o, nil
}
