package order

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Bounds of an order. They keep a batch of orders well within one database packet.
const (
	MaxIDBytes        = 64 // of ids, skus, tags and request keys
	MaxReferenceBytes = 128
	MaxTextBytes      = 255 // of customer, region and who
	MaxWhyBytes       = 1000
	MaxLines          = 200
	MaxTags           = 20
	MaxQuantity       = 1_000_000 // of one line
	MinWindow         = time.Millisecond
	// MaxWindow is how far ahead a deadline may be: a year.
	MaxWindow = 365 * 24 * time.Hour
	// DefaultWindow is the time to pay unless the order or the [Service] says otherwise.
	DefaultWindow = 30 * time.Minute
)

// Order is what a customer ordered, and what became of it.
type Order struct {
	// ID is 1 to 64 bytes from 0x21 to 0x7E, compared byte by byte.
	ID string
	// Customer and Region are the shop's own words; both may be empty.
	Customer string
	Region   string
	// Tags are in ascending order, each once.
	Tags  []string
	Lines []Line
	Total Money

	Status   Status
	PlacedAt time.Time
	// Window is the time to pay that the order was placed with.
	Window time.Duration
	// Deadline is the instant from which the order may be expired while it is pending.
	Deadline time.Time
	// ClosedAt is when the order was paid, cancelled or expired; zero while it is pending.
	ClosedAt time.Time
	// Version counts the order's events: 1 when placed, and one more with each change.
	Version int64
	// Payments are all that came, in the order in which they came. At most one is not late.
	Payments []Payment
}

// Line is one article of an order.
type Line struct {
	// SKU is 1 to 64 bytes from 0x21 to 0x7E. Several lines may have the same.
	SKU string
	// Quantity is from 1 to [MaxQuantity].
	Quantity int64
	// Price is for one piece, zero or more.
	Price Money
}

// Payment is money that came for an order.
type Payment struct {
	// Reference identifies the payment at the payment provider: 1 to 128 bytes from 0x21 to 0x7E.
	Reference string
	// Amount is the order's total when not given, or what was recorded if the payment came before.
	Amount Money
	// At is when it was recorded.
	At time.Time
	// Late says that the order was not pending any more, so that the money has to be given back.
	Late bool
}

// By says who did something, and why. Both may be empty.
type By struct {
	Who string // at most 255 bytes
	Why string // at most 1000 bytes
}

// Draft is an order as the checkout gives it.
type Draft struct {
	ID       string
	Customer string
	Region   string
	Tags     []string // in any order; at most 20
	Lines    []Line   // 1 to 200, all prices in one currency
	// Window is the time to pay, from a millisecond to a year. [DefaultWindow] when zero.
	Window time.Duration
	// Request, if set, names the request that the draft came with and comes with again: should it be
	// refused each time, that is one order.refused with one id. It is no part of the order.
	Request string
}

// Validate says what is wrong with the draft, or nil. The error wraps [ErrInvalid].
func (d Draft) Validate() error {
	_, err := d.total()
	switch {
	case err != nil:
		return err
	case len(d.Tags) > MaxTags:
		return invalid("%d tags: give at most %d", len(d.Tags), MaxTags)
	case d.Window != 0 && (d.Window < MinWindow || d.Window > MaxWindow):
		return invalid("a window of %s: give %s to %s", d.Window, MinWindow, MaxWindow)
	}
	if err := ValidateID("order id", d.ID); err != nil {
		return err
	}
	if err := validateText("customer", d.Customer, MaxTextBytes); err != nil {
		return err
	}
	if err := validateText("region", d.Region, MaxTextBytes); err != nil {
		return err
	}
	for _, tag := range d.Tags {
		if err := ValidateID("tag", tag); err != nil {
			return err
		}
	}
	return nil
}

// total is the sum of the lines, which it validates.
func (d Draft) total() (Money, error) {
	if len(d.Lines) == 0 || len(d.Lines) > MaxLines {
		return Money{}, invalid("%d lines: give 1 to %d", len(d.Lines), MaxLines)
	}
	sum := Money{Currency: d.Lines[0].Price.Currency}
	for i, line := range d.Lines {
		if err := ValidateID("sku", line.SKU); err != nil {
			return Money{}, fmt.Errorf("line %d: %w", i+1, err)
		}
		if err := line.Price.validate(); err != nil {
			return Money{}, fmt.Errorf("line %d: %w", i+1, err)
		}
		if line.Quantity < 1 || line.Quantity > MaxQuantity {
			return Money{}, invalid("line %d: quantity %d: give 1 to %d", i+1, line.Quantity, MaxQuantity)
		}
		price, err := line.Price.Times(line.Quantity)
		if err == nil {
			sum, err = sum.Add(price)
		}
		if err != nil {
			return Money{}, fmt.Errorf("line %d: %w", i+1, err)
		}
	}
	return sum, nil
}

// Hash is the same for drafts with the same content: customer, region, tags in any order, and lines.
// The window is no part of it, so that a checkout that tries again may give the time that is left.
func (d Draft) Hash() [sha256.Size]byte {
	h := sha256.New()
	text := func(s string) {
		_ = binary.Write(h, binary.BigEndian, int64(len(s)))
		h.Write([]byte(s))
	}
	number := func(n int64) { _ = binary.Write(h, binary.BigEndian, n) }
	text(d.Customer)
	text(d.Region)
	tags := sortedTags(d.Tags)
	number(int64(len(tags)))
	for _, tag := range tags {
		text(tag)
	}
	for _, line := range d.Lines {
		text(line.SKU)
		number(line.Quantity)
		number(line.Price.Amount)
		text(line.Price.Currency)
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// bounded is the draft without what is longer than an order may have, and of the default window if its
// own is none. It need not be valid otherwise.
func (d Draft) bounded() Draft {
	tooLong := func(id string) bool { return len(id) > MaxIDBytes }
	if len(d.Customer) > MaxTextBytes {
		d.Customer = ""
	}
	if len(d.Region) > MaxTextBytes {
		d.Region = ""
	}
	if len(d.Tags) > MaxTags || slices.ContainsFunc(d.Tags, tooLong) {
		d.Tags = nil
	}
	if len(d.Lines) > MaxLines || slices.ContainsFunc(d.Lines, func(l Line) bool { return tooLong(l.SKU) || tooLong(l.Price.Currency) }) {
		d.Lines = nil
	}
	if d.Window < MinWindow || d.Window > MaxWindow {
		d.Window = DefaultWindow
	}
	return d
}

func sortedTags(tags []string) []string {
	sorted := slices.Clone(tags)
	slices.Sort(sorted)
	return slices.Compact(sorted)
}

// Validate says what is wrong with the payment, or nil. The error wraps [ErrInvalid].
func (p Payment) Validate() error {
	if err := validateName("payment reference", p.Reference, MaxReferenceBytes); err != nil {
		return err
	}
	if p.Amount == (Money{}) {
		return nil
	}
	return p.Amount.validate()
}

// Validate says what is wrong with who and why, or nil. The error wraps [ErrInvalid].
func (b By) Validate() error {
	if err := validateText("who", b.Who, MaxTextBytes); err != nil {
		return err
	}
	return validateText("why", b.Why, MaxWhyBytes)
}

// ValidateID says what is wrong with an id, or nil. Name is what to call it in the error, which
// wraps [ErrInvalid].
func ValidateID(name, id string) error { return validateName(name, id, MaxIDBytes) }

// validateName holds ids to printable ASCII without spaces: a database may compare anything else
// loosely, and the answer would then not be found under the id that was asked for.
func validateName(name, s string, most int) error {
	if s == "" {
		return invalid("no %s: give one", name)
	}
	printable := strings.IndexFunc(s, func(r rune) bool { return r < 0x21 || r > 0x7E }) < 0
	if len(s) > most || !printable {
		return invalid("%s %.80q: give 1 to %d printable ASCII characters without spaces", name, s, most)
	}
	return nil
}

func validateText(name, s string, most int) error {
	if len(s) > most {
		return invalid("%s has %d bytes: give at most %d", name, len(s), most)
	}
	if !utf8.ValidString(s) {
		return invalid("%s %.80q: give valid UTF-8", name, s)
	}
	return nil
}

// NewID makes an order id in the form of a UUID, version 7: ids that are made later sort later.
func NewID() string {
	var b [16]byte
	_, _ = rand.Read(b[6:]) // never fails: https://pkg.go.dev/crypto/rand#Read
	ms := uint64(time.Now().UnixMilli())
	for i := range 6 {
		b[i] = byte(ms >> (40 - 8*i))
	}
	b[6] = b[6]&0x0F | 0x70
	b[8] = b[8]&0x3F | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
