package web

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/lapse-go/lapse/amqp/deadletter"
	"github.com/lapse-go/lapse/order"
	"github.com/lapse-go/lapse/order/orderamqp"
)

// Client asks a [Server]. Methods that are named as those of [order.Service] do what these do, with the same
// errors, and those about dead letters what [deadletter.Desk] does: what the service refuses is a [Problem], which
// wraps them. Who does something is said by the token, whatever [order.By] and [deadletter.By] say. It tries nothing
// again; whoever does so after an error should give orders ids of their own. Safe for concurrent use.
type Client struct {
	base  string
	token string
	http  *http.Client
}

// maxReply is the most bytes of an answer.
const maxReply = 8 << 20

// NewClient makes a client for the service at an address like https://lapse.example.com. The token may be
// empty where none is needed. hc is [http.DefaultClient] when nil; redirections are not followed.
func NewClient(baseURL, token string, hc *http.Client) (*Client, error) {
	u, err := url.Parse(baseURL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return nil, errors.New("the address of the service is not like http://localhost:8080")
	}
	if strings.ContainsFunc(token, func(r rune) bool { return r < 0x21 || r > 0x7E }) {
		return nil, errors.New("the token has spaces or other characters that no token has")
	}
	if hc == nil {
		hc = http.DefaultClient
	}
	straight := *hc
	straight.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &Client{base: strings.TrimRight(u.String(), "/"), token: token, http: &straight}, nil
}

// Place places an order: see [order.Service.Place].
func (c *Client) Place(ctx context.Context, d order.Draft) (order.Order, error) {
	return c.order(ctx, http.MethodPost, "/v1/orders", orderamqp.DraftOf(d))
}

// PlaceAsync has an order placed soon, also while the database is away, and returns its id once the broker
// has it. Whether there is stock is known only then: events tell, and Get. It fails with [order.ErrNotAccepted]
// if the broker does not confirm in time.
func (c *Client) PlaceAsync(ctx context.Context, d order.Draft) (id string, err error) {
	var reply submittedBody
	err = c.ask(ctx, http.MethodPost, "/v1/orders", orderamqp.DraftOf(d), &reply, http.Header{"Prefer": {respondAsync}})
	return reply.ID, err
}

// Get loads an order.
func (c *Client) Get(ctx context.Context, id string) (order.Order, error) {
	return c.order(ctx, http.MethodGet, orderPath(id), nil)
}

// Timeline lists what happened to an order.
func (c *Client) Timeline(ctx context.Context, id string) ([]order.Entry, error) {
	var reply Order
	if err := c.ask(ctx, http.MethodGet, orderPath(id), nil, &reply, nil); err != nil {
		return nil, err
	}
	return reply.timeline(), nil
}

// Pay records a payment: see [order.Service.Pay]. After [order.ErrLatePayment] and [order.ErrAlreadyPaid]
// the order is returned as well.
func (c *Client) Pay(ctx context.Context, id string, p order.Payment) (order.Order, error) {
	body := map[string]any{"reference": p.Reference}
	if p.Amount != (order.Money{}) {
		body["amount"] = orderamqp.Money(p.Amount)
	}
	o, err := c.order(ctx, http.MethodPost, orderPath(id)+"/pay", body)
	if p, ok := errors.AsType[*Problem](err); ok && p.Order != nil {
		late, wrong := p.Order.order()
		return late, errors.Join(err, wrong)
	}
	return o, err
}

// Cancel closes a pending order.
func (c *Client) Cancel(ctx context.Context, id string, by order.By) (order.Order, error) {
	return c.order(ctx, http.MethodPost, orderPath(id)+"/cancel", whyBody{by.Why})
}

// Extend moves a pending order's deadline.
func (c *Client) Extend(ctx context.Context, id string, to time.Time, by order.By) (order.Order, error) {
	return c.order(ctx, http.MethodPost, orderPath(id)+"/extend", map[string]any{"deadline": to.UTC(), "why": by.Why})
}

// ExtendAll gives more time to many orders: see [order.Service.ExtendAll].
func (c *Client) ExtendAll(ctx context.Context, r order.ExtendRequest) (order.ExtendProgress, error) {
	var reply Progress
	body := map[string]any{"by": r.More.String(), "why": r.By.Why}
	if r.Tag != "" {
		body["tag"] = r.Tag
	}
	err := c.ask(ctx, http.MethodPost, "/v1/orders:extend", body, &reply, http.Header{"Idempotency-Key": {r.Key}})
	return order.ExtendProgress{Key: reply.Key, Extended: reply.Extended, StartedAt: reply.StartedAt, Done: reply.Done}, err
}

// SetStock sets how many pieces of an article are available.
func (c *Client) SetStock(ctx context.Context, sku string, available int64) (order.Stock, error) {
	var reply Stock
	err := c.ask(ctx, http.MethodPut, stockPath(sku), map[string]any{"available": available}, &reply, nil)
	return reply.stock(), err
}

// Stock lists the stock of articles, of which at least one has to be named, one request each. Those that
// are unknown are not in the answer.
func (c *Client) Stock(ctx context.Context, skus ...string) ([]order.Stock, error) {
	if len(skus) == 0 {
		return nil, fmt.Errorf("%w: no article: name those whose stock is asked for", order.ErrInvalid)
	}
	var stock []order.Stock
	for _, sku := range skus {
		var reply Stock
		err := c.ask(ctx, http.MethodGet, stockPath(sku), nil, &reply, nil)
		if errors.Is(err, order.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		stock = append(stock, reply.stock())
	}
	return stock, nil
}

// Pause stops every expiry.
func (c *Client) Pause(ctx context.Context, by order.By) error {
	return c.ask(ctx, http.MethodPost, "/v1/pause", whyBody{by.Why}, nil, nil)
}

// Resume ends a pause.
func (c *Client) Resume(ctx context.Context, by order.By) error {
	return c.ask(ctx, http.MethodPost, "/v1/resume", whyBody{by.Why}, nil, nil)
}

// Paused tells whether expiry is paused.
func (c *Client) Paused(ctx context.Context) (order.Pause, error) {
	var reply Pause
	err := c.ask(ctx, http.MethodGet, "/v1/pause", nil, &reply, nil)
	p := order.Pause{Paused: reply.Paused, By: order.By{Who: reply.Who, Why: reply.Why}}
	if reply.Since != nil {
		p.Since = *reply.Since
	}
	return p, err
}

// Sweep expires overdue orders at once. The error wraps [order.ErrPaused] if expiry is paused.
func (c *Client) Sweep(ctx context.Context) (order.Summary, error) {
	var reply Summary
	err := c.ask(ctx, http.MethodPost, "/v1/sweep", nil, &reply, nil)
	return order.Summary{Found: reply.Found, Expired: reply.Expired, Failed: reply.Failed, Paused: errors.Is(err, order.ErrPaused)}, err
}

// Check is nil while the service can do its work. Why it cannot is told by /readyz of its metrics listener.
func (c *Client) Check(ctx context.Context) error {
	return c.ask(ctx, http.MethodGet, "/readyz", nil, nil, nil)
}

func (c *Client) order(ctx context.Context, method, path string, body any) (order.Order, error) {
	var reply Order
	if err := c.ask(ctx, method, path, body, &reply, nil); err != nil {
		return order.Order{}, err
	}
	return reply.order()
}

// ask makes one request. The reply may be nil.
func (c *Client) ask(ctx context.Context, method, path string, body, reply any, header http.Header) error {
	return c.askMuch(ctx, maxReply, method, path, body, reply, header)
}

// askMuch is ask with another limit.
func (c *Client) askMuch(ctx context.Context, most int64, method, path string, body, reply any, header http.Header) error {
	answer, err := c.send(ctx, method, path, body, header)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, err := readAnswer(answer, most)
	if err != nil || reply == nil {
		return err
	}
	if err := json.Unmarshal(text, reply); err != nil {
		return fmt.Errorf("the answer to %s %s is not that of a Lapse service: %w", method, path, err)
	}
	return nil
}

func readAnswer(answer *http.Response, most int64) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(answer.Body, most+1))
	r := answer.Request
	if err != nil {
		return nil, fmt.Errorf("reading the answer to %s %s: %w", r.Method, r.URL.Path, err)
	}
	if int64(len(text)) > most {
		return nil, fmt.Errorf("the answer to %s %s has more than %d bytes", r.Method, r.URL.Path, most)
	}
	return text, nil
}

// send sends a request, and returns the answer if that is no refusal. It has to be closed.
func (c *Client) send(ctx context.Context, method, path string, body any, header http.Header) (*http.Response, error) {
	var content io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		content = bytes.NewReader(text)
	}
	r, err := http.NewRequestWithContext(ctx, method, c.base+path, content)
	if err != nil {
		return nil, err
	}
	for name, values := range header {
		r.Header[name] = values
	}
	if r.Header.Get("Accept") == "" {
		r.Header.Set("Accept", "application/json, "+problemMedia)
	}
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	if c.token != "" {
		r.Header.Set("Authorization", "Bearer "+c.token)
	}
	answer, err := c.http.Do(r)
	if err != nil {
		return nil, err
	}
	if answer.StatusCode >= 200 && answer.StatusCode <= 299 {
		return answer, nil
	}
	defer answer.Body.Close()
	text, err := readAnswer(answer, maxReply)
	if err != nil {
		return nil, err
	}
	return nil, readProblem(answer, text)
}

// readProblem is the error that an answer tells, also if it is not the service's own but of a proxy before it.
func readProblem(answer *http.Response, text []byte) error {
	p := &Problem{}
	media, _, _ := mime.ParseMediaType(answer.Header.Get("Content-Type"))
	if media != problemMedia || json.Unmarshal(text, p) != nil || p.Type == "" {
		p = &Problem{Type: "about:blank", Detail: fmt.Sprintf("the service, or what is before it, answered %s: %.200s", answer.Status, bytes.TrimSpace(text))}
		if to := answer.Header.Get("Location"); to != "" {
			p.Detail += " (go to " + to + ")"
		}
	}
	p.Status = answer.StatusCode
	for _, t := range problemTypes {
		if t.uri() == p.Type {
			p.cause = t.cause
		}
	}
	switch {
	case len(p.OutOfStock)+len(p.UnknownSKUs) > 0:
		p.cause = &order.ShortageError{Short: p.OutOfStock, Unknown: p.UnknownSKUs}
	case p.Type == replayRunning.uri():
		p.cause = &deadletter.BusyError{Replay: p.Replay}
	case p.cause != nil || p.Type != "about:blank":
	case p.Status == http.StatusUnauthorized:
		p.cause = ErrUnauthorized
	case p.Status == http.StatusForbidden:
		p.cause = ErrForbidden
	case p.Status == http.StatusBadGateway || p.Status == http.StatusServiceUnavailable || p.Status == http.StatusGatewayTimeout:
		p.cause = order.ErrUnavailable
	}
	return p
}
