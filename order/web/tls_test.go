package web_test

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/lapse-go/lapse/amqp/amqptest"
	"github.com/lapse-go/lapse/order"
	"github.com/lapse-go/lapse/order/web"
)

// protocols notes those of the answers.
type protocols struct {
	next http.RoundTripper
	seen map[string]bool
}

func (p protocols) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := p.next.RoundTrip(r)
	if err == nil {
		p.seen[answer.Proto] = answer.TLS != nil
	}
	return answer, err
}

func TestTLS(t *testing.T) {
	borrowed := httptest.NewUnstartedServer(nil) // for its self-signed certificate
	borrowed.StartTLS()
	defer borrowed.Close()
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	// As `lapse serve` makes it.
	listener := tls.NewListener(plain, &tls.Config{Certificates: borrowed.TLS.Certificates, MinVersion: tls.VersionTLS12})
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	var over sync.WaitGroup
	b := newBench(t, func(context.Context) error { return nil })
	over.Go(func() {
		if err := web.Serve(ctx, listener, b.server, 5*time.Second, amqptest.Logger(t)); err != nil {
			t.Errorf("Serve ended with %v", err)
		}
	})
	defer over.Wait()
	defer stop()

	transport := borrowed.Client().Transport.(*http.Transport).Clone()
	defer transport.CloseIdleConnections()
	transport.ForceAttemptHTTP2 = true // offers both
	seen := protocols{transport, make(map[string]bool)}
	address := "https://" + listener.Addr().String()
	client, err := web.NewClient(address, "", &http.Client{Transport: seen})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Paused(t.Context()); err != nil {
		t.Error(err)
	}
	if err := client.Pause(t.Context(), order.By{}); err != nil {
		t.Error(err)
	}
	if len(seen.seen) != 1 || !seen.seen["HTTP/1.1"] {
		t.Errorf("spoken was %v, want HTTP/1.1 over TLS", seen.seen)
	}

	// Whoever does not know the certificate says no more.
	stranger, err := web.NewClient(address, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stranger.Paused(t.Context()); err == nil {
		t.Error("a certificate that nobody vouches for was believed")
	}
}
