// Package outbox carries messages out of a database transaction: [Add] writes them in the
// transaction that they belong to, and a [Relay] publishes them once it has committed.
//
// A message is published at least once, with the same id each time, if and only if its transaction
// committed. No order is kept between messages.
package outbox

import (
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"gorm.io/gorm"

	"github.com/lapse-go/lapse/amqp"
)

// Message is one that waits for its transaction: either a message for an exchange, or a timer.
//
// Its headers are kept as JSON. Values that JSON cannot keep, such as []byte, time.Time and
// amqp091.Decimal, are refused, and whole numbers of any type come out as int64 (floats as float64).
type Message struct {
	amqp.Message
	// Exchange is the full name of the one it goes to at once. Empty for a timer, for which the relay
	// chooses a rung.
	Exchange string
	// Deadline is when a timer is due, by the database's clock, to the microsecond. Zero for a message
	// that is published at once, and for a timer that is due a Window from now.
	Deadline time.Time
	// Window is the delay that the timer was made for, at most ten years; zero if there was none. A window
	// that is a rung saves the timer its detours.
	Window time.Duration
}

// Bounds of a message, so that the broker and the database take what Add takes.
const (
	maxBody    = 16 << 20 // what brokers from 4.0 on, and the relay's publisher, allow by default
	maxHeaders = 64 << 10 // they have to fit into one AMQP frame
	maxShort   = 255      // AMQP's short strings
)

// Bounds of one INSERT. A single larger message still goes alone.
const (
	maxRows  = 500
	maxBytes = 1 << 20
)

// Add writes the messages in the transaction tx, to be published after it has committed. A message
// without an id is given one, in messages itself, so that running the transaction again adds the
// same.
//
// The error says which message is not valid and why, or is the database's. Either way nothing may
// be committed: return it from the transaction. tx may be of any pool, with any settings.
func Add(tx *gorm.DB, messages ...Message) error {
	if _, ok := tx.Statement.ConnPool.(gorm.TxCommitter); !ok {
		return errors.New("outbox: Add needs the transaction that the messages belong to, not a pool")
	}
	var b insert
	for i := range messages {
		m := &messages[i]
		if m.ID == "" {
			id, err := uuid.NewV7()
			if err != nil {
				return fmt.Errorf("outbox: %w", err)
			}
			m.ID = id.String()
		}
		headers, err := m.check()
		if err != nil {
			return fmt.Errorf("outbox: message %d (kind %q, id %q): %w", i, m.Kind, m.ID, err)
		}
		size := len(m.Body) + len(headers)
		if b.rows > 0 && (b.rows == maxRows || b.bytes+size > maxBytes) {
			if err := b.run(tx); err != nil {
				return err
			}
		}
		b.add(m, headers, size)
	}
	return b.run(tx)
}

// check returns the headers as JSON, or what is wrong with the message.
func (m *Message) check() (headers string, err error) {
	for _, text := range []struct{ name, value string }{
		{"id", m.ID}, {"kind", m.Kind}, {"exchange", m.Exchange}, {"content type", m.ContentType}, {"app id", m.AppID},
	} {
		if len(text.value) > maxShort {
			return "", fmt.Errorf("its %s has %d bytes; %d are allowed", text.name, len(text.value), maxShort)
		}
		if !utf8.ValidString(text.value) || strings.ContainsRune(text.value, 0) {
			return "", fmt.Errorf("its %s is not valid text: %q", text.name, text.value)
		}
	}
	for i := range len(m.ID) {
		if m.ID[i] < 0x21 || m.ID[i] > 0x7e {
			return "", errors.New("its id has something in it that is not a printable ASCII character")
		}
	}
	switch {
	case m.Kind == "":
		return "", errors.New("it has no kind")
	case m.Exchange == "" && m.Deadline.IsZero() && m.Window == 0:
		return "", errors.New("it has neither an exchange, nor a deadline, nor a window until then")
	case m.Exchange != "" && !m.Deadline.IsZero():
		return "", errors.New("it has both an exchange and a deadline: a timer's exchange is the relay's choice")
	case m.Exchange != "" && m.Window != 0:
		return "", errors.New("it has a window, but only timers do")
	case m.Window < 0 || m.Window > amqp.MaxDelay:
		return "", fmt.Errorf("its window is %s: give one from zero to ten years", m.Window)
	case !m.Deadline.IsZero() && !storable(m.Deadline):
		return "", fmt.Errorf("its deadline, %s, is outside the years 1970 to 9998", m.Deadline)
	case !m.Timestamp.IsZero() && !storable(m.Timestamp):
		return "", fmt.Errorf("its timestamp, %s, is outside the years 1970 to 9998", m.Timestamp)
	case len(m.Body) > maxBody:
		return "", fmt.Errorf("its body has %d bytes; %d are allowed", len(m.Body), maxBody)
	}
	if len(m.Headers) == 0 {
		return "", nil
	}
	headers, err = encodeHeaders(m.Headers)
	if err == nil && len(headers) > maxHeaders {
		err = fmt.Errorf("its headers take %d bytes; %d are allowed", len(headers), maxHeaders)
	}
	return headers, err
}

func storable(t time.Time) bool { return t.UTC().Year() >= 1970 && t.UTC().Year() <= 9998 }

// insert gathers rows for one statement.
type insert struct {
	rows, bytes int
	values      []any
}

const columns = "message_id, exchange, kind, body, size, content_type, app_id, headers, due_at, window_ms, made_at, created_at"

func (b *insert) add(m *Message, headers string, size int) {
	b.rows++
	b.bytes += size
	b.values = append(b.values,
		m.ID, null(m.Exchange), m.Kind, blob(m.Body), size, m.ContentType, m.AppID, null(headers),
		datetime(m.Deadline), delay(m), null(millis(m.Window)), datetime(m.Timestamp))
}

func (b *insert) run(tx *gorm.DB) error {
	if b.rows == 0 {
		return nil
	}
	const row = "(?, ?, ?, ?, ?, ?, ?, ?, COALESCE(?, TIMESTAMPADD(MICROSECOND, ?, UTC_TIMESTAMP(6))), ?, ?, UTC_TIMESTAMP(6))"
	statement := "INSERT INTO lapse_outbox (" + columns + ") VALUES " + row + strings.Repeat(", "+row, b.rows-1)
	err := tx.Session(&gorm.Session{NewDB: true}).Exec(statement, b.values...).Error
	*b = insert{}
	if err != nil {
		return fmt.Errorf("outbox: %w", err)
	}
	return nil
}

// delay is that of a timer without a deadline, in microseconds.
func delay(m *Message) any {
	if m.Exchange != "" || !m.Deadline.IsZero() {
		return nil
	}
	return m.Window.Microseconds()
}

// millis rounds up: a window that is not in whole milliseconds is not taken for a rung that is.
func millis(window time.Duration) int64 {
	return int64((window + time.Millisecond - 1) / time.Millisecond)
}

// null is the value, or NULL for the zero value.
func null[T comparable](value T) any {
	var zero T
	if value == zero {
		return nil
	}
	return value
}

// datetime is the time in UTC as a DATETIME(6) literal: a time.Time the driver would convert to the
// zone that the caller's DSN names. It is rounded up, because a deadline must not become earlier.
func datetime(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t.Add(time.Microsecond - 1).UTC().Format("2006-01-02 15:04:05.000000")
}

// blob is bytes; nil, too, is an empty body and not NULL.
type blob []byte

func (b blob) Value() (driver.Value, error) {
	if b == nil {
		return []byte{}, nil
	}
	return []byte(b), nil
}
