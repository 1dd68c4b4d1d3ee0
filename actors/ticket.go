package actors

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/keylinehq/keyline/actors/delivery"
	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/keylinetype"
)

// The states of a ticket. Every change but the record actor's own between idle
// and waiting is a compare-and-swap: whoever wins it owns the duty to release
// the place and the pair, and to answer.
const (
	idle    int32 = iota
	waiting       // for its pair, or for the gate
	sent          // on its way to the consumer actor
	begun         // the handler runs
	done          // the outcome is in the ticket, the record has not read it
	refused       // the gate said no, the record has not read it
	voided        // the record gave it up: whoever holds it lets go
)

// maxStack bounds the stack that is kept of a panic.
const maxStack = 16 << 10

// Ticket is one run of one consumer's handler on one record, from the Start
// effect to its answer. A record actor keeps one per consumer and reuses it.
type Ticket struct {
	// Work is what is to be run. It does not change while the ticket is out.
	Work *core.Work

	seat  *Seat
	child *actor.PID
	// ctx is the record actor's incarnation: the consumer actor's derives from it.
	ctx context.Context

	state   atomic.Int32
	direct  atomic.Bool // the child is gone: answer to the record
	tripped bool
	until   time.Time
	// ended is the message to the machine, as the state done finds it.
	ended delivery.Ended

	link link
}

// start reserves the pair and asks for admission.
func (t *Ticket) start() {
	ok, stale := t.seat.env.Pairs.enter(t)
	if ok {
		t.admit()
	}
	for _, s := range stale { // their records find out that they are fenced when they are handed back
		s.Refuse(t.seat.env.Clock.Now().Add(staleRefused))
	}
}

// staleRefused is when a ticket of a lost claim might run, if its claim were not lost.
const staleRefused = time.Second

// admit asks the gate; the pair is reserved. It is called by the record actor,
// or by the goroutine of the run that held the pair before.
func (t *Ticket) admit() {
	if t.state.Load() == voided {
		t.seat.env.Pairs.leave(t)
		return
	}
	switch a := t.seat.env.Gate.Admit(t); a.Verdict {
	case Admitted:
		t.Begin()
	case Refused:
		t.Refuse(a.Until)
	case Queued:
	}
}

// Begin is called by the gate when a queued ticket's turn has come.
func (t *Ticket) Begin() {
	if !t.state.CompareAndSwap(waiting, sent) {
		t.release(Nothing)
		return
	}
	t.seat.env.System.Root.Send(t.child, (*run)(t))
}

// Refuse is called by the gate for a queued ticket that is not to run before
// until.
func (t *Ticket) Refuse(until time.Time) {
	t.until = until
	t.seat.env.Pairs.leave(t)
	if t.state.CompareAndSwap(waiting, refused) {
		t.seat.send((*notStarted)(t))
	}
}

// release gives back the place and the pair.
func (t *Ticket) release(r Result) {
	t.tripped = t.seat.env.Gate.Release(t, r)
	t.seat.env.Pairs.leave(t)
}

// withdraw takes the ticket back if it waits; only the record actor calls it.
func (t *Ticket) withdraw() bool {
	if t.seat.env.Pairs.withdraw(t) {
		return true
	}
	if t.seat.env.Gate.Withdraw(t) {
		t.seat.env.Pairs.leave(t)
		return true
	}
	return false
}

// void gives the ticket up for good: if its handler has not begun, it never
// will, and nothing stays reserved for it.
func (t *Ticket) void() {
	if t.state.CompareAndSwap(waiting, voided) {
		t.withdraw() // if it is on its way, whoever moves it sees the state
		return
	}
	if t.state.CompareAndSwap(sent, voided) {
		t.release(Nothing)
	}
}

// exec runs the handler, on a goroutine of the crew.
func (t *Ticket) exec(ctx context.Context) {
	t.seat.running.Add(1)
	if !t.state.CompareAndSwap(sent, begun) {
		t.seat.ranOut()
		return
	}
	r := outcome{}
	defer r.finish(ctx, t)
	r.Outcome = t.seat.env.Runner.Run(ctx, t.Work)
	r.returned = true
}

// outcome is a run's outcome while it comes about.
type outcome struct {
	core.Outcome
	returned bool // Run came back: no panic, no Goexit
}

// finish is exec's deferred end: it catches the handler's panic.
func (o *outcome) finish(ctx context.Context, t *Ticket) {
	if !o.returned {
		o.Outcome = caught(recover())
	}
	if o.Err != nil && ctx.Err() != nil {
		o.Cancelled = true
	}
	failed := Fails(o.Outcome)
	result := Succeeded
	switch {
	case failed:
		result = Failed
	case o.Cancelled || o.Fenced:
		result = Nothing
	}
	t.ended.Work, t.ended.Outcome = t.Work, o.Outcome

	// The handler is gone: its pair and its place are free before anybody is
	// told, so that what the answer starts finds them free.
	seat, child := t.seat, t.child
	t.release(result)
	t.state.Store(done)
	seat.ranOut()
	switch {
	case seat.gone.Load():
	case failed && !t.direct.Load():
		seat.env.System.Root.Send(child, (*raised)(t))
	default:
		seat.send((*ended)(t))
	}
}

// fail ends a run that its consumer actor has not begun; it is not charged. The
// caller has won the ticket from sent to done.
func (t *Ticket) fail(err error) {
	t.release(Nothing)
	t.ended = delivery.Ended{Work: t.Work, Outcome: core.Outcome{Err: err, Cancelled: true}}
}

// caught makes an outcome of a panic, or of a runtime.Goexit (nil).
func caught(value any) core.Outcome {
	stack := debug.Stack()
	if len(stack) > maxStack {
		stack = stack[:maxStack]
	}
	return core.Outcome{Err: &PanicError{Value: value}, Stack: string(stack)}
}

// PanicError is a handler's panic as an error. It does not unwrap to a panicked
// error: panic(Skip("…")) is a bug, not a verdict.
type PanicError struct{ Value any }

func (e *PanicError) Error() string {
	if e.Value == nil {
		return "handler ended its goroutine"
	}
	return fmt.Sprintf("panic: %v", e.Value)
}

// ErrorCode is the stable code of panics.
func (e *PanicError) ErrorCode() string { return core.CodePanic }

// Fails reports whether an outcome is a failure of its consumer: an error or a
// panic, but neither a snooze nor a skip, nor what the runtime itself cut short.
func Fails(o core.Outcome) bool {
	if o.Err == nil || o.Cancelled || o.Fenced {
		return false
	}
	if o.Stack != "" {
		return true
	}
	switch v, _, _ := keylinetype.Judge(o.Err); v {
	case keylinetype.VerdictRetry, keylinetype.VerdictRetryAfter, keylinetype.VerdictPermanent:
		return true
	default:
		return false
	}
}
