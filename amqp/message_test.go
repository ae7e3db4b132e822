package amqp

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

func TestPublishedAgainIsFresh(t *testing.T) {
	m := Message{Kind: "k", Headers: map[string]any{"x-death": []any{}, "X-Delay": 1, "CC": "q", "BCC": "q", "traceparent": "t", HeaderReplay: "r"}}
	again := m.again()
	if len(again.Headers) != 2 || again.Headers["traceparent"] != "t" || again.Headers[HeaderReplay] != "r" || again.ID == "" {
		t.Errorf("got %+v", again)
	}
	if len(m.Headers) != 6 {
		t.Error("the former message was changed")
	}
}

func TestRetriedKeepsTheFirstError(t *testing.T) {
	at := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	m := Message{ID: "id", Kind: "k"}.retried(errors.New("first"), at).retried(errors.New("last"), at.Add(time.Hour))
	if m.Attempt() != 3 || m.Headers[HeaderFirstError] != "first" || m.Headers[HeaderFirstErrorAt] != "2030-01-02T03:04:05Z" || m.Headers[HeaderError] != "last" {
		t.Errorf("got %v", m.Headers)
	}
}

func TestTheSameDeathIsTheSameLetter(t *testing.T) {
	m := Message{ID: "id", Kind: "k"}
	letter := func(m Message, reason string) any {
		return m.buried(ReasonHopeless, errors.New(reason), time.Now()).Headers[HeaderLetter]
	}
	one := letter(m, "a")
	if letter(m, "b") != one {
		t.Error("burying twice makes two letters")
	}
	replayed := m
	replayed.Headers = map[string]any{HeaderReplay: "r"}
	for name, other := range map[string]Message{"attempt": m.retried(errors.New("x"), time.Now()), "replay": replayed, "id": {ID: "other", Kind: "k"}, "kind": {ID: "id", Kind: "other"}, "body": {ID: "id", Kind: "k", Body: []byte("other")}} {
		if letter(other, "a") == one {
			t.Errorf("another %s is the same letter", name)
		}
	}
	// Nobody gave this one an id, and it is given another one each time.
	nameless := Message{Kind: "k", Body: []byte("{}")}
	first, second := nameless.buried(ReasonHopeless, errors.New("no"), time.Now()), nameless.buried(ReasonHopeless, errors.New("no"), time.Now())
	if first.Headers[HeaderLetter] != second.Headers[HeaderLetter] {
		t.Errorf("burying a message without an id twice makes two letters")
	}
}

// Whatever a message brings in its headers, handling it never panics, and what is published again is
// counted on sanely.
func FuzzHeaders(f *testing.F) {
	f.Add(HeaderAttempt, byte(0), int64(math.MaxInt64), "text")
	f.Add(HeaderAttempt, byte(1), int64(-1), "7")
	f.Add(HeaderFirstError, byte(2), int64(5), "\xff\xfe")
	f.Add(HeaderReplay, byte(6), int64(0), "")
	f.Add("x-death", byte(7), int64(3), strings.Repeat("é", 2000))
	f.Fuzz(func(t *testing.T, key string, sort byte, n int64, text string) {
		values := []any{n, int32(n), text, []byte(text), nil, float64(n), []any{n, text}, amqp091.Table{text: n}, time.Unix(n, 0), n > 0, int8(n), uint16(n), struct{}{}}
		m := received(amqp091.Delivery{MessageId: text, RoutingKey: key, Headers: amqp091.Table{key: values[int(sort)%len(values)]}})
		attempt := m.Attempt()
		if attempt < 1 {
			t.Fatalf("attempt %d", attempt)
		}
		retried := m.retried(errors.New(text), time.Unix(n, 0))
		if got := retried.Attempt(); got != attempt+1 && attempt < 1_000_000 {
			t.Fatalf("attempt %d follows %d", got, attempt)
		}
		buried := retried.buried(ReasonOutOfTries, errors.New(text), time.Unix(n, 0))
		if letter, ok := buried.Headers[HeaderLetter].(string); !ok || letter == "" {
			t.Fatalf("letter %v", letter)
		}
		if said := buried.Headers[HeaderError].(string); len(said) > maxErrorText || !utf8.ValidString(said) {
			t.Fatalf("error text %q", said)
		}
		for name := range buried.Headers {
			if strings.HasPrefix(strings.ToLower(name), "x-") {
				t.Fatalf("%s is kept", name)
			}
		}
		out := &Publishing{Message: buried}
		if _, err := out.check(1 << 20); err == nil {
			if err := out.encode().Headers.Validate(); err != nil {
				t.Fatal(err)
			}
		}
	})
}
