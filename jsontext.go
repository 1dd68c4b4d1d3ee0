package keyline

import (
	"bytes"
	"encoding/json"
	"errors"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// Bounds of Postgres's numeric: digits before the decimal point, and behind it.
const (
	maxWhole    = 131072
	maxFraction = 16383
)

// checkJSON reports whether jsonb would take a text that is to become a
// payload: json.Valid accepts more than Postgres does (invalid UTF-8, \u0000,
// half surrogate pairs, any exponent), and an error found by the server costs
// the caller's transaction. Very deep nesting is left to the server.
//
// size is the text's length with exponents written out, as Postgres does:
// 1e100000 has eight bytes and becomes 100,001.
func checkJSON(text []byte) (size int, err error) {
	if !json.Valid(text) {
		return 0, errors.New("not valid JSON")
	}
	if !utf8.Valid(text) {
		return 0, errors.New("not valid UTF-8")
	}
	size = len(text)
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '"':
			if i, err = checkString(text, i+1); err != nil {
				return 0, err
			}
		case digit(c):
			n := readNumber(text[i:])
			if !n.fits() {
				return 0, errors.New("contains a number that is out of Postgres's range")
			}
			size += max(n.exponent, -n.exponent)
			i += n.length - 1
		}
	}
	return size, nil
}

func digit(c byte) bool { return c >= '0' && c <= '9' }

// number is a number of a JSON text, without its sign.
type number struct {
	length int // in bytes
	// before is how many digits stand before the decimal point, of 0.001 minus two; nothing is true of one that is 0.
	before   int
	nothing  bool
	fraction int // how many digits stand behind it
	exponent int
}

// mostExponent is where exponents are cut off: beyond it none fits, however long the text.
const mostExponent = 1 << 30

// readNumber reads the number at the start of a text, which json.Valid has seen.
func readNumber(text []byte) (n number) {
	digits := func() (list []byte) {
		begun := n.length
		for n.length < len(text) && digit(text[n.length]) {
			n.length++
		}
		return text[begun:n.length]
	}
	whole := digits()
	n.before = len(whole)
	if n.length < len(text) && text[n.length] == '.' {
		n.length++
		fraction := digits()
		n.fraction = len(fraction)
		if whole[0] == '0' {
			significant := bytes.TrimLeft(fraction, "0")
			n.before, n.nothing = len(significant)-len(fraction), len(significant) == 0
		}
	} else {
		n.nothing = whole[0] == '0'
	}
	if n.length < len(text) && text[n.length]|0x20 == 'e' {
		n.length++
		negative := text[n.length] == '-'
		if negative || text[n.length] == '+' {
			n.length++
		}
		for _, c := range digits() {
			n.exponent = min(10*n.exponent+int(c-'0'), mostExponent)
		}
		if negative {
			n.exponent = -n.exponent
		}
	}
	return n
}

// fits reports whether Postgres can hold the number.
func (n number) fits() bool {
	return (n.nothing || n.before+n.exponent <= maxWhole) && n.fraction-n.exponent <= maxFraction
}

// checkString checks the escapes of a string that begins at i and returns where
// its closing quote is.
func checkString(text []byte, i int) (int, error) {
	for ; text[i] != '"'; i++ {
		if text[i] != '\\' {
			continue
		}
		i++
		if text[i] != 'u' {
			continue
		}
		r := escape(text, i+1)
		i += 4
		switch {
		case r == 0:
			return i, errors.New(`contains \u0000, which Postgres cannot store`)
		case !utf16.IsSurrogate(r):
		case text[i+1] == '\\' && text[i+2] == 'u' && utf16.DecodeRune(r, escape(text, i+3)) != utf8.RuneError:
			i += 6
		default:
			return i, errors.New("contains half of a surrogate pair")
		}
	}
	return i, nil
}

// escape reads the four hex digits at i, which json.Valid has seen.
func escape(text []byte, i int) rune {
	n, err := strconv.ParseUint(string(text[i:i+4]), 16, 16)
	if err != nil {
		return utf8.RuneError
	}
	return rune(n)
}
