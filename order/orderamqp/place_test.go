package orderamqp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/order"
)

func TestPlaceRoundTrip(t *testing.T) {
	m, err := EncodePlace(kettles("A-1"))
	if err != nil || m.Kind != "order.place" || m.ID != "" {
		t.Fatalf("%+v, %v", m, err)
	}
	m.ID = "m-1"
	want := kettles("A-1")
	want.Request = "m-1"
	got, err := DecodePlace(m)
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v, decoded (-want +got):\n%s", err, diff)
	}
}

// What nobody can tell whose order it is has no draft, and an error that says how it should look.
func TestDecodePlaceSaysWhatIsWrong(t *testing.T) {
	const lines = `"lines":[{"sku":"kettle","quantity":2,"price":{"amount":1999,"currency":"EUR"}}]`
	for body, want := range map[string]string{
		``:                       "not an order",
		`not JSON`:               "not an order",
		`[]`:                     "not an order",
		`"A-1"`:                  "not an order",
		`{"id":"A-1"} {}`:        "not an order",
		`{"id":7,` + lines + `}`: "ID of type string",
		"\xEF\xBB\xBF" + `{"id":"A-1",` + lines + `}`: "not an order",
		`null`:                          `the id ""`,
		`{` + lines + `}`:               `the id ""`,
		`{"id":"",` + lines + `}`:       `the id ""`,
		`{"id":"a b",` + lines + `}`:    `the id "a b"`,
		`{"id":"\u00e9",` + lines + `}`: "printable ASCII",
		`{"id":"` + strings.Repeat("x", 65) + `","window":"none"}`: "1 to 64",
		`{"order_id":"A-1","deadline":"2030-01-31T12:00:00Z"}`:     `the id ""`, // a timer
	} {
		d, err := DecodePlace(amqp.Message{Body: []byte(body)})
		if err == nil || errors.Is(err, order.ErrInvalid) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), `"sku": "kettle"`) {
			t.Errorf("%s: error %v, want one that mentions %q", body, err, want)
		}
		if d.ID != "" {
			t.Errorf("%s: decoded %+v", body, d)
		}
	}
}

// Who gives messages no id is known by what they say.
func TestDecodePlaceWithoutAMessageID(t *testing.T) {
	body := []byte(`{"id":"A-1","lines":[{"sku":"kettle","quantity":2,"price":{"amount":1999,"currency":"EUR"}}]}`)
	d, err := DecodePlace(amqp.Message{Body: body, ContentType: "text/plain"})
	if err != nil || d.ID != "A-1" || len(d.Lines) != 1 || d.Lines[0].Price.Amount != 1999 {
		t.Errorf("decoded %+v, %v", d, err)
	}
	again, _ := DecodePlace(amqp.Message{Body: body})
	other, _ := DecodePlace(amqp.Message{Body: append(body, ' ')})
	if d.Request == "" || d.Request != again.Request || d.Request == other.Request {
		t.Errorf("requests %q, again %q, another %q", d.Request, again.Request, other.Request)
	}
}

// What is wrong in an order that says whose it is is refused with what it is, and whoever sent it can be told.
func TestDecodePlaceOfWrongFields(t *testing.T) {
	const line = `{"sku":"kettle","quantity":2,"price":{"amount":1999,"currency":"EUR"}}`
	for body, says := range map[string]string{
		`{"id":"A-1","windw":"5s","lines":[]}`: `unknown field "windw"`,
		`{"id":"A-1","lines":[{"sku":"kettle","quantity":2,"price":{"amount":1999,"currency":"EUR"},"colour":"red"}]}`: `unknown field "colour"`,
		`{"id":"A-1","lines":{}}`:                          "lines cannot be a JSON object",
		`{"id":"A-1","lines":[{"quantity":"2"}]}`:          "lines.quantity cannot be a JSON string",
		`{"id":"A-1","lines":[{"quantity":1.5}]}`:          "lines.quantity cannot be a JSON number 1.5",
		`{"id":"A-1","lines":[{"price":19.99}]}`:           "lines.price cannot be a JSON number",
		`{"id":"A-1","lines":[{"price":{"amount":1e30}}]}`: "lines.price.amount cannot be a JSON number 1e30",
		`{"id":"A-1","window":1800}`:                       "window cannot be a JSON number",
		`{"id":"A-1","tags":"sale"}`:                       "tags cannot be a JSON string",
		// A price that is not there is not one of zero.
		`{"id":"A-1","lines":[{"sku":"kettle","quantity":1}]}`:                                          "line 1: no price",
		`{"id":"A-1","lines":[` + line + `,{"sku":"kettle","quantity":1,"price":{"currency":"EUR"}}]}`:  "line 2: no price",
		`{"id":"A-1","lines":[{"sku":"kettle","quantity":1,"price":{"amount":null,"currency":"EUR"}}]}`: "line 1: no price",
		// Of lines that stand twice the second would be mixed into the first.
		`{"id":"A-1","lines":[` + line + `],"lines":[{"sku":"a"}]}`:       `"lines" is there twice`,
		`{"id":"A-1","Lines":[` + line + `],"lines":[` + line + `]}`:      `"lines" is there twice`,
		`{"id":"A-1","customer":"` + "\xff" + `","lines":[` + line + `]}`: "not valid UTF-8",
	} {
		d, err := DecodePlace(amqp.Message{Body: []byte(body)})
		if !errors.Is(err, order.ErrInvalid) || !strings.Contains(err.Error(), says) || d.ID != "A-1" || d.Request == "" {
			t.Errorf("%s: decoded %+v, %v", body, d, err)
		}
	}
}

func FuzzDecodePlace(f *testing.F) {
	f.Add([]byte(`{"id":"A-1","tags":["a"],"lines":[{"sku":"kettle","quantity":2,"price":{"amount":1999,"currency":"EUR"}}],"window":"30m"}`))
	f.Add([]byte(`{"id":"A-1","window":"-2562047h47m16.854775808s"}`))
	f.Add([]byte(`{"id":null,"lines":null,"tags":[null],"window":null}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		d, err := DecodePlace(amqp.Message{Body: body})
		if (err == nil || errors.Is(err, order.ErrInvalid)) != (order.ValidateID("id", d.ID) == nil) {
			t.Fatalf("%+v comes with %v", d, err)
		}
		if d.ID == "" {
			return
		}
		if err == nil {
			if err = d.Validate(); err == nil {
				m, err := EncodePlace(d)
				if err != nil {
					t.Fatal(err)
				}
				m.ID = d.Request
				again, err := DecodePlace(m)
				if err != nil || again.Hash() != d.Hash() || again.Window != d.Window || again.ID != d.ID {
					t.Fatalf("%+v became %+v, %v", d, again, err)
				}
				return
			}
		}
		// Whatever is wrong with it, its sender can be told, in a message that is not too large.
		refusal := order.RefuseDraft(d, err, time.Date(2030, 1, 31, 12, 0, 0, 0, time.UTC))
		m, encodeErr := EncodeEvent("lapse", refusal)
		if encodeErr != nil || len(m.Body) > 256<<10 || len(m.ID) > 255 || !json.Valid(m.Body) {
			t.Fatalf("refused with %d bytes by %s: %v", len(m.Body), m.ID, encodeErr)
		}
	})
}

// placing is a service whose answers are known beforehand; what a real one answers is shown elsewhere.
type placing struct {
	placements map[string]order.Placement
	err        error // of placing as a whole
	refuseErr  error
	pauseErr   error
	placed     []string
	refused    map[string]error
}

func (p *placing) PlaceAll(_ context.Context, drafts []order.Draft) (answers []order.Placement, err error) {
	for _, d := range drafts {
		p.placed = append(p.placed, d.ID)
		answers = append(answers, p.placements[d.ID])
	}
	return answers, p.err
}

func (p *placing) Refuse(_ context.Context, drafts []order.Draft, errs []error) error {
	p.refused = make(map[string]error)
	for i, d := range drafts {
		p.refused[d.ID] = errs[i]
	}
	return p.refuseErr
}

func (p *placing) Paused(context.Context) (order.Pause, error) {
	return order.Pause{Paused: true}, p.pauseErr
}

func ask(t *testing.T, id string) amqp.Message {
	t.Helper()
	m, err := EncodePlace(kettles(id))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestPlacerAnswersForEachOrder(t *testing.T) {
	p := &placing{placements: map[string]order.Placement{
		"again":    {Repeated: true},
		"short":    {Err: fmt.Errorf("order short: %w", &order.ShortageError{Short: []string{"kettle"}})},
		"unknown":  {Err: fmt.Errorf("order unknown: %w", &order.ShortageError{Unknown: []string{"kettle"}})},
		"conflict": {Err: fmt.Errorf("%w: another has it", order.ErrConflict)},
		"invalid":  {Err: fmt.Errorf("%w: quantity 0", order.ErrInvalid)},
		"locked":   {Err: fmt.Errorf("%w: lock wait", order.ErrUnavailable)},
		"broken":   {Err: errors.New("broken row")},
	}}
	window := amqp.Message{Body: []byte(`{"id":"window","window":"soon"}`)}
	batch := []amqp.Message{
		ask(t, "fresh"), ask(t, "again"), {Body: []byte("not JSON")}, ask(t, "short"), ask(t, "conflict"), ask(t, "unknown"),
		window, ask(t, "locked"), ask(t, "invalid"), ask(t, "broken"), ask(t, "fresh-2"),
	}
	metrics := NewMetrics(nil)
	outcomes, err := (&Placer{Orders: p, Metrics: metrics}).Handle(t.Context(), batch)
	if err != nil || len(outcomes) != len(batch) {
		t.Fatalf("%v, %v", outcomes, err)
	}
	for i, want := range []string{
		"done", "done", "dead: not an order", "done", "done", "done", "done", "deferred by 1s", "done", "retried: order broken: broken row", "done",
	} {
		if got := outcomes[i].String(); !strings.HasPrefix(got, want) {
			t.Errorf("%s: %s, want %s", batch[i].Body, got, want)
		}
	}
	if len(p.refused) != 3 || !errors.Is(p.refused["conflict"], order.ErrConflict) ||
		!errors.Is(p.refused["invalid"], order.ErrInvalid) || !errors.Is(p.refused["window"], order.ErrInvalid) {
		t.Errorf("refused %v", p.refused)
	}
	for outcome, want := range map[string]float64{"placed": 2, "repeated": 1, "refused": 5, "failed": 2} {
		if got := testutil.ToFloat64(metrics.Placements.WithLabelValues(outcome)); got != want {
			t.Errorf("%v %s, want %v", got, outcome, want)
		}
	}
}

// Messages that make no sense do not trouble the database.
func TestPlacerAsksOnlyWhatMakesSense(t *testing.T) {
	p := &placing{err: order.ErrUnavailable, refuseErr: order.ErrUnavailable}
	outcomes, err := (&Placer{Orders: p}).Handle(t.Context(), []amqp.Message{{Body: []byte("x")}})
	if err != nil || len(outcomes) != 1 || p.placed != nil || p.refused != nil {
		t.Errorf("%v, %v, placed %v, refused %v", outcomes, err, p.placed, p.refused)
	}
}

// An outage stops the whole batch, at whichever step; a refusal that fails otherwise stops only what is
// refused.
func TestPlacerPassesOutagesOn(t *testing.T) {
	batch := []amqp.Message{ask(t, "fresh"), {Body: []byte(`{"id":"window","window":"soon"}`)}}
	for _, p := range []*placing{{err: fmt.Errorf("%w: gone", order.ErrUnavailable)}, {refuseErr: fmt.Errorf("%w: gone", order.ErrUnavailable)}} {
		metrics := NewMetrics(nil)
		if _, err := (&Placer{Orders: p, Metrics: metrics}).Handle(t.Context(), batch); !errors.Is(err, order.ErrUnavailable) {
			t.Errorf("an outage is passed on as %v", err)
		}
		if n := testutil.CollectAndCount(metrics.Placements); n != 0 {
			t.Errorf("%d outcomes are counted of a batch that comes again", n)
		}
	}
	outcomes, err := (&Placer{Orders: &placing{refuseErr: errors.New("too large")}}).Handle(t.Context(), batch)
	if err != nil || outcomes[0] != amqp.Done() || outcomes[1].String() != "retried: too large" {
		t.Errorf("%v, %v", outcomes, err)
	}
}

// Orders are placed while expiry is paused, but not while the database is away.
func TestPlacerProbesTheDatabaseOnly(t *testing.T) {
	if err := (&Placer{Orders: &placing{}}).Probe(t.Context()); err != nil {
		t.Errorf("paused: %v", err)
	}
	if err := (&Placer{Orders: &placing{pauseErr: order.ErrUnavailable}}).Probe(t.Context()); !errors.Is(err, order.ErrUnavailable) {
		t.Errorf("away: %v", err)
	}
}

// What subscribers are told of an order that was refused.
func TestRefusalIsACloudEvent(t *testing.T) {
	at := time.Date(2030, 1, 31, 12, 0, 0, 0, time.UTC)
	const common = `{"specversion":"1.0","id":"A-1.0.a461b472cb41a9ec3dee5c90cf8e4a78","source":"lapse","type":"order.refused","subject":"A-1","time":"2030-01-31T12:00:00Z",` +
		`"datacontenttype":"application/json","data":{"order_id":"A-1","version":0,"status":"refused","customer":"c9","region":"eu","tags":["sale"],`
	for _, test := range []struct {
		cause error
		want  string
	}{
		{&order.ShortageError{Short: []string{"kettle"}}, `"reason":"out_of_stock","error":"out of stock: kettle","out_of_stock":["kettle"]}}`},
		{&order.ShortageError{Unknown: []string{"kettle"}, Short: []string{"pot"}},
			`"reason":"unknown_sku","error":"unknown sku kettle: set its stock first; out of stock: pot","out_of_stock":["pot"],"unknown_skus":["kettle"]}}`},
		{fmt.Errorf("%w: it is another's", order.ErrConflict), `"reason":"conflict","error":"conflict: it is another's"}}`},
		{fmt.Errorf("line 1: %w: quantity 0", order.ErrInvalid), `"reason":"invalid","error":"line 1: invalid: quantity 0"}}`},
	} {
		d := kettles("A-1")
		d.Request = "m-1"
		m, err := EncodeEvent("lapse", order.RefuseDraft(d, test.cause, at))
		if err != nil {
			t.Fatal(err)
		}
		body := string(m.Body)
		if !strings.HasSuffix(body, test.want) {
			t.Errorf("event\n%s\nshould end with\n%s", body, test.want)
		}
		if strings.Contains(body, "deadline") || !strings.HasPrefix(body, common) {
			t.Errorf("event\n%s\nshould begin with\n%s", body, common)
		}
	}
}
