package keyline

import (
	"bytes"
	"encoding/json"
	"errors"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// Bounds of Postgres's numeric: digits before the decimal point.
const maxExponent = 131072

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
		case (c == 'e' || c == 'E') && text[i-1] >= '0' && text[i-1] <= '9':
			n := exponent(text[i+1:])
			if n > maxExponent {
				return 0, errors.New("contains a number that is out of Postgres's range")
			}
			size += n
		}
	}
	return size, nil
}

// exponent reads the size of an exponent, up to just above maxExponent.
func exponent(text []byte) (n int) {
	for _, c := range bytes.TrimLeft(text, "+-") {
		if c < '0' || c > '9' {
			break
		}
		n = min(10*n+int(c-'0'), maxExponent+1)
	}
	return n
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
