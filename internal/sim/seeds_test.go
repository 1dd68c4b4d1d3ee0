package sim

import (
	_ "embed"
	"strconv"
	"strings"
	"testing"
)

//go:embed testdata/seeds.txt
var seeds string

// TestPastSeeds runs the schedules that once broke a promise.
func TestPastSeeds(t *testing.T) {
	ran := 0
	for line := range strings.Lines(seeds) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		number, what, _ := strings.Cut(line, " ")
		seed, err := strconv.ParseUint(number, 10, 64)
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		cfg, ch := Seeded(seed)
		if _, err := Run(cfg, ch); err != nil {
			t.Errorf("seed %d again (%s): %v", seed, strings.TrimSpace(what), err)
		}
		ran++
	}
	if ran == 0 {
		t.Error("there are no seeds")
	}
}

// TestASeedIsASchedule: the same seed gives the same run, to the last line of its trace.
func TestASeedIsASchedule(t *testing.T) {
	trace := func(seed uint64) (lines []string) {
		cfg, ch := Seeded(seed)
		cfg.Trace = func(line string) { lines = append(lines, line) }
		if _, err := Run(cfg, ch); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		return lines
	}
	for seed := range uint64(20) {
		first, second := trace(seed), trace(seed)
		for i := range min(len(first), len(second)) {
			if first[i] != second[i] {
				t.Fatalf("seed %d, line %d: %q and then %q", seed, i+1, first[i], second[i])
			}
		}
		if len(first) == 0 || len(first) != len(second) {
			t.Fatalf("seed %d: %d lines, and then %d", seed, len(first), len(second))
		}
	}
}
