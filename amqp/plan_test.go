package amqp_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/amqp/amqptest"
)

func plan(t *testing.T, topology amqp.Topology, conn *amqp.Conn, m *amqp.Management) amqp.Plan {
	t.Helper()
	p, err := topology.Plan(within(t, 30*time.Second), conn, m)
	if err != nil {
		t.Fatal(err)
	}
	if via := map[bool]string{true: "management API", false: "probing"}[m != nil]; p.Via != via {
		t.Errorf("via %s", p.Via)
	}
	for _, d := range p.Items {
		if (d.Advice == "") != (d.State == amqp.Exists) {
			t.Errorf("%s, with the advice %q", d, d.Advice)
		}
	}
	return p
}

// notable is what of a plan is not as it is wanted, by probing also not what only the API tells.
func notable(p amqp.Plan) []string {
	var all []string
	for _, d := range p.Items {
		if d.State != amqp.Exists && d.State != amqp.NotChecked {
			all = append(all, d.String())
		}
	}
	return all
}

func wantPlan(t *testing.T, p amqp.Plan, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, notable(p)); diff != "" {
		t.Errorf("by %s (-want +got):\n%s", p.Via, diff)
	}
	if p.OK() != (len(want) == 0) {
		t.Errorf("by %s: OK is %v", p.Via, p.OK())
	}
}

// do asks the broker on a channel of its own.
func do(t *testing.T, conn *amqp.Conn, ask func(*amqp091.Channel) error) {
	t.Helper()
	ch, err := conn.Channel(within(t, 10*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	defer ch.Close()
	if err := ask(ch); err != nil {
		t.Fatal(err)
	}
}

func management(t *testing.T, url string) *amqp.Management {
	t.Helper()
	m, err := amqp.NewManagement(url)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// spoil makes a topology unlike what is wanted: without the due queue of b and the exchange for parked
// letters, and with another TTL on the rung of a second.
func spoil(t *testing.T, conn *amqp.Conn, topology amqp.Topology) {
	t.Helper()
	rung := topology.Delay(time.Second)
	do(t, conn, func(ch *amqp091.Channel) error {
		for _, queue := range []string{topology.DueQueue("b"), rung} {
			if _, err := ch.QueueDelete(queue, false, false, false); err != nil {
				return err
			}
		}
		if err := ch.ExchangeDelete(topology.Parked(), false, false); err != nil {
			return err
		}
		for _, q := range topology.Objects().Queues {
			if q.Name == rung {
				q.Arguments["x-message-ttl"] = int64(60_000)
				if _, err := ch.QueueDeclare(rung, true, false, false, false, q.Arguments); err != nil {
					return err
				}
			}
		}
		return ch.PublishWithContext(t.Context(), "", rung, false, false, amqp091.Publishing{})
	})
}

func TestPlanByProbing(t *testing.T) {
	for _, queues := range []amqp.QueueType{amqp.Quorum, amqp.Classic} {
		t.Run(string(queues), func(t *testing.T) {
			conn := amqptest.Conn(t)
			topology := amqp.Topology{Namespace: amqptest.Namespace(), Type: queues, Ladder: amqp.Ladder{time.Second, time.Minute}, Kinds: []string{"a", "b"}}
			name := topology.Namespace
			missing := plan(t, topology, conn, nil)
			if got := len(notable(missing)); got != 7+8 {
				t.Errorf("%d of 7 exchanges and 8 queues are missing", got)
			}
			if again := plan(t, topology, conn, nil); cmp.Diff(missing, again) != "" {
				t.Errorf("looking made something: %v", again)
			}
			amqptest.Declare(t, conn, topology)
			whole := plan(t, topology, conn, nil)
			wantPlan(t, whole)
			if unchecked := len(whole.Items) - 7 - 8; unchecked != 8+1 {
				t.Errorf("%d are not checked", unchecked)
			}

			spoil(t, conn, topology)
			spoiled := []string{
				"exchange " + name + ".parked: missing",
				"queue " + name + ".due.b: missing",
				"queue " + name + ".delay.1s: differs: x-message-ttl is 60000, 1000 is wanted",
			}
			p := plan(t, topology, conn, nil)
			wantPlan(t, p, spoiled...)
			for _, d := range p.Items {
				if d.State == amqp.Differs && (!strings.Contains(d.Advice, "drain") || !strings.Contains(d.Advice, "another namespace")) {
					t.Errorf("the advice is %q", d.Advice)
				}
			}
			// What comes after the one that differs is made, too.
			do(t, conn, func(ch *amqp091.Channel) error {
				_, err := ch.QueueDelete(topology.Delay(time.Minute), false, false, false)
				return err
			})
			mismatches, err := topology.Apply(within(t, 20*time.Second), conn)
			if err != nil || len(mismatches) != 1 || mismatches[0].Argument != "x-message-ttl" {
				t.Errorf("%v, %v", mismatches, err)
			}
			wantPlan(t, plan(t, topology, conn, nil), spoiled[2])
		})
	}
}

// What does not answer, and what is down, is neither missing nor as it is wanted, and holds up nothing for long.
func TestTopologyOfQueuesThatDoNotAnswer(t *testing.T) {
	node := amqptest.NewNode(t)
	conn := amqptest.Dial(t, node.URL())
	topology := amqp.Topology{Namespace: "shop", Type: amqp.Classic, Ladder: amqp.Ladder{time.Second, time.Minute}, Kinds: []string{"a"}}
	if err := topology.Declare(within(t, 20*time.Second), conn); err != nil {
		t.Fatal(err)
	}
	do(t, conn, func(ch *amqp091.Channel) error {
		return ch.QueueUnbind(topology.DueQueue("a"), "a", topology.Due(), nil)
	})
	silent, down := topology.Delay(time.Second), topology.Delay(time.Minute)
	silence(node, silent)
	bringDown(node, down)
	wantPlan(t, plan(t, topology, conn, nil), "queue "+silent+": unknown", "queue "+down+": unknown")
	for _, d := range plan(t, topology, conn, nil).Items {
		if exists := strings.Contains(d.Advice, "it exists, but it is down"); exists != (d.Name == down && d.Object == "queue") {
			t.Errorf("%s, with the advice %q", d, d.Advice)
		}
	}

	started := time.Now()
	_, err := topology.Apply(within(t, 30*time.Second), conn)
	if took := time.Since(started); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), silent) || took > 8*time.Second {
		t.Errorf("after %s: %v", took, err)
	}
	// What came before it is complete.
	do(t, conn, func(ch *amqp091.Channel) error {
		if err := ch.Confirm(false); err != nil {
			return err
		}
		confirm, err := ch.PublishWithDeferredConfirm(topology.Due(), "a", false, false, amqp091.Publishing{})
		if err != nil {
			return err
		}
		_, err = confirm.WaitContext(within(t, 5*time.Second))
		return err
	})
	depths, err := topology.Depths(within(t, 2*time.Second), conn)
	if !errors.Is(err, context.DeadlineExceeded) || depths[0].Messages != 1 {
		t.Errorf("the due queue was not bound: %v, %v", depths, err)
	}

	topology.Ladder = amqp.Ladder{500 * time.Millisecond, time.Minute}
	started = time.Now()
	_, err = topology.Apply(within(t, 30*time.Second), conn)
	if took := time.Since(started); err == nil || !strings.Contains(err.Error(), down) || took > 8*time.Second {
		t.Errorf("after %s: %v", took, err)
	}
	if depths, err := topology.Depths(within(t, 2*time.Second), conn); err == nil || !strings.Contains(err.Error(), down) {
		t.Errorf("%v, %v", depths, err)
	}
}

// Some of it may be asked about, and of the rest the plan says what the broker says; of nothing it is no plan.
func TestPlanOfWhatMayNotBeAsked(t *testing.T) {
	node := amqptest.NewNode(t)
	topology := amqp.Topology{Namespace: "shop", Ladder: amqp.Ladder{time.Second}}
	amqptest.Declare(t, amqptest.Dial(t, node.URL()), topology)
	node.Ctl("add_user", "clerk", "secret")
	node.Ctl("set_permissions", "clerk", "^other$", ".*", ".*")
	conn := amqptest.Dial(t, strings.Replace(node.URL(), "guest:guest", "clerk:secret", 1))
	_, err := topology.Plan(within(t, 30*time.Second), conn, nil)
	var refusal *amqp091.Error
	if !errors.As(err, &refusal) || refusal.Code != amqp091.AccessRefused {
		t.Error(err)
	}

	node.Ctl("set_permissions", "clerk", `^shop\.d`, ".*", ".*")
	p := plan(t, topology, amqptest.Dial(t, strings.Replace(node.URL(), "guest:guest", "clerk:secret", 1)), nil)
	refused := 0
	for _, d := range p.Items {
		if d.State == amqp.Unknown && strings.Contains(d.Advice, "ACCESS_REFUSED") {
			refused++
		}
	}
	if want := 3 + 3; refused != want || p.OK() { // parked, unrouted and events
		t.Errorf("%d of %d exchanges and queues say that they may not be declared; OK is %v", refused, want, p.OK())
	}
}

func TestPlanByTheManagementAPI(t *testing.T) {
	node := amqptest.NewManagedNode(t)
	conn := amqptest.Dial(t, node.URL())
	m := management(t, node.ManagementURL())
	topology := amqp.Topology{Namespace: "shop", Ladder: amqp.Ladder{time.Second, time.Minute}, Kinds: []string{"a", "b"}, Subscriptions: map[string][]string{"a": {"order.#"}}}
	if got := len(notable(plan(t, topology, conn, m))); got != 7+8+9 {
		t.Errorf("%d of 7 exchanges, 8 queues and 9 bindings are missing", got)
	}
	before := objects(node)

	// What another program, or rabbitmqctl, makes of the definitions is what is wanted.
	definitions, err := topology.Definitions("")
	if err != nil {
		t.Fatal(err)
	}
	node.Ctl("import_definitions", file(t, definitions))
	wantPlan(t, plan(t, topology, conn, m))
	wantPlan(t, plan(t, topology, conn, nil))
	if err := topology.Declare(within(t, 10*time.Second), conn); err != nil {
		t.Error(err)
	}
	if before == objects(node) {
		t.Fatal("rabbitmqctl does not show the objects")
	}

	// A ladder and kinds that were configured once, one with timers that still wait.
	once := amqp.Topology{Namespace: "shop", Ladder: amqp.Ladder{time.Second, time.Hour}, Kinds: []string{"a", "old"}}
	if err := once.Declare(within(t, 10*time.Second), conn); err != nil {
		t.Fatal(err)
	}
	spoil(t, conn, topology)
	do(t, conn, func(ch *amqp091.Channel) error {
		for range 3 {
			if err := ch.PublishWithContext(t.Context(), once.Delay(time.Hour), "a", false, false, amqp091.Publishing{}); err != nil {
				return err
			}
		}
		if err := ch.QueueUnbind(topology.DueQueue("a"), "a", topology.Due(), nil); err != nil {
			return err
		}
		if err := ch.QueueUnbind(topology.DueQueue("a"), "order.#", topology.Events(), nil); err != nil {
			return err
		}
		if err := ch.QueueBind(topology.DueQueue("a"), "stock.#", topology.Events(), false, nil); err != nil {
			return err
		}
		if err := ch.ExchangeDelete(topology.Due(), false, false); err != nil {
			return err
		}
		if err := ch.ExchangeDeclare(topology.Due(), "direct", true, true, false, false, nil); err != nil {
			return err
		}
		if _, err := ch.QueueDelete(topology.Unrouted(), false, false, false); err != nil {
			return err
		}
		_, err := ch.QueueDeclare(topology.Unrouted(), true, false, false, false, nil)
		return err
	})
	node.Ctl("set_policy", "cut", `^shop\.delay\.1m$`, `{"message-ttl": 59000, "dead-letter-exchange": "elsewhere", "max-length": 7, "delivery-limit": 3}`, "--apply-to", "queues")
	node.Ctl("set_policy", "gentle", `^shop\.due\.a$`, `{"delivery-limit": 2000}`, "--apply-to", "queues")
	node.Ctl("set_operator_policy", "strict", `^shop\.dead$`, `{"delivery-limit": 20, "expires": 60000}`, "--apply-to", "queues")
	before = objects(node)
	want := []string{
		"exchange shop.parked: missing",
		"exchange shop.due: differs: auto_delete is true, false is wanted",
		"exchange shop.due: differs: alternate-exchange is none, shop.unrouted is wanted",
		`queue shop.dead: differs: expires by policy "strict" is 60000, none is wanted`,
		`queue shop.dead: differs: delivery-limit by policy "strict" is 20, 1000000 is wanted`,
		"queue shop.unrouted: differs: x-queue-type is classic, quorum is wanted",
		"queue shop.due.b: missing",
		"queue shop.delay.1s: differs: x-message-ttl is 60000, 1000 is wanted",
		`queue shop.delay.1m: differs: message-ttl by policy "cut" is 59000, 60000 is wanted`,
		`queue shop.delay.1m: differs: max-length by policy "cut" is 7, none is wanted`,
		`binding shop.parked to shop.parked by key "": missing`,
		`binding shop.unrouted to shop.unrouted by key "": missing`,
		`binding shop.due to shop.due.a by key "a": missing`,
		`binding shop.due to shop.due.b by key "b": missing`,
		`binding shop.delay.1s to shop.delay.1s by key "": missing`,
		`binding shop.events to shop.due.a by key "order.#": missing`,
		`binding shop.events to shop.due.a by key "stock.#": unexpected`,
		"exchange shop.delay.1h: unexpected",
		"queue shop.delay.1h: unexpected",
		"queue shop.due.old: unexpected",
	}
	found := plan(t, topology, conn, m)
	uncounted := func(d amqp.Difference) bool { return d.Messages < 0 } // as of a queue whose leader is being elected
	for started := time.Now(); (!slices.Equal(notable(found), want) || slices.ContainsFunc(found.Items, uncounted)) && time.Since(started) < time.Minute; found = plan(t, topology, conn, m) {
		time.Sleep(time.Second) // until the statistics have what policies do
	}
	wantPlan(t, found, want...)
	for _, d := range found.Items {
		want := map[string]int64{"shop.delay.1s": 1, "shop.delay.1h": 3}[d.Name]
		if d.Object == "queue" && d.Messages != want {
			t.Errorf("%s holds %d messages, not %d", d.Name, d.Messages, want)
		}
		if d.State == amqp.Unexpected && d.Messages == 3 && !strings.Contains(d.Advice, "holds 3 messages") {
			t.Errorf("the advice is %q", d.Advice)
		}
	}
	plan(t, topology, conn, nil)
	if after := objects(node); after != before {
		t.Errorf("the plans changed the broker:\n%s", cmp.Diff(before, after))
	}
}

// objects is all that rabbitmqctl lists.
func objects(node *amqptest.Node) string {
	var all []string
	for _, args := range [][]string{
		{"list_exchanges", "name", "type", "durable", "auto_delete", "internal", "arguments", "policy"},
		{"list_queues", "name", "type", "durable", "auto_delete", "arguments", "policy"},
		{"list_bindings"},
	} {
		all = append(all, slices.Sorted(strings.Lines(node.Ctl(append(args, "--quiet")...)))...)
	}
	return strings.Join(all, "")
}

func file(t *testing.T, content []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "definitions.json")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestDefinitionsAreOfTheVhost(t *testing.T) {
	text, err := amqp.Topology{Kinds: []string{"a"}}.Definitions("shops")
	if err != nil {
		t.Fatal(err)
	}
	var definitions map[string][]map[string]any
	if err := json.Unmarshal(text, &definitions); err != nil {
		t.Fatal(err)
	}
	for what, all := range definitions {
		for _, one := range all {
			if one["vhost"] != "shops" || one["arguments"] == nil {
				t.Errorf("%s: %v", what, one)
			}
		}
	}
	if len(definitions) != 3 {
		t.Errorf("it has %d lists", len(definitions))
	}
	if _, err := (amqp.Topology{Namespace: "a b"}).Definitions(""); err == nil {
		t.Error("a topology that is not valid is exported")
	}
}

func TestManagementThatDoesNotAnswerAsItShould(t *testing.T) {
	conn := amqptest.Conn(t)
	topology := amqp.Topology{Namespace: amqptest.Namespace()}
	answer := func(status int, body string) string {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if user, password, _ := r.BasicAuth(); user != "user" || password != "hush" {
				t.Errorf("%s:%s", user, password)
			}
			w.Header().Set("Location", "http://127.0.0.1:1/")
			w.WriteHeader(status)
			fmt.Fprint(w, body)
		}))
		t.Cleanup(server.Close)
		return strings.Replace(server.URL, "://", "://user:hush@", 1)
	}
	stalled, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer stalled.Close()
	for url, test := range map[string]struct {
		want string
		is   error
	}{
		"http://user:hush@" + deadAddress(t):          {"refused", amqp.ErrManagementAway},
		"http://user:hush@" + stalled.Addr().String(): {"deadline", amqp.ErrManagementAway},
		answer(401, `{}`):                             {"refuses the login", amqp.ErrManagementRefused},
		answer(404, `{}`):                             {"no such vhost", nil},
		answer(302, ``):                               {"302", nil},
		answer(503, ``):                               {"503", amqp.ErrManagementAway},
		answer(200, `<html>`):                         {"something else", nil},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		_, err := topology.Plan(ctx, conn, management(t, url))
		cancel()
		if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "hush") {
			t.Errorf("%s: %v; it should say %q", url, err, test.want)
		}
		for _, sentinel := range []error{amqp.ErrManagementAway, amqp.ErrManagementRefused} {
			if errors.Is(err, sentinel) != errors.Is(test.is, sentinel) {
				t.Errorf("%v is taken for: %v", err, sentinel)
			}
		}
	}
	for _, url := range []string{"", "host:15672", "amqp://user:hush@host", "http://user@host", "http://host:15672", "http://user:hu sh@host", "http://user:hush@host:port", "http://user:hush@host?hush", "http://user:hush%zz@host"} {
		m, err := amqp.NewManagement(url)
		if err == nil || strings.Contains(err.Error(), "hush") || strings.Contains(err.Error(), "hu sh") {
			t.Errorf("%s: %v, %v", url, m, err)
		}
	}
	m := management(t, "http://user:hush@host:15672/prefix/")
	if m.String() != "http://host:15672/prefix" {
		t.Error(m)
	}
	if shown := fmt.Sprintf("%v %+v %#v", m, m, *m); strings.Contains(shown, "hush") {
		t.Error(shown)
	}
}
