package api

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

// readQuery sees to it that a request's query is read in one way. What cannot be read, or says something twice, is refused: otherwise
// a filter would be left out in silence, and more would be shown or meant than was asked for.
func readQuery(r *http.Request) *Problem {
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return problem(http.StatusBadRequest, codeInvalidRequest, "the query could not be read")
	}
	for name, v := range values {
		if len(v) > 1 {
			return problem(http.StatusUnprocessableEntity, codeInvalidRequest, "the query has "+strconv.Quote(name)+" twice")
		}
	}
	// A name without = has the value "", whoever reads it.
	r.URL.RawQuery = values.Encode()
	return nil
}

// givenTwice returns a name that an object of a JSON text has twice. Names that differ in case are one: a body is checked by the first of
// them and read by the last, so that what was never checked would count. What is no JSON is for others to refuse.
func givenTwice(text []byte) (name string, twice bool) {
	// level is an object or an array that is open.
	type level struct {
		names  map[string]bool // nil of an array
		isName bool            // what comes next is a name
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var open []*level
	for {
		token, err := d.Token()
		if err != nil {
			return "", false
		}
		if token == json.Delim('}') || token == json.Delim(']') {
			open = open[:len(open)-1]
			continue
		}
		if len(open) > 0 {
			in := open[len(open)-1]
			if name, _ := token.(string); in.isName {
				folded := strings.ToLower(strings.ToUpper(name))
				if in.names[folded] {
					return name, true
				}
				in.names[folded], in.isName = true, false
				continue
			}
			in.isName = in.names != nil // behind this value
		}
		switch token {
		case json.Delim('{'):
			open = append(open, &level{names: map[string]bool{}, isName: true})
		case json.Delim('['):
			open = append(open, &level{})
		}
	}
}
