package web_test

import (
	"encoding/json"
	"net/url"
	"testing"
	"time"

	"github.com/lapse-go/lapse/amqp/amqptest"
	"github.com/lapse-go/lapse/order"
	"github.com/lapse-go/lapse/order/web"
)

func TestOrdersOnThePage(t *testing.T) {
	s := start(t, nil)
	r := s.reader()
	s.stocked("kettle", 10)
	s.stocked("filter", 10)
	s.placed("A-1")
	s.placed("A/<b>?#")
	r.want("finding", r.read("/orders?id=+A-1+"), 200, `id="order" data-id="A-1"`, "EUR 42.48", "order.placed")
	if got := r.want("an id with everything", r.read("/orders?id="+url.QueryEscape("A/<b>?#")), 200, "A/&lt;b&gt;?#", "!<b>?#"); got.at != "/orders/A%2F%3Cb%3E%3F%23" {
		t.Errorf("it leads to %s", got.at)
	}
	r.want("no order", r.read("/orders?id=none"), 404)
	r.want("no id", r.read("/orders?id=a+b"), 422)
	to := time.Now().Add(48 * time.Hour).UTC().Truncate(time.Second)
	r.want("without a reason", r.send("/orders/A-1/extend", url.Values{"deadline": {to.Format("2006-01-02T15:04:05")}}), 422)
	r.want("extending", r.send("/orders/A-1/extend", url.Values{"deadline": {to.Format("2006-01-02T15:04:05")}, "why": {"<i>vip"}}), 200,
		"The order has another deadline.", to.Format("2006-01-02 15:04:05"), "&lt;i&gt;vip", "order.extended")
	if o, err := s.Get(t.Context(), "A-1"); err != nil || !o.Deadline.Equal(to) {
		t.Errorf("%s, %v", o.Deadline, err)
	}
	r.want("into the past", r.send("/orders/A-1/extend", url.Values{"deadline": {"2020-01-01T00:00"}, "why": {"x"}}), 422)
	orders := r.want("orders", r.read("/orders"), 200, `id="extend-all"`)
	form := with(orders.fields("extend-all"), "by", "20m", "tag", "sale", "why", "slow provider")
	r.want("more time", r.send("/orders/extend", form), 200, "2 orders have got more time.")
	r.want("the same form again", r.send("/orders/extend", form), 200, "2 orders have got more time.")
	if o, err := s.Get(t.Context(), "A-1"); err != nil || !o.Deadline.Equal(to.Add(20*time.Minute)) {
		t.Errorf("%s, %v", o.Deadline, err)
	}
	r.want("cancelling", r.send("/orders/A-1/cancel", url.Values{"why": {"customer asked"}}), 200, "The order is cancelled.", `data-state="cancelled"`, `!id="order-cancel"`)
	r.want("extending too late", r.send("/orders/A-1/extend", url.Values{"deadline": {to.Format("2006-01-02T15:04:05")}, "why": {"x"}}), 409, "already cancelled")
	r.want("the audit", r.read("/audit"), 200, "order.extend", "order.extend-all", "order.cancel", "customer asked", "slow provider", `href="/orders/A-1"`, "<small>orders with the tag sale · by 20m0s</small>")
}

func TestOverviewOnThePage(t *testing.T) {
	s := start(t, nil)
	r := s.reader()
	s.stocked("kettle", 10)
	s.stocked("filter", 10)
	s.placed("A-1")
	s.letter(1, nil)
	r.want("not serving", r.read("/"), 200, `id="trouble"`, "not serving yet", `data-status="pending"><span class="name">pending</span><strong>1</strong>`,
		`href="/letters">1</a>`, "the queues have not been looked at yet", `id="pause"`, `!id="resume"`)
	r.want("no reason", r.send("/pause", nil), 422)
	r.want("pausing", r.send("/pause", url.Values{"why": {"<b>night"}}), 200, "Expiry is paused, everywhere.", `id="paused"`, "by local: &lt;b&gt;night", `id="resume"`, `!id="pause"`)
	r.want("sweeping while paused", r.send("/sweep", url.Values{"why": {"look"}}), 409, "resume it first")
	r.want("resuming", r.send("/resume", url.Values{"why": {"day"}}), 200, "Expiry goes on.", `!id="paused"`)
	r.want("sweeping", r.send("/sweep", url.Values{"why": {"look"}}), 200, "The sweep found 0 overdue orders")
	r.want("the audit", r.read("/audit"), 200, "&lt;b&gt;night", "day", "sweep")
	r.want("pausing in the audit", r.read("/audit?action=pause"), 200, `data-label="Count"></td>`)
	r.want("a form of another site", r.do("POST", "/pause", url.Values{"why": {"x"}}, "Origin", "https://evil.example"), 403, "open Lapse in this browser, and do it there")
	r.want("the part that is polled", r.do("GET", "/", nil, "HX-Request", "true"), 200, `id="overview"`, "!<html", `!id="pause"`)
}

// Where the orders are the shop's own, and where there is no desk, the page says nothing of them.
func TestThePageWithoutOrdersOrDesk(t *testing.T) {
	s := start(t, nil, func(cfg *web.Config) {
		cfg.Switch = order.Switch{PauseSwitch: cfg.Orders.Repository}
		cfg.Orders, cfg.Submit = nil, nil
	})
	r := s.reader()
	s.timers("A-1")
	r.want("the overview", r.read("/"), 200, "!/orders", "/letters")
	r.want("a letter", r.read("/letters/1"), 200, `!id="letter-order"`, `id="letter-forecast">not found`)
	r.want("orders", r.do("GET", "/orders", nil, "Accept", "text/html"), 404)
	s = start(t, nil, func(cfg *web.Config) { cfg.Desk = nil })
	r = s.reader()
	r.want("the overview", r.read("/"), 200, "!/letters", "!/audit", "/orders")
	r.want("letters", r.do("GET", "/letters", nil, "Accept", "text/html"), 404)
	r.want("pausing", r.send("/pause", url.Values{"why": {"x"}}), 200, "Expiry is paused")
}

func TestThePageWhileTheDatabaseIsAway(t *testing.T) {
	db := amqptest.Database(t)
	s := start(t, db)
	r := s.reader()
	pool, err := db.DB()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := pool.Exec("RENAME TABLE lapse_dead_letters TO gone, lapse_control TO gone_too"); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/letters", "/letters/1"} {
		r.want(path, r.read(path), 503, "the database is busy or away", "Try again", "!gone", "!lapse_dead_letters")
	}
	r.want("the overview", r.read("/"), 200, "not known")
	r.want("pausing", r.send("/pause", url.Values{"why": {"x"}}), 503, "!Try again")
	var problem web.Problem
	if err := json.Unmarshal([]byte(r.do("GET", "/v1/dead-letters", nil).text), &problem); err != nil || problem.Status != 503 {
		t.Errorf("%v %+v", err, problem)
	}
}
