package actors

import (
	"context"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/keylinehq/keyline/actors/delivery"
	"github.com/keylinehq/keyline/internal/clock"
	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/keylinetype"
)

const patience = 30 * time.Second

func receive[T any](t *testing.T, what string, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		t.Fatalf("never came: %s", what)
		panic("unreachable")
	}
}

func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("never came: %s", what)
		}
	}
}

// script is a machine whose answers a test writes; what it is told goes to heard.
type script struct{ h *harness }

func (s *script) Reset(_ *core.Registry, l core.Loaded, _ delivery.Options) []delivery.Effect {
	s.h.mu.Lock()
	defer s.h.mu.Unlock()
	return s.h.begin(l)
}

func (s *script) Step(_ time.Time, m delivery.Message) []delivery.Effect {
	s.h.mu.Lock()
	step := s.h.step
	s.h.mu.Unlock()
	if e, ok := m.(*delivery.Ended); ok { // it is the record actor's, and used again
		m = &delivery.Ended{Work: e.Work, Outcome: e.Outcome}
	}
	// Heard last: what a test scripts after it has heard a message is not the
	// answer to that one.
	defer func() { s.h.heard <- m }()
	if step == nil {
		return nil
	}
	return step(m)
}

// openGate admits everything, or what a test says.
type openGate struct {
	mu       sync.Mutex
	admit    func(*Ticket) Admission
	queue    Queue
	open     int // admitted and not released
	results  []Result
	tripNext bool

	onRelease      func()
	withdrawPanics atomic.Bool
}

func (g *openGate) Admit(t *Ticket) Admission {
	g.mu.Lock()
	defer g.mu.Unlock()
	a := Admission{}
	if g.admit != nil {
		a = g.admit(t)
	}
	switch a.Verdict {
	case Admitted:
		g.open++
	case Queued:
		g.queue.Push(t)
	case Refused:
	}
	return a
}

func (g *openGate) Withdraw(t *Ticket) bool {
	if g.withdrawPanics.Load() {
		panic("a bug in the gate")
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.queue.Remove(t)
}

func (g *openGate) Release(_ *Ticket, r Result) bool {
	if g.onRelease != nil {
		g.onRelease()
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open--
	g.results = append(g.results, r)
	trip := g.tripNext && r == Failed
	g.tripNext = g.tripNext && !trip
	return trip
}

func (g *openGate) inUse() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.open
}

// stubHost hands what the record actor asks for to the test.
type stubHost struct {
	reloads chan Request
	ended   chan End
	cleared chan int64
	wakes   chan time.Time
	events  chan Request
}

func (s *stubHost) LoadEvents(r Request, _ []core.EventRange) { s.events <- r }
func (s *stubHost) Reload(r Request, _ bool)                  { s.reloads <- r }
func (s *stubHost) WakeAt(at time.Time)                       { s.wakes <- at }
func (s *stubHost) Cleared(record, _ int64)                   { s.cleared <- record }
func (s *stubHost) Ended(e End)                               { s.ended <- e }

// stubStore keeps flushes for the test to answer.
type stubStore struct {
	core.Deliveries
	flushes chan flushed
}

type flushed struct {
	core.Flush
	epoch int64
	done  func(core.FlushResult)
}

func (s *stubStore) Flush(f *core.Flush, epoch int64, done func(core.FlushResult)) {
	s.flushes <- flushed{*f, epoch, done}
}

type runFunc func(context.Context, *core.Work) core.Outcome

func (f runFunc) Run(ctx context.Context, w *core.Work) core.Outcome { return f(ctx, w) }

// harness is a record actor under a parent that supervises as the root does.
type harness struct {
	t        *testing.T
	env      *Env
	gate     *openGate
	host     *stubHost
	store    *stubStore
	seat     *Seat
	registry *core.Registry
	heard    chan delivery.Message
	machine  *script
	parent   *actor.PID
	cancel   context.CancelFunc // of the worker's context

	mu         sync.Mutex
	begin      func(core.Loaded) []delivery.Effect
	step       func(m delivery.Message) []delivery.Effect
	directives []actor.SupervisorEvent
	escalated  []*Escalation
}

func newHarness(t *testing.T, run runFunc) *harness {
	t.Helper()
	h := &harness{t: t, gate: &openGate{}, heard: make(chan delivery.Message, 1000),
		host: &stubHost{reloads: make(chan Request, 100), ended: make(chan End, 100), cleared: make(chan int64, 100),
			wakes: make(chan time.Time, 100), events: make(chan Request, 100)},
		store: &stubStore{flushes: make(chan flushed, 100)}}
	var consumers []*core.Consumer
	for i := range 3 {
		consumers = append(consumers, &core.Consumer{ID: int32(i + 1), Name: "c", Status: core.Active, Types: []string{"*"}, Hosted: true,
			Retry: keylinetype.RetryPolicy{Delays: keylinetype.DefaultRetryDelays()}})
	}
	h.registry = core.NewRegistry(1, keylinetype.Independent, consumers, nil)
	h.begin = func(core.Loaded) []delivery.Effect { return nil }
	h.machine = &script{h: h}
	ctx, cancel := context.WithCancel(context.Background())
	h.cancel = cancel
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	h.env = &Env{
		System: actor.NewActorSystem(actor.WithLoggerFactory(func(*actor.ActorSystem) *slog.Logger { return log }),
			actor.WithDeadLetterThrottleInterval(time.Millisecond)),
		Clock: clock.Real(), Deliveries: h.store, Runner: run, Gate: h.gate, Pairs: NewPairs(), Crew: NewCrew(), Context: ctx, Log: log,
		Machine: func(_ *core.Registry, l core.Loaded, _ delivery.Options) (Machine, []delivery.Effect) {
			return h.machine, h.machine.Reset(nil, l, delivery.Options{})
		},
	}
	h.env.Init()
	h.env.System.EventStream.Subscribe(func(e any) {
		if s, ok := e.(*actor.SupervisorEvent); ok {
			h.mu.Lock()
			h.directives = append(h.directives, *s)
			h.mu.Unlock()
		}
	})
	h.seat = NewSeat(h.env, h.host)
	bound, gone := make(chan struct{}), make(chan struct{})
	h.parent = h.env.System.Root.Spawn(h.env.Crew.Props(func() actor.Actor { return &parent{h, bound, gone} }))
	receive(t, "the seat's actor", bound)
	t.Cleanup(func() {
		h.env.System.Root.Stop(h.parent)
		receive(t, "the tree's end", gone)
		cancel()
		h.env.Crew.Close()
	})
	return h
}

type parent struct {
	h           *harness
	bound, gone chan struct{}
}

func (p *parent) Receive(c actor.Context) {
	switch m := c.Message().(type) {
	case *actor.Started:
		p.h.seat.Bind(c.Spawn(p.h.seat.Props()))
		close(p.bound)
	case *actor.Stopped:
		close(p.gone)
	case func(actor.Context):
		m(c)
	}
}

func (p *parent) HandleFailure(_ *actor.ActorSystem, up actor.Supervisor, child *actor.PID,
	_ *actor.RestartStatistics, reason, _ any,
) {
	failures := 0
	if e, ok := reason.(*Escalation); ok {
		p.h.mu.Lock()
		p.h.escalated = append(p.h.escalated, e)
		p.h.mu.Unlock()
	} else {
		failures = p.h.seat.Failed()
	}
	switch DecideRecord(reason, failures) {
	case actor.ResumeDirective:
		up.ResumeChildren(child)
	case actor.StopDirective:
		up.StopChildren(child)
	case actor.RestartDirective, actor.EscalateDirective:
		up.RestartChildren(child)
	}
}

func (h *harness) supervised() []actor.SupervisorEvent {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]actor.SupervisorEvent(nil), h.directives...)
}

func (h *harness) work(consumer int32, seq int64) *core.Work {
	return &core.Work{Record: 1, Token: 10, Consumer: h.registry.Consumer(consumer), Attempt: 1,
		Events: []core.Event{{Record: 1, Event: keylinetype.Event{Seq: seq}}}}
}

// assign begins record 1 under token 10, with these effects.
func (h *harness) assign(effects ...delivery.Effect) {
	h.mu.Lock()
	h.begin = func(core.Loaded) []delivery.Effect { return effects }
	h.mu.Unlock()
	h.seat.Assign(h.registry, &core.Loaded{Claim: core.Claim{Record: 1, Token: 10}}, 1)
}

// on answers a message with effects.
func (h *harness) on(f func(m delivery.Message) []delivery.Effect) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.step = f
}

func hear[M delivery.Message](h *harness) M {
	h.t.Helper()
	for {
		if m, ok := receive(h.t, "a message to the machine", h.heard).(M); ok {
			return m
		}
	}
}

// quiet asserts that the machine has been told nothing more: what was sent
// before a round trip through the actor would have come.
func (h *harness) quiet() {
	h.t.Helper()
	for len(h.heard) > 0 {
		<-h.heard
	}
	h.seat.Tick()
	if m := receive(h.t, "the round trip", h.heard); m != (delivery.Tick{}) {
		h.t.Errorf("the machine was told of %T: %+v", m, m)
	}
}

func clockForTests() clock.Clock { return clock.Real() }
