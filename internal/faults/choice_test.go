package main

import (
	"slices"
	"strconv"
	"testing"
	"time"
)

func numbered(n int) (all []scenario) {
	for i := range n {
		all = append(all, scenario{id: strconv.Itoa(i)})
	}
	return all
}

func idsOf(all []scenario) (ids []string) {
	for _, s := range all {
		ids = append(ids, s.id)
	}
	return ids
}

// Promise: from any beginning, each scenario has its turn once, in the same order.
func TestAnyBeginningGivesEachScenarioOneTurn(t *testing.T) {
	for from, want := range map[int][]string{
		0:                       {"0", "1", "2", "3", "4"},
		2:                       {"2", "3", "4", "0", "1"},
		4:                       {"4", "0", "1", "2", "3"},
		5:                       {"0", "1", "2", "3", "4"},
		-1:                      {"4", "0", "1", "2", "3"},
		-9223372036854775808:    {"2", "3", "4", "0", "1"},
		9223372036854775807:     {"2", "3", "4", "0", "1"},
		9223372036854775807 - 2: {"0", "1", "2", "3", "4"},
	} {
		if got := idsOf(rotate(numbered(5), from)); !slices.Equal(got, want) {
			t.Errorf("from %d: %v, want %v", from, got, want)
		}
	}
	if got := rotate(nil, 7); len(got) != 0 {
		t.Errorf("of nothing: %v", got)
	}
}

// Promise: a scenario begins only while time is left, is then played to its end,
// and what did not begin is counted.
func TestABudgetBeginsNothingOnceItIsUsed(t *testing.T) {
	for _, c := range []struct {
		budget       time.Duration
		played, left int
	}{
		{0, 5, 0},
		{time.Nanosecond, 1, 4},
		{10 * time.Second, 1, 4},
		{10*time.Second + 1, 2, 3},
		{25 * time.Second, 3, 2},
		{40*time.Second + 1, 5, 0},
		{time.Hour, 5, 0},
	} {
		var used time.Duration
		var played []string
		left := playWithin(numbered(5), c.budget, func() time.Duration { return used }, func(s scenario) {
			played = append(played, s.id)
			used += 10 * time.Second
		})
		if len(played) != c.played || left != c.left || !slices.Equal(played, idsOf(numbered(len(played)))) {
			t.Errorf("budget %v: %v played, %d left, want %d and %d", c.budget, played, left, c.played, c.left)
		}
	}
}
