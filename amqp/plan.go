package amqp

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

// State is what a [Plan] says of an object.
type State string

const (
	Exists     State = "exists"      // as it is wanted
	Missing    State = "missing"     // [Topology.Apply] makes it
	Differs    State = "differs"     // it exists with other properties
	Unexpected State = "unexpected"  // a rung, or the queue of a kind, that is no longer configured
	NotChecked State = "not checked" // only the management API can tell, and it was not asked, or does not yet
	Unknown    State = "unknown"     // the broker did not tell: Advice says why
)

// Difference is what a [Plan] says of one object, or of one argument of it.
type Difference struct {
	Object string `json:"object"` // exchange, queue or binding
	Name   string `json:"name"`
	State  State  `json:"state"`
	// Argument is which one differs, with what is wanted and what was found: "none" if it is not to be
	// set, or is not set.
	Argument string `json:"argument,omitempty"`
	Wanted   string `json:"wanted,omitempty"`
	Found    string `json:"found,omitempty"`
	// Messages that are ready in a queue, −1 when unknown. In a rung these are the timers that wait.
	Messages int64 `json:"messages"`
	// Advice says what to do, unless the object is as it is wanted.
	Advice string `json:"advice,omitempty"`
}

func (d Difference) String() string {
	text := fmt.Sprintf("%s %s: %s", d.Object, d.Name, d.State)
	if d.Argument != "" {
		text += fmt.Sprintf(": %s is %s, %s is wanted", d.Argument, d.Found, d.Wanted)
	}
	return text
}

// Plan is a topology compared with what the broker has.
type Plan struct {
	// Via is how the broker was asked: "management API" or "probing".
	Via string `json:"via"`
	// Items are in the order of declaration. An object that differs in two arguments is there twice.
	Items []Difference `json:"items"`
}

// OK is whether all that was asked for is as it is wanted. What only the management API can tell does not
// count.
func (p Plan) OK() bool {
	return !slices.ContainsFunc(p.Items, func(d Difference) bool { return d.State != Exists && d.State != NotChecked })
}

// Plan compares the topology with what the broker has, and changes nothing.
//
// The management API tells all: properties, bindings, policies that have a say in them, and what is
// no longer configured. Without it (m is nil) each name is probed: whether it exists, and if so, by
// declaring it as it is wanted, whether it is so. The broker then names only the first argument that
// differs, and bindings and other names are not checked. An object that is deleted by somebody else between
// the two questions is made again.
//
// The user needs the permission to configure what is probed. The error says that the broker or its API did
// not answer ([ErrManagementAway], [ErrManagementRefused]), or is the first answer of a broker that tells
// nothing of any object; that it does not tell of some is said of these.
func (t Topology) Plan(ctx context.Context, conn *Conn, m *Management) (Plan, error) {
	if err := t.Validate(); err != nil {
		return Plan{}, err
	}
	var plan Plan
	var err error
	if t = t.withDefaults(); m != nil {
		plan, err = t.compare(ctx, conn, m)
	} else {
		plan, err = t.probe(ctx, conn)
	}
	if err != nil {
		return Plan{}, fmt.Errorf("plan topology: %w", err)
	}
	return plan, nil
}

// compare asks the management API, but for the numbers of messages: its own are some seconds old.
func (t Topology) compare(ctx context.Context, conn *Conn, m *Management) (Plan, error) {
	found, err := m.read(ctx, conn.Vhost(), t.Namespace)
	if err != nil {
		return Plan{}, err
	}
	plan := Plan{Via: "management API"}
	wanted := t.Objects()
	for _, e := range wanted.Exchanges {
		there, exists := found.exchanges[e.Name]
		delete(found.exchanges, e.Name)
		plan.add(Difference{Object: "exchange", Name: e.Name}, exists, e.differences(there))
	}
	var silent []string
	for _, q := range wanted.Queues {
		there, exists := found.queues[q.Name]
		delete(found.queues, q.Name)
		about := Difference{Object: "queue", Name: q.Name}
		if exists {
			if err := plan.count(ctx, conn, &about); err != nil {
				return Plan{}, err
			}
		}
		plan.add(about, exists, q.differences(there))
		if exists && there.Effective == nil {
			silent = append(silent, q.Name)
		}
	}
	for _, b := range wanted.Bindings {
		plan.add(b.difference(), found.bindings[b], nil)
	}
	// Of the patterns of a kind only who has configured some knows all.
	for _, kind := range t.Kinds {
		if _, known := t.Subscriptions[kind]; !known {
			continue
		}
		for _, b := range slices.SortedFunc(maps.Keys(found.bindings), func(a, b Binding) int { return strings.Compare(a.Key, b.Key) }) {
			if b.Exchange == t.Events() && b.Queue == t.DueQueue(kind) && !slices.Contains(wanted.Bindings, b) {
				unexpected := b.difference()
				unexpected.State = Unexpected
				plan.Items = append(plan.Items, advised(unexpected))
			}
		}
	}
	if len(silent) > 0 {
		plan.Items = append(plan.Items, Difference{
			Object: "queue", Name: strings.Join(silent, ", "), State: NotChecked, Messages: -1,
			Advice: "the management API does not tell yet which policies apply to these: ask again in half a minute",
		})
	}
	for _, name := range slices.Sorted(maps.Keys(found.exchanges)) {
		if strings.HasPrefix(name, t.name("delay.")) {
			plan.Items = append(plan.Items, advised(Difference{Object: "exchange", Name: name, State: Unexpected}))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(found.queues)) {
		if strings.HasPrefix(name, t.name("delay.")) || strings.HasPrefix(name, t.name("due.")) {
			about := Difference{Object: "queue", Name: name, State: Unexpected}
			if err := plan.count(ctx, conn, &about); err != nil {
				return Plan{}, err
			}
			plan.Items = append(plan.Items, advised(about))
		}
	}
	return plan, nil
}

// count asks how many messages are ready in a queue that exists. One that is down is worth an item.
func (p *Plan) count(ctx context.Context, conn *Conn, about *Difference) error {
	err := about.count(ctx, conn)
	switch {
	case err == nil || isMissing(err):
	case isAway(ctx, conn, err):
		return err
	case isNotFound(err):
		p.Items = append(p.Items, about.unknown(err))
	}
	return nil
}

// add appends what there is to say of an object.
func (p *Plan) add(about Difference, exists bool, differences []Difference) {
	switch {
	case !exists:
		about.State = Missing
		p.Items = append(p.Items, advised(about))
	case len(differences) == 0:
		about.State = Exists
		p.Items = append(p.Items, about)
	default:
		for _, d := range differences {
			d.Object, d.Name, d.Messages, d.State = about.Object, about.Name, about.Messages, Differs
			p.Items = append(p.Items, advised(d))
		}
	}
}

func (b Binding) difference() Difference {
	return Difference{Object: "binding", Name: fmt.Sprintf("%s to %s by key %q", b.Exchange, b.Queue, b.Key)}
}

// differences of an exchange that exists.
func (e Exchange) differences(there managedExchange) []Difference {
	var all []Difference
	unlike(&all, "type", e.Kind, there.Type)
	unlike(&all, "durable", true, there.Durable)
	unlike(&all, "auto_delete", false, there.AutoDelete)
	unlike(&all, "internal", false, there.Internal)
	unlikeArguments(&all, e.Arguments, there.Arguments)
	return all
}

// differences of a queue that exists.
func (q Queue) differences(there managedQueue) []Difference {
	var all []Difference
	unlike(&all, amqp091.QueueTypeArg, q.Arguments[amqp091.QueueTypeArg], there.Type)
	if len(all) > 0 {
		return all // the rest follows from it
	}
	if there.Arguments == nil {
		there.Arguments = managedTable{}
	}
	there.Arguments[amqp091.QueueTypeArg] = there.Type // which need not be given for it to be what it is
	unlike(&all, "durable", true, there.Durable)
	unlike(&all, "auto_delete", false, there.AutoDelete)
	unlike(&all, "exclusive", false, there.Exclusive)
	unlikeArguments(&all, q.Arguments, there.Arguments)
	q.overridden(&all, there)
	return all
}

// overridden finds what a policy does to a queue, which no declaration would be refused for. Of a limit
// that is set in both ways the lower one counts, and of the rest the argument
// (https://www.rabbitmq.com/docs/parameters#policies).
func (q Queue) overridden(all *[]Difference, there managedQueue) {
	var names []string
	for _, name := range []string{there.Policy, there.OperatorPolicy} {
		if name != "" {
			names = append(names, strconv.Quote(name))
		}
	}
	for _, key := range []string{"message-ttl", "expires", "max-length", "max-length-bytes", "delivery-limit", "dead-letter-exchange", "dead-letter-routing-key"} {
		value, given := there.Effective[key]
		argument, ours := q.Arguments["x-"+key]
		switch {
		case !given:
		case key == "delivery-limit" && !ours: // nobody consumes from a rung
		case ours && strings.HasPrefix(key, "dead-letter"):
		case ours && number(value) >= number(argument):
		default:
			*all = append(*all, Difference{
				Argument: fmt.Sprintf("%s by policy %s", key, strings.Join(names, " and ")),
				Wanted:   text(argument), Found: text(value),
			})
		}
	}
}

func unlikeArguments(all *[]Difference, wanted amqp091.Table, found managedTable) {
	keys := maps.Clone(found)
	if keys == nil {
		keys = managedTable{}
	}
	for key := range wanted {
		keys[key] = nil
	}
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		unlike(all, key, wanted[key], found[key])
	}
}

// unlike compares by value: a number may come back as 60000, 60000.0 or 6e4.
func unlike(all *[]Difference, argument string, wanted, found any) {
	w, f := text(wanted), text(found)
	if w != f && (wanted == nil || found == nil || number(wanted) != number(found)) {
		*all = append(*all, Difference{Argument: argument, Wanted: w, Found: f})
	}
}

func text(value any) string {
	if value == nil {
		return "none"
	}
	return fmt.Sprint(value)
}

// number is not equal to itself, nor greater than anything, for what is none.
func number(value any) float64 {
	n, err := strconv.ParseFloat(text(value), 64)
	if err != nil {
		return math.NaN()
	}
	return n
}

// advised adds what to do.
func advised(d Difference) Difference {
	switch {
	case d.State == Missing:
		d.Advice = "apply the topology, which makes it"
	case d.State == Unexpected && d.Object == "exchange":
		d.Advice = "delete it together with its queue, once that is empty"
	case d.State == Unexpected && d.Object == "binding":
		d.Advice = "delete it, or events go on coming that are no longer subscribed to"
	case d.State == Unexpected && d.Messages == 0:
		d.Advice = "it is empty: delete it if nobody else uses it"
	case d.State == Unexpected:
		d.Advice = fmt.Sprintf("leave it until it is empty (%s): what waits on a rung becomes due as ever; for what waits in the queue of a kind, configure that kind again. Delete it only then", count(d.Messages))
	case d.State == Differs && strings.Contains(d.Argument, " by policy "):
		d.Advice = "have the policy not match this queue, or take the key out of it"
	case d.State == Differs && d.Object == "exchange":
		d.Advice = "keep what is there by configuring the same; or delete it when nobody publishes to it, and apply the topology; or use another namespace"
	case d.State == Differs && d.Messages == 0:
		d.Advice = "keep what is there by configuring the same; or stop what publishes to it, see that it is still empty, delete it, and apply the topology; or use another namespace"
	case d.State == Differs:
		d.Advice = fmt.Sprintf("keep what is there by configuring the same; or stop what publishes to it, drain it (%s), delete it when it is empty, and apply the topology; or use another namespace", count(d.Messages))
	}
	return d
}

func count(messages int64) string {
	switch messages {
	case -1:
		return "it is not known how many messages it holds"
	case 1:
		return "it holds 1 message"
	}
	return fmt.Sprintf("it holds %d messages", messages)
}
