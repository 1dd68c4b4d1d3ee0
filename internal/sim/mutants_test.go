package sim

import (
	"strings"
	"testing"

	"github.com/keylinehq/keyline/actors/delivery"
	"github.com/keylinehq/keyline/internal/clock"
	"github.com/keylinehq/keyline/internal/core"
)

// mutant is a store or machine with one rule broken.
type mutant struct {
	name string
	why  string // what the rule is for
	set  func(*Config)
}

// flushes makes a Bend of what it does to every flush.
func flushes(change func(*core.Flush)) func(*Config) {
	return func(c *Config) {
		c.Bend = func(e delivery.Effect) (delivery.Effect, bool) {
			if f, ok := e.(delivery.Flush); ok {
				change(f.Flush)
				return f, true
			}
			return e, true
		}
	}
}

func defect(d Defects) func(*Config) { return func(c *Config) { c.Defects = d } }

var mutants = []mutant{
	{"no token check", "a fenced holder's outcomes count for nothing", defect(Defects{NoTokenCheck: true})},
	{"settle without re-reading the head", "an append during the claim is not lost", defect(Defects{NoHeadReread: true})},
	{"settle without re-reading commands", "a command during the claim is not lost", defect(Defects{NoPendingReread: true})},
	{"hand-back without the records lock", "an append in flight does not sleep", defect(Defects{HandBackUnguarded: true})},
	{"flush ignores the epoch", "a pause keeps its place", defect(Defects{IgnoreEpoch: true})},
	{"recovery charges no crash", "an event that kills is found", defect(Defects{NoCrashCharge: true})},
	{"hand-backs forgive what an earlier claim wrote ahead", "a crash counts, whoever comes next", defect(Defects{ForgiveAny: true})},
	{"what may have run before is forgotten", "a repetition says that it is one", flushes(func(f *core.Flush) {
		for i := range f.Upserts {
			f.Upserts[i].RedeliverTo = 0
		}
	})},
	{"no sweep after a registry change", "a resumed consumer's work is claimable", defect(Defects{NoResumeSweep: true})},
	{"cursor is the lowest position", "a consumer without a row stands at the highest", flushes(func(f *core.Flush) {
		for _, c := range f.Upserts {
			f.Cursor = min(f.Cursor, c.Seq)
		}
	})},
	{"cursor is the head", "the cursor passes nobody", flushes(func(f *core.Flush) { f.Cursor = f.Head })},
	{"no write-ahead", "a suspect's attempt is durable before it runs", flushes(func(f *core.Flush) {
		for i := range f.Upserts {
			if c := &f.Upserts[i]; c.State == core.Started {
				c.State, c.Attempt = core.Ready, c.Attempt-1
				c.Granted = min(c.Granted, c.Attempt)
			}
		}
	})},
	{"suspicion ends at once", "suspicion lasts until all have run", flushes(func(f *core.Flush) { f.Clear = true })},
	{"rows are not deleted", "checkpoint rows are exceptions", flushes(func(f *core.Flush) { f.Deletes = nil })},
	{"rows are not written", "who differs from the cursor has a row", flushes(func(f *core.Flush) { f.Upserts = nil })},
	{"wants are forgotten", "work for others is offered to them", flushes(func(f *core.Flush) { f.Wants = nil })},
	{"due times are forgotten", "backoff ends", flushes(func(f *core.Flush) {
		if f.Then == core.HandBack && !f.DueAt.IsZero() {
			f.DueAt = Never
		}
	})},
	{"dead letters are lost", "an exhausted delivery leaves a dead letter", flushes(func(f *core.Flush) { f.DeadLetters = nil })},
	{"skips are lost", "a skipped delivery leaves a trace", flushes(func(f *core.Flush) { f.Skips = nil })},
	{"applied commands are lost", "a command is applied once", flushes(func(f *core.Flush) { f.Applied = nil })},
	{"attempts restart", "attempts never go back", flushes(func(f *core.Flush) {
		for i := range f.Upserts {
			if f.Upserts[i].State == core.Backoff {
				f.Upserts[i].Attempt, f.Upserts[i].Granted = 0, 0
			}
		}
	})},
	{"window without a limit", "a crash repeats at most a window", func(c *Config) { c.Local = func(l *Local) { l.Window = 50 } }},
	{"withdrawals are ignored", "what is held does not start", func(c *Config) {
		c.Bend = func(e delivery.Effect) (delivery.Effect, bool) {
			_, is := e.(delivery.Withdraw)
			return e, !is
		}
	}},
	{"retries come too early", "backoff lasts", flushes(func(f *core.Flush) {
		for i := range f.Upserts {
			if f.Upserts[i].State == core.Backoff {
				f.Upserts[i].NextAttemptAt = epochStart
			}
		}
	})},
}

// TestCheckerNoticesEveryMutant: a checker that lets a broken store or machine
// pass proves nothing about a whole one.
func TestCheckerNoticesEveryMutant(t *testing.T) {
	const most = 4000
	for _, m := range mutants {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(most) {
				rnd := clock.NewRand(seed)
				cfg := Draw(rnd)
				cfg.Faults, cfg.Errors, cfg.Registry, cfg.Operators = true, true, true, true
				cfg.Poison = seed%2 == 0
				cfg.Steps = 40 + int(seed%160)
				m.set(&cfg)
				if _, err := Run(cfg, rnd); err != nil {
					first, _, _ := strings.Cut(err.Error(), "\n")
					t.Logf("seed %d: %s", seed, first)
					return
				}
			}
			t.Errorf("%d schedules, and nobody noticed: %s", most, m.why)
		})
	}
}
