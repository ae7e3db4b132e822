// Package inbox lets a subscriber do its work once for each message, however often that comes: [Once] notes
// the message in the transaction of the work.
//
// Messages come at least once: a broker delivers again what was not acknowledged, and publishers send again what
// was not confirmed. A subscriber whose work is a change of its own database has it done exactly once if note and
// work commit together. What it does elsewhere, such as sending a mail, it does at least once.
package inbox

import (
	"errors"
	"fmt"

	"gorm.io/gorm"

	"github.com/lapse-go/lapse/amqp/database"
)

// Bounds in bytes.
const (
	maxConsumer = 64
	maxID       = 255 // AMQP's short strings
)

// Once notes in the transaction tx that the consumer handles the message, and reports whether it is the first to
// do so: if not, there is nothing left to do. Consumer names who handles it, 1 to 64 printable ASCII characters
// without spaces; another one gets the same message for itself. The message's id has 1 to 255 of them.
//
// While another transaction handles the same message Once waits for it: if that commits, the answer is false, and
// if it is rolled back, true. A wait that takes too long, or a deadlock, is an error of which [database.IsConflict]
// knows; run the whole transaction again, as [database.Transact] does. After any error nothing may be committed.
//
// An answer of false keeps a shared lock on the note until the transaction ends, so end it then.
func Once(tx *gorm.DB, consumer, messageID string) (first bool, err error) {
	if _, ok := tx.Statement.ConnPool.(gorm.TxCommitter); !ok {
		return false, errors.New("inbox: Once needs the transaction in which the message is handled, not a pool")
	}
	if err := validate("consumer", consumer, maxConsumer); err != nil {
		return false, err
	}
	if err := validate("message id", messageID, maxID); err != nil {
		return false, err
	}
	err = tx.Session(&gorm.Session{NewDB: true}).Exec(
		"INSERT INTO lapse_inbox (consumer, message_id, at) VALUES (?, ?, UTC_TIMESTAMP(6))", consumer, messageID).Error
	// A plain INSERT, because what an INSERT … ON DUPLICATE KEY UPDATE reports depends on the session.
	if database.IsDuplicate(err) || errors.Is(err, gorm.ErrDuplicatedKey) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("inbox: noting message %s for %s: %w", messageID, consumer, err)
	}
	return true, nil
}

func validate(name, text string, most int) error {
	if text == "" {
		return fmt.Errorf("inbox: no %s: give one", name)
	}
	if len(text) > most {
		return fmt.Errorf("inbox: %s %.80q… has %d bytes: give at most %d", name, text, len(text), most)
	}
	for i := range len(text) {
		if text[i] < 0x21 || text[i] > 0x7e {
			return fmt.Errorf("inbox: %s %q: give printable ASCII characters without spaces", name, text)
		}
	}
	return nil
}
