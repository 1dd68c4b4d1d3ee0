package actors

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/keylinehq/keyline/actors/delivery"
	"github.com/keylinehq/keyline/internal/clock"
	"github.com/keylinehq/keyline/internal/core"
)

// Runner runs a consumer's handler. It is called on a goroutine of its own and
// may take as long as it likes. ctx is cancelled when the claim is lost or the
// worker's grace has ended. The work is only read, and not kept. A panic goes through: the
// caller makes its outcome. The caller also sets Cancelled where there is an error and ctx has ended.
type Runner interface {
	Run(ctx context.Context, w *core.Work) core.Outcome
}

// Gate admits runs: it knows the limits of what may run at once, and which
// consumers are cut off by their circuit breaker. Its methods never block.
type Gate interface {
	// Admit answers whether t may run now. A queued ticket is later given to
	// its Begin or its Refuse by the gate, from any goroutine.
	Admit(t *Ticket) Admission
	// Withdraw takes a queued ticket back; false where it is not queued (any more).
	Withdraw(t *Ticket) bool
	// Release ends what Admit or the queue granted. tripped is true where this
	// failure takes the consumer's failure rate over its threshold.
	Release(t *Ticket, r Result) (tripped bool)
}

// Verdict is a gate's answer.
type Verdict int

// The verdicts.
const (
	Admitted Verdict = iota
	Queued
	Refused
)

// Admission is a gate's answer. Until is when to ask again, for Refused.
type Admission struct {
	Verdict Verdict
	Until   time.Time
}

// Result is what a run says about its consumer's health.
type Result int

// The results.
const (
	// Nothing: it did not run, or was cut short by the runtime.
	Nothing Result = iota
	Succeeded
	Failed
)

// Host is what the supervisor does for one seat. Its methods never block; they
// are called from the record actor.
type Host interface {
	// LoadEvents answers with Seat.EventsLoaded.
	LoadEvents(r Request, ranges []core.EventRange)
	// Reload answers with Seat.Reloaded. registry is true where the registry is
	// known to have moved: it is read before the record.
	Reload(r Request, registry bool)
	// WakeAt calls Seat.Tick at this time, in place of any earlier one.
	WakeAt(at time.Time)
	// Cleared: the record is no longer a suspect.
	Cleared(record, token int64)
	// Ended: the seat has nothing to do with its record any more. After a
	// Reusable end the seat waits for the next Assign; after any other its actor stops.
	Ended(e End)
}

// Machine decides what becomes of a record: *delivery.Machine, or a test's.
type Machine interface {
	// Reset gives the machine its next record.
	Reset(registry *core.Registry, loaded core.Loaded, opts delivery.Options) []delivery.Effect
	Step(now time.Time, m delivery.Message) []delivery.Effect
}

// NewMachine makes a machine with its first record.
type NewMachine func(*core.Registry, core.Loaded, delivery.Options) (Machine, []delivery.Effect)

// Request names who asked: answers that come after the claim has ended, or
// after a restart, are dropped by it.
type Request struct {
	Record, Token int64
	Incarnation   int32
	// Gen is the worker incarnation that claimed the record, Epoch that of the
	// registry that it goes by.
	Gen   uint64
	Epoch int64
}

// End is how a seat's record ended.
type End struct {
	Record, Token int64
	Why           delivery.StopReason
	// DueAt is when a handed back record is due again; zero: it was not handed
	// back, or nothing hosted here is due.
	DueAt time.Time
	// Reusable is true where the seat can be handed the next record.
	Reusable bool
}

// Env is what all actors of a worker share.
type Env struct {
	System     *actor.ActorSystem
	Clock      clock.Clock
	Deliveries core.Deliveries
	Runner     Runner
	Gate       Gate
	Pairs      *Pairs
	Machine    NewMachine
	Crew       *Crew
	// Options are the machines' settings; Now is filled in.
	Options delivery.Options
	Log     *slog.Logger
	// Context ends all handlers; record actors derive theirs from it.
	Context context.Context

	consumerProps *actor.Props
}

// Init prepares what the actors share; call it once, before the first spawn.
func (e *Env) Init() {
	e.consumerProps = consumerProps()
}

// errChildEnded is the outcome of a run whose consumer actor ended before it
// began; it is not charged.
var errChildEnded = errors.New("consumer actor ended")
