package deadletter

import "strings"

// Fingerprint returns what letters of one group have in common: 16 hexadecimal digits made of their kind, their
// reason and the pattern of their error, which is the error without the ids, numbers, times, addresses and quoted
// texts in it, at most 1000 bytes of valid UTF-8.
func Fingerprint(kind string, reason Reason, err string) (fingerprint, pattern string) {
	pattern = patternOf(err)
	return hash([]byte(kind), []byte(reason), []byte(pattern))[:fingerprintDigits], pattern
}

const fingerprintDigits = 16

func isFingerprint(text string) bool {
	return len(text) == fingerprintDigits && strings.Trim(text, "0123456789abcdef") == ""
}
