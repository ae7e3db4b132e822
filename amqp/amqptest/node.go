package amqptest

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

const (
	serverBinary = "/usr/lib/rabbitmq/bin/rabbitmq-server"
	startTimeout = 2 * time.Minute
)

// Node is a RabbitMQ node of the test's own, to be broken as it likes.
type Node struct {
	t      testing.TB
	binary string
	dir    string
	port   int
	env    []string
	child  *exec.Cmd
	ended  chan struct{} // closed when the child has ended
}

// A Setting changes the configuration of a node.
type Setting func(*settings)

type settings struct {
	conf     []string
	advanced string
}

// Conf adds lines to rabbitmq.conf, for instance "consumer_timeout = 10000".
func Conf(lines ...string) Setting {
	return func(s *settings) { s.conf = append(s.conf, lines...) }
}

// Advanced is the whole of advanced.config, in Erlang, for instance
// "[{rabbit, [{dead_letter_worker_consumer_prefetch, 512}]}].".
func Advanced(config string) Setting {
	return func(s *settings) { s.advanced = config }
}

// NewNode starts a node with a folder and ports of its own: Debian's rabbitmq-server, or the one
// that LAPSE_RABBITMQ_SERVER names. It ends with the test. (The port mapper that Erlang starts if
// the machine has none is left running: other nodes may have come to use it.)
func NewNode(t testing.TB, set ...Setting) *Node {
	t.Helper()
	var s settings
	for _, apply := range set {
		apply(&s)
	}
	n := &Node{t: t, binary: cmp.Or(os.Getenv("LAPSE_RABBITMQ_SERVER"), serverBinary), port: freePort(t)}
	if _, err := exec.LookPath(n.binary); err != nil {
		t.Fatalf("this test needs a RabbitMQ node of its own: install rabbitmq-server (Debian) or set LAPSE_RABBITMQ_SERVER to one's bin/rabbitmq-server, not to a wrapper that changes user: %v", err)
	}
	// Not t.TempDir: a failed removal of what the node still writes is no failure of the test.
	dir, err := os.MkdirTemp("", "rabbitmq")
	if err != nil {
		t.Fatal(err)
	}
	n.dir = dir
	t.Cleanup(func() { os.RemoveAll(dir) })

	conf := append([]string{fmt.Sprintf("listeners.tcp.1 = 127.0.0.1:%d", n.port), "log.console = false"}, s.conf...)
	n.file("rabbitmq.conf", strings.Join(conf, "\n")+"\n")
	n.file("enabled_plugins", "[].\n")
	n.env = append(os.Environ(),
		"HOME="+dir,
		"RUNNING_UNDER_SYSTEMD=true", // no shell around the node: the child's pid is the node's
		fmt.Sprintf("RABBITMQ_NODENAME=lapse-%d@localhost", n.port),
		"RABBITMQ_NODE_IP_ADDRESS=127.0.0.1",
		"RABBITMQ_NODE_PORT="+strconv.Itoa(n.port),
		"RABBITMQ_DIST_PORT="+strconv.Itoa(freePort(t)),
		"RABBITMQ_MNESIA_BASE="+filepath.Join(dir, "data"),
		"RABBITMQ_LOG_BASE="+filepath.Join(dir, "log"),
		"RABBITMQ_CONFIG_FILE="+filepath.Join(dir, "rabbitmq.conf"),
		"RABBITMQ_CONF_ENV_FILE="+filepath.Join(dir, "none"),
		"RABBITMQ_ENABLED_PLUGINS_FILE="+filepath.Join(dir, "enabled_plugins"),
		"RABBITMQ_PID_FILE="+filepath.Join(dir, "pid"),
	)
	if s.advanced != "" {
		n.env = append(n.env, "RABBITMQ_ADVANCED_CONFIG_FILE="+n.file("advanced.config", s.advanced+"\n"))
	}
	n.Start()
	t.Cleanup(n.Kill)
	return n
}

func (n *Node) file(name, text string) string {
	n.t.Helper()
	path := filepath.Join(n.dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		n.t.Fatal(err)
	}
	return path
}

// URL is where the node listens, as long as it runs.
func (n *Node) URL() string { return fmt.Sprintf("amqp://guest:guest@127.0.0.1:%d/", n.port) }

// Start starts the node, after [Node.Stop] or [Node.Kill] on the same port with the same data, and
// returns once it takes connections.
func (n *Node) Start() {
	n.t.Helper()
	output, err := os.OpenFile(filepath.Join(n.dir, "output"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		n.t.Fatal(err)
	}
	defer output.Close()
	child, ended := exec.Command(n.binary), make(chan struct{})
	child.Env, child.Dir, child.Stdout, child.Stderr = n.env, n.dir, output, output
	if err := child.Start(); err != nil {
		n.t.Fatal(err)
	}
	go func() {
		child.Wait() // how it ended is in its log
		close(ended)
	}()
	n.child, n.ended = child, ended
	timeout := time.After(startTimeout)
	for {
		connection, err := amqp091.Dial(n.URL())
		if err == nil {
			connection.Close()
			return
		}
		select {
		case <-ended:
			text, _ := os.ReadFile(output.Name())
			n.t.Fatalf("%s ended:\n%s", n.binary, text)
		case <-timeout:
			n.Kill()
			n.t.Fatalf("%s did not answer within %s: %v", n.binary, startTimeout, err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// Stop shuts the node down in good order.
func (n *Node) Stop() { n.t.Helper(); n.end(syscall.SIGTERM) }

// Kill ends it as a power cut would. It does nothing if the node has ended.
func (n *Node) Kill() { n.t.Helper(); n.end(syscall.SIGKILL) }

func (n *Node) end(s syscall.Signal) {
	n.t.Helper()
	if err := n.child.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		n.t.Errorf("signal %s to %s: %v", s, n.binary, err)
	}
	select {
	case <-n.ended:
	case <-time.After(time.Minute):
		n.child.Process.Kill()
		<-n.ended
		n.t.Errorf("%s did not end within a minute after signal %s", n.binary, s)
	}
}

// Ctl runs rabbitmqctl on the node and returns what it prints, for instance
// Ctl("set_vm_memory_high_watermark", "0").
func (n *Node) Ctl(args ...string) string {
	n.t.Helper()
	command := exec.CommandContext(n.t.Context(), filepath.Join(filepath.Dir(n.binary), "rabbitmqctl"), args...)
	command.Env, command.Dir = n.env, n.dir
	out, err := command.CombinedOutput()
	if err != nil {
		n.t.Fatalf("%s: %v\n%s", command, err, out)
	}
	return string(out)
}
