package actors

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/keylinehq/keyline/actors/delivery"
	"github.com/keylinehq/keyline/internal/core"
)

func instant(context.Context, *core.Work) core.Outcome { return core.Outcome{} }

// A seat whose record ended cleanly is used again, with its consumer actors.
func TestASettledSeatIsHandedTheNextRecordWithItsChildren(t *testing.T) {
	h := newHarness(t, instant)
	children := map[string]bool{}
	h.gate.admit = func(t *Ticket) Admission {
		children[t.child.Id] = true
		return Admission{}
	}
	h.on(func(m delivery.Message) []delivery.Effect {
		switch m.(type) {
		case *delivery.Ended:
			return []delivery.Effect{delivery.Flush{Flush: &core.Flush{Record: 1, Token: 10, Then: core.Settle}}}
		case *delivery.Flushed:
			return []delivery.Effect{delivery.Stop{Why: delivery.StopSettled}}
		}
		return nil
	})
	for range 5 {
		h.assign(delivery.Start{Work: h.work(1, 1)})
		f := receive(t, "a flush", h.store.flushes)
		if f.epoch != 1 {
			t.Errorf("epoch %d", f.epoch)
		}
		f.done(core.FlushResult{Record: 1, Token: 10, Status: core.FlushGone})
		if e := receive(t, "the end", h.host.ended); !e.Reusable || e.Record != 1 || e.Token != 10 || e.Why != delivery.StopSettled {
			t.Fatalf("end: %+v", e)
		}
	}
	if len(children) != 1 {
		t.Errorf("%d consumer actors for one consumer", len(children))
	}
}

func TestADueHandBackIsReported(t *testing.T) {
	h := newHarness(t, instant)
	at := h.env.Clock.Now().Add(time.Hour)
	h.on(func(m delivery.Message) []delivery.Effect {
		if _, ok := m.(*delivery.Flushed); ok {
			return []delivery.Effect{delivery.Stop{Why: delivery.StopHandedBack}}
		}
		return nil
	})
	h.assign(delivery.Flush{Flush: &core.Flush{Record: 1, Token: 10, Then: core.HandBack, DueAt: at}})
	receive(t, "a flush", h.store.flushes).done(core.FlushResult{Record: 1, Token: 10, Status: core.FlushGone})
	if e := receive(t, "the end", h.host.ended); !e.DueAt.Equal(at) || !e.Reusable {
		t.Errorf("end: %+v", e)
	}
}

// Fenced: the handlers' context ends, nothing that they say counts, the seat is
// not used again.
func TestAFencedRecordStopsAtOnceAndItsOutcomesChangeNothing(t *testing.T) {
	begun, release, out := make(chan struct{}), make(chan struct{}), make(chan struct{})
	h := newHarness(t, func(ctx context.Context, _ *core.Work) core.Outcome {
		close(begun)
		<-ctx.Done()
		<-release
		defer close(out)
		return core.Outcome{}
	})
	h.on(func(m delivery.Message) []delivery.Effect {
		if _, ok := m.(delivery.Fenced); ok {
			return []delivery.Effect{delivery.Stop{Why: delivery.StopFenced}}
		}
		return nil
	})
	h.assign(delivery.Start{Work: h.work(1, 1)}, delivery.Flush{Flush: &core.Flush{Record: 1, Token: 10}})
	receive(t, "the handler", begun)
	h.seat.Fence(7) // of another incarnation: not ours
	h.quiet()
	h.seat.Fence(1)
	hear[delivery.Fenced](h)
	if e := receive(t, "the end", h.host.ended); e.Reusable || e.Why != delivery.StopFenced {
		t.Errorf("end: %+v", e)
	}
	if n := len(h.env.Pairs.Running()); n != 1 {
		t.Errorf("%d pairs run", n)
	}
	close(release)
	receive(t, "the handler's end", out)
	eventually(t, "the pair is free", func() bool { return len(h.env.Pairs.Running()) == 0 && h.gate.inUse() == 0 })
	receive(t, "the flush", h.store.flushes).done(core.FlushResult{Record: 1, Token: 10})
	h.seat.Tick()
	if len(h.heard) != 0 {
		t.Errorf("told after its end: %+v", <-h.heard)
	}
}

// Answers to an earlier claim, or of an earlier incarnation, are dropped.
func TestStaleAnswersAreDropped(t *testing.T) {
	h := newHarness(t, instant)
	h.assign(delivery.LoadEvents{}, delivery.Reload{})
	ask := receive(t, "the events asked for", h.host.events)
	stale := ask
	stale.Token--
	h.seat.EventsLoaded(stale, nil)
	old := ask
	old.Incarnation--
	h.seat.Reloaded(old, h.registry, &core.Loaded{})
	h.seat.News(1, 9, 5, true)
	h.quiet()
	h.seat.EventsLoaded(ask, []core.Event{{}})
	if m := hear[delivery.EventsLoaded](h); len(m.Events) != 1 {
		t.Errorf("events: %+v", m)
	}
	h.seat.News(1, 10, 5, true)
	if m := hear[delivery.News](h); m.Head != 5 || !m.Pending {
		t.Errorf("news: %+v", m)
	}
	h.seat.Reloaded(receive(t, "the reload", h.host.reloads), h.registry, &core.Loaded{})
	hear[delivery.Reloaded](h)
	// A claim that the reload does not find is lost.
	h.seat.Reloaded(ask, nil, nil)
	hear[delivery.Fenced](h)
}

// Withdraw takes back what waits, and answers it; what runs ends by itself.
func TestWithdrawAnswersWhatHasNotBegun(t *testing.T) {
	release := make(chan struct{})
	begun := make(chan struct{})
	h := newHarness(t, func(context.Context, *core.Work) core.Outcome {
		close(begun)
		<-release
		return core.Outcome{}
	})
	h.gate.admit = func(t *Ticket) Admission {
		if t.Work.Consumer.ID == 1 {
			return Admission{}
		}
		return Admission{Verdict: Queued}
	}
	h.on(func(m delivery.Message) []delivery.Effect {
		if _, ok := m.(delivery.Drain); ok {
			return []delivery.Effect{delivery.Withdraw{}}
		}
		return nil
	})
	h.assign(delivery.Start{Work: h.work(1, 1)}, delivery.Start{Work: h.work(2, 1)}, delivery.Start{Work: h.work(3, 1)})
	receive(t, "the handler", begun)
	h.seat.Drain()
	for _, want := range []int32{2, 3} {
		if m := hear[delivery.NotStarted](h); m.Work.Consumer.ID != want || !m.Until.IsZero() {
			t.Errorf("not started: %+v", m)
		}
	}
	h.quiet()
	close(release)
	if m := hear[*delivery.Ended](h); m.Work.Consumer.ID != 1 {
		t.Errorf("ended: %+v", m)
	}
}

func TestARefusedStartIsAnsweredWithItsTime(t *testing.T) {
	h := newHarness(t, instant)
	until := h.env.Clock.Now().Add(time.Minute)
	h.gate.admit = func(*Ticket) Admission { return Admission{Verdict: Refused, Until: until} }
	h.assign(delivery.Start{Work: h.work(1, 1)})
	if m := hear[delivery.NotStarted](h); !m.Until.Equal(until) {
		t.Errorf("not started: %+v", m)
	}
	// The pair is free: it can be asked for again.
	h.gate.mu.Lock()
	h.gate.admit = nil
	h.gate.mu.Unlock()
	h.on(func(m delivery.Message) []delivery.Effect {
		if _, ok := m.(delivery.Tick); ok {
			return []delivery.Effect{delivery.Start{Work: h.work(1, 1)}}
		}
		return nil
	})
	h.seat.Tick()
	hear[*delivery.Ended](h)
}

// A record that is stopped while its starts wait, or are on their way, leaves
// neither a place nor a pair reserved.
func TestAStoppedRecordLeavesNothingReserved(t *testing.T) {
	h := newHarness(t, instant)
	asked := make(chan *Ticket, 2)
	h.gate.admit = func(t *Ticket) Admission {
		asked <- t
		if t.Work.Consumer.ID == 2 {
			h.env.System.Root.Stop(h.seat.PID()) // before the run can begin
		}
		return Admission{Verdict: Queued}
	}
	h.assign(delivery.Start{Work: h.work(1, 1)}, delivery.Start{Work: h.work(2, 1)})
	one, two := receive(t, "the first", asked), receive(t, "the second", asked)
	eventually(t, "the stop", func() bool { return one.state.Load() == voided && two.state.Load() == voided })
	for _, ticket := range []*Ticket{one, two} {
		eventually(t, "its pair", func() bool {
			probe := &Ticket{Work: ticket.Work, seat: ticket.seat}
			defer h.env.Pairs.withdraw(probe)
			if ok, _ := h.env.Pairs.enter(probe); !ok {
				return false
			}
			h.env.Pairs.leave(probe)
			return true
		})
	}
	if h.gate.queue.Len() != 0 {
		t.Errorf("%d queued", h.gate.queue.Len())
	}
}

// The end of suspicion is told to the host when it is durable.
func TestTheEndOfSuspicionIsReported(t *testing.T) {
	h := newHarness(t, instant)
	h.assign(delivery.Flush{Flush: &core.Flush{Record: 1, Token: 10, Clear: true}})
	f := receive(t, "a flush", h.store.flushes)
	if len(h.host.cleared) != 0 {
		t.Error("before it is durable")
	}
	f.done(core.FlushResult{Record: 1, Token: 10, Status: core.FlushKept})
	if r := receive(t, "cleared", h.host.cleared); r != 1 {
		t.Errorf("record %d", r)
	}
}

// Errors and panics after the runtime has cancelled a handler are not charged,
// and supervision has nothing to decide.
func TestWhatARunSaysAfterItWasCancelledIsNotCharged(t *testing.T) {
	begun := make(chan struct{}, 1)
	h := newHarness(t, func(ctx context.Context, w *core.Work) core.Outcome {
		begun <- struct{}{}
		<-ctx.Done()
		if w.Events[0].Seq == 2 {
			panic(ctx.Err())
		}
		return core.Outcome{Err: ctx.Err()}
	})
	h.assign(delivery.Start{Work: h.work(1, 1)}, delivery.Start{Work: h.work(2, 2)})
	receive(t, "the handlers", begun)
	receive(t, "the handlers", begun)
	h.cancel()
	for range 2 {
		if e := hear[*delivery.Ended](h); !e.Outcome.Cancelled || !errors.Is(e.Outcome.Err, context.Canceled) && e.Outcome.Stack == "" {
			t.Errorf("outcome: %+v", e.Outcome)
		}
	}
	if n := len(h.supervised()); n != 0 {
		t.Errorf("supervision decided %d times", n)
	}
	for _, r := range h.gate.results {
		if r != Nothing {
			t.Errorf("it counts for the breaker: %v", r)
		}
	}
}

// A panic in the handling of its own end would leave the parent unable to stop
// a record actor, or revive it.
func TestAPanicAtItsEndDoesNotReviveARecordActor(t *testing.T) {
	h := newHarness(t, instant)
	h.gate.admit = func(*Ticket) Admission { return Admission{Verdict: Queued} }
	h.gate.withdrawPanics.Store(true)
	h.assign(delivery.Start{Work: h.work(1, 1)})
	h.quiet()
	h.env.System.Root.Stop(h.seat.PID())
	eventually(t, "its end", func() bool { return h.seat.gone.Load() })
	if h.seat.Incarnations() != 1 {
		t.Error("the parent was asked about it")
	}
	// The harness's cleanup waits for the parent's end, which waits for this one's.
}
