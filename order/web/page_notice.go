package web

import (
	"fmt"
	"net/url"
	"strings"
)

// notices are what can be said of something that was done, by name, so that no address makes the page say anything
// else.
var notices = map[string]string{
	"signed-out": "You are signed out.",
	"paused":     "Expiry is paused, everywhere.",
	"resumed":    "Expiry goes on.",
	"swept":      "The sweep found %s overdue orders, and expired %s of them. %s failed.",
	"discarded":  "%s letters were discarded. They are kept, and can be restored, until their retention is over.",
	"restored":   "%s letters are open again.",
	"cancelling": "The replay stops within a second.",
	"started":    "The replay has begun.",
	"cancelled":  "The order is cancelled.",
	"extended":   "The order has another deadline.",
	"more-time":  "%s orders have got more time.",
}

// done is the way to a page that then says what was done.
func done(to, name string, counts ...int64) string {
	q := url.Values{"done": {name}}
	for _, n := range counts {
		q.Add("n", fmt.Sprint(n))
	}
	return to + "?" + q.Encode()
}

func notice(q url.Values) string {
	text := notices[q.Get("done")]
	for _, n := range q["n"] {
		if strings.ContainsFunc(n, func(r rune) bool { return r < '0' || r > '9' }) || len(n) > 20 {
			return ""
		}
		text = strings.Replace(text, "%s", thousands(n), 1)
	}
	if strings.Contains(text, "%s") {
		return ""
	}
	return text
}
