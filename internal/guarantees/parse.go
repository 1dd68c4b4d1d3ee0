package main

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// promise is an id and the tests that prove it.
type promise struct {
	id    string
	tests []test
}

// test is a test function, or a subtest of one, of a package of this module.
type test struct {
	pkg  string // relative to the module's root
	name string
}

func (t test) String() string { return t.pkg + ": " + t.name }

// function is the name of the top-level test.
func (t test) function() string {
	name, _, _ := strings.Cut(t.name, "/")
	return name
}

var (
	codeSpan = regexp.MustCompile("`([^`]+)`")
	testName = regexp.MustCompile(`^([\w./-]+): ((?:Test|Fuzz|Example)\w*(?:/\S+)?)$`)
)

// parse reads the promises out of the tables of a Markdown file; of one id, if
// only is not empty. Rows of the same id are one promise.
func parse(markdown, only string) ([]promise, error) {
	var (
		promises []promise
		problems []error
		inTable  bool
	)
	for i, line := range strings.Split(markdown, "\n") {
		cells := row(line)
		switch {
		case cells == nil:
			inTable = false
			continue
		case strings.EqualFold(cells[0], "id") && strings.EqualFold(cells[len(cells)-1], "tests"):
			inTable = true
			continue
		case !inTable || strings.Trim(strings.Join(cells, ""), "-: ") == "":
			continue
		}
		id := strings.Trim(cells[0], "*` ")
		if only != "" && id != only {
			continue
		}
		tests, err := testsIn(cells[len(cells)-1])
		if err != nil {
			problems = append(problems, fmt.Errorf("line %d: %s: %w", i+1, id, err))
			continue
		}
		at := slices.IndexFunc(promises, func(p promise) bool { return p.id == id })
		if at < 0 {
			promises = append(promises, promise{id: id})
			at = len(promises) - 1
		}
		promises[at].tests = append(promises[at].tests, tests...)
	}
	if len(promises) == 0 && len(problems) == 0 {
		problems = append(problems, errors.New("no promise found: want rows of a table with the columns id … tests"))
	}
	return promises, errors.Join(problems...)
}

// row splits a line of a table into its cells; nil if it is none. A pipe in a
// cell is written \| in Markdown.
func row(line string) []string {
	line = strings.TrimSpace(line)
	if !strings.HasPrefix(line, "|") {
		return nil
	}
	line = strings.ReplaceAll(line, `\|`, "\x00")
	cells := strings.Split(strings.Trim(line, "|"), "|")
	for i, c := range cells {
		cells[i] = strings.TrimSpace(strings.ReplaceAll(c, "\x00", "|"))
	}
	return cells
}

func testsIn(cell string) ([]test, error) {
	var tests []test
	for _, span := range codeSpan.FindAllStringSubmatch(cell, -1) {
		m := testName.FindStringSubmatch(span[1])
		if m == nil {
			return nil, fmt.Errorf("%q is not of the form `package/path: TestName`", span[1])
		}
		tests = append(tests, test{pkg: strings.Trim(strings.TrimPrefix(m[1], "./"), "/"), name: m[2]})
	}
	if len(tests) == 0 {
		return nil, errors.New("names no test")
	}
	return tests, nil
}
