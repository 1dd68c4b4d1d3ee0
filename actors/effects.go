package actors

import (
	"fmt"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/keylinehq/keyline/actors/delivery"
	"github.com/keylinehq/keyline/internal/core"
)

// carryOut does what the machine asks for, in order.
func (a *recordActor) carryOut(effects []delivery.Effect) {
	for _, e := range effects {
		switch e := e.(type) {
		case delivery.Start:
			a.start(e.Work)
		case delivery.Flush:
			a.flush(e.Flush)
		case delivery.WakeAt:
			a.seat.host.WakeAt(e.At)
		case delivery.LoadEvents:
			a.seat.host.LoadEvents(a.request(), e.Ranges)
		case delivery.Reload:
			a.reload(a.staleEpoch)
		case delivery.Withdraw:
			a.withdraw()
		case delivery.Stop:
			a.end(e.Why)
		default:
			panic(fmt.Sprintf("unknown effect %T", e))
		}
	}
}

func (a *recordActor) request() Request {
	s := a.seat
	return Request{Record: s.claim.Record, Token: s.claim.Token, Incarnation: s.incarnation.Load(), Gen: s.gen,
		Epoch: s.registry.Epoch}
}

func (a *recordActor) reload(registry bool) {
	a.reloading = true
	a.seat.host.Reload(a.request(), registry)
}

func (a *recordActor) flush(f *core.Flush) {
	s := a.seat
	s.flushing = true
	a.clearing = f.Clear
	a.dueAt = time.Time{}
	if f.Then == core.HandBack || f.Then == core.Release {
		a.dueAt = f.DueAt
		if f.Then == core.Release && f.DueAt.IsZero() {
			a.dueAt = a.env.Clock.Now()
		}
	}
	a.env.Deliveries.Flush(f, s.registry.Epoch, s.flushed)
}

// start sends work on its way to the consumer's actor.
func (a *recordActor) start(w *core.Work) {
	s := a.slot(w.Consumer.ID)
	if s.busy {
		panic(fmt.Sprintf("consumer %d is started while it runs", s.consumer))
	}
	if s.child == nil {
		s.child = a.self.Spawn(a.env.consumerProps)
	}
	s.busy = true
	t := s.ticket
	t.Work, t.child, t.ctx, t.tripped = w, s.child, a.ctx, false
	t.direct.Store(false)
	t.state.Store(waiting)
	t.start()
}

func (a *recordActor) slot(consumer int32) *slot {
	for _, s := range a.slots {
		if s.consumer == consumer {
			return s
		}
	}
	s := &slot{consumer: consumer, ticket: &Ticket{seat: a.seat}}
	a.slots = append(a.slots, s)
	return s
}

// withdraw takes back what has not begun. The answers follow when the effects
// at hand are through: the machine must not be stepped from within a step.
func (a *recordActor) withdraw() {
	for _, s := range a.slots {
		if s.busy && s.ticket.withdraw() && s.ticket.state.CompareAndSwap(waiting, idle) {
			a.answers = append(a.answers, delivery.NotStarted{Work: s.ticket.Work})
			s.free()
		}
	}
}

// HandleFailure is the supervision of the consumer actors: it overrides the
// strategy of the props. A failed run comes here as the panic that the consumer
// actor raised; anything else is a failure of the consumer actor's own, and the
// message that it was at is lost to it.
func (a *recordActor) HandleFailure(system *actor.ActorSystem, up actor.Supervisor, child *actor.PID,
	_ *actor.RestartStatistics, reason, message any,
) {
	defer a.logPanic()
	if a.stopped {
		return // the child is being stopped; a restart could revive it
	}
	t, decision := a.judge(reason, message)
	system.EventStream.Publish(&actor.SupervisorEvent{Child: child, Reason: reason, Directive: decision.Directive})
	switch decision.Directive {
	case actor.StopDirective:
		a.forget(child)
		up.StopChildren(child)
	case actor.RestartDirective, actor.ResumeDirective, actor.EscalateDirective:
		up.RestartChildren(child)
	}
	var escalation *Escalation
	if decision.Escalate {
		escalation = &Escalation{Consumer: t.Work.Consumer, Err: t.ended.Outcome.Err}
	}
	if t != nil {
		a.answer(t)
	}
	if escalation != nil && !a.stopped {
		up.EscalateFailure(escalation, message)
	}
}

// judge finds the ticket that a failure is about, makes sure that it has an
// outcome, and decides.
func (a *recordActor) judge(reason, message any) (*Ticket, Decision) {
	if r, ok := reason.(*raised); ok {
		t := (*Ticket)(r)
		if a.slotOf(t) == nil || t.state.Load() != done {
			return nil, Decide(KindShell, false)
		}
		return t, Decide(Classify(t.Work, t.ended.Outcome), t.tripped)
	}
	a.env.Log.Error("consumer actor failed", "record", a.seat.claim.Record, "panic", fmt.Sprint(reason))
	if m, ok := message.(*run); ok {
		t := (*Ticket)(m)
		if a.slotOf(t) != nil && t.state.CompareAndSwap(sent, done) {
			t.fail(fmt.Errorf("consumer actor failed: %v", reason))
			return t, Decide(KindShell, false)
		}
	}
	return nil, Decide(KindShell, false)
}

// forget detaches a child that is being stopped: the next start spawns another.
func (a *recordActor) forget(child *actor.PID) {
	for _, s := range a.slots {
		if s.child != nil && s.child.Equal(child) {
			s.child = nil
		}
	}
}

// terminated is called for every child that has ended. One that was still in
// use has ended behind our back: its run must be answered all the same, and the
// next start spawns another.
func (a *recordActor) terminated(child *actor.PID) {
	for _, s := range a.slots {
		if s.child == nil || !s.child.Equal(child) {
			continue
		}
		s.child = nil
		if !s.busy {
			return
		}
		t := s.ticket
		t.direct.Store(true) // from here on, the run answers to the record itself
		if t.state.CompareAndSwap(sent, done) {
			t.fail(errChildEnded)
		}
		a.answer(t) // if it has ended; else its end will say so
		return
	}
}
