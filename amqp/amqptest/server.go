package amqptest

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// startTimeout is how long a server may take to start, and endTimeout to end.
const (
	startTimeout = 2 * time.Minute
	endTimeout   = time.Minute
)

// server is what [Node] and [MySQL] have in common: a server of the test's own that can be broken. It is
// a child process, or a container where its binary is missing.
type server struct {
	t         testing.TB
	dir       string       // for whatever it writes; a container keeps its data to itself
	port      int          // on 127.0.0.1
	command   []string     // starts it, and ends when it does
	env       []string     // of the command; nil is the test's own
	container string       // its name; empty for a child process
	answers   func() error // nil if the server can be used

	child *exec.Cmd     // nil before the first start
	ended chan struct{} // closed when the child has ended
}

// newServer is one that does not run yet. It ends, and its data go, when the test ends.
func newServer(t testing.TB) *server {
	t.Helper()
	// Not t.TempDir: its path is too long for a socket, and a failed removal of what the server still
	// writes is no failure of the test.
	dir, err := os.MkdirTemp("", "lapse-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	s := &server{t: t, dir: dir, port: freePort(t)}
	t.Cleanup(s.Kill)
	return s
}

// find returns the first of these binaries that there is, or nothing. One that the environment variable
// names has to be there.
func find(t testing.TB, variable string, binaries ...string) string {
	t.Helper()
	if named := os.Getenv(variable); named != "" {
		binary, err := exec.LookPath(named)
		if err != nil {
			t.Fatalf("%s: %v", variable, err)
		}
		return binary
	}
	for _, name := range binaries {
		if binary, err := exec.LookPath(name); err == nil {
			return binary
		}
	}
	return ""
}

// contain makes the server a container that listens on a port of its own. What is to be run is an image,
// with docker's options before it and the server's arguments after it. Without a Docker engine the test
// fails, and says which package it needs.
func (s *server) contain(debian string, port int, run ...string) {
	s.t.Helper()
	if err := docker(s.t.Context(), "version", "--format", "{{.Server.Version}}"); err != nil {
		s.t.Fatalf("this test needs a server of its own: install %s (Debian), or start a Docker engine: %v", debian, err)
	}
	if os.Getenv("FAKETIME") != "" {
		s.t.Fatalf("this test needs a server with another clock, and FAKETIME does not reach into a container: install %s (Debian)", debian)
	}
	name := "lapse-test-" + strings.ToLower(rand.Text()[:12])
	create := append([]string{"create", "--name", name,
		"--publish", fmt.Sprintf("127.0.0.1:%d:%d", s.port, port),
		"--ulimit", "nofile=65536:65536", // Erlang makes a table as large as the limit
	}, run...)
	if err := docker(s.t.Context(), create...); err != nil { // which may pull the image
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), endTimeout)
		defer cancel()
		if err := docker(ctx, "rm", "--force", "--volumes", name); err != nil {
			s.t.Error(err)
		}
	})
	s.container = name
	s.command = []string{"docker", "start", "--attach", name}
}

func docker(ctx context.Context, args ...string) error {
	command := exec.CommandContext(ctx, "docker", args...)
	if out, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", command, err, bytes.TrimSpace(out))
	}
	return nil
}

// Start starts the server, after Stop or Kill on the same port with the same data, and returns once it
// answers.
func (s *server) Start() {
	s.t.Helper()
	output, err := os.OpenFile(filepath.Join(s.dir, "output"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		s.t.Fatal(err)
	}
	defer output.Close()
	child, ended := exec.Command(s.command[0], s.command[1:]...), make(chan struct{})
	child.Env, child.Dir, child.Stdout, child.Stderr = s.env, s.dir, output, output
	if err := child.Start(); err != nil {
		s.t.Fatal(err)
	}
	go func() {
		child.Wait() // how it ended is in its output
		close(ended)
	}()
	s.child, s.ended = child, ended
	timeout := time.After(startTimeout)
	for {
		err := s.answers()
		if err == nil {
			return
		}
		select {
		case <-ended:
			s.t.Fatalf("%s ended:\n%s", child, s.output())
		case <-timeout:
			s.t.Fatalf("%s did not answer within %s: %v\n%s", child, startTimeout, err, s.output())
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (s *server) output() []byte {
	text, _ := os.ReadFile(filepath.Join(s.dir, "output"))
	return text
}

// Stop shuts the server down in good order.
func (s *server) Stop() { s.t.Helper(); s.end(syscall.SIGTERM) }

// Kill ends it as a power cut would. It does nothing if the server has ended.
func (s *server) Kill() { s.t.Helper(); s.end(syscall.SIGKILL) }

// Pause stops the server without closing its connections, as a machine that hangs does.
func (s *server) Pause() {
	s.t.Helper()
	if err := s.signal(syscall.SIGSTOP); err != nil {
		s.t.Error(err)
	}
}

// Unpause lets it go on.
func (s *server) Unpause() {
	s.t.Helper()
	if err := s.signal(syscall.SIGCONT); err != nil {
		s.t.Error(err)
	}
}

func (s *server) end(signal syscall.Signal) {
	s.t.Helper()
	if s.child == nil {
		return
	}
	err := s.signal(signal) // which fails if the server has ended by itself
	select {
	case <-s.ended:
	case <-time.After(endTimeout):
		err = errors.Join(err, s.signal(syscall.SIGKILL), s.child.Process.Kill())
		<-s.ended
		s.t.Errorf("%s did not end within %s after signal %s: %v", s.child, endTimeout, signal, err)
	}
}

// signal reaches the server itself: of a container, the child is only the client.
func (s *server) signal(signal syscall.Signal) error {
	if s.container == "" {
		return s.child.Process.Signal(signal)
	}
	ctx, cancel := context.WithTimeout(context.Background(), endTimeout)
	defer cancel()
	switch signal {
	case syscall.SIGSTOP:
		return docker(ctx, "pause", s.container)
	case syscall.SIGCONT:
		return docker(ctx, "unpause", s.container)
	}
	return docker(ctx, "kill", "--signal", strconv.Itoa(int(signal)), s.container)
}

func freePort(t testing.TB) int {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port
}
