package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/lapse-go/lapse/amqp/deadletter"
	"github.com/lapse-go/lapse/order/web"
)

// TestDemoAddsUp lets it run, looks at what --keep leaves up, and ends that.
func TestDemoAddsUp(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	said, telling := io.Pipe()
	var stdout bytes.Buffer
	code := make(chan int, 1)
	go func() {
		code <- run(ctx, []string{"demo", "--keep", "--output", "json"}, &stdout, telling)
		telling.Close()
	}()
	var stderr bytes.Buffer
	kept := regexp.MustCompile(`The page is at (http://127\.0\.0\.1:\d+)/ and its token is (\S+)\n`)
	for buffer := make([]byte, 4096); ; {
		n, err := said.Read(buffer)
		stderr.Write(buffer[:n])
		if found := kept.FindStringSubmatch(stderr.String()); found != nil {
			go func() { _, _ = io.Copy(io.Discard, said) }()
			lookAtKept(t, found[1], found[2])
			break
		}
		if err != nil {
			t.Fatalf("exit code %d\n%s%s", <-code, &stdout, &stderr)
		}
	}
	interrupt()
	if code := <-code; code != 0 {
		t.Errorf("exit code %d\n%s%s", code, &stdout, &stderr)
	}
	decoder := json.NewDecoder(strings.NewReader(stdout.String()))
	decoder.DisallowUnknownFields()
	var r demoResult
	if err := decoder.Decode(&r); err != nil || decoder.More() {
		t.Fatalf("standard output is not one JSON object: %v\n%s", err, &stdout)
	}
	if !r.OK || !r.StockConserved || r.Placed != 60 || r.Paid != 20 || r.Pending != 0 || r.LatePayments != 1 || r.DeadLetters != 5 ||
		r.Groups != 4 || r.Replayed != 4 || r.SettledByGuard != 1 || r.Returned != 3 ||
		r.Paid+r.Cancelled+r.Expired != 60 || r.Cancelled == 0 || r.Extended == 0 {
		t.Errorf("%+v", r)
	}
}

// lookAtKept: the page is there, and only the token lets anybody in.
func lookAtKept(t *testing.T, address, token string) {
	page, err := http.Get(address)
	if err != nil {
		t.Error(err)
		return
	}
	page.Body.Close()
	if page.StatusCode != http.StatusOK { // after going to where one signs in
		t.Errorf("the page answers %s", page.Status)
	}
	for _, c := range []struct {
		token string
		in    bool
	}{{token, true}, {"", false}} {
		client, err := web.NewClient(address, c.token, nil)
		if err != nil {
			t.Error(err)
			return
		}
		_, _, n, err := client.DeadLetters(t.Context(), deadletter.Filter{State: deadletter.Open}, deadletter.Page{})
		if (err == nil) != c.in || c.in && n != 3 {
			t.Errorf("with the token %q: %d letters, %v", c.token, n, err)
		}
	}
}
