package deadletter

import (
	"cmp"
	"encoding/base64"
	"fmt"
)

// Page says which part of a list.
type Page struct {
	After  string // what the page before gave as next; the first page when empty
	Limit  int    // 1 to 1000; 50 when zero
	Oldest bool   // the oldest first, instead of the newest
}

const (
	defaultLimit = 50
	maxLimit     = 1000
)

// limit is the checked one.
func (p Page) limit() (int, error) {
	if p.Limit < 0 || p.Limit > maxLimit {
		return 0, fmt.Errorf("%w: a limit of %d: give 1 to %d", ErrInvalid, p.Limit, maxLimit)
	}
	return cmp.Or(p.Limit, defaultLimit), nil
}

// order is how the page's column is sorted, and what compares with the cursor.
func (p Page) order() (direction, beyond string) {
	if p.Oldest {
		return "ASC", ">"
	}
	return "DESC", "<"
}

// cursor makes an opaque text of a place in a list of that name.
func cursor(list, place string) string {
	return base64.RawURLEncoding.EncodeToString([]byte(list + ":" + place))
}

// place is what [cursor] was made of; "" for the first page.
func (p Page) place(list string) (string, error) {
	if p.After == "" {
		return "", nil
	}
	text, err := base64.RawURLEncoding.DecodeString(p.After)
	if n := len(list) + 1; err == nil && len(text) > n && string(text[:n]) == list+":" {
		return string(text[n:]), nil
	}
	return "", p.strange()
}

// strange is the error about a cursor that no page gave.
func (p Page) strange() error {
	return fmt.Errorf("%w: after=%.80q: give what the page before this one gave as next", ErrInvalid, p.After)
}
