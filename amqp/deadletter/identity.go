package deadletter

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"strings"

	"github.com/lapse-go/lapse/amqp"
)

// identity is what makes a letter the same one however often it is delivered.
type identity struct {
	text string
	// sure says that a letter with this identity is this one. Without it, it may be of another message that is
	// equal, as of a program that publishes the same twice.
	sure bool
	// stamped and delivered for the first time: once the letter that is there was resolved, this is a further death of a
	// message that somebody has sent again.
	first bool
}

// identify finds the identity of a message. Lapse has stamped what it has buried. Of anything else all that does
// not change with another delivery is hashed, and it is a letter that is there already only if the broker says that
// it may have delivered it before. So equal messages are as many letters, with one exception: when several of them
// are delivered again, it cannot be told which of them are there, and one letter may stand for several.
func identify(queue string, m amqp.Message, o origin) (identity, error) {
	if letter := text(m.Headers[amqp.HeaderLetter]); o.buried && letter != "" {
		if !printable(letter, 64) {
			letter = hash([]byte(letter))
		}
		return identity{letter, true, !m.Arrival().Redelivered}, nil
	}
	headers := map[string]any{}
	for name, value := range m.Headers {
		// Of what begins with "x-", the broker changes some at each delivery.
		if name == headerDeath || !strings.HasPrefix(strings.ToLower(name), "x-") {
			headers[name] = value
		}
	}
	table, err := encodeTable(headers)
	if err != nil {
		return identity{}, err
	}
	made := binary.BigEndian.AppendUint64(nil, uint64(m.Timestamp.Unix()))
	return identity{
		hash([]byte(queue), []byte(m.Arrival().RoutingKey), []byte(m.ID), made, table, m.Body),
		m.Arrival().Redelivered, false,
	}, nil
}

// another is the identity of a further message that is equal.
func (i identity) another() identity {
	return identity{text: i.text + "/" + rand.Text()[:12]}
}

// hash tells its parts from each other.
func hash(parts ...[]byte) string {
	sum := sha256.New()
	for _, part := range parts {
		sum.Write(binary.BigEndian.AppendUint64(nil, uint64(len(part))))
		sum.Write(part)
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// printable reports whether text is 1 to most printable ASCII characters without spaces.
func printable(text string, most int) bool {
	for i := range len(text) {
		if text[i] < 0x21 || text[i] > 0x7e {
			return false
		}
	}
	return text != "" && len(text) <= most
}
