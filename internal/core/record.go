package core

import (
	"time"

	"github.com/google/uuid"
	"github.com/keylinehq/keyline/keylinetype"
)

// Claim is a worker's exclusive right to a record, as the claim call returned
// it. Token is the fencing token: a later claim, or the loss of this one, draws
// a higher one.
type Claim struct {
	Record int64
	Token  int64
	// Crashes is how often a claim of this record ended with its worker lost, since
	// suspicion last ended: above 0 the record is a suspect and its deliveries are written ahead.
	Crashes int
	// Unclean is true where a claim since then was ended by recovery or as an orphan: what it had
	// delivered and not flushed comes again, marked as redelivered.
	Unclean bool
}

// State is what a consumer's own row on a record says about its next event.
type State string

// The states of a checkpoint row.
const (
	// Ready: nothing is known of the next event.
	Ready State = "ready"
	// Backoff: the next event is due again at NextAttemptAt.
	Backoff State = "backoff"
	// Parked: the next event waits for an operator, or, with the code
	// CodeUnsupportedVersion, for a process that supports it.
	Parked State = "parked"
	// Started: a suspect's attempt was written ahead of its run. Found at load,
	// it says that the process ended during it.
	Started State = "started"
)

// Codes that the runtime itself writes as error codes, of checkpoints, failures and dead letters.
const (
	// CodeUnsupportedVersion: the event's version is not supported. On a parked row it means
	// that the consumer waits for code that supports it.
	CodeUnsupportedVersion = "unsupported_version"
	// CodeUnsupportedDead is on the row of a consumer that is parked on the dead letter of such an
	// event: it waits for an operator, and goes on by no other code.
	CodeUnsupportedDead = "version_not_supported"
	CodeCrash           = "crash"
	CodePanic           = "panic"
	CodeUnwritable      = "unwritable_outcome"
	CodeTimeout         = "timeout"
	CodeUnreadableError = "unreadable_error"
	// CodeConsumerGone and CodeEventPruned: an operator's retry of a dead letter could not run.
	CodeConsumerGone = "consumer_gone"
	CodeEventPruned  = "event_pruned"
)

// Codes of skips, beside CodeUnsupportedVersion: who gave the delivery up.
const (
	SkipHandler  = "handler"
	SkipOperator = "operator"
)

// Checkpoint is a consumer's own position and retry state on one record. A row
// exists only where the position differs from the record's cursor, where there
// is retry state, or where the consumer is transactional.
type Checkpoint struct {
	Record   int64
	Consumer int32
	// Seq is the last event that this consumer is done with.
	Seq   int64
	State State
	// Attempt counts the runs of event Seq+1 that have failed, or during which the
	// process ended; for Started the run that was begun, too. It never restarts for one event.
	Attempt int
	// Granted is the attempt count at which the present retry budget began: 0,
	// or what it was when an operator granted more runs. Runs that are to cost no budget,
	// as those that a crash cut short, move it up by one.
	Granted int
	// Crashes counts the runs of event Seq+1 during which the process ended.
	Crashes int
	// NextAttemptAt is when event Seq+1 is due again; zero unless Backoff.
	NextAttemptAt time.Time
	// FirstFailedAt is when event Seq+1 first failed; zero: it has not.
	FirstFailedAt time.Time
	// ErrorCode is the code of the last failure of event Seq+1.
	ErrorCode string
	// LiveFrom is the record's head when the consumer was backfilled: events up
	// to it are delivered as catch-up. 0: all are live.
	LiveFrom int64
	// RedeliverTo: events above Seq up to it may have run before. 0: none has, as far as is known;
	// RedeliverUnknown: a worker of a release that does not keep it wrote the row.
	RedeliverTo int64
}

// RedeliverUnknown says that it is not known which events may have run before.
const RedeliverUnknown = -1

// Plain reports whether the row says nothing but its position.
func (c Checkpoint) Plain() bool {
	return c.State == Ready && c.Attempt == 0 && c.Granted == 0 && c.Crashes == 0 && c.FirstFailedAt.IsZero() && c.RedeliverTo == 0
}

// Event is an event with the surrogate id of its record.
type Event struct {
	Record int64
	keylinetype.Event
	// Cut is true where whatever follows this event was left out of the answer, since it would have been too much at once.
	Cut bool
}

// CommandKind is an operator's act on a record.
type CommandKind string

// The commands.
const (
	// CommandRetry makes the head delivery of a consumer that is in backoff or
	// parked due now and grants it a fresh retry budget.
	CommandRetry CommandKind = "retry"
	// CommandSkip gives up the head delivery of a consumer that is in backoff
	// or parked: recorded in skips, terminal; an open dead letter of it is resolved.
	CommandSkip CommandKind = "skip"
	// CommandRetryDead redelivers a dead letter: in order where its consumer is
	// parked on it, beside the checkpoint after advance.
	CommandRetryDead CommandKind = "retry_dead_letter"
	// CommandResolveDead closes a dead letter; a consumer parked on it goes on.
	CommandResolveDead CommandKind = "resolve_dead_letter"
)

// Command is an operator's act on a record, applied by the claim holder only.
type Command struct {
	ID     int64
	Record int64
	Kind   CommandKind
	// Consumer is whose delivery is meant; 0: every consumer (retry only).
	Consumer int32
	// Seq is the event meant; 0: the head delivery, whatever it is.
	Seq int64
	// DeadLetter is the dead letter meant; 0 for retry and skip.
	DeadLetter int64
	// Dead is the dead letter meant as it stands, and DeadOpen whether it is
	// open; nil where there is none.
	Dead     *DeadRetry
	DeadOpen bool
	Reason   string
	Actor    string
}

// AppliedCommand is a command's outcome.
type AppliedCommand struct {
	ID int64
	// Done is false where there was nothing to do.
	Done   bool
	Detail string
}

// DeadReason is why a delivery ended without success.
type DeadReason string

// The reasons of dead letters.
const (
	DeadExhausted   DeadReason = "exhausted"
	DeadPermanent   DeadReason = "permanent"
	DeadUnsupported DeadReason = "unsupported_version"
	DeadInvalid     DeadReason = "incompatible_payload"
	DeadCrashes     DeadReason = "crash_budget"
)

// DeadLetter is a delivery that ended without success, by reference. There is
// one per (record, seq, consumer): a retry that dies again updates it.
type DeadLetter struct {
	Record        int64
	Seq           int64
	Consumer      int32
	Attempt       int
	EventID       uuid.UUID
	Reason        DeadReason
	Code, Message string
	FirstFailedAt time.Time
	FailedAt      time.Time
}

// DeadRetry is a dead letter that an operator asked to deliver again after its
// consumer had advanced. It is a delivery of its own: it never moves the
// checkpoint, and the record does not settle while it waits.
type DeadRetry struct {
	ID       int64
	Record   int64
	Consumer int32
	Seq      int64
	// Attempt and Granted are as in Checkpoint.
	Attempt, Granted int
	// Crashes counts its runs during which the process ended; Started is true
	// where a suspect's run was written ahead.
	Crashes       int
	Started       bool
	DueAt         time.Time
	FirstFailedAt time.Time
	ErrorCode     string
}

// DeadRetryStatus is where a dead letter's retry stands after a flush.
type DeadRetryStatus string

// The statuses of a dead letter that is being retried.
const (
	// DeadWaiting: due again at DueAt.
	DeadWaiting DeadRetryStatus = "retrying"
	// DeadDelivered: the retry succeeded; the dead letter is resolved.
	DeadDelivered DeadRetryStatus = "delivered"
	// DeadAgain: the retry died; the dead letter is open again.
	DeadAgain DeadRetryStatus = "open"
	// DeadResolved: an operator gave it up.
	DeadResolved DeadRetryStatus = "resolved"
)

// DeadUpdate changes a dead letter's row under the claim.
type DeadUpdate struct {
	DeadRetry
	Status DeadRetryStatus
	// Code and Message are of the last failure, for DeadAgain.
	Code, Message string
	Reason        DeadReason
	// Actor and Note are kept as who resolved it and why, for DeadResolved.
	Actor, Note string
	At          time.Time
}

// Failure is one failed attempt, kept for a while as history.
type Failure struct {
	Record        int64
	Seq           int64
	Consumer      int32
	Attempt       int
	At            time.Time
	Code, Message string
	// Stack is the goroutine's stack where the handler panicked.
	Stack string
}

// Skip is a delivery that ended without success and without a dead letter.
type Skip struct {
	Record   int64
	Seq      int64
	Consumer int32
	Attempt  int
	Code     string // SkipHandler, SkipOperator or CodeUnsupportedVersion
	Reason   string
	At       time.Time
}

// Counts are what happened to one consumer's deliveries, added to its health.
type Counts struct {
	Consumer                                           int32
	Completed, Failed, Skipped, Dead, Ignored, Retried int64
	LastEventAt, LastSuccessAt, LastFailureAt          time.Time
}

// Booking is everything that the end of one delivery changes for its record
// and consumer. HandleTx writes it in the handler's own transaction; every
// other handler's is carried by the next flush.
type Booking struct {
	Checkpoint Checkpoint
	DeadLetter *DeadLetter
	Dead       *DeadUpdate // of a dead letter's retry; Checkpoint is then unchanged
	Failure    *Failure
	Skip       *Skip
	Counts     Counts
}
