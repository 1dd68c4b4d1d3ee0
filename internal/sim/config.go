package sim

import (
	"time"

	"github.com/keylinehq/keyline/actors/delivery"
	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/keylinetype"
)

// Choices is where a run's randomness comes from: a seeded generator, or a
// property test's draws.
type Choices interface {
	IntN(n int) int
	Float64() float64
}

// Machine is what a run drives: *delivery.Machine, or a broken one.
type Machine interface {
	Step(now time.Time, m delivery.Message) []delivery.Effect
}

// Config says what a run is about.
type Config struct {
	Steps, Records, Workers int
	Ordering                keylinetype.Ordering
	Consumers               []core.Consumer // registered at the start; Window and BatchSize are those of every host
	Late                    []core.Consumer // registered during the run

	// Faults: crashes, freezes, fenced workers, orphans. Without them nothing is delivered twice.
	Faults bool
	// Poison: some events end the process of whoever runs them.
	Poison bool
	// Errors: handlers fail.
	Errors bool
	// Breakers: starts are refused for a while.
	Breakers bool
	// Operators: commands. Registry: statuses, revisions, late consumers.
	Operators, Registry bool
	// Subsets: workers host some of the consumers.
	Subsets bool

	// Clocks: the database's clock is set, and what workers read of it is off by a little.
	Clocks bool

	// Quiet keeps no trace: a failure then says what broke, and not how. Trace,
	// if not nil, is given each line of it instead.
	Quiet bool
	Trace func(line string)

	CrashBudget int
	LoadLimit   int
	// Cut is the twin's: answers are cut after so many events; 0: they are not.
	Cut int

	// Defects and Bend break the store and the machine: for testing the checker.
	Defects Defects
	// Bend changes a machine's effect before it is carried out; false drops it.
	Bend func(delivery.Effect) (delivery.Effect, bool)
	// NewMachine makes the machines, of which a test may keep a record. Default: delivery.New.
	NewMachine func(*core.Registry, core.Loaded, delivery.Options) (Machine, []delivery.Effect)
	// Local changes what a machine believes of its consumers.
	Local func(*Local)
}

// Stats say what a run has seen, so that a test can tell that it was about something.
type Stats struct {
	Begun, Completed, Failed, Redelivered, Dead, Skips, Parked int
	Crashes, Fenced, Settled, HandedBack, Released             int
	Commands, CommandsDone, Epochs, Batches, Txs, Killed       int
	WrittenAhead, DeadRetries, Cleared, BusyFlushes, Wants     int
	CrashDead                                                  int
	// Steps are the things that happened, those after the faults included.
	Steps int
	// Faults counts each kind.
	Faults [faults]int
}

// Add adds another run's.
func (s *Stats) Add(o Stats) {
	for _, p := range [][2]*int{
		{&s.Begun, &o.Begun}, {&s.Completed, &o.Completed}, {&s.Failed, &o.Failed}, {&s.Redelivered, &o.Redelivered},
		{&s.Dead, &o.Dead}, {&s.Skips, &o.Skips}, {&s.Parked, &o.Parked}, {&s.Crashes, &o.Crashes}, {&s.Fenced, &o.Fenced},
		{&s.Settled, &o.Settled}, {&s.HandedBack, &o.HandedBack}, {&s.Released, &o.Released}, {&s.Commands, &o.Commands},
		{&s.CommandsDone, &o.CommandsDone}, {&s.Epochs, &o.Epochs}, {&s.Batches, &o.Batches}, {&s.Txs, &o.Txs}, {&s.Killed, &o.Killed},
		{&s.WrittenAhead, &o.WrittenAhead}, {&s.DeadRetries, &o.DeadRetries}, {&s.Cleared, &o.Cleared},
		{&s.BusyFlushes, &o.BusyFlushes}, {&s.Wants, &o.Wants}, {&s.CrashDead, &o.CrashDead}, {&s.Steps, &o.Steps},
	} {
		*p[0] += *p[1]
	}
	for f, n := range o.Faults {
		s.Faults[f] += n
	}
}
