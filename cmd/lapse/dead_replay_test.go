package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lapse-go/lapse/amqp/amqptest"
	"github.com/lapse-go/lapse/amqp/deadletter"
	"github.com/lapse-go/lapse/order/web"
)

// bury puts open letters on the desk, timers of orders that nobody placed.
func (s *service) bury(n int) {
	s.t.Helper()
	var rows []string
	for i := range n {
		rows = append(rows, fmt.Sprintf(`('i-%[1]d', 'm-%[1]d', 'order.payment_timeout', 'A-%[1]d', 'dead', '%[2]s', 'order.payment_timeout', 'out-of-tries', 8, 'not found', '', '00000000000000aa',
			'{}', '{}', '{"order_id":"A-%[1]d","deadline":"2026-01-01T00:00:00Z"}', 55, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), 0, '', 'open')`, i, s.topology.Due()))
	}
	err := s.db.Exec(`INSERT INTO lapse_dead_letters (identity, message_id, kind, subject, queue, exchange, routing_key, reason, attempts, error, first_error, fingerprint,
		properties, headers, body, size, died_at, collected_at, replays, replayed_by, state) VALUES ` + strings.Join(rows, ", ")).Error
	if err != nil {
		s.t.Fatal(err)
	}
}

// command is the program, with the service's servers.
func (s *service) command(args ...string) *exec.Cmd {
	c := exec.Command("lapse", args...)
	c.Env = append(os.Environ(), "LAPSE_AMQP_URL="+amqptest.URL(s.t), "LAPSE_MYSQL_DSN="+s.dsn, "LAPSE_NAMESPACE="+s.topology.Namespace, "LAPSE_WHO=tester")
	return c
}

// TestReplayIsInterrupted: Ctrl-C has the job stop, the program says what was done and how to go on, and that does it.
func TestReplayIsInterrupted(t *testing.T) {
	s := newService(t)
	s.bury(40)
	desk := s.start("--role=desk")
	replay := s.command("dead", "replay", "--group=00000000000000aa", "--why=it's mended", "--rate=10", "--yes")
	var stdout, stderr bytes.Buffer
	replay.Stdout, replay.Stderr = &stdout, &stderr
	if err := replay.Start(); err != nil {
		t.Fatal(err)
	}
	await(t, 20*time.Second, "some letters are replayed", func() bool {
		var n int
		return s.db.Raw("SELECT COUNT(*) FROM lapse_replay_results").Scan(&n).Error == nil && n > 2
	})
	begin := time.Now()
	if err := replay.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	_ = replay.Wait() // its state is asked for
	if code := replay.ProcessState.ExitCode(); code != exitPartly || time.Since(begin) > 3*time.Second {
		t.Errorf("exit code %d after %s", code, time.Since(begin))
	}
	for text, want := range map[string][]string{
		stdout.String(): {"│ cancelled", "│ 10/s", "│ tester"},
		stderr.String(): {"40 letters.\n", "It stops; interrupt again to leave at once.", "partly done: it was cancelled before ", "To go on: lapse dead replay --group=00000000000000aa --until=", ` --rate=10 '--why=it'\''s mended'` + "\n"},
	} {
		for _, part := range want {
			if !strings.Contains(text, part) {
				t.Errorf("%q is not in\n%s", part, text)
			}
		}
	}
	var left int64
	if err := s.db.Raw("SELECT COUNT(*) FROM lapse_dead_letters WHERE state = 'open'").Scan(&left).Error; err != nil || left == 0 || left >= 38 {
		t.Fatalf("%d letters are left: %v", left, err)
	}

	out, err := s.command("dead", "replay", "--group=00000000000000aa", "--why=it's mended", "--rate=0", "--yes", "--output=json").Output()
	if err != nil {
		t.Fatal(err)
	}
	var job web.Replay
	if err := json.Unmarshal(out, &job); err != nil || job.Total != left || job.Published != left || job.Left != 0 || job.State != deadletter.Done {
		t.Errorf("the rest: %s, %v", out, err)
	}
	desk.stop()
}

// interrupted runs the program until it says that there is no desk, and interrupts it.
func (s *service) interrupted(args ...string) (code int, said string) {
	s.t.Helper()
	c := s.command(args...)
	stderr, err := c.StderrPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		s.t.Fatal(err)
	}
	begin := time.Now()
	for lines := bufio.NewScanner(stderr); lines.Scan(); {
		said += lines.Text() + "\n"
		if strings.HasPrefix(lines.Text(), "No desk is running: start `lapse serve --role=desk`") {
			if err := c.Process.Signal(syscall.SIGINT); err != nil {
				s.t.Fatal(err)
			}
		}
	}
	_ = c.Wait() // its state is asked for
	if time.Since(begin) < takenIn {
		s.t.Errorf("it ended after %s\n%s", time.Since(begin), said)
	}
	return c.ProcessState.ExitCode(), said
}

// TestReplayWithoutADesk waits, says for what, and leaves nothing behind when it is interrupted.
func TestReplayWithoutADesk(t *testing.T) {
	s := newService(t)
	s.bury(1)
	out, err := s.command("dead", "replay", "--all", "--why=mended", "--yes", "--detach").Output()
	if err != nil {
		t.Fatal(err)
	}
	id := strings.TrimSpace(string(out))
	code, said := s.interrupted("replays", "watch", id)
	if code != exitInterrupted || !strings.HasSuffix(said, "the replay goes on; `lapse replays cancel "+id+"` stops it\n") || strings.Contains(said, "context") {
		t.Errorf("exit code %d\n%s", code, said)
	}
	if out, err := s.command("replays", "cancel", id, "--why=nobody does it").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if code, said = s.interrupted("dead", "replay", "--all", "--why=mended", "--yes"); code != exitInterrupted {
		t.Errorf("exit code %d\n%s", code, said)
	}
	if !regexp.MustCompile(`\nTo go on: lapse dead replay --until=[^ ]+Z --why=mended\n$`).MatchString(said) || strings.Contains(said, "INFO") {
		t.Error(said)
	}
	var states []string
	if err := s.db.Raw("SELECT state FROM lapse_replays").Scan(&states).Error; err != nil || len(states) != 2 || states[0] != "cancelled" || states[1] != "cancelled" {
		t.Errorf("%v, %v", states, err)
	}
}
