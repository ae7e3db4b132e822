package web_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/lapse-go/lapse/order"
	"github.com/lapse-go/lapse/order/web"
)

func TestNewClient(t *testing.T) {
	for _, address := range []string{"", "localhost:8080", "ftp://localhost", "http://", "http://user:secret@localhost", "http://localhost/?a=b", "http://[::1"} {
		if _, err := web.NewClient(address, "", nil); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v", address, err)
		}
	}
	if _, err := web.NewClient("http://localhost", "lapse_A\r\nX: y", nil); err == nil || strings.Contains(err.Error(), "lapse_A") {
		t.Errorf("a token of two lines: %v", err)
	}
}

// What answers may be a proxy, or no Lapse at all.
func TestAnswersOfOthers(t *testing.T) {
	for _, test := range []struct {
		name   string
		answer http.HandlerFunc
		is     error
		says   string
	}{
		{"proxy without a service", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no upstream", http.StatusBadGateway) }, order.ErrUnavailable, "no upstream"},
		{"proxy with a login", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "log in", http.StatusUnauthorized) }, web.ErrUnauthorized, "log in"},
		{"proxy that refuses", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusForbidden) }, web.ErrForbidden, "403"},
		{"redirection", func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/elsewhere" {
				http.Redirect(w, r, "/elsewhere", http.StatusFound)
			}
		}, nil, "go to /elsewhere"},
		// Escaped, since what is on the way may tidy up paths.
		{"two dots", func(w http.ResponseWriter, r *http.Request) { http.Error(w, r.RequestURI, http.StatusTeapot) }, nil, "/v1/orders/%2E%2E"},
		{"a page", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>") }, nil, "not that of a Lapse service"},
		{"no problem", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(500)
			fmt.Fprint(w, "[")
		}, nil, "500"},
		{"a new problem", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/problem+json; charset=utf-8")
			w.WriteHeader(418)
			fmt.Fprint(w, `{"type":"urn:lapse:problem:teapot","title":"Teapot","status":418,"detail":"short and stout","more":1}`)
		}, nil, "short and stout"},
		{"without end", func(w http.ResponseWriter, _ *http.Request) {
			for range 1000 {
				if _, err := w.Write(make([]byte, 64<<10)); err != nil {
					return
				}
			}
		}, nil, "more than"},
	} {
		t.Run(test.name, func(t *testing.T) {
			server := httptest.NewServer(test.answer)
			defer server.Close()
			c, err := web.NewClient(server.URL+"/", "", server.Client())
			if err != nil {
				t.Fatal(err)
			}
			_, err = c.Get(t.Context(), "..")
			if err == nil || test.is != nil && !errors.Is(err, test.is) || !strings.Contains(err.Error(), test.says) {
				t.Errorf("got %v", err)
			}
			if test.is == nil && (errors.Is(err, order.ErrUnavailable) || errors.Is(err, order.ErrInvalid)) {
				t.Errorf("took for one of ours: %v", err)
			}
		})
	}
}
