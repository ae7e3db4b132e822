package amqptest

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

// Node is a RabbitMQ node of the test's own, to be broken as it likes.
type Node struct {
	*server
	ctl        []string // reaches the node while it runs
	management int      // port of the management API, 0 without that plugin
}

// NewNode starts a node with a folder and ports of its own: Debian's rabbitmq-server, or the one that
// LAPSE_RABBITMQ_SERVER names, which is a bin/rabbitmq-server beside its rabbitmqctl and not a wrapper
// that changes user. Without a binary it is a container, if a Docker engine answers. It ends with the
// test. (The port mapper that Erlang starts if the machine has none is left running: other nodes may have
// come to use it.)
func NewNode(t testing.TB) *Node {
	t.Helper()
	return newNode(t, 0)
}

// NewManagedNode starts a node like [NewNode] does, with the management plugin.
func NewManagedNode(t testing.TB) *Node {
	t.Helper()
	return newNode(t, freePort(t))
}

func newNode(t testing.TB, management int) *Node {
	t.Helper()
	n := &Node{server: newServer(t), management: management}
	n.answers = n.ping
	if binary := find(t, "LAPSE_RABBITMQ_SERVER", "/usr/lib/rabbitmq/bin/rabbitmq-server"); binary != "" {
		n.configure(binary)
	} else {
		run := []string{"rabbitmq:4"} // as in deploy/dev/compose.yaml
		if management != 0 {
			run = []string{"--publish", fmt.Sprintf("127.0.0.1:%d:15672", management), "rabbitmq:4-management"}
		}
		n.contain("rabbitmq-server", 5672, run...)
		n.ctl = []string{"docker", "exec", n.container, "rabbitmqctl"}
	}
	n.Start()
	return n
}

func (n *Node) ping() error {
	connection, err := amqp091.Dial(n.URL())
	if err != nil {
		return err
	}
	if err := connection.Close(); err != nil || n.management == 0 {
		return err
	}
	answer, err := http.Get(n.ManagementURL() + "/api/overview")
	if err != nil {
		return err
	}
	answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("the management API answers %s", answer.Status)
	}
	return nil
}

// configure makes the node a child process.
func (n *Node) configure(binary string) {
	n.t.Helper()
	plugins, conf := "[].", "log.console = false"
	if n.management != 0 {
		plugins = "[rabbitmq_management]."
		conf += fmt.Sprintf("\nmanagement.tcp.ip = 127.0.0.1\nmanagement.tcp.port = %d", n.management)
	}
	n.command = []string{binary}
	n.ctl = []string{filepath.Join(filepath.Dir(binary), "rabbitmqctl")}
	n.env = append(os.Environ(),
		"HOME="+n.dir,
		"RUNNING_UNDER_SYSTEMD=true", // no shell around the node: the child's pid is the node's
		fmt.Sprintf("RABBITMQ_NODENAME=lapse-%d@localhost", n.port),
		"RABBITMQ_NODE_IP_ADDRESS=127.0.0.1",
		"RABBITMQ_NODE_PORT="+strconv.Itoa(n.port),
		"RABBITMQ_DIST_PORT="+strconv.Itoa(freePort(n.t)),
		"RABBITMQ_MNESIA_BASE="+filepath.Join(n.dir, "data"),
		"RABBITMQ_LOG_BASE="+filepath.Join(n.dir, "log"),
		"RABBITMQ_PID_FILE="+filepath.Join(n.dir, "pid"),
		// Nothing of what the machine's own node is told.
		"RABBITMQ_CONF_ENV_FILE="+filepath.Join(n.dir, "none"),
		"RABBITMQ_CONFIG_FILES="+filepath.Join(n.dir, "none"),
		"RABBITMQ_CONFIG_FILE="+n.file("rabbitmq.conf", conf),
		"RABBITMQ_ADVANCED_CONFIG_FILE="+n.file("advanced.config", "[]."),
		"RABBITMQ_ENABLED_PLUGINS_FILE="+n.file("enabled_plugins", plugins),
	)
}

func (n *Node) file(name, text string) string {
	n.t.Helper()
	path := filepath.Join(n.dir, name)
	if err := os.WriteFile(path, []byte(text+"\n"), 0o600); err != nil {
		n.t.Fatal(err)
	}
	return path
}

// URL is where the node listens, as long as it runs.
func (n *Node) URL() string { return fmt.Sprintf("amqp://guest:guest@127.0.0.1:%d/", n.port) }

// ManagementURL is where the management API of a node made by [NewManagedNode] listens.
func (n *Node) ManagementURL() string {
	return fmt.Sprintf("http://guest:guest@127.0.0.1:%d", n.management)
}

// Ctl runs rabbitmqctl on the node and returns what it prints, for instance
// Ctl("set_vm_memory_high_watermark", "0").
func (n *Node) Ctl(args ...string) string {
	n.t.Helper()
	args = slices.Concat(n.ctl, args)
	command := exec.CommandContext(n.t.Context(), args[0], args[1:]...)
	command.Env, command.Dir = n.env, n.dir
	out, err := command.CombinedOutput()
	if err != nil {
		n.t.Fatalf("%s: %v\n%s", command, err, out)
	}
	return string(out)
}
