package sim

import (
	"testing"

	"github.com/keylinehq/keyline/internal/clock"
)

// broken is a schedule of some length that breaks a promise, by a mutant.
func broken(t *testing.T, m mutant) (cfg Config, seed uint64) {
	t.Helper()
	for seed := range uint64(4000) {
		cfg, ch := mutated(m, seed)
		if _, err := Run(cfg, ch); err != nil {
			return cfg, seed
		}
	}
	t.Fatalf("%s: nobody noticed", m.name)
	return Config{}, 0
}

func mutated(m mutant, seed uint64) (Config, Choices) {
	rnd := clock.NewRand(seed)
	cfg := Draw(rnd)
	cfg.Faults, cfg.Errors, cfg.Registry, cfg.Operators = true, true, true, true
	cfg.Steps = 250
	m.set(&cfg)
	return cfg, rnd
}

// A failing schedule shrinks to one that fails in the same way, and always to the same.
func TestAFailingScheduleShrinks(t *testing.T) {
	const most = 1000
	for i, m := range mutants {
		if i%8 != 0 {
			continue // a few are enough, and soon done
		}
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			_, seed := broken(t, m)
			cfg, ch := mutated(m, seed)
			_, first := Run(cfg, ch)
			cfg, ch = mutated(m, seed)
			s, ok := Shrink(cfg, ch, most)
			if !ok || s.Err == nil || kindOf(s.Err) != kindOf(first) {
				t.Fatalf("seed %d: %v shrinks to %v", seed, first, s.Err)
			}
			if s.Runs > most || s.Steps*2 > s.Was {
				t.Errorf("seed %d: %d steps of %d are left after %d runs: %v", seed, s.Steps, s.Was, s.Runs, s.Err)
			}
			t.Logf("seed %d: %d steps of %d after %d runs", seed, s.Steps, s.Was, s.Runs)
			cfg, ch = mutated(m, seed)
			if again, _ := Shrink(cfg, ch, most); again.Steps != s.Steps || again.Err.Error() != s.Err.Error() {
				t.Errorf("seed %d shrinks to %d steps, and then to %d", seed, s.Steps, again.Steps)
			}
		})
	}
}

func TestWhatBreaksNothingDoesNotShrink(t *testing.T) {
	cfg, ch := Seeded(1)
	if s, ok := Shrink(cfg, ch, 10); ok {
		t.Errorf("%+v", s)
	}
}

// A tape that is played is the run that it was written of.
func TestATapePlaysTheRun(t *testing.T) {
	for seed := range uint64(30) {
		trace := func(ch Choices, cfg Config) (lines []string) {
			cfg.Trace = func(line string) { lines = append(lines, line) }
			if _, err := Run(cfg, ch); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			return lines
		}
		cfg, ch := Seeded(seed)
		rec := &recorder{from: ch}
		written := trace(rec, cfg)
		played := trace(rec.tape.play(), cfg)
		if len(written) == 0 || len(written) != len(played) {
			t.Fatalf("seed %d: %d lines, played %d", seed, len(written), len(played))
		}
		for i := range written {
			if written[i] != played[i] {
				t.Fatalf("seed %d, line %d: %q, played %q", seed, i+1, written[i], played[i])
			}
		}
	}
}
