package main

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// faultNumbers is how many faults there are to stage.
const faultNumbers = 59

// Promise: every fault has a scenario, each with a name of its own, and the
// table of the guarantees says what each is for.
func TestEveryFaultIsStagedAndStandsForAPromise(t *testing.T) {
	var ids, numbers []string
	for _, s := range scenarios() {
		if slices.Contains(ids, s.id) {
			t.Errorf("two scenarios are %s", s.id)
		}
		ids = append(ids, s.id)
		numbers = append(numbers, strings.TrimRight(s.id, "abcdefgh"))
	}
	slices.Sort(numbers)
	if numbers = slices.Compact(numbers); len(numbers) != faultNumbers {
		t.Errorf("%d faults are staged, there are %d", len(numbers), faultNumbers)
	}
	text, err := os.ReadFile("../../docs/guarantees.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "## Staged faults")
	section, _, _ = strings.Cut(section, "\n## ")
	var named []string
	for line := range strings.Lines(section) {
		if cells := strings.Split(line, "|"); len(cells) == 5 {
			named = append(named, regexp.MustCompile(`\d+[a-h]?`).FindAllString(cells[2], -1)...)
		}
	}
	for _, n := range named {
		if !slices.Contains(numbers, n) && !slices.Contains(ids, n) {
			t.Errorf("the guarantees name scenario %s, which there is not", n)
		}
	}
	for _, n := range numbers {
		if !slices.ContainsFunc(named, func(s string) bool { return strings.TrimRight(s, "abcdefgh") == n }) {
			t.Errorf("scenario %s stands for no promise", n)
		}
	}
}
