package keyline

import (
	"time"

	"github.com/keylinehq/keyline/keylinetype"
)

// The types that an application sees. They live in the leaf package
// keylinetype, so that the runtime's parts can share them.
type (
	// Key names a record: the thing whose events must stay in order.
	Key = keylinetype.Key
	// NewEvent is an event to append.
	NewEvent = keylinetype.NewEvent
	// Appended says where an event went.
	Appended = keylinetype.Appended
	// Event is an immutable fact in a record's stream.
	Event = keylinetype.Event
	// Delivery is one event handed to one consumer.
	Delivery = keylinetype.Delivery
	// Mode says why an event is delivered.
	Mode = keylinetype.Mode

	// Effect declares what a consumer's handler changes.
	Effect = keylinetype.Effect
	// EffectClass is what a consumer's handler changes.
	EffectClass = keylinetype.EffectClass
	// Unsupported is the policy for events of a version that a consumer does not support.
	Unsupported = keylinetype.Unsupported
	// Start is where a new consumer begins on every record.
	Start = keylinetype.Start
	// StartKind is where a new consumer begins.
	StartKind = keylinetype.StartKind
	// OnDead says what a consumer does on a record after a dead letter.
	OnDead = keylinetype.OnDead
	// Scope says whether a failing consumer holds back its siblings on a record.
	Scope = keylinetype.Scope
	// Ordering is the order kept within a record across consumers.
	Ordering = keylinetype.Ordering
	// RetryPolicy is when a failed delivery runs again.
	RetryPolicy = keylinetype.RetryPolicy
	// Breaker is a consumer's circuit breaker.
	Breaker = keylinetype.Breaker
	// Verdict is what a handler's error means for its delivery.
	Verdict = keylinetype.Verdict
)

// Reserved header keys; see NewEvent for the fields that set them.
const (
	HeaderCorrelationID = keylinetype.HeaderCorrelationID
	HeaderCausationID   = keylinetype.HeaderCausationID
	HeaderTraceparent   = keylinetype.HeaderTraceparent
	HeaderTracestate    = keylinetype.HeaderTracestate
	HeaderFallbackKey   = keylinetype.HeaderFallbackKey
)

// Attributes of spans beside OpenTelemetry's messaging conventions; docs/tracing.md says which span has which.
const (
	AttrRecordKey    = keylinetype.AttrRecordKey
	AttrTenant       = keylinetype.AttrTenant
	AttrEventSeq     = keylinetype.AttrEventSeq
	AttrEventType    = keylinetype.AttrEventType
	AttrEventVersion = keylinetype.AttrEventVersion
	AttrDuplicate    = keylinetype.AttrDuplicate
	AttrAttempt      = keylinetype.AttrAttempt
	AttrMode         = keylinetype.AttrMode
	AttrRedelivered  = keylinetype.AttrRedelivered
	AttrOutcome      = keylinetype.AttrOutcome
)

// The modes of a delivery.
const (
	Live    = keylinetype.Live
	CatchUp = keylinetype.CatchUp
	Replay  = keylinetype.Replay
)

// The effect classes; Database, External and None make an Effect.
const (
	EffectDatabase = keylinetype.EffectDatabase
	EffectExternal = keylinetype.EffectExternal
	EffectNone     = keylinetype.EffectNone
)

// The policies for unsupported versions. Skip alone is the handler's verdict,
// so these say what they are about.
const (
	SkipUnsupported       = keylinetype.SkipUnsupported
	DeadLetterUnsupported = keylinetype.DeadLetterUnsupported
	WaitUnsupported       = keylinetype.WaitUnsupported
)

// The start kinds; Now, Beginning and At make a Start.
const (
	StartNow       = keylinetype.StartNow
	StartBeginning = keylinetype.StartBeginning
	StartAt        = keylinetype.StartAt
)

// The policies after a dead letter.
const (
	Advance = keylinetype.Advance
	Park    = keylinetype.Park
)

// The scopes.
const (
	OneForOne = keylinetype.OneForOne
	AllForOne = keylinetype.AllForOne
)

// The orderings.
const (
	Independent = keylinetype.Independent
	Lockstep    = keylinetype.Lockstep
)

// The verdicts.
const (
	VerdictCompleted  = keylinetype.VerdictCompleted
	VerdictRetry      = keylinetype.VerdictRetry
	VerdictRetryAfter = keylinetype.VerdictRetryAfter
	VerdictPermanent  = keylinetype.VerdictPermanent
	VerdictSnooze     = keylinetype.VerdictSnooze
	VerdictSkip       = keylinetype.VerdictSkip
)

// DefaultJitter is the share by which retry delays are spread by default.
const DefaultJitter = keylinetype.DefaultJitter

// DefaultRetryDelays are the pauses of the default retry policy.
func DefaultRetryDelays() []time.Duration { return keylinetype.DefaultRetryDelays() }

// Permanent marks an error that a retry cannot mend: the delivery becomes a
// dead letter at once. Permanent(nil) is nil.
func Permanent(err error) error { return keylinetype.Permanent(err) }

// RetryAfter marks an error with the pause before the next run, in place of the
// retry policy's. The run is charged as an attempt. RetryAfter(nil, d) is nil. A
// delay of more than ten years (3650 days) is one of ten.
func RetryAfter(err error, delay time.Duration) error { return keylinetype.RetryAfter(err, delay) }

// Snooze asks to be called again after delay, without charging an attempt, and so without end: with a delay
// of 0 that is a loop as fast as the database writes. One of more than ten years (3650 days) is one of ten.
func Snooze(delay time.Duration) error { return keylinetype.Snooze(delay) }

// Skip ends the delivery without success and without a dead letter; reason is
// kept in the skips table.
func Skip(reason string) error { return keylinetype.Skip(reason) }

// Judge reads a handler's error, for middleware and tests: the verdict, with
// the delay of VerdictRetryAfter and VerdictSnooze and the reason of VerdictSkip.
func Judge(err error) (v Verdict, delay time.Duration, reason string) { return keylinetype.Judge(err) }

// ErrorCode returns the stable code of an error, as it is kept with failures
// and dead letters: the first in its chain that has `ErrorCode() string`, else
// its SQLSTATE as "sqlstate_XXXXX", else "error".
func ErrorCode(err error) string { return keylinetype.ErrorCode(err) }

// Database declares that the handler changes rows in this database only.
func Database() Effect { return keylinetype.Database() }

// External declares an effect outside; howHarmless says why a duplicate
// delivery does no harm ("the provider drops a repeated idempotency key").
func External(howHarmless string) Effect { return keylinetype.External(howHarmless) }

// None declares that nothing lasting is changed.
func None() Effect { return keylinetype.None() }

// Now starts with events above each record's cursor (default).
func Now() Start { return keylinetype.Now() }

// Beginning starts with each record's first event.
func Beginning() Start { return keylinetype.Beginning() }

// At starts with each record's first event created at t or later.
func At(t time.Time) Start { return keylinetype.At(t) }
