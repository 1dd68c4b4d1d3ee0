package actors

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/keylinehq/keyline/actors/delivery"
	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/keylinetype"
)

// A handler's panic is raised again in the consumer actor, its supervisor
// restarts it, and the outcome reaches the machine once, with the stack: the
// message that a panic loses is not lost.
func TestAPanicRestartsTheConsumerActorAndIsNotLost(t *testing.T) {
	h := newHarness(t, func(_ context.Context, w *core.Work) core.Outcome {
		if w.Events[0].Seq == 1 {
			panic("boom")
		}
		return core.Outcome{}
	})
	h.on(func(m delivery.Message) []delivery.Effect {
		if e, ok := m.(*delivery.Ended); ok && e.Work.Events[0].Seq == 1 {
			return []delivery.Effect{delivery.Start{Work: h.work(1, 2)}}
		}
		return nil
	})
	h.assign(delivery.Start{Work: h.work(1, 1)})
	first := hear[*delivery.Ended](h)
	if first.Outcome.Err == nil || !strings.Contains(first.Outcome.Err.Error(), "boom") ||
		!strings.Contains(first.Outcome.Stack, "TestAPanicRestarts") || keylinetype.ErrorCode(first.Outcome.Err) != core.CodePanic {
		t.Errorf("outcome: %+v", first.Outcome)
	}
	if second := hear[*delivery.Ended](h); second.Outcome.Err != nil || second.Work.Events[0].Seq != 2 {
		t.Errorf("then: %+v", second)
	}
	h.quiet()
	events := h.supervised()
	if len(events) != 1 || events[0].Directive != actor.RestartDirective {
		t.Errorf("supervision: %+v", events)
	}
	if h.gate.inUse() != 0 {
		t.Error("a place is kept")
	}
}

// A handler that ends its goroutine (a test's FailNow does) ends neither the
// actor nor the record.
func TestAHandlerThatEndsItsGoroutineIsAPanic(t *testing.T) {
	h := newHarness(t, func(context.Context, *core.Work) core.Outcome {
		runtime.Goexit()
		return core.Outcome{}
	})
	h.assign(delivery.Start{Work: h.work(1, 1)})
	if e := hear[*delivery.Ended](h); e.Outcome.Err == nil || e.Outcome.Stack == "" {
		t.Errorf("outcome: %+v", e.Outcome)
	}
}

func TestErrorsRestartAndFinalOnesStop(t *testing.T) {
	result := make(chan error, 1)
	h := newHarness(t, func(context.Context, *core.Work) core.Outcome { return core.Outcome{Err: <-result} })
	h.assign()
	attempt := 1
	for _, c := range []struct {
		err     error
		attempt int
		want    []actor.Directive
	}{
		{errors.New("once"), 1, []actor.Directive{actor.RestartDirective}},
		{keylinetype.Permanent(errors.New("never")), 1, []actor.Directive{actor.StopDirective}},
		{errors.New("at last"), 4, []actor.Directive{actor.StopDirective}},
		{keylinetype.Snooze(time.Hour), 1, nil},
		{keylinetype.Skip("not mine"), 1, nil},
		{nil, 1, nil},
	} {
		attempt = c.attempt
		before := len(h.supervised())
		h.on(func(m delivery.Message) []delivery.Effect {
			if _, ok := m.(delivery.Tick); ok {
				w := h.work(1, 1)
				w.Attempt = attempt
				return []delivery.Effect{delivery.Start{Work: w}}
			}
			return nil
		})
		h.seat.Tick()
		result <- c.err
		if e := hear[*delivery.Ended](h); !errors.Is(e.Outcome.Err, c.err) {
			t.Errorf("%v: outcome %v", c.err, e.Outcome.Err)
		}
		h.on(nil)
		h.quiet()
		var got []actor.Directive
		for _, e := range h.supervised()[before:] {
			got = append(got, e.Directive)
		}
		if len(got) != len(c.want) || len(got) == 1 && got[0] != c.want[0] {
			t.Errorf("%v, attempt %d: %v, want %v", c.err, c.attempt, got, c.want)
		}
	}
}

// A failure that takes its consumer over the threshold goes up to the root,
// which lets the record actor go on.
func TestAFailureOverTheThresholdEscalates(t *testing.T) {
	h := newHarness(t, func(context.Context, *core.Work) core.Outcome { return core.Outcome{Err: errors.New("down")} })
	h.gate.tripNext = true
	h.assign(delivery.Start{Work: h.work(2, 1)})
	hear[*delivery.Ended](h)
	h.quiet() // the record actor has been resumed
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.escalated) != 1 || h.escalated[0].Consumer.ID != 2 || h.escalated[0].Err == nil {
		t.Errorf("escalated: %+v", h.escalated)
	}
	if h.seat.Incarnations() != 1 {
		t.Error("it counts as the record actor's own failure")
	}
}

// The consumer actor itself fails over the message: the run is answered all the
// same, uncharged, and nothing stays reserved.
func TestAConsumerActorThatFailsOverItsMessage(t *testing.T) {
	h := newHarness(t, func(context.Context, *core.Work) core.Outcome { return core.Outcome{} })
	h.gate.admit = func(t *Ticket) Admission {
		if t.Work.Events[0].Seq == 1 {
			t.ctx = nil // a bug
		}
		return Admission{}
	}
	h.on(func(m delivery.Message) []delivery.Effect {
		if e, ok := m.(*delivery.Ended); ok && e.Work.Events[0].Seq == 1 {
			return []delivery.Effect{delivery.Start{Work: h.work(1, 2)}}
		}
		return nil
	})
	h.assign(delivery.Start{Work: h.work(1, 1)})
	if e := hear[*delivery.Ended](h); !e.Outcome.Cancelled || e.Outcome.Err == nil {
		t.Errorf("outcome: %+v", e.Outcome)
	}
	if e := hear[*delivery.Ended](h); e.Outcome.Err != nil {
		t.Errorf("then: %+v", e.Outcome)
	}
	if h.gate.inUse() != 0 {
		t.Error("a place is kept")
	}
}

// A consumer actor that ends behind the record's back does not silence its
// consumer: what it had is answered, and the next start finds another one.
func TestAConsumerActorThatIsGoneIsReplaced(t *testing.T) {
	h := newHarness(t, func(context.Context, *core.Work) core.Outcome { return core.Outcome{} })
	h.gate.admit = func(t *Ticket) Admission {
		if t.Work.Events[0].Seq == 1 {
			h.env.System.Root.Stop(t.child) // overtakes the message
		}
		return Admission{}
	}
	h.on(func(m delivery.Message) []delivery.Effect {
		if e, ok := m.(*delivery.Ended); ok && e.Work.Events[0].Seq == 1 {
			return []delivery.Effect{delivery.Start{Work: h.work(1, 2)}}
		}
		return nil
	})
	h.assign(delivery.Start{Work: h.work(1, 1)})
	if e := hear[*delivery.Ended](h); !e.Outcome.Cancelled || !errors.Is(e.Outcome.Err, errChildEnded) {
		t.Errorf("outcome: %+v", e.Outcome)
	}
	if e := hear[*delivery.Ended](h); e.Outcome.Err != nil || e.Work.Events[0].Seq != 2 {
		t.Errorf("then: %+v", e)
	}
}

// A final failure stops the consumer actor; what its consumer does next is not
// sent to the one that is stopping.
func TestAStartRightAfterAFinalFailureFindsAnotherActor(t *testing.T) {
	h := newHarness(t, func(_ context.Context, w *core.Work) core.Outcome {
		if w.Events[0].Seq == 1 {
			return core.Outcome{Err: keylinetype.Permanent(errors.New("never"))}
		}
		return core.Outcome{}
	})
	h.on(func(m delivery.Message) []delivery.Effect {
		if e, ok := m.(*delivery.Ended); ok && e.Work.Events[0].Seq == 1 {
			return []delivery.Effect{delivery.Start{Work: h.work(1, 2)}}
		}
		return nil
	})
	h.assign(delivery.Start{Work: h.work(1, 1)})
	hear[*delivery.Ended](h)
	if e := hear[*delivery.Ended](h); e.Outcome.Err != nil || e.Work.Events[0].Seq != 2 {
		t.Errorf("then: %+v", e)
	}
}

// A failure whose consumer actor ends between the handler's return and the
// word of it is answered by the record itself.
func TestAFailureWhoseConsumerActorIsGoneIsNotLost(t *testing.T) {
	h := newHarness(t, func(context.Context, *core.Work) core.Outcome { return core.Outcome{Err: errors.New("a failure")} })
	var ticket *Ticket
	h.gate.admit = func(t *Ticket) Admission {
		ticket = t
		return Admission{}
	}
	h.gate.onRelease = func() {
		h.env.System.Root.Stop(ticket.child)
		eventually(t, "the record knows", func() bool { return ticket.direct.Load() })
	}
	h.assign(delivery.Start{Work: h.work(1, 1)})
	if e := hear[*delivery.Ended](h); e.Outcome.Err == nil || e.Outcome.Cancelled {
		t.Errorf("outcome: %+v", e.Outcome)
	}
	h.quiet()
}

// The same while the handler runs: its end is answered by the record itself,
// once, also where it fails.
func TestAConsumerActorThatIsGoneWhileItsHandlerRuns(t *testing.T) {
	begun, release := make(chan struct{}), make(chan struct{})
	h := newHarness(t, func(ctx context.Context, _ *core.Work) core.Outcome {
		close(begun)
		<-ctx.Done() // its incarnation has ended
		<-release
		return core.Outcome{Err: errors.New("late")}
	})
	var child *actor.PID
	h.gate.admit = func(t *Ticket) Admission {
		child = t.child
		return Admission{}
	}
	h.assign(delivery.Start{Work: h.work(1, 1)})
	receive(t, "the handler", begun)
	h.env.System.Root.Stop(child)
	close(release)
	if e := hear[*delivery.Ended](h); !e.Outcome.Cancelled {
		t.Errorf("outcome: %+v", e.Outcome)
	}
	h.quiet()
}
