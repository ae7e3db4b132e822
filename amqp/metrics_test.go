package amqp_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/lapse-go/lapse/amqp"
)

func TestMetricsOfAConsumer(t *testing.T) {
	b := newBench(t)
	registry := prometheus.NewRegistry()
	b.metrics = amqp.NewMetrics(registry)
	taken, let := make(chan struct{}, 1), make(chan struct{})
	cfg := b.config(func(_ context.Context, batch []amqp.Message) ([]amqp.Outcome, error) {
		outcomes := done(batch)
		for i, m := range batch {
			switch m.ID {
			case "hopeless":
				outcomes[i] = amqp.Dead(errors.New("makes no sense"))
			case "failing":
				outcomes[i] = amqp.Retry(errors.New("no luck"))
			case "slow":
				taken <- struct{}{}
				<-let
			}
		}
		return outcomes, nil
	})
	cfg.Workers = 3
	_, stop := b.run(cfg)
	value := func(name string, labels ...string) float64 { return gathered(t, registry, name, labels...) }

	b.publish(amqp.Message{ID: "slow"})
	<-taken
	if workers, busy := value("lapse_workers"), value("lapse_workers_busy"); workers != 3 || busy != 1 {
		t.Errorf("%v workers, %v of them busy", workers, busy)
	}
	close(let)
	b.publish(amqp.Message{ID: "hopeless"}, amqp.Message{ID: "failing"})
	b.dead(2)
	eventually(t, "both are counted", func() bool { return value("lapse_dead_letters_total", "kind", kind) == 2 })
	for reason, want := range map[string]float64{"hopeless": 1, "out-of-tries": 1, "rejected": 0} {
		if got := value("lapse_dead_letters_total", "reason", reason); got != want {
			t.Errorf("%v dead letters are %s, want %v", got, reason, want)
		}
	}
	eventually(t, "nobody is busy", func() bool { return value("lapse_workers_busy") == 0 })
	stop()
	if workers := value("lapse_workers"); workers != 0 {
		t.Errorf("%v workers after the end", workers)
	}
}

// The age of a message counts from when it left its rung, not from when it was made.
func TestAgeOfWhatIsDue(t *testing.T) {
	b := newBench(t)
	gauge := b.metrics.DueAge.WithLabelValues(kind)
	handled := make(chan struct{}, 1)
	b.publish(amqp.Message{ID: "made a minute ago", Timestamp: time.Now().Add(-time.Minute)})
	_, stop := b.run(b.config(func(_ context.Context, batch []amqp.Message) ([]amqp.Outcome, error) {
		handled <- struct{}{}
		return done(batch), nil
	}))
	<-handled
	if age := testutil.ToFloat64(gauge); age < 60 || age > 70 {
		t.Errorf("one that was made a minute ago is %v seconds old", age)
	}
	stop()

	old := amqp.Publishing{
		Message:  amqp.Message{ID: "due for a second", Kind: kind, Timestamp: time.Now().Add(-time.Hour)},
		Exchange: b.topology.Delay(250 * time.Millisecond),
	}
	wantAll(t, b.publisher.Publish(within(t, 10*time.Second), old), nil)
	eventually(t, "it is due", func() bool { return b.depth(b.topology.DueQueue(kind)) == 1 })
	b.run(b.config(func(_ context.Context, batch []amqp.Message) ([]amqp.Outcome, error) {
		handled <- struct{}{}
		return done(batch), nil
	}))
	<-handled
	if age := testutil.ToFloat64(gauge); age < 0 || age > 15 {
		t.Errorf("one that has just left its rung is %v seconds old", age)
	}
}

// gathered is the sum of a metric's series with these labels, given as name, value, ….
func gathered(t *testing.T, g prometheus.Gatherer, name string, labels ...string) (sum float64) {
	t.Helper()
	families, err := g.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, m := range family.GetMetric() {
			matched := 0
			for _, pair := range m.GetLabel() {
				for i := 0; i < len(labels); i += 2 {
					if pair.GetName() == labels[i] && pair.GetValue() == labels[i+1] {
						matched++
					}
				}
			}
			if matched == len(labels)/2 {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return sum
}
