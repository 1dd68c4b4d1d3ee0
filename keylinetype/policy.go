package keylinetype

import (
	"strings"
	"time"
)

// EffectClass is what a consumer's handler changes.
type EffectClass string

// The effect classes.
const (
	// EffectDatabase: only rows in Keyline's database, transactionally
	// (HandleTx) or made idempotent by a constraint.
	EffectDatabase EffectClass = "database"
	// EffectExternal: something outside, which a redelivery would touch twice.
	EffectExternal EffectClass = "external"
	// EffectNone: nothing that lasts.
	EffectNone EffectClass = "none"
)

// Effect declares what a consumer's handler changes, and for effects outside
// the database why a duplicate is harmless. The zero value is undeclared and
// refused.
type Effect struct {
	Class EffectClass
	// Note says how duplicates are harmless; required for EffectExternal.
	Note string
}

// Database declares that the handler changes rows in this database only.
func Database() Effect { return Effect{Class: EffectDatabase} }

// External declares an effect outside; howHarmless says why a duplicate
// delivery does no harm ("the provider drops a repeated idempotency key").
func External(howHarmless string) Effect {
	return Effect{Class: EffectExternal, Note: strings.TrimSpace(howHarmless)}
}

// None declares that nothing lasting is changed.
func None() Effect { return Effect{Class: EffectNone} }

// Unsupported says what becomes of an event whose version a consumer does not
// support.
type Unsupported string

// The policies for unsupported versions.
const (
	// SkipUnsupported records the event as skipped and goes on (default).
	SkipUnsupported Unsupported = "skip"
	// DeadLetterUnsupported makes a dead letter of it.
	DeadLetterUnsupported Unsupported = "dead_letter"
	// WaitUnsupported parks the consumer on this record until a process that
	// supports the version hosts it.
	WaitUnsupported Unsupported = "wait"
)

// StartKind is where a new consumer begins.
type StartKind string

// The start kinds.
const (
	StartNow       StartKind = "now"
	StartBeginning StartKind = "beginning"
	StartAt        StartKind = "at"
)

// Start is where a new consumer begins on every record. The zero value is Now.
type Start struct {
	Kind StartKind
	// Time is the earliest created_at delivered, for StartAt.
	Time time.Time
}

// Now starts with events above each record's cursor (default).
func Now() Start { return Start{Kind: StartNow} }

// Beginning starts with each record's first event.
func Beginning() Start { return Start{Kind: StartBeginning} }

// At starts with each record's first event created at t or later.
func At(t time.Time) Start { return Start{Kind: StartAt, Time: t} }

// OnDead says what a consumer does on a record after a dead letter.
type OnDead string

// The policies after a dead letter.
const (
	// Advance goes on with younger events (default).
	Advance OnDead = "advance"
	// Park waits on this record until an operator retries or resolves.
	Park OnDead = "park"
)

// Scope says whether a failing consumer holds back its siblings on a record.
type Scope string

// The scopes.
const (
	// OneForOne: siblings go on (default).
	OneForOne Scope = "one_for_one"
	// AllForOne: while this consumer is in backoff or parked on a record, no
	// sibling delivery starts there; running ones finish and count.
	AllForOne Scope = "all_for_one"
)

// Ordering is the order kept within a record across consumers; one setting for
// an installation.
type Ordering string

// The orderings.
const (
	// Independent: each consumer at its own pace, each in order (default).
	Independent Ordering = "independent"
	// Lockstep: a younger event goes to nobody until the older one is terminal
	// for every applicable consumer.
	Lockstep Ordering = "lockstep"
)

// RetryPolicy is when a failed delivery runs again. The zero value is the
// default policy.
type RetryPolicy struct {
	// Delays are the pauses before run 2, 3, …; the number of runs is
	// len(Delays)+1, and the failure of the last makes a dead letter.
	// Default: 1 min, 5 min, 30 min (4 runs). An empty non-nil slice: one run.
	Delays []time.Duration
	// Jitter is the share by which a delay is spread either way, 0 to 1.
	// nil: 0.10.
	Jitter *float64
}

// DefaultRetryDelays are the pauses of the default retry policy.
func DefaultRetryDelays() []time.Duration {
	return []time.Duration{time.Minute, 5 * time.Minute, 30 * time.Minute}
}

// DefaultJitter is the share by which delays are spread by default.
const DefaultJitter = 0.10

// Breaker is a consumer's circuit breaker, one in each worker that runs it: when,
// over all records of that worker, the share of failed runs reaches a threshold, no run
// starts until the cool-down has passed and a probe has succeeded. The zero value is the default.
type Breaker struct {
	// Disabled switches the breaker off.
	Disabled bool
	// Threshold is the share of failures that opens it, 0 to 1; 0 means the default, 0.5.
	Threshold float64
	// MinRuns is the fewest runs within Period that can open it; default 20.
	MinRuns int
	// Period is how far back runs count; default 10 s.
	Period time.Duration
	// CoolDown is how long it stays open before a probe; default 15 s.
	CoolDown time.Duration
}
