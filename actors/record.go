package actors

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/keylinehq/keyline/actors/delivery"
	"github.com/keylinehq/keyline/internal/core"
)

// recordActor is one incarnation of a record's shell. It is also the
// supervisor strategy of its consumer actors: HandleFailure.
type recordActor struct {
	seat *Seat
	env  *Env
	self actor.Context // the same for the whole life of the actor

	// ctx lives from Started to Stopping or Restarting; the consumer actors'
	// contexts derive from it.
	ctx    context.Context
	cancel context.CancelFunc

	machine Machine
	// active is true while the machine has a record: from its first step to Stop.
	active bool
	slots  []*slot
	// answers are messages to the machine that arose while its effects were
	// being carried out; they follow once those are through.
	answers []delivery.Message
	// ended is the answer that the machine is being told.
	ended delivery.Ended

	clearing   bool // the flush in flight ends suspicion
	staleEpoch bool // the registry is known to have moved
	dueAt      time.Time
	reloading  bool
	stopped    bool
}

// slot is a consumer of the record with its actor, which is kept from one
// record to the next.
type slot struct {
	consumer int32
	child    *actor.PID // nil: spawned with the next start
	ticket   *Ticket
	busy     bool // a Start has not been answered
}

func (a *recordActor) Receive(c actor.Context) {
	defer a.logPanic()
	switch m := c.Message().(type) {
	case *ended:
		a.answer((*Ticket)(m))
	case *flushedMsg:
		a.flushDone(&a.seat.result)
	case *assignMsg:
		a.assign()
	case *notStarted:
		a.notStarted((*Ticket)(m))
	case *tickMsg:
		a.step(delivery.Tick{})
	case *eventsMsg:
		if a.current(m.Request) {
			a.step(delivery.EventsLoaded{Events: m.events})
		}
	case *newsMsg:
		if m.token == a.seat.claim.Token && m.record == a.seat.claim.Record {
			a.step(m.news)
		}
	case *movedMsg:
		a.staleEpoch = true
		a.step(delivery.RegistryMoved{})
	case *reloadedMsg:
		a.reloaded(m)
	case *drainMsg:
		a.seat.draining = true
		a.step(delivery.Drain{})
	case *fenceMsg:
		a.fenced(m.gen)
	case *recheckMsg:
		a.recover()
	case *actor.Started:
		a.started(c)
	case *actor.Stopping:
		a.guarded(a.stopping)
	case *actor.Restarting:
		a.guarded(a.abandon)
	case *actor.Terminated:
		a.terminated(m.Who)
	}
}

// started begins an incarnation. After a restart the claim is found in the seat.
func (a *recordActor) started(c actor.Context) {
	a.self = c
	a.ctx, a.cancel = context.WithCancel(a.env.Context)
	a.seat.incarnation.Add(1)
	a.recover()
}

// recover reads the record again under the same claim, once nothing of an
// older incarnation is under way: a flush whose result it would miss, or a
// handler beside which the record may be neither settled nor handed back.
func (a *recordActor) recover() {
	s := a.seat
	if !s.occupied || a.active || a.reloading || a.stopped || s.flushing || s.running.Load() > 0 {
		return
	}
	a.reload(true)
}

func (a *recordActor) assign() {
	s := a.seat
	n := s.assigned
	s.assigned = assignment{} // the loaded record is one of many in one slice
	s.claim, s.gen, s.registry = n.loaded.Claim, n.gen, n.registry
	s.occupied = true
	a.begin(n.loaded)
}

// begin gives the machine its record.
func (a *recordActor) begin(loaded *core.Loaded) {
	opts := a.env.Options
	opts.Now = a.env.Clock.Now()
	a.active, a.dueAt, a.clearing = true, time.Time{}, false
	if a.machine == nil {
		m, effects := a.env.Machine(a.seat.registry, *loaded, opts)
		a.machine = m
		a.carryOut(effects)
	} else {
		a.carryOut(a.machine.Reset(a.seat.registry, *loaded, opts))
	}
	a.settleAnswers()
	if a.seat.draining {
		a.step(delivery.Drain{})
	}
}

// step tells the machine something; nothing is told to one that has stopped.
func (a *recordActor) step(m delivery.Message) {
	if !a.active {
		return
	}
	a.carryOut(a.machine.Step(a.env.Clock.Now(), m))
	a.settleAnswers()
}

func (a *recordActor) settleAnswers() {
	for len(a.answers) > 0 && a.active {
		m := a.answers[0]
		a.answers = a.answers[1:]
		a.carryOut(a.machine.Step(a.env.Clock.Now(), m))
	}
	a.answers = a.answers[:0]
}

// answer passes a run's outcome to the machine, exactly once however often it
// is announced.
func (a *recordActor) answer(t *Ticket) {
	s := a.slotOf(t)
	if s == nil || !t.state.CompareAndSwap(done, idle) {
		return
	}
	a.ended = t.ended
	s.free()
	a.step(&a.ended)
	a.ended = delivery.Ended{}
}

func (a *recordActor) notStarted(t *Ticket) {
	s := a.slotOf(t)
	if s == nil || !t.state.CompareAndSwap(refused, idle) {
		return
	}
	m := delivery.NotStarted{Work: t.Work, Until: t.until}
	s.free()
	a.step(m)
}

// slotOf finds the slot whose ticket this is; nil for those of older incarnations.
func (a *recordActor) slotOf(t *Ticket) *slot {
	for _, s := range a.slots {
		if s.ticket == t && s.busy {
			return s
		}
	}
	return nil
}

// free forgets the run, and with it the events that it held.
func (s *slot) free() {
	s.busy = false
	s.ticket.Work, s.ticket.ended = nil, delivery.Ended{}
}

func (a *recordActor) flushDone(m *delivery.Flushed) {
	s := a.seat
	if !s.occupied || !s.flushing || m.Result.Token != s.claim.Token || m.Result.Record != s.claim.Record {
		return
	}
	s.flushing = false
	if !a.active {
		a.flushedBefore(m.Result)
		return
	}
	if m.Result.Status == core.FlushEpoch {
		a.staleEpoch = true
	}
	cleared := a.clearing && m.Result.Status == core.FlushKept
	a.clearing = false
	if cleared {
		a.seat.host.Cleared(s.claim.Record, s.claim.Token)
	}
	a.step(m)
}

// flushedBefore is the result of a flush that an incarnation before this one
// had asked for.
func (a *recordActor) flushedBefore(r core.FlushResult) {
	switch r.Status {
	case core.FlushGone:
		a.end(delivery.StopHandedBack)
	case core.FlushFenced:
		a.end(delivery.StopFenced)
	case core.FlushKept, core.FlushEpoch:
		a.recover()
	}
}

func (a *recordActor) reloaded(m *reloadedMsg) {
	if !a.current(m.Request) {
		return
	}
	a.reloading = false
	if m.loaded == nil {
		a.lost()
		return
	}
	a.staleEpoch = false
	a.seat.registry = m.registry
	if a.active {
		a.step(delivery.Reloaded{Registry: m.registry, Loaded: *m.loaded})
		return
	}
	// A new incarnation: what the last one had delivered and not flushed comes again.
	loaded := *m.loaded
	loaded.Claim = a.seat.claim
	loaded.Unclean = true
	a.begin(&loaded)
}

func (a *recordActor) current(r Request) bool {
	s := a.seat
	return s.occupied && r.Record == s.claim.Record && r.Token == s.claim.Token && r.Incarnation == s.incarnation.Load()
}

func (a *recordActor) fenced(gen uint64) {
	if a.seat.occupied && a.seat.gen == gen {
		a.lost()
	}
}

// lost ends the record because its claim is gone, with the machine's consent
// where there is one.
func (a *recordActor) lost() {
	if a.active {
		a.step(delivery.Fenced{})
	}
	if a.seat.occupied {
		a.end(delivery.StopFenced)
	}
}

// end is the record's end on this seat.
func (a *recordActor) end(why delivery.StopReason) {
	s := a.seat
	e := End{Record: s.claim.Record, Token: s.claim.Token, Why: why}
	if why == delivery.StopHandedBack {
		e.DueAt = a.dueAt
	}
	e.Reusable = why != delivery.StopFenced && s.failures.Load() == 0 && !s.draining && !a.stopped
	a.active, s.occupied, s.flushing, a.reloading = false, false, false, false
	if !e.Reusable {
		s.gone.Store(true)
		a.abandon()
		a.self.Stop(a.self.Self())
	}
	// The last act: a reusable seat may be assigned by another goroutine at once.
	s.host.Ended(e)
}

// stopping is every way to the actor's end. A record that is still here was not
// ended by its machine: the claim is left for the orphan sweep.
func (a *recordActor) stopping() {
	a.stopped = true
	a.active = false
	a.seat.gone.Store(true)
	a.abandon()
}

// abandon ends an incarnation: its handlers are cancelled, and what has not
// begun never will.
func (a *recordActor) abandon() {
	if a.cancel != nil {
		a.cancel()
	}
	for _, s := range a.slots {
		if s.busy {
			s.ticket.void()
		}
	}
	a.slots = nil
}

// guarded keeps a panic out of the lifecycle handlers: there it would leave the
// parent unable to stop this actor, or revive it.
func (a *recordActor) guarded(f func()) {
	defer func() {
		if r := recover(); r != nil {
			a.env.Log.Error("record actor: panic at its end", "panic", fmt.Sprint(r), "stack", string(debug.Stack()))
		}
	}()
	f()
}

// logPanic logs the stack of a panic in the shell, which the framework drops,
// and lets it go on to the supervisor.
func (a *recordActor) logPanic() {
	if r := recover(); r != nil {
		a.env.Log.Error("record actor: panic", slog.Int64("record", a.seat.claim.Record),
			"panic", fmt.Sprint(r), "stack", string(debug.Stack()))
		panic(r)
	}
}
