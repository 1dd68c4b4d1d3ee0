package core

import (
	"strings"
	"testing"
)

// FuzzGlob: a type matches as the plain reading of its glob says.
func FuzzGlob(f *testing.F) {
	for _, s := range [][2]string{{"*", ""}, {"activity.*", "activity.line.added"}, {"*.added", "activity.added"}, {"a*b*c", "abbc"}, {"a**", "a"},
		{"a.b", "aXb"}, {"[a*", "[ab"}, {`\Q*\E`, `\Qx\E`}, {"a\n*", "a\nb"}, {"\xff*", "\xffx"}, {"*a*a*", "aaa"}, {"", ""}} {
		f.Add(s[0], s[1])
	}
	f.Fuzz(func(t *testing.T, glob, kind string) {
		if strings.Count(glob, "*") > 4 || len(kind) > 60 {
			return // trying everything takes for ever
		}
		if got, want := newMatcher([]string{glob}).match(kind), matches(glob, kind); got != want {
			t.Errorf("%q takes %q: %v, want %v", glob, kind, got, want)
		}
		others := []string{"no such type", glob, glob}
		if got := newMatcher(others).match(kind); got != (matches(glob, kind) || kind == others[0]) {
			t.Errorf("%q among others takes %q: %v", glob, kind, got)
		}
	})
}

// matches is what a glob means, by trying everything.
func matches(glob, s string) bool {
	switch {
	case glob == "":
		return s == ""
	case glob[0] == '*':
		for i := range len(s) + 1 {
			if matches(glob[1:], s[i:]) {
				return true
			}
		}
		return false
	}
	return s != "" && s[0] == glob[0] && matches(glob[1:], s[1:])
}
