package delivery

import (
	"time"

	"github.com/keylinehq/keyline/internal/core"
)

// Message is something that happened to a claimed record.
type Message interface{ message() }

// The messages of a record.
type (
	// Ended: a handler that a Start effect asked for has ended. It is told by
	// pointer, and not kept.
	Ended struct {
		Work    *core.Work
		Outcome core.Outcome
	}
	// NotStarted: a Start was not carried out. Until is when it may be asked
	// again (an open breaker's probe time); zero: it was withdrawn by a Withdraw.
	NotStarted struct {
		Work  *core.Work
		Until time.Time
	}
	// Flushed answers a Flush effect. It is told by pointer, and not kept.
	Flushed struct{ Result core.FlushResult }
	// EventsLoaded answers a LoadEvents effect.
	EventsLoaded struct{ Events []core.Event }
	// Reloaded answers a Reload effect, with the current registry. The machine keeps
	// its in-memory positions of consumers that were active.
	Reloaded struct {
		Registry *core.Registry
		Loaded   core.Loaded
	}
	// News: the record's head moved, or commands wait, as read without a lock.
	News struct {
		Head    int64
		Pending bool
	}
	// RegistryMoved: the registry has an epoch other than the machine's.
	RegistryMoved struct{}
	// Tick: a time asked for by a WakeAt effect has come (or any other time:
	// a tick too many does no harm).
	Tick struct{}
	// Drain: the worker is stopping or wants the record's place: start nothing,
	// hand back once what runs has ended.
	Drain struct{}
	// Fenced: the claim is lost. The machine stops at once.
	Fenced struct{}
)

func (*Ended) message()        {}
func (NotStarted) message()    {}
func (*Flushed) message()      {}
func (EventsLoaded) message()  {}
func (Reloaded) message()      {}
func (News) message()          {}
func (RegistryMoved) message() {}
func (Tick) message()          {}
func (Drain) message()         {}
func (Fenced) message()        {}

// Effect is something that the shell must do. Effects are carried out in the
// order returned; none needs an earlier one to have finished, since every
// duty of order is kept by the machine waiting for the answer.
type Effect interface{ effect() }

// The effects of a record.
type (
	// Start: run this work as soon as admission lets it. Answered by exactly
	// one Ended or NotStarted. What had to be durable before it is. The work is
	// the machine's: it does not change until it is answered.
	Start struct{ Work *core.Work }
	// Withdraw: take back every Start that has not begun; each is answered by
	// NotStarted. One that has begun is answered by Ended.
	Withdraw struct{}
	// Flush: hand this to the committer. Answered by Flushed; at most one is
	// in flight for a record. It is the machine's likewise.
	Flush struct{ Flush *core.Flush }
	// LoadEvents: answered by EventsLoaded. At most one is in flight.
	LoadEvents struct{ Ranges []core.EventRange }
	// Reload: read the registry and the record again. Answered by Reloaded,
	// or by Fenced where the claim is gone. At most one is in flight.
	Reload struct{}
	// WakeAt: send a Tick at this time; replaces any earlier WakeAt.
	WakeAt struct{ At time.Time }
	// Stop: the record is done with here; no message is expected any more
	// except the Ended of handlers that still run (only after Fenced), which count for nothing.
	Stop struct{ Why StopReason }
)

func (Start) effect()      {}
func (Withdraw) effect()   {}
func (Flush) effect()      {}
func (LoadEvents) effect() {}
func (Reload) effect()     {}
func (WakeAt) effect()     {}
func (Stop) effect()       {}

// StopReason is why a record's machine stopped.
type StopReason int

// The reasons to stop.
const (
	StopSettled StopReason = iota
	StopHandedBack
	StopFenced
)

// Options are what a machine needs beside its record.
type Options struct {
	// Now is the time of the first step.
	Now time.Time
	// Random returns a number in [0, 1): jitter.
	Random func() float64
	// FlushDelay is the longest that an outcome waits for its siblings;
	// 0: 100 ms.
	FlushDelay time.Duration
	// CrashBudget is the number of runs of one delivery that may end with the
	// process; 0: 3.
	CrashBudget int
	// LoadLimit is how many events to read ahead above each position; 0: 64.
	LoadLimit int
}
