package core

import (
	"regexp"
	"strings"
)

// matcher matches event types against globs. "*" stands for any run of
// characters, dots included ("activity.*" takes "activity.line.added"); all
// else stands for itself.
type matcher struct {
	all      bool
	exact    map[string]bool
	patterns []*regexp.Regexp
}

func newMatcher(globs []string) matcher {
	m := matcher{exact: map[string]bool{}}
	for _, g := range globs {
		switch {
		case g == "*":
			m.all = true
		case !strings.Contains(g, "*"):
			m.exact[g] = true
		default:
			parts := strings.Split(g, "*")
			for i := range parts {
				parts[i] = regexp.QuoteMeta(parts[i])
			}
			m.patterns = append(m.patterns, regexp.MustCompile(`(?s)\A`+strings.Join(parts, ".*")+`\z`))
		}
	}
	return m
}

func (m matcher) match(eventType string) bool {
	if m.all || m.exact[eventType] {
		return true
	}
	for _, p := range m.patterns {
		if p.MatchString(eventType) {
			return true
		}
	}
	return false
}
