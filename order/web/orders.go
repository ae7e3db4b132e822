package web

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/order"
	"github.com/lapse-go/lapse/order/orderamqp"
)

// Order is an order as JSON.
type Order struct {
	_ struct{} `additionalProperties:"true"`

	ID       string           `json:"id" doc:"Printable ASCII without spaces, compared byte by byte."`
	Customer string           `json:"customer,omitempty"`
	Region   string           `json:"region,omitempty"`
	Tags     []string         `json:"tags,omitempty" nullable:"false"`
	Lines    []orderamqp.Line `json:"lines" nullable:"false"`
	Total    orderamqp.Money  `json:"total"`
	Status   order.Status     `json:"status" enum:"pending,paid,cancelled,expired" doc:"Pending, then exactly one of the others for good: paid, cancelled by a person, expired by its deadline."`
	PlacedAt time.Time        `json:"placed_at"`
	Window   string           `json:"window" doc:"The time to pay that it was placed with." example:"30m"`
	Deadline time.Time        `json:"deadline" doc:"From when on it may be expired while it is pending."`
	ClosedAt *time.Time       `json:"closed_at,omitempty"`
	Version  int64            `json:"version" doc:"Counts the order's events: 1 when placed."`
	Payments []Payment        `json:"payments,omitempty" nullable:"false" doc:"All that came, in the order in which they came."`
	Timeline []Entry          `json:"timeline,omitempty" nullable:"false" doc:"What happened to it, when the order is asked for."`
}

// Payment is a payment as JSON.
type Payment struct {
	_ struct{} `additionalProperties:"true"`

	Reference string          `json:"reference"`
	Amount    orderamqp.Money `json:"amount"`
	At        time.Time       `json:"at"`
	Late      bool            `json:"late" doc:"It came when the order was closed, and has to be refunded."`
}

// Entry is a line of an order's timeline as JSON.
type Entry struct {
	_ struct{} `additionalProperties:"true"`

	Version int64           `json:"version"`
	At      time.Time       `json:"at"`
	Type    order.EventType `json:"type"`
	Who     string          `json:"who,omitempty"`
	Why     string          `json:"why,omitempty"`
	Detail  string          `json:"detail" doc:"For people."`
}

// OrderOf is the order as JSON, with its timeline or without.
func OrderOf(o order.Order, timeline ...order.Entry) *Order {
	b := &Order{
		ID: o.ID, Customer: o.Customer, Region: o.Region, Tags: o.Tags, Lines: make([]orderamqp.Line, len(o.Lines)),
		Total: orderamqp.Money(o.Total), Status: o.Status, PlacedAt: o.PlacedAt.UTC(), Window: amqp.RungName(o.Window),
		Deadline: o.Deadline.UTC(), Version: o.Version,
	}
	for i, line := range o.Lines {
		b.Lines[i] = orderamqp.Line{SKU: line.SKU, Quantity: line.Quantity, Price: orderamqp.Money(line.Price)}
	}
	for _, p := range o.Payments {
		b.Payments = append(b.Payments, Payment{Reference: p.Reference, Amount: orderamqp.Money(p.Amount), At: p.At.UTC(), Late: p.Late})
	}
	if !o.ClosedAt.IsZero() {
		at := o.ClosedAt.UTC()
		b.ClosedAt = &at
	}
	for _, e := range timeline {
		if e.Version > o.Version {
			break // it happened after the order was read
		}
		b.Timeline = append(b.Timeline, Entry{Version: e.Version, At: e.At.UTC(), Type: e.Type, Who: e.By.Who, Why: e.By.Why, Detail: e.Detail})
	}
	return b
}

func (b *Order) order() (order.Order, error) {
	window, err := time.ParseDuration(b.Window)
	if err != nil {
		return order.Order{}, fmt.Errorf("the order's window: %w", err)
	}
	o := order.Order{
		ID: b.ID, Customer: b.Customer, Region: b.Region, Tags: b.Tags, Total: order.Money(b.Total), Status: b.Status,
		PlacedAt: b.PlacedAt, Window: window, Deadline: b.Deadline, Version: b.Version,
	}
	for _, line := range b.Lines {
		o.Lines = append(o.Lines, order.Line{SKU: line.SKU, Quantity: line.Quantity, Price: order.Money(line.Price)})
	}
	for _, p := range b.Payments {
		o.Payments = append(o.Payments, order.Payment{Reference: p.Reference, Amount: order.Money(p.Amount), At: p.At, Late: p.Late})
	}
	if b.ClosedAt != nil {
		o.ClosedAt = *b.ClosedAt
	}
	return o, nil
}

func (b *Order) timeline() []order.Entry {
	entries := make([]order.Entry, len(b.Timeline))
	for i, e := range b.Timeline {
		entries[i] = order.Entry{Version: e.Version, At: e.At, Type: e.Type, By: order.By{Who: e.Who, Why: e.Why}, Detail: e.Detail}
	}
	return entries
}

// OrderPath is the part of a request that names an order. It is exported because huma needs that.
type OrderPath struct {
	ID string `path:"id" minLength:"1" maxLength:"64" pattern:"^[!-~]+$" patternDescription:"printable ASCII without spaces" doc:"The order's id, with everything that has a meaning in a path escaped; . and .. as %2E and %2E%2E."`
}

type orderAnswer struct{ Body *Order }

type placeInput struct {
	Prefer string `header:"Prefer" doc:"respond-async (RFC 7240) to be answered as soon as the broker has the order, before it is placed."`
	Body   orderamqp.Draft

	async bool
}

// Resolve reads all Prefer headers; huma reads the first.
func (in *placeInput) Resolve(ctx huma.Context) []error {
	ctx.EachHeader(func(name, value string) {
		if name != "Prefer" {
			return
		}
		for preference := range strings.SplitSeq(value, ",") {
			preference, _, _ = strings.Cut(preference, ";")
			in.async = in.async || strings.EqualFold(strings.TrimSpace(preference), respondAsync)
		}
	})
	return nil
}

const respondAsync = "respond-async"

type placeAnswer struct {
	Status   int
	Location string `header:"Location" doc:"The order's path."`
	Applied  string `header:"Preference-Applied"`
	Body     any
}

type submittedBody struct {
	_ struct{} `additionalProperties:"true"`

	ID string `json:"id" doc:"Where to look for the order once it is placed."`
}

type payInput struct {
	OrderPath
	Body struct {
		Reference string           `json:"reference" minLength:"1" maxLength:"128" doc:"Identifies the payment at the payment provider."`
		Amount    *orderamqp.Money `json:"amount,omitempty" doc:"The order's total when absent."`
	}
}

type cancelInput struct {
	OrderPath
	Body *whyBody
}

type whyBody struct {
	Why string `json:"why,omitempty" maxLength:"1000" doc:"For the timeline, and for whoever asks later."`
}

func (b *whyBody) by(ctx context.Context) order.By {
	if b == nil {
		b = &whyBody{}
	}
	return by(ctx, b.Why)
}

// by is the holder of the token, and his reason.
func by(ctx context.Context, why string) order.By { return order.By{Who: actor(ctx), Why: why} }

type extendInput struct {
	OrderPath
	Body struct {
		Deadline time.Time `json:"deadline" doc:"Later or earlier than it is, but to come, and within a year."`
		Why      string    `json:"why,omitempty" maxLength:"1000"`
	}
}

type extendAllInput struct {
	Key  string `header:"Idempotency-Key" required:"true" minLength:"1" maxLength:"64" pattern:"^[!-~]+$" patternDescription:"printable ASCII without spaces" doc:"Names this request. It is done once for a key, however often it is sent."`
	Body struct {
		By  string `json:"by" minLength:"2" doc:"By how much deadlines move, from a millisecond to a year." example:"20m"`
		Tag string `json:"tag,omitempty" maxLength:"64" doc:"Only orders that carry it; all when absent."`
		Why string `json:"why,omitempty" maxLength:"1000"`
	}
}

// Progress is how far an extension of many orders has come, as JSON.
type Progress struct {
	_ struct{} `additionalProperties:"true"`

	Key       string    `json:"key"`
	Extended  int64     `json:"extended" doc:"The orders that have got more time, by all requests with this key together."`
	StartedAt time.Time `json:"started_at" doc:"When it was asked for first; orders placed later are left alone."`
	Done      bool      `json:"done"`
}

// ProgressOf is the progress as JSON.
func ProgressOf(p order.ExtendProgress) *Progress {
	return &Progress{Key: p.Key, Extended: p.Extended, StartedAt: p.StartedAt.UTC(), Done: p.Done}
}

type progressAnswer struct{ Body *Progress }

func (s *Server) registerOrders(api huma.API) {
	closed := []*problemType{alreadyPaid, alreadyCancelled, alreadyExpired}
	register(s, api, &operation{
		id: "place-order", method: http.MethodPost, path: "/v1/orders", role: Checkout, status: http.StatusCreated, maxBody: maxOrderBody,
		summary: "Place an order",
		doc: "Reserves the stock and starts the time to pay. The same id with the same content gets the order that was placed the first time, " +
			"and 201 as well, so it is safe to send again whatever happened, if it has an id. " +
			"With Prefer: respond-async it is answered with 202 and the id once the broker has the order, also while the database is away; " +
			"it is placed soon after, or order.refused says why not.",
		problems: []*problemType{conflict, outOfStock, unknownSKU, notAccepted},
		answers:  map[int]any{http.StatusCreated: Order{}, http.StatusAccepted: submittedBody{}},
	}, s.place)
	register(s, api, &operation{
		id: "get-order", method: http.MethodGet, path: "/v1/orders/{id}", role: Viewer, status: http.StatusOK,
		summary: "Show an order", doc: "With its payments and its timeline.",
		problems: []*problemType{notFoundHere},
	}, func(ctx context.Context, in *OrderPath) (*orderAnswer, error) {
		return orderOf(look(ctx, s, func(ctx context.Context) (*Order, error) { return s.history(ctx, in.ID) }))
	})
	register(s, api, &operation{
		id: "pay-order", method: http.MethodPost, path: "/v1/orders/{id}/pay", role: Checkout, status: http.StatusOK, maxBody: maxBody,
		summary: "Record a payment",
		doc: "A pending order becomes paid, also after its deadline, as long as nothing has expired it. The same payment again gets the same answer. " +
			"A payment for an order that is expired or cancelled (payment-late), or paid by another payment (already-paid), is recorded all the same and has to be refunded: " +
			"order.payment_late says so once, and the problem has the order.",
		problems: []*problemType{notFoundHere, conflict, alreadyPaid, paymentLate},
	}, func(ctx context.Context, in *payInput) (*orderAnswer, error) {
		payment := order.Payment{Reference: in.Body.Reference}
		if in.Body.Amount != nil {
			payment.Amount = order.Money(*in.Body.Amount)
		}
		o, err := call(ctx, s, func(ctx context.Context) (order.Order, error) { return s.cfg.Orders.Pay(ctx, in.ID, payment) })
		if errors.Is(err, order.ErrLatePayment) || errors.Is(err, order.ErrAlreadyPaid) {
			p := problemOf(err, "")
			p.Order = OrderOf(o)
			return nil, p
		}
		return changed(o, err)
	})
	register(s, api, &operation{
		id: "cancel-order", method: http.MethodPost, path: "/v1/orders/{id}/cancel", role: Checkout, status: http.StatusOK, maxBody: maxBody,
		summary: "Cancel an order", doc: "Closes a pending order and gives its stock back. Cancelling it again is no error.",
		problems: slices.Concat(closed, []*problemType{notFoundHere}),
	}, func(ctx context.Context, in *cancelInput) (*orderAnswer, error) {
		return changed(s.cancelOrder(ctx, in.ID, in.Body.by(ctx)))
	})
	register(s, api, &operation{
		id: "extend-order", method: http.MethodPost, path: "/v1/orders/{id}/extend", role: Checkout, status: http.StatusOK, maxBody: maxBody,
		summary: "Move an order's deadline", doc: "Later or earlier, while it is pending. Asking for the deadline that it has is no error.",
		problems: slices.Concat(closed, []*problemType{notFoundHere}),
	}, func(ctx context.Context, in *extendInput) (*orderAnswer, error) {
		return changed(s.extendOrder(ctx, in.ID, in.Body.Deadline, by(ctx, in.Body.Why)))
	})
	register(s, api, &operation{
		id: "extend-orders", method: http.MethodPost, path: "/v1/orders:extend", role: Operator, status: http.StatusOK, maxBody: maxBody,
		summary: "Give more time to all pending orders, or to those with a tag",
		doc: "It is done once for a key: sent again with the same key it goes on where it was interrupted, or answers what was done; " +
			"the same key for another request is a conflict.",
		problems: []*problemType{conflict},
	}, s.extendAll)
}

func (s *Server) place(ctx context.Context, in *placeInput) (*placeAnswer, error) {
	draft, err := in.Body.Order()
	if err != nil {
		return nil, err
	}
	if in.async {
		draft = s.cfg.Orders.Prepare(draft)
		if err := draft.Validate(); err != nil {
			return nil, err
		}
		if err := s.submit(ctx, draft); err != nil {
			return nil, err
		}
		return &placeAnswer{
			Status: http.StatusAccepted, Location: orderPath(draft.ID), Applied: respondAsync, Body: &submittedBody{ID: draft.ID},
		}, nil
	}
	o, err := call(ctx, s, func(ctx context.Context) (order.Order, error) { return s.cfg.Orders.Place(ctx, draft) })
	if err != nil {
		return nil, err
	}
	return &placeAnswer{Status: http.StatusCreated, Location: orderPath(o.ID), Body: OrderOf(o)}, nil
}

// submitTimeout is how long the broker has to confirm an order.
const submitTimeout = 5 * time.Second

func (s *Server) submit(ctx context.Context, d order.Draft) error {
	ctx, cancel := context.WithTimeout(ctx, submitTimeout)
	defer cancel()
	err := s.cfg.Submit(ctx, d)
	s.broker.note(err != nil, err)
	if err != nil {
		return fmt.Errorf("%w: %w", order.ErrNotAccepted, err)
	}
	return nil
}

func orderPath(id string) string { return "/v1/orders/" + segment(id) }

func (s *Server) history(ctx context.Context, id string) (*Order, error) {
	o, err := s.cfg.Orders.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	entries, err := s.cfg.Orders.Timeline(ctx, id)
	if err != nil {
		return nil, err
	}
	return OrderOf(o, entries...), nil
}

func (s *Server) extendAll(ctx context.Context, in *extendAllInput) (*progressAnswer, error) {
	more, err := time.ParseDuration(in.Body.By)
	if err != nil {
		return nil, fmt.Errorf("%w: by %.80q: give a duration such as 20m", order.ErrInvalid, in.Body.By)
	}
	r := order.ExtendRequest{Key: in.Key, More: more, Tag: in.Body.Tag, By: by(ctx, in.Body.Why)}
	p, err := s.extendOrders(ctx, r)
	if err != nil {
		return nil, err
	}
	return &progressAnswer{ProgressOf(p)}, nil
}

func changed(o order.Order, err error) (*orderAnswer, error) {
	if err != nil {
		return nil, err
	}
	return &orderAnswer{OrderOf(o)}, nil
}

func orderOf(b *Order, err error) (*orderAnswer, error) {
	if err != nil {
		return nil, err
	}
	return &orderAnswer{b}, nil
}
