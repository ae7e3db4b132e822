package web

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

func tokensOf(t *testing.T, lines ...string) *Tokens {
	t.Helper()
	tokens, err := ReadTokens(strings.NewReader(strings.Join(lines, "\n")))
	if err != nil {
		t.Fatal(err)
	}
	return tokens
}

func TestSessions(t *testing.T) {
	token, line, err := NewToken("ann", Operator)
	if err != nil {
		t.Fatal(err)
	}
	_, other, err := NewToken("bob", Operator)
	if err != nil {
		t.Fatal(err)
	}
	tokens := tokensOf(t, line, other)
	ann, ok := tokens.find(token)
	if !ok {
		t.Fatal("no such token")
	}
	now := time.Now()
	sealed := func(s session) string {
		t.Helper()
		value, err := s.seal()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
	value := sealed(session{ann, token, now, now})
	if strings.Contains(value, token) {
		t.Error("the token can be read in the cookie")
	}
	if again := sealed(session{ann, token, now, now}); again == value {
		t.Error("the same session is sealed in the same way")
	}
	altered := []byte(value)
	altered[len(altered)-5] ^= 1
	viewer := strings.Replace(line, "operator", "viewer", 1)
	_, newer, err := NewToken("ann", Operator)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name   string
		tokens *Tokens
		value  string
		after  time.Duration
		role   Role // none if it is no session
	}{
		{"at once", tokens, value, 0, Operator},
		{"another replica, whose file is in another order", tokensOf(t, other, line), value, 0, Operator},
		{"almost idle too long", tokens, value, sessionIdle - 2*time.Second, Operator},
		{"idle too long", tokens, value, sessionIdle, ""},
		{"used until now, but too old", tokens, sealed(session{ann, token, now.Add(-sessionLife), now}), 0, ""},
		{"a token that has another role by now", tokensOf(t, viewer), value, 0, Viewer},
		{"a token that was removed", tokensOf(t, other), value, 0, ""},
		{"a token that was replaced", tokensOf(t, newer, other), value, 0, ""},
		{"altered", tokens, string(altered), 0, ""},
		{"under another name", tokens, "Ym9i" + value[strings.Index(value, "."):], 0, ""},
		{"made by who has seen the file, and not the token", tokens, sealed(session{ann, "lapse_guess", now, now}), 0, ""},
		{"nothing", tokens, "", 0, ""},
		{"a name alone", tokens, "YW5u", 0, ""},
		{"no base64", tokens, "!.!", 0, ""},
		{"too short", tokens, "YW5u.YW5u", 0, ""},
		{"very long", tokens, "YW5u." + strings.Repeat("A", 20_000), 0, ""},
	} {
		s, ok := test.tokens.session(test.value, now.Add(test.after))
		if ok != (test.role != "") || ok && (s.role != test.role || s.name != "ann") {
			t.Errorf("%s: %v, %s %s", test.name, ok, s.name, s.role)
		}
	}
}

func TestTriesToSignIn(t *testing.T) {
	tries, now := newTries(), time.Now()
	for i := range triesAtOnce {
		if _, ok := tries.begin("192.0.2.1:1000", now); !ok {
			t.Fatalf("try %d was refused", i)
		}
	}
	for _, address := range []string{"192.0.2.1:1001", "[::ffff:192.0.2.1]:1002"} {
		if _, ok := tries.begin(address, now); ok {
			t.Errorf("a try too many from %s was let through", address)
		}
	}
	if _, ok := tries.begin("192.0.2.2:1000", now); !ok {
		t.Error("another address pays for it")
	}
	if _, ok := tries.begin("192.0.2.1:1000", now.Add(triesEvery+time.Millisecond)); !ok {
		t.Error("it is not over after a while")
	}
	for range 10 * triesAtOnce {
		good, ok := tries.begin("192.0.2.3:1000", now)
		if !ok {
			t.Fatal("tries that go well are counted")
		}
		good()
	}
	for range triesAtOnce {
		tries.begin("[2001:db8:0:1::1]:1", now)
	}
	if _, ok := tries.begin("[2001:db8:0:1:ffff::2]:1", now); ok {
		t.Error("each address of one's network is another")
	}
	if _, ok := tries.begin("[2001:db8:0:2::1]:1", now); !ok {
		t.Error("another network pays for it")
	}
}

// The cookie goes to this server alone, and to no script.
func TestTheCookie(t *testing.T) {
	for scheme, secure := range map[string]bool{"http": false, "https": true} {
		w, r := httptest.NewRecorder(), httptest.NewRequest("POST", scheme+"://lapse.example.com/sign-in", nil)
		keepSession(w, r, "x")
		c := w.Result().Cookies()[0]
		if !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || c.Path != "/" || c.Domain != "" || c.Secure != secure || c.MaxAge != 12*60*60 {
			t.Errorf("%s: %s", scheme, c)
		}
	}
	w, r := httptest.NewRecorder(), httptest.NewRequest("POST", "http://lapse.example.com/sign-in", nil)
	r.Header.Set("X-Forwarded-Proto", "https")
	keepSession(w, r, "")
	if c := w.Result().Cookies()[0]; !c.Secure || c.MaxAge >= 0 {
		t.Errorf("behind a proxy: %s", c)
	}
}
