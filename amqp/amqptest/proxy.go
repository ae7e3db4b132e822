package amqptest

import (
	"net"
	"net/url"
	"sync"
	"testing"
)

// Proxy stands between a client and a server and can fail as networks do.
type Proxy struct {
	t        testing.TB
	target   string
	listener net.Listener
	tasks    sync.WaitGroup

	mu      sync.Mutex
	open    chan struct{} // closed while data may pass
	refuses bool
	closed  bool
	conns   map[net.Conn]bool // both ends
}

// NewProxy starts a proxy for target, host:port, on a port of its own. It ends with the test.
func NewProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{t: t, target: target, listener: listener, open: make(chan struct{}), conns: map[net.Conn]bool{}}
	close(p.open)
	p.tasks.Go(p.accept)
	t.Cleanup(p.close)
	return p
}

// Addr is where the proxy listens, host:port.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// NewBrokerProxy is a proxy for the broker at brokerURL, and the URL that leads through it.
func NewBrokerProxy(t testing.TB, brokerURL string) (*Proxy, string) {
	t.Helper()
	u, err := url.Parse(brokerURL)
	if err != nil {
		t.Fatal(err)
	}
	p := NewProxy(t, u.Host)
	u.Host = p.Addr()
	return p, u.String()
}

// Stall lets nothing pass either way, and closes nothing: as when packets are dropped. New
// connections are accepted and stall too.
func (p *Proxy) Stall() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.passing() {
		p.open = make(chan struct{})
	}
}

// Reset cuts all connections there are. New ones are served.
func (p *Proxy) Reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut()
}

// Refuse cuts all connections there are, and each new one.
func (p *Proxy) Refuse() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuses = true
	p.cut()
}

// Restore lets everything pass again, also what was held back.
func (p *Proxy) Restore() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuses = false
	if !p.passing() {
		close(p.open)
	}
}

func (p *Proxy) passing() bool {
	select {
	case <-p.open:
		return true
	default:
		return false
	}
}

func (p *Proxy) close() {
	p.mu.Lock()
	p.closed = true
	p.listener.Close()
	p.cut()
	p.mu.Unlock()
	p.Restore()
	p.tasks.Wait()
}

// cut makes the other sides see a reset.
func (p *Proxy) cut() {
	for conn := range p.conns {
		conn.(*net.TCPConn).SetLinger(0)
		conn.Close()
	}
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.tasks.Go(func() { p.serve(client) })
	}
}

func (p *Proxy) serve(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", p.target)
	if err != nil {
		client.(*net.TCPConn).SetLinger(0)
		return
	}
	defer server.Close()
	p.mu.Lock()
	p.conns[client], p.conns[server] = true, true
	if p.refuses || p.closed {
		p.cut()
	}
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.conns, client)
		delete(p.conns, server)
	}()
	var ways sync.WaitGroup
	ways.Go(func() { p.pass(server, client) })
	ways.Go(func() { p.pass(client, server) })
	ways.Wait()
}

// pass copies until one end closes, and then closes the other.
func (p *Proxy) pass(to, from net.Conn) {
	defer to.Close()
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		p.mu.Lock()
		open := p.open
		p.mu.Unlock()
		<-open
		if _, failed := to.Write(buffer[:n]); failed != nil || err != nil {
			return
		}
	}
}
