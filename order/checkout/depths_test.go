package checkout

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/lapse-go/lapse/amqp"
	"github.com/lapse-go/lapse/amqp/amqptest"
	"github.com/lapse-go/lapse/amqp/database"
)

// A queue that does not answer is not asked again at once: each question occupies a channel of the broker.
func TestABrokerThatDoesNotAnswerIsLeftAlone(t *testing.T) {
	node := amqptest.NewNode(t)
	conn := amqptest.Dial(t, node.URL())
	db, err := database.Open("nobody@tcp(127.0.0.1:1)/nothing", database.Options{})
	if err != nil {
		t.Fatal(err)
	}
	pool, err := db.DB()
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	// Of a quorum queue whose leader does not answer, the broker itself says that it is empty.
	c, err := New(db, Config{QueueType: amqp.Classic, Logger: amqptest.Logger(t)})
	if err != nil {
		t.Fatal(err)
	}
	amqptest.Declare(t, conn, c.Topology())
	process := func(function string) {
		t.Helper()
		node.Ctl("eval", fmt.Sprintf(`{ok, Q} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"/">>, queue, <<"%s">>)), sys:%s(amqqueue:get_pid(Q)).`,
			c.Topology().Delay(time.Minute), function))
	}
	depths := c.depths(conn)
	ask := func() (took time.Duration, err error) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begin := time.Now()
		err = depths(ctx)
		return time.Since(begin), err
	}
	all := len(amqp.DefaultLadder()) + len(c.Topology().Kinds) + 3
	if _, err := ask(); err != nil || testutil.CollectAndCount(c.metrics.watch.depth) != all {
		t.Fatalf("at first: %v, %d queues", err, testutil.CollectAndCount(c.metrics.watch.depth))
	}
	process("suspend")
	if _, err := ask(); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("asked: %v", err)
	}
	if n := testutil.CollectAndCount(c.metrics.watch.depth); n == 0 || n == all {
		t.Errorf("of the queues %d are known, want those before the one that does not answer", n)
	}
	if took, err := ask(); !errors.Is(err, context.DeadlineExceeded) || took > 500*time.Millisecond {
		t.Errorf("asked again at once, for %s: %v", took, err)
	}
	process("resume")
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		if _, err = ask(); err == nil || time.Now().After(end) {
			break
		}
	}
	if n := testutil.CollectAndCount(c.metrics.watch.depth); err != nil || n != all {
		t.Errorf("when it answers again: %v, %d queues", err, n)
	}
}
