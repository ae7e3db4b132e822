package deadletter

import (
	"bytes"
	"net/netip"
	"regexp"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

const maxPattern = 1000 // bytes

// What stands in a pattern for that by which the texts of one error differ.
const (
	anAddress  = "<address>"
	aDuration  = "<duration>"
	anID       = "<id>"
	aNumber    = "<n>"
	aQuotation = "<text>"
	aTime      = "<time>"
)

// patterner makes a pattern of a text, in one pass.
type patterner struct {
	text    string // what is left of it
	before  rune   // what was there before that
	pattern []byte
	// open are the quotation marks that nothing closes on the present line, so that it is not searched again.
	open string
}

func patternOf(text string) string {
	p := patterner{text: strings.ToValidUTF8(text, "\uFFFD")}
	for p.text != "" && len(p.pattern) <= maxPattern {
		switch r, size := utf8.DecodeRuneInString(p.text); {
		case wordly(r):
			p.word(p.take(endOf(p.text, func(r rune) bool { return wordly(r) || strings.ContainsRune(joints, r) })))
		case r == '"' || r == '`' || r == '\'' && !wordly(p.before):
			p.quotation(p.text[:size])
		case r == '[':
			p.bracket()
		case unicode.IsSpace(r):
			if r == '\n' {
				p.open = ""
			}
			p.take(size)
			p.space()
		default:
			p.keep(p.take(size))
		}
	}
	pattern := p.pattern[:min(len(p.pattern), maxPattern)]
	// What is left of a rune that was cut is not valid.
	return strings.ToValidUTF8(strings.TrimSpace(string(pattern)), "")
}

// wordly are the runes of which words and numbers are made, and joints are those that hold them together.
func wordly(r rune) bool { return r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r) }

const joints = "-.:+#@"

// endOf is where the runes at the beginning of the text end for which is holds.
func endOf(text string, is func(rune) bool) int {
	if end := strings.IndexFunc(text, func(r rune) bool { return !is(r) }); end >= 0 {
		return end
	}
	return len(text)
}

func (p *patterner) take(n int) (taken string) {
	taken, p.text = p.text[:n], p.text[n:]
	p.before, _ = utf8.DecodeLastRuneInString(taken)
	return taken
}

func (p *patterner) keep(text string) { p.pattern = append(p.pattern, text...) }

func (p *patterner) space() {
	if n := len(p.pattern); n > 0 && p.pattern[n-1] != ' ' {
		p.keep(" ")
	}
}

// put stands for something. A list of the same looks like one of them, however long it is.
func (p *patterner) put(thing string) {
	if before := bytes.TrimRight(p.pattern, " ,"); bytes.HasSuffix(before, []byte(thing)) {
		p.pattern = before
		return
	}
	p.keep(thing)
}

func (p *patterner) quotation(mark string) {
	if strings.Contains(p.open, mark) {
		p.keep(p.take(1))
		return
	}
	for i := 1; i < len(p.text) && p.text[i] != '\n'; i++ {
		switch {
		case p.text[i] == '\\' && mark != "`":
			i++
		case p.text[i] == mark[0]:
			if next, _ := utf8.DecodeRuneInString(p.text[i+1:]); mark == "'" && wordly(next) {
				continue // as in: can't
			}
			p.take(i + 1)
			p.put(aQuotation)
			return
		}
	}
	p.open += mark
	p.keep(p.take(1))
}

// bracket is a [ that may begin an address of IPv6.
func (p *patterner) bracket() {
	const longest = 64 // bytes of an address
	if inner, _, found := strings.Cut(p.text[1:min(len(p.text), longest)], "]"); found {
		if _, err := netip.ParseAddr(inner); err == nil {
			p.take(len(inner) + 2)
			p.take(len(port.FindString(p.text)))
			p.put(anAddress)
			return
		}
	}
	p.keep(p.take(1))
}

// word is words that are held together.
func (p *patterner) word(word string) {
	if strings.HasSuffix(word, ":") && strings.HasPrefix(p.text, "//") {
		rest := p.take(endOf(p.text, func(r rune) bool { return !unicode.IsSpace(r) && !strings.ContainsRune("\"'`<>", r) }))
		p.put(anAddress)
		p.keep(rest[len(strings.TrimRight(rest, ".,:;!?)]}")):])
		return
	}
	bare := strings.TrimRight(word, joints)
	p.things(bare)
	p.keep(word[len(bare):])
}

var (
	port     = regexp.MustCompile(`^:\d{1,5}`)
	instants = regexp.MustCompile(`^(\d{4}-\d\d-\d\d(T\d\d:\d\d(:\d\d)?)?|\d\d:\d\d(:\d\d)?)(\.\d+)?(Z|[+-]\d\d:?\d\d)?$`)
	numeric  = regexp.MustCompile(`^(0[xX][0-9a-fA-F]+|\d+(\.\d+){0,2}([eE][-+]?\d+)?)$`)
	hosts    = regexp.MustCompile(`^[\w-]+(\.[\w-]+)+:\d{1,5}$`)
)

// things are a word, or several with colons between them.
func (p *patterner) things(word string) {
	const longest = 256 // bytes of what is looked into
	digits := strings.ContainsFunc(word, unicode.IsDigit)
	first, rest, several := strings.Cut(word, ":")
	_, notAddress := netip.ParseAddr(word)
	_, notDuration := time.ParseDuration(word)
	switch {
	case strings.Contains(word, "@"):
		p.put(anAddress)
	case !digits && !several:
		p.keep(word)
	case len(word) > longest:
		p.put(anID)
	case numeric.MatchString(word):
		p.pattern = bytes.TrimRight(p.pattern, "+-") // its sign
		p.put(aNumber)
	case instants.MatchString(word):
		p.put(aTime)
	case notAddress == nil || hosts.MatchString(word):
		p.put(anAddress)
	case notDuration == nil:
		p.put(aDuration)
	case several:
		p.things(first)
		p.keep(":")
		p.things(rest)
	default:
		p.put(anID)
	}
}
