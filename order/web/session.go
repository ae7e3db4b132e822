package web

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"net/http"
	"strings"
	"time"
)

// Who works on the page has signed in with a token, and his browser keeps a session: the token, sealed with a
// key that is made of its own line in the file of tokens. So every replica with that line accepts the session,
// without keeping anything, and it ends when the line is removed. Whoever gets to see the cookie alone does not
// have the token, and whoever gets to see the file alone, which only has hashes, cannot make a session. Signing
// out has the browser forget it; a copy of it that is used goes on until sessionLife is over.
type session struct {
	holder
	token       string
	begun, seen time.Time
}

const (
	sessionCookie = "lapse_session"
	// sessionLife is for how long a session lasts, and sessionIdle for how long while nothing is asked for.
	sessionLife = 12 * time.Hour
	sessionIdle = time.Hour
	// sessionRenew is how old the last use that a session tells of becomes before it is told anew.
	sessionRenew = 5 * time.Minute
)

// sealer seals the sessions of a holder, whose hash is as good as a random key.
func (h holder) sealer() (cipher.AEAD, error) {
	key, err := hkdf.Key(sha256.New, h.hash[:], nil, "lapse session", 32)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCMWithRandomNonce(block)
}

// seal makes the session a value of a cookie.
func (s session) seal() (string, error) {
	sealer, err := s.sealer()
	if err != nil {
		return "", err
	}
	plain := binary.BigEndian.AppendUint64(nil, uint64(s.begun.Unix()))
	plain = binary.BigEndian.AppendUint64(plain, uint64(s.seen.Unix()))
	plain = append(plain, s.token...)
	text := base64.RawURLEncoding
	return text.EncodeToString([]byte(s.name)) + "." + text.EncodeToString(sealer.Seal(nil, nil, plain, []byte(s.name))), nil
}

// session opens what [session.seal] made, unless it is over.
func (t *Tokens) session(value string, now time.Time) (s session, ok bool) {
	first, second, _ := strings.Cut(value, ".")
	text := base64.RawURLEncoding
	name, err := text.DecodeString(first)
	if err != nil {
		return s, false
	}
	sealed, err := text.DecodeString(second)
	if err != nil {
		return s, false
	}
	for _, h := range t.holders {
		if h.name != string(name) {
			continue
		}
		sealer, err := h.sealer()
		if err != nil {
			return s, false
		}
		plain, err := sealer.Open(nil, nil, sealed, name)
		if err != nil || len(plain) < 16 {
			return s, false
		}
		at := func(b []byte) time.Time { return time.Unix(int64(binary.BigEndian.Uint64(b)), 0) }
		s = session{token: string(plain[16:]), begun: at(plain), seen: at(plain[8:])}
		s.holder, ok = t.find(s.token)
		return s, ok && s.name == h.name && now.Sub(s.begun) < sessionLife && now.Sub(s.seen) < sessionIdle
	}
	return s, false
}

// keep has the browser keep the session; an empty value has it forget.
func keepSession(w http.ResponseWriter, r *http.Request, value string) {
	c := &http.Cookie{
		Name: sessionCookie, Value: value, Path: "/", HttpOnly: true, SameSite: http.SameSiteStrictMode,
		// Whoever lies about the proxy before us only keeps himself from signing in.
		Secure: r.TLS != nil || strings.EqualFold(r.Header.Get("X-Forwarded-Proto"), "https"),
		MaxAge: int(sessionLife.Seconds()),
	}
	if value == "" {
		c.MaxAge = -1
	}
	http.SetCookie(w, c)
}

// admitPage says who asks for a part of the page, or why he is refused.
func (t *Tokens) admitPage(w http.ResponseWriter, r *http.Request, op *operation) (holder, *Problem) {
	cookie, err := r.Cookie(sessionCookie)
	if err != nil {
		return holder{}, problem(unauthorized, "nobody is signed in here: sign in with a token")
	}
	now := time.Now()
	s, ok := t.session(cookie.Value, now)
	if !ok {
		keepSession(w, r, "")
		return holder{}, problem(unauthorized, "the session is over: sign in again")
	}
	if !s.role.includes(op.role) {
		return s.holder, problem(forbidden, "token %s has the role %s, and this needs %s: sign in with a token with that role", s.name, s.role, op.role)
	}
	if now.Sub(s.seen) >= sessionRenew {
		s.seen = now
		if value, err := s.seal(); err == nil { // otherwise the old one goes on
			keepSession(w, r, value)
		}
	}
	return s.holder, nil
}
