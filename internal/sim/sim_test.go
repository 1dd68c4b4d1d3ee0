package sim

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/keylinehq/keyline/internal/clock"
)

// schedules runs a property over seeded schedules: rapid draws the seed and the
// length, so that -rapid.checks sets how many and a failure names its seed.
func schedules(t *testing.T, change func(*Config)) Stats {
	var total Stats
	rapid.Check(t, func(t *rapid.T) {
		rnd := clock.NewRand(rapid.Uint64().Draw(t, "seed"))
		cfg := Draw(rnd)
		cfg.Steps = rapid.IntRange(10, 400).Draw(t, "steps")
		if change != nil {
			change(&cfg)
		}
		stats, err := Run(cfg, rnd)
		total.Add(stats)
		if err != nil {
			t.Fatalf("%v\nconfig %+v", err, cfg)
		}
	})
	t.Logf("%+v", total)
	return total
}

// TestDeliveryCoreKeepsItsPromises drives real machines through random
// schedules with everything that may happen.
func TestDeliveryCoreKeepsItsPromises(t *testing.T) {
	total := schedules(t, nil)
	if total.Begun < 1000 {
		return // too few schedules to have seen everything
	}
	for name, n := range map[string]int{
		"deliveries": total.Completed, "failures": total.Failed, "dead letters": total.Dead, "skips": total.Skips, "parked heads": total.Parked,
		"crashes": total.Crashes, "fenced claims": total.Fenced, "settled records": total.Settled, "hand-backs": total.HandedBack,
		"releases": total.Released, "applied commands": total.CommandsDone, "registry changes": total.Epochs, "batches": total.Batches,
		"HandleTx": total.Txs, "written-ahead attempts": total.WrittenAhead, "suspicions that end": total.Cleared,
		"appenders in flight": total.BusyFlushes, "wanted consumers": total.Wants,
	} {
		if n == 0 {
			t.Errorf("no schedule had any %s: the property is about less than it says", name)
		}
	}
}

// TestNothingIsLostWhereAnswersAreCut: large events are not all read at once, and what is left out is not passed over.
func TestNothingIsLostWhereAnswersAreCut(t *testing.T) {
	for cut := 1; cut <= 2; cut++ {
		total := schedules(t, func(c *Config) { c.Cut, c.LoadLimit = cut, 3+61*(cut-1) })
		if total.Completed == 0 {
			t.Error("no schedule delivered anything")
		}
	}
}

// TestNothingIsDeliveredTwiceWithoutAFault: while nothing crashes, freezes or
// loses its claim, at-least-once is exactly once.
func TestNothingIsDeliveredTwiceWithoutAFault(t *testing.T) {
	total := schedules(t, func(c *Config) { c.Faults, c.Poison = false, false })
	if total.Completed == 0 {
		t.Error("no schedule delivered anything")
	}
}

// TestEventThatKillsItsProcessIsFound: it ends the process of whoever runs it,
// again and again, until its crash budget makes a dead letter of it; nothing else is lost with it.
func TestEventThatKillsItsProcessIsFound(t *testing.T) {
	crashes := 0
	rapid.Check(t, func(t *rapid.T) {
		rnd := clock.NewRand(rapid.Uint64().Draw(t, "seed"))
		cfg := Draw(rnd)
		cfg.Steps = rapid.IntRange(20, 150).Draw(t, "steps")
		cfg.Faults, cfg.Poison, cfg.Errors, cfg.Registry, cfg.Operators = false, true, false, false, false
		stats, err := Run(cfg, rnd)
		if err != nil {
			t.Fatalf("%v\nconfig %+v", err, cfg)
		}
		// One kill before the record is a suspect, and as many as the budget, for each.
		if stats.Killed > stats.CrashDead*(cfg.CrashBudget+1) || stats.Killed < stats.CrashDead*cfg.CrashBudget {
			t.Fatalf("%d kills for %d dead letters", stats.Killed, stats.CrashDead)
		}
		crashes += stats.CrashDead
	})
	if crashes == 0 {
		t.Error("no schedule had an event that kills")
	}
}

// drawn lets rapid make every choice of a schedule, so that it can shrink it.
type drawn struct{ t *rapid.T }

func (d drawn) IntN(n int) int { return rapid.IntRange(0, n-1).Draw(d.t, "choice") }

func (d drawn) Float64() float64 { return rapid.Float64Range(0, 0.999).Draw(d.t, "float") }

// TestShortSchedules: fewer and shorter ones, chosen step by step, that shrink to the point.
func TestShortSchedules(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := Draw(drawn{t})
		cfg.Steps = rapid.IntRange(5, 40).Draw(t, "steps")
		if _, err := Run(cfg, drawn{t}); err != nil {
			t.Fatalf("%v\nconfig %+v", err, cfg)
		}
	})
}
