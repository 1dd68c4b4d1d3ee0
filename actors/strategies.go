package actors

import (
	"github.com/asynkron/protoactor-go/actor"

	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/keylinetype"
)

// Kind is a kind of failure, as supervision tells them apart.
type Kind int

// The kinds of failure.
const (
	// KindError: the handler returned an error that a retry may mend.
	KindError Kind = iota
	// KindFinal: the error is permanent, or the attempts are used up.
	KindFinal
	// KindPanic: the handler panicked.
	KindPanic
	// KindShell: the actor itself failed, outside any handler: a bug of ours.
	KindShell
)

func (k Kind) String() string {
	return [...]string{"error", "final", "panic", "shell"}[k]
}

// Decision is what supervision does about a failure.
type Decision struct {
	// Directive is for the actor that failed.
	Directive actor.Directive
	// Escalate: the failure goes on to the supervisor above.
	Escalate bool
}

// decisions is the whole of supervision, in one place:
//
//	what happens                         the consumer actor   what becomes of the delivery
//	error                                restart              attempt recorded, backoff, delivered again
//	permanent error, attempts used up    stop                 dead letter, then advance or park
//	panic                                restart              as an error, with the stack kept
//	failure of the shell itself          restart              not charged, delivered again
//
// Whatever the kind, a failure that takes its consumer's failure rate over the
// threshold also escalates: it goes up to the root, whose HandleFailure opens
// the consumer's circuit breaker and lets the record actor go on.
var decisions = map[Kind]actor.Directive{
	KindError: actor.RestartDirective,
	KindFinal: actor.StopDirective,
	KindPanic: actor.RestartDirective,
	KindShell: actor.RestartDirective,
}

// Decide says what supervision does about a consumer's failure.
func Decide(k Kind, tripped bool) Decision {
	return Decision{Directive: decisions[k], Escalate: tripped}
}

// Classify tells what kind of failure an outcome is. Whether the delivery is
// dead is for the machine to decide and to book; this says only whether its
// actor has reason to stay.
func Classify(w *core.Work, o core.Outcome) Kind {
	if v, _, _ := keylinetype.Judge(o.Err); v == keylinetype.VerdictPermanent && o.Stack == "" {
		return KindFinal
	}
	granted := w.Checkpoint.Granted
	if w.Dead != nil {
		granted = w.Dead.Granted
	}
	if w.Attempt-granted > len(w.Consumer.Retry.Delays) {
		return KindFinal
	}
	if o.Stack != "" {
		return KindPanic
	}
	return KindError
}

// MaxRestarts is how often a record actor that fails is restarted under one
// claim; then the claim is given up.
const MaxRestarts = 3

// DecideRecord says what the root does about a record actor's failure, the
// failures-th under this claim. A consumer's failure that came up to the root
// is not the record actor's own: it resumes.
func DecideRecord(reason any, failures int) actor.Directive {
	if _, escalated := reason.(*Escalation); escalated {
		return actor.ResumeDirective
	}
	if failures > MaxRestarts {
		return actor.StopDirective
	}
	return actor.RestartDirective
}

// Escalation is the reason of a failure that a record actor passes up.
type Escalation struct {
	Consumer *core.Consumer
	Err      error
}
