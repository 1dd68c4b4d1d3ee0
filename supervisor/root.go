package supervisor

import (
	"fmt"
	"log/slog"
	"runtime/debug"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/keylinehq/keyline/actors"
	"github.com/keylinehq/keyline/internal/core"
)

// root is the root of the actor tree: it spawns the record actors and
// supervises them. Nothing of a delivery passes through it but failures that
// escalate.
type root struct{ s *Supervisor }

// spawnMsg asks for record actors for new places.
type spawnMsg struct{ items []spawnItem }

type spawnItem struct {
	place    *place
	registry *core.Registry
	loaded   *core.Loaded
	gen      uint64
}

func (r *root) Receive(c actor.Context) {
	switch m := c.Message().(type) {
	case *spawnMsg:
		for i := range m.items {
			r.spawn(c, &m.items[i])
		}
	case *actor.Terminated:
		r.terminated(m.Who)
	case *actor.Stopped:
		close(r.s.rootGone)
	}
}

func (r *root) spawn(c actor.Context, i *spawnItem) {
	pid := c.Spawn(i.place.seat.Props())
	i.place.seat.Bind(pid)
	r.s.actors[pid.Id] = i.place
	r.s.assign(i.place, i.registry, i.loaded, i.gen)
}

// terminated is every record actor's end. One whose record was still there has
// failed too often: nothing holds its claim any more, and the orphan sweep
// hands it back, once a lease, so that a record that breaks its actor does not
// do so in a tight loop.
func (r *root) terminated(who *actor.PID) {
	p := r.s.actors[who.Id]
	if p == nil {
		return
	}
	delete(r.s.actors, who.Id)
	p.seat.Abandon()
	r.s.dropPlace(p)
}

// HandleFailure is the supervision of the record actors, and where escalated
// failures of consumers end: it overrides the strategy of the props.
func (r *root) HandleFailure(system *actor.ActorSystem, up actor.Supervisor, child *actor.PID,
	_ *actor.RestartStatistics, reason, _ any,
) {
	p := r.s.actors[child.Id]
	if p == nil {
		up.StopChildren(child)
		return
	}
	failures := 0
	escalation, escalated := reason.(*actors.Escalation)
	if !escalated {
		failures = p.seat.Failed()
	}
	directive := actors.DecideRecord(reason, failures)
	system.EventStream.Publish(&actor.SupervisorEvent{Child: child, Reason: reason, Directive: directive})
	switch directive {
	case actor.ResumeDirective:
		up.ResumeChildren(child)
	case actor.StopDirective:
		r.s.cfg.Log.Error("record actor failed too often; its claim goes back", "failures", failures, "reason", fmt.Sprint(reason))
		up.StopChildren(child)
	case actor.RestartDirective, actor.EscalateDirective:
		up.RestartChildren(child)
	}
	if escalated {
		r.s.tripBreaker(escalation)
	}
}

func (s *Supervisor) tripBreaker(e *actors.Escalation) {
	if !s.gate.trip(e.Consumer) {
		return
	}
	s.stats.breakerTrips.Add(1)
	s.cfg.Log.Warn("circuit breaker opened", slog.String("consumer", e.Consumer.Name), slog.Any("error", e.Err))
}

// newPlace makes a place without an actor.
func (s *Supervisor) newPlace() *place {
	p := &place{s: s}
	p.seat = actors.NewSeat(s.env, p)
	p.alarm.fire = p.seat.Tick
	return p
}

// seat gives a loaded record to a free place; if there is none, to a new one,
// which the root must spawn first.
func (s *Supervisor) seat(registry *core.Registry, loaded *core.Loaded, gen uint64) (spawnItem, bool) {
	p, isNew := s.table.take(loaded.Claim, gen, loaded.Head, s.cfg.Clock.Mono(), s.newPlace)
	if isNew {
		return spawnItem{p, registry, loaded, gen}, true
	}
	s.assign(p, registry, loaded, gen)
	return spawnItem{}, false
}

// assign hands a bound place its record. Whoever fences or drains meanwhile has
// either seen the place in the table, or is seen here.
func (s *Supervisor) assign(p *place, registry *core.Registry, loaded *core.Loaded, gen uint64) {
	if s.draining.Load() {
		s.dropPlace(p) // begins nothing any more; the claim goes back at the end
		return
	}
	p.seat.Assign(registry, loaded, gen)
	if s.gen() != gen {
		p.seat.Fence(gen)
	}
	if s.draining.Load() {
		p.seat.Drain()
	}
	if s.registry.Load().Epoch > registry.Epoch {
		p.seat.RegistryMoved()
	}
}

// dropPlace forgets a place whose actor has ended.
func (s *Supervisor) dropPlace(p *place) {
	s.table.mu.Lock()
	claim := p.claim
	s.table.mu.Unlock()
	p.Ended(actors.End{Record: claim.Record, Token: claim.Token, Why: endOfActor})
}

// endOfActor is the reason of an end that no machine gave.
const endOfActor = -1

// guard runs f and turns a panic into an error, for loops.
func guard(f func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v\n%s", r, debug.Stack())
		}
	}()
	return f()
}
