package amqp

import (
	"errors"
	"testing"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

// These texts are what RabbitMQ 3.10.8 and 4.3.6 say.
func TestReadsTheBrokersMismatches(t *testing.T) {
	for _, test := range []struct{ text, argument, wanted, found string }{
		{"inequivalent arg 'x-queue-type' for queue 'probe' in vhost '/': received the value 'quorum' of type 'longstr' but current is none", "x-queue-type", "quorum", "none"}, // 3.10
		{"inequivalent arg 'x-queue-type' for queue 'probe' in vhost '/': received none but current is the value 'quorum' of type 'longstr'", "x-queue-type", "none", "quorum"}, // 3.10
		{"inequivalent arg 'x-queue-type' for queue 'probe' in vhost '/': received 'quorum' but current is 'classic'", "x-queue-type", "quorum", "classic"},                     // 4.3
		{"inequivalent arg 'x-message-ttl' for queue 'probe' in vhost '/': received '1800000' but current is '60000'", "x-message-ttl", "1800000", "60000"},
		{"inequivalent arg 'x-message-ttl' for queue 'probe' in vhost '/': received the value '1800000' of type 'long' but current is none", "x-message-ttl", "1800000", "none"},
		{"inequivalent arg 'x-expires' for queue 'probe' in vhost '/': received none but current is the value '1000000' of type 'long'", "x-expires", "none", "1000000"},
		{"inequivalent arg 'x-max-age' for queue 'probe' in vhost '/': received '7D' but current is '1D'", "x-max-age", "7D", "1D"},                           // 3.10
		{"inequivalent arg 'x-max-age' for queue 'probe' in vhost '/': received '604800000' but current is '86400000'", "x-max-age", "604800000", "86400000"}, // 4.3
		{"inequivalent arg 'durable' for queue 'probe' in vhost '/': received 'true' but current is 'false'", "durable", "true", "false"},
		{"inequivalent arg 'type' for exchange 'probe' in vhost '/': received 'direct' but current is 'topic'", "type", "direct", "topic"},
		{"inequivalent arg 'auto_delete' for exchange 'probe' in vhost '/': received 'false' but current is 'true'", "auto_delete", "false", "true"},
		{"inequivalent arg 'alternate-exchange' for exchange 'probe' in vhost '/': received 'b' but current is 'a'", "alternate-exchange", "b", "a"},
		{"inequivalent arg 'alternate-exchange' for exchange 'probe' in vhost 'sh'op': received the value 'b' of type 'longstr' but current is none", "alternate-exchange", "b", "none"},
		// The broker cuts the text at 255 bytes, wherever that is.
		{"inequivalent arg 'x-message-ttl' for queue 'probe' in vhost '/': received '1800000' but cur...", "x-message-ttl", "1800000", "something else"},
		{"inequivalent arg 'x-message-ttl' for queue 'probe' in vhost '/': rec...", "x-message-ttl", "1800000", "something else"},
		{"inequivalent arg 'x-message-ttl' for queue 'prob...", "x-message-ttl", "1800000", "something else"},
	} {
		err := mismatch(&amqp091.Error{Code: amqp091.PreconditionFailed, Server: true, Reason: "PRECONDITION_FAILED - " + test.text},
			`queue "probe"`, amqp091.Table{"x-message-ttl": int64(1_800_000)})
		want := MismatchError{`queue "probe"`, test.argument, test.wanted, test.found}
		var got *MismatchError
		if !errors.As(err, &got) || *got != want {
			t.Errorf("%s\n got %#v\nwant %#v", test.text, err, want)
		}
	}
	for _, err := range []error{
		nil,
		errors.New("inequivalent arg 'durable' for queue 'probe' in vhost '/': received 'true' but current is 'false'"),
		&amqp091.Error{Code: amqp091.PreconditionFailed, Server: true, Reason: "PRECONDITION_FAILED - invalid arg 'x-max-priority' for queue 'probe' in vhost '/' of queue type rabbit_quorum_queue"},
		&amqp091.Error{Code: amqp091.ResourceLocked, Server: true, Reason: "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue 'probe' in vhost '/'"},
	} {
		if got := mismatch(err, "", nil); got != err { //nolint:errorlint // the very same
			t.Errorf("%v became %v", err, got)
		}
	}
}
