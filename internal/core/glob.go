package core

import "strings"

// matcher matches event types against globs. "*" stands for any run of
// characters, dots included ("activity.*" takes "activity.line.added"); all
// else stands for itself.
type matcher struct {
	all      bool
	exact    map[string]bool
	patterns []pattern
}

// pattern is a glob with at least one star: what stands before the first, after
// the last, and between them.
type pattern struct {
	first, last string
	between     []string
}

func newMatcher(globs []string) matcher {
	m := matcher{exact: map[string]bool{}}
	for _, g := range globs {
		parts := strings.Split(g, "*")
		switch {
		case g == "*":
			m.all = true
		case len(parts) == 1:
			m.exact[g] = true
		default:
			m.patterns = append(m.patterns, pattern{parts[0], parts[len(parts)-1], parts[1 : len(parts)-1]})
		}
	}
	return m
}

func (m matcher) match(eventType string) bool {
	if m.all || m.exact[eventType] {
		return true
	}
	for i := range m.patterns {
		if m.patterns[i].match(eventType) {
			return true
		}
	}
	return false
}

// match takes for each part between stars the first place where it fits: if
// there is any way to fit them all, this is one.
func (p *pattern) match(s string) bool {
	s, ok := strings.CutPrefix(s, p.first)
	if !ok {
		return false
	}
	if s, ok = strings.CutSuffix(s, p.last); !ok {
		return false
	}
	for _, part := range p.between {
		if _, s, ok = strings.Cut(s, part); !ok {
			return false
		}
	}
	return true
}
