package web

import (
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"testing"
	"testing/synctest"
	"time"
)

// piped is a listener of one connection.
type piped struct {
	conns chan net.Conn
	addr  net.Addr
}

func (l piped) Accept() (net.Conn, error) {
	if conn, ok := <-l.conns; ok {
		return conn, nil
	}
	return nil, net.ErrClosed
}
func (piped) Close() error     { return nil }
func (l piped) Addr() net.Addr { return l.addr }

// A stream goes on for as long as somebody reads it, and no longer.
func TestStreamsThatNobodyReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, conn := net.Pipe()
		l := piped{make(chan net.Conn, 1), conn.LocalAddr()}
		l.conns <- conn
		close(l.conns)
		lost := make(chan error, 1)
		server := &http.Server{
			WriteTimeout: writeTimeout,
			Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				a := &answer{w: w}
				for {
					if _, err := a.stream().Write(make([]byte, 1<<10)); err != nil {
						lost <- err
						return
					}
				}
			}),
		}
		go func() { _ = server.Serve(l) }()
		if _, err := io.WriteString(client, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		for range 10 { // slowly, and for longer than any other answer may take
			time.Sleep(20 * time.Second)
			if _, err := io.ReadFull(client, make([]byte, streamed)); err != nil {
				t.Fatalf("after %s: %v", time.Since(begin), err)
			}
		}
		begin = time.Now()
		if err := <-lost; !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(begin) > longTimeout {
			t.Errorf("after %s: %v", time.Since(begin), err)
		}
		client.Close()
		server.Close()
	})
}
