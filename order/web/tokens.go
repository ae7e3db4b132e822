package web

import (
	"bufio"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/lapse-go/lapse/order"
)

// Role is what the holder of a token may do.
type Role string

const (
	Viewer   Role = "viewer"   // read
	Checkout Role = "checkout" // read, place, pay, cancel and extend orders
	Operator Role = "operator" // all
)

// Roles are all of them, each with the rights of those before it.
var Roles = []Role{Viewer, Checkout, Operator}

func (r Role) includes(other Role) bool { return slices.Index(Roles, r) >= slices.Index(Roles, other) }

const (
	// local is who makes the requests where there are no tokens.
	local = "local"
	// tokenPrefix lets a token be recognised, also by scanners that look for secrets in the wrong places.
	tokenPrefix = "lapse_"
)

// Tokens are those who are let in.
type Tokens struct{ holders []holder }

type holder struct {
	name string
	role Role
	hash [sha256.Size]byte
	line int
}

// NewToken makes a token, and its line for the file that [ReadTokens] reads. The token is in neither, and
// cannot be found out from them. Names are like ids: 1 to 64 printable ASCII characters without spaces;
// "local" is kept for those who need no token.
func NewToken(name string, role Role) (token, line string, err error) {
	if err := validateHolder(name, role); err != nil {
		return "", "", err
	}
	token = tokenPrefix + rand.Text()
	return token, fmt.Sprintf("%s %s %x", name, role, sha256.Sum256([]byte(token))), nil
}

func validateHolder(name string, role Role) error {
	if err := order.ValidateID("name of a token", name); err != nil {
		return err
	}
	switch {
	case strings.HasPrefix(name, "#"):
		return fmt.Errorf("a name of a token that begins with #, like a comment: give another")
	case name == local:
		return fmt.Errorf("the name %s is kept for those who need no token: give another", local)
	case !slices.Contains(Roles, role):
		return fmt.Errorf("no role, or an unknown one: give viewer, checkout or operator")
	}
	return nil
}

// ReadTokens reads lines of a name, a role and the SHA-256 of a token in hexadecimal, as [NewToken] makes
// them. Empty lines and those that begin with # are comments; there has to be a token besides. An error names
// the line and never quotes it: it may have a secret in it.
func ReadTokens(r io.Reader) (*Tokens, error) {
	t := &Tokens{}
	lines := bufio.NewScanner(r)
	number := 0
	for lines.Scan() {
		number++
		words := strings.Fields(lines.Text())
		if len(words) == 0 || strings.HasPrefix(words[0], "#") {
			continue
		}
		if err := t.add(words, number); err != nil {
			return nil, fmt.Errorf("tokens, line %d: %w", number, err)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("tokens, line %d: %w", number+1, err)
	}
	if len(t.holders) == 0 {
		return nil, errors.New("no tokens: make one with `lapse token new`, and put the line that it prints there")
	}
	return t, nil
}

func (t *Tokens) add(words []string, line int) error {
	if slices.ContainsFunc(words, func(word string) bool { return strings.HasPrefix(word, tokenPrefix) }) {
		return fmt.Errorf("there is a token itself: put its hash there, and make a new token, since this one has been written down")
	}
	if len(words) != 3 {
		return fmt.Errorf("%d words: give a name, a role and a hash, as `lapse token new` prints them", len(words))
	}
	h := holder{name: words[0], role: Role(words[1]), line: line}
	if order.ValidateID("name", h.name) != nil {
		return fmt.Errorf("the first word is no name: give 1 to %d printable ASCII characters", order.MaxIDBytes)
	}
	if err := validateHolder(h.name, h.role); err != nil {
		return err
	}
	hash, err := hex.DecodeString(words[2])
	if err != nil || len(hash) != sha256.Size {
		return fmt.Errorf("the third word is no SHA-256: give its 64 hexadecimal digits, as `lapse token new` prints them")
	}
	h.hash = [sha256.Size]byte(hash)
	for _, other := range t.holders {
		if other.name == h.name {
			return fmt.Errorf("the name of line %d again: give each token a name of its own", other.line)
		}
		if other.hash == h.hash {
			return fmt.Errorf("the token of line %d again: make one for each name", other.line)
		}
	}
	t.holders = append(t.holders, h)
	return nil
}

// find compares with all of them, in the same time whichever it is.
func (t *Tokens) find(token string) (found holder, ok bool) {
	hash := sha256.Sum256([]byte(token))
	for _, h := range t.holders {
		if subtle.ConstantTimeCompare(hash[:], h.hash[:]) == 1 {
			found, ok = h, true
		}
	}
	return found, ok
}

// admit says who makes the request, or why it is refused.
func (t *Tokens) admit(r *http.Request, op *operation) (who holder, refusal *Problem) {
	given := r.Header.Values("Authorization")
	if len(given) == 0 {
		return who, challenge(`Bearer realm="lapse"`, "no token: send the header Authorization: Bearer lapse_…")
	}
	scheme, token, _ := strings.Cut(given[0], " ")
	h, ok := t.find(strings.TrimSpace(token))
	if !ok || len(given) > 1 || !strings.EqualFold(scheme, "Bearer") {
		return who, challenge(`Bearer realm="lapse", error="invalid_token"`, "the token is not one that this service knows: ask for a new one")
	}
	if !h.role.includes(op.role) {
		return h, problem(forbidden, "token %s has the role %s, and %s needs %s: use a token with that role", h.name, h.role, op.id, op.role)
	}
	return h, nil
}

func challenge(how, detail string) *Problem {
	p := problem(unauthorized, "%s", detail)
	p.header = http.Header{"Www-Authenticate": {how}}
	return p
}
