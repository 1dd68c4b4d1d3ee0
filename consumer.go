package keyline

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// Handler handles one delivery. The error decides what becomes of it: nil
// completes it; see Permanent, RetryAfter, Snooze and Skip; any other error is
// retried by the consumer's policy. The delivery is the handler's own, payload
// and headers included: it may keep and change them. ctx is cancelled when the
// worker has lost the record, its shutdown grace has passed, or the consumer's
// Timeout has; it carries the trace.
type Handler func(context.Context, *Delivery) error

// Defaults of a Consumer's local settings.
const (
	DefaultWindow    = 1
	DefaultBatchSize = 100
)

// Consumer is a named handler of events, with its policies. What decides which
// deliveries happen (everything down to Scope) is kept as data in the database,
// under Name and Revision; the rest is this process's own.
type Consumer struct {
	// Name identifies the consumer: its progress on every record is kept under
	// it. 1 to 100 letters, digits, ".", "-", "_" or ":". Required.
	Name string
	// PreviousNames are names that it had before. A consumer is renamed by
	// giving it a new Name and naming the old one here; its progress stays.
	PreviousNames []string
	// Revision counts the changes of what is kept as data; raise it with each
	// of them. A process with an older revision than the database has does not
	// run the consumer. Default 1.
	Revision int
	// Types are the event types that it gets, as globs: "*" stands for any run
	// of characters, so that "activity.*" takes "activity.completed" and
	// "activity.line.added". Required.
	Types []string
	// Versions are the event versions that it understands; nil: all.
	Versions []int
	// OnUnsupported says what becomes of an event of one of its Types in
	// another version. Default SkipUnsupported: recorded as skipped.
	OnUnsupported Unsupported
	// Start is where it begins on each record when it is registered first.
	// Default Now: above what the other consumers are done with.
	Start Start
	// Effect declares what the handler changes: Database, External("how
	// duplicates are harmless") or None. Required: a consumer whose author has
	// not thought about duplicates does not start.
	Effect Effect
	// CatchUp consents to events from before the consumer: a consumer with an
	// External effect that starts at the Beginning or At a time would mail the whole
	// past, so it must say that it means to. Its Delivery.Mode tells them apart.
	CatchUp bool
	// Retry is when a failed delivery runs again. Default: after 1, 5 and 30
	// minutes, ±10 %; the failure of the fourth run makes a dead letter. Delays
	// are kept in whole milliseconds.
	Retry RetryPolicy
	// OnDead says what happens on the record after a dead letter. Default
	// Advance: younger events go on.
	OnDead OnDead
	// Scope says whether its siblings go on while it is in backoff or parked on
	// a record. Default OneForOne: they do.
	Scope Scope
	// Internal grants event types that are registered as internal-only.
	Internal bool
	// ContractOnly declares a consumer that nobody runs: its types and versions
	// are part of the map, no event is held or counted for it, and no alarm is
	// raised. It has no handler.
	ContractOnly bool

	// Excluded, if not empty, is the reason why this process does not run the
	// consumer though it has its code. The map of consumers says so. Its events
	// wait, unless another process runs it; a ContractOnly consumer lets them pass.
	Excluded string
	// Breaker stops it on all records while most of its runs fail. Default: at
	// 50 % of at least 20 runs in 10 s, for 15 s.
	Breaker Breaker
	// Window is how many events of one record may be done beyond what is
	// written down: exactly what a crash can deliver twice. Default 1;
	// with HandleBatch at least BatchSize. At most 1,000,000.
	Window int
	// BatchSize is the most events that HandleBatch gets at once. Default 100, at most 1,000,000. A worker keeps as many of each record that
	// it has claimed, if they are more than 64, but no more than 64 KB of their payloads: batches of large events are smaller.
	BatchSize int
	// MaxInFlight is how many handlers of it run at once in this process.
	// Default: the worker's per-consumer limit.
	MaxInFlight int
	// Timeout cancels the handler's context after this time; the run then counts
	// as failed. Default 0: none.
	Timeout time.Duration

	// Exactly one of the three.

	// Handle handles one event.
	Handle func(context.Context, *Delivery) error
	// HandleTx handles one event in a transaction that also moves the
	// checkpoint: its writes and its progress commit together or not at all, so
	// that within this database the effect happens once. It must neither commit nor
	// roll back the transaction; nested Begin is a savepoint. Effect must be Database.
	//
	// The outcome is written in the same session, and other deliveries use that
	// session afterwards. So settings are to be changed with SET LOCAL alone, and
	// a role that the handler takes on is to be given back (RESET ROLE) before it
	// returns.
	HandleTx func(context.Context, pgx.Tx, *Delivery) error
	// HandleBatch handles up to BatchSize consecutive events of one record with
	// one outcome. After a failure it gets them one at a time until past it, so
	// that attempts and dead letters belong to one event. Of several events,
	// Permanent and Skip do not say which one they are about: they count as a
	// failure, and take effect when an event comes alone.
	HandleBatch func(context.Context, []*Delivery) error
}

// Typed makes a handler that gets its payload decoded from JSON into a T. A
// payload that does not decode is a Permanent error with the code
// incompatible_payload: no retry mends it.
func Typed[T any](handle func(context.Context, *Delivery, T) error) func(context.Context, *Delivery) error {
	return func(ctx context.Context, d *Delivery) error {
		v, err := decode[T](d)
		if err != nil {
			return err
		}
		return handle(ctx, d, v)
	}
}

// TypedTx is Typed for HandleTx.
func TypedTx[T any](handle func(context.Context, pgx.Tx, *Delivery, T) error) func(context.Context, pgx.Tx, *Delivery) error {
	return func(ctx context.Context, tx pgx.Tx, d *Delivery) error {
		v, err := decode[T](d)
		if err != nil {
			return err
		}
		return handle(ctx, tx, d, v)
	}
}
