package amqp_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lapse-go/lapse/amqp"
)

func TestEach(t *testing.T) {
	full := errors.New("the mail server is full")
	answers := map[string]error{
		"done": nil, "retry": full, "hopeless": amqp.Hopeless(full), "wrapped": fmt.Errorf("mailing: %w", amqp.Hopeless(full)),
		"early": amqp.NotYet(time.Minute), "away": amqp.Away(full),
	}
	handler := amqp.Each(func(_ context.Context, m amqp.Message) error { return answers[m.ID] })
	batch := []amqp.Message{{ID: "done"}, {ID: "retry"}, {ID: "hopeless"}, {ID: "wrapped"}, {ID: "early"}}
	outcomes, err := handler.Handle(t.Context(), batch)
	if err != nil {
		t.Fatal(err)
	}
	said := make([]string, len(outcomes))
	for i, o := range outcomes {
		said[i] = o.String()
	}
	want := []string{
		"done", "retried: the mail server is full", "dead: the mail server is full", "dead: mailing: the mail server is full", "deferred by 1m0s",
	}
	if diff := cmp.Diff(want, said); diff != "" {
		t.Errorf("outcomes (-want +got):\n%s", diff)
	}
	if outcomes, err := handler.Handle(t.Context(), append(batch, amqp.Message{ID: "away"})); outcomes != nil || !errors.Is(err, full) {
		t.Errorf("a server that is away: %v, %v", outcomes, err)
	}
}
