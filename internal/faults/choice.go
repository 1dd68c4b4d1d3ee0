package main

import (
	"slices"
	"strings"
	"time"
)

// choose picks scenarios: "48" means all of 48a, 48b and so on.
func choose(only string) []scenario {
	var names []string
	if only != "" {
		names = strings.Split(only, ",")
	}
	return slices.DeleteFunc(slices.Clone(scenarios()), func(s scenario) bool {
		return names != nil && !slices.Contains(names, s.id) && !slices.Contains(names, strings.TrimRight(s.id, "abcdefgh"))
	})
}

// rotate puts the scenario at position from first, taken modulo their number,
// and those before it behind the last.
func rotate(all []scenario, from int) []scenario {
	if len(all) == 0 {
		return nil
	}
	at := (from%len(all) + len(all)) % len(all)
	return slices.Concat(all[at:], all[:at])
}

// playWithin plays scenarios in their order, and begins one only while less than
// the budget is used; one that has begun is played to its end. No budget bounds
// nothing. It returns how many were not begun.
func playWithin(order []scenario, budget time.Duration, used func() time.Duration, play func(scenario)) (left int) {
	for i, s := range order {
		if budget > 0 && used() >= budget {
			return len(order) - i
		}
		play(s)
	}
	return 0
}
