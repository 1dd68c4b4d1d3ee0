package actors

import (
	"sync/atomic"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/keylinehq/keyline/actors/delivery"
	"github.com/keylinehq/keyline/internal/core"
)

// Seat is a place for one record at a time: the part of a record actor that
// outlives its incarnations, and the handle by which others speak to it. Its
// methods are safe for concurrent use and never block.
type Seat struct {
	env  *Env
	host Host
	// flushed is the committer's callback, bound once.
	flushed func(core.FlushResult)

	pid         atomic.Pointer[actor.PID]
	incarnation atomic.Int32
	running     atomic.Int32 // handlers' goroutines, of all incarnations
	gone        atomic.Bool  // the actor has stopped, or is about to
	failures    atomic.Int32 // of the actor itself, under this claim

	// assigned is what Assign hands over, result what the committer says of the
	// one flush that it may have; the message that follows orders the access.
	assigned assignment
	result   delivery.Flushed

	// What the incarnations of the actor pass on to each other; only they touch it.

	claim    core.Claim
	gen      uint64
	registry *core.Registry
	occupied bool // a record is here
	flushing bool // a flush is with the committer
	draining bool
}

type assignment struct {
	registry *core.Registry
	loaded   *core.Loaded
	gen      uint64
}

// NewSeat makes a seat without an actor; the supervisor spawns it with Props
// and then calls Bind.
func NewSeat(env *Env, host Host) *Seat {
	s := &Seat{env: env, host: host}
	s.flushed = func(r core.FlushResult) {
		s.result.Result = r
		s.send((*flushedMsg)(nil))
	}
	return s
}

// Props are the properties of the seat's record actor.
func (s *Seat) Props() *actor.Props {
	return s.env.Crew.Props(func() actor.Actor { return &recordActor{seat: s, env: s.env} })
}

// Bind tells the seat its actor. What is sent before is lost.
func (s *Seat) Bind(pid *actor.PID) { s.pid.Store(pid) }

// PID is the seat's actor, nil before Bind.
func (s *Seat) PID() *actor.PID { return s.pid.Load() }

// Failed counts a failure of the actor under this claim and returns how many
// there have been. A seat that has failed is never handed another record.
func (s *Seat) Failed() int { return int(s.failures.Add(1)) }

// Incarnations is how many the actor has had: one more than its restarts.
func (s *Seat) Incarnations() int { return int(s.incarnation.Load()) }

// Abandon says that the actor is gone: nothing is sent to it any more.
func (s *Seat) Abandon() { s.gone.Store(true) }

// The messages to a record actor, beside the tickets.
type (
	assignMsg  struct{}
	flushedMsg struct{}
	tickMsg    struct{}
	drainMsg   struct{}
	movedMsg   struct{} // the registry moved
	recheckMsg struct{} // a handler of an older incarnation has ended
	fenceMsg   struct{ gen uint64 }
	eventsMsg  struct {
		Request
		events []core.Event
	}
	reloadedMsg struct {
		Request
		registry *core.Registry
		loaded   *core.Loaded // nil: the claim is lost
	}
	newsMsg struct {
		record, token int64
		news          delivery.News
	}
)

// Assign hands an idle seat its next record, read after its claim. gen is the
// worker incarnation that holds the claim. The seat must be bound, and idle:
// new, or after a reusable End. loaded is only read, and not kept.
func (s *Seat) Assign(registry *core.Registry, loaded *core.Loaded, gen uint64) {
	s.assigned = assignment{registry, loaded, gen}
	s.send((*assignMsg)(nil))
}

// Tick says that a time asked for has come.
func (s *Seat) Tick() { s.send((*tickMsg)(nil)) }

// Drain asks the record to start nothing more and to hand back.
func (s *Seat) Drain() { s.send((*drainMsg)(nil)) }

// RegistryMoved says that the registry has another epoch.
func (s *Seat) RegistryMoved() { s.send((*movedMsg)(nil)) }

// Fence says that worker incarnation gen has lost its claims. A seat whose
// record was claimed by another incarnation ignores it.
func (s *Seat) Fence(gen uint64) { s.send(&fenceMsg{gen}) }

// News says what was read about the claim's record.
func (s *Seat) News(record, token, head int64, pending bool) {
	s.send(&newsMsg{record, token, delivery.News{Head: head, Pending: pending}})
}

// EventsLoaded answers Host.LoadEvents.
func (s *Seat) EventsLoaded(r Request, events []core.Event) { s.send(&eventsMsg{r, events}) }

// Reloaded answers Host.Reload; loaded is nil where the claim is lost.
func (s *Seat) Reloaded(r Request, registry *core.Registry, loaded *core.Loaded) {
	s.send(&reloadedMsg{r, registry, loaded})
}

func (s *Seat) send(message any) {
	if s.gone.Load() {
		return
	}
	if pid := s.pid.Load(); pid != nil {
		s.env.System.Root.Send(pid, message)
	}
}

// ranOut says that a handler's goroutine is through with the ticket. If it was
// the last of an older incarnation, the present one waits for that.
func (s *Seat) ranOut() {
	if s.running.Add(-1) == 0 && s.failures.Load() > 0 {
		s.send((*recheckMsg)(nil))
	}
}
