package amqp

import "errors"

// What the broker, or Lapse before asking it, can say of a published message. The errors that
// [Publisher.Publish] returns wrap exactly one of them; a nil error means the broker confirmed it.
var (
	// ErrUnroutable: no queue took the message, or its exchange does not exist. It was not stored.
	ErrUnroutable = errors.New("unroutable")
	// ErrRefused: the broker refused it (basic.nack), for instance because a queue is full. It was
	// not stored; publishing it later may succeed.
	ErrRefused = errors.New("refused by the broker")
	// ErrUnconfirmed: no answer came in time. The broker may or may not have stored it, so it has to
	// be published again, with the same id.
	ErrUnconfirmed = errors.New("unconfirmed")
	// ErrInvalid: it can never be published (too large, or a header that AMQP cannot carry). It was
	// not sent.
	ErrInvalid = errors.New("cannot be published")
)

// ErrClosed is returned by whatever waits on a connection that was closed by its owner.
var ErrClosed = errors.New("closed")

// ErrPaused, wrapped in the error that a [Handler] returns for a whole batch, says that nothing is
// wrong but that work is suspended: the messages are handed back to their queue at once instead of
// being held.
var ErrPaused = errors.New("paused")
