package deadletter

import (
	"fmt"
	"strings"
	"unicode"
)

// By is who does something, and why.
type By struct {
	Who string // required; at most 255 bytes
	Why string // required; at most 1000 bytes
}

// validate says what is missing, as an error that wraps [ErrInvalid].
func (by By) validate() error {
	switch {
	case by.Who == "":
		return fmt.Errorf("%w: it does not say who does it", ErrInvalid)
	case strings.IndexFunc(by.Why, func(r rune) bool { return unicode.IsGraphic(r) && !unicode.IsSpace(r) }) < 0:
		return fmt.Errorf("%w: no reason: say why it is done", ErrInvalid)
	case len(by.Who) > 255 || len(by.Why) > 1000:
		return fmt.Errorf("%w: a name of %d and a reason of %d bytes: give at most 255 and 1000", ErrInvalid, len(by.Who), len(by.Why))
	}
	return nil
}
