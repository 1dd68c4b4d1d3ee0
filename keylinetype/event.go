package keylinetype

import (
	"encoding/json"
	"time"

	"github.com/google/uuid"
)

// Key names a record: the thing whose events must stay in order.
// Records of two tenants never mix, even with the same Record.
type Key struct {
	// Tenant is the organization that the record belongs to; "" where an
	// application has none.
	Tenant string
	// Record is the record's key within its tenant, e.g. "activity:42". Empty,
	// blank, over 512 bytes or not valid UTF-8: the event becomes its own
	// record, keyed by its id.
	Record string
}

// Reserved header keys. They are written by append and read by the runtime;
// an application may read them but should set them through NewEvent's fields.
const (
	HeaderCorrelationID = "correlation_id"
	HeaderCausationID   = "causation_id"
	HeaderTraceparent   = "traceparent"
	HeaderTracestate    = "tracestate"
	// HeaderFallbackKey is "true" on an event whose record key was unusable, so
	// that the event became its own record.
	HeaderFallbackKey = "keyline_fallback_key"
)

// NewEvent is an event to append.
type NewEvent struct {
	Key
	// Type is the event's type, e.g. "activity.completed". Required.
	Type string
	// Version is the payload's schema version; 0 means 1.
	Version int
	// Payload is the event's body: []byte and json.RawMessage are taken as
	// JSON, everything else goes through json.Marshal. nil is JSON null.
	Payload any
	// ID is the event's id; zero: a new UUIDv7.
	ID uuid.UUID
	// IdempotencyKey makes an append repeatable: the same key with the same
	// content (Type, Version, Payload and, where it is given, ID) on the same record
	// returns the first event and changes nothing; other content is ErrConflict.
	// 1 to 512 bytes; empty: none.
	IdempotencyKey string
	// CorrelationID and CausationID are kept in the event's headers.
	CorrelationID, CausationID string
	// OccurredAt is when the fact happened; zero: now, by the database.
	OccurredAt time.Time
	// Headers are kept with the event, as strings; at most 64 KiB together, reserved ones included.
	Headers map[string]string
	// ExpectedSeq is the record's seq that the caller has seen: the append is
	// refused with ErrConflict if the record has another one. nil: any; 0: the
	// record must be new.
	ExpectedSeq *int64
}

// Appended says where an event went.
type Appended struct {
	Key Key
	Seq int64
	ID  uuid.UUID
	// Duplicate is true where an idempotency key had been used before: the
	// fields are those of the first event, and nothing was written.
	Duplicate bool
}

// Event is an immutable fact in a record's stream.
type Event struct {
	Key
	// Seq counts from 1 within the record, without gaps.
	Seq     int64
	ID      uuid.UUID
	Type    string
	Version int
	Payload json.RawMessage
	Headers map[string]string
	// OccurredAt is the application's time, CreatedAt the database's.
	OccurredAt, CreatedAt time.Time
}

// Mode says why an event is delivered.
type Mode string

// The modes of a delivery.
const (
	// Live: the event is newer than the consumer, or was not yet done by the others when
	// the consumer started with Now.
	Live Mode = "live"
	// CatchUp: the event is older than the consumer, which started at the
	// beginning or at a time.
	CatchUp Mode = "catch-up"
	// Replay: the event was delivered before and an operator asked for it again.
	Replay Mode = "replay"
)

// Delivery is one event handed to one consumer.
type Delivery struct {
	Event
	Consumer string
	// Attempt counts from 1 and never restarts for this event and consumer. A run that was
	// snoozed, or cancelled by the runtime, is not counted: the next one has the same number.
	Attempt int
	// Redelivered is true where an earlier delivery of this event to this
	// consumer may have run, in whole or in part.
	Redelivered bool
	Mode        Mode
	// Token is the fencing token of the claim: a system outside that remembers
	// the highest token per record can refuse an older holder.
	Token int64
	// IdempotencyKey is stable over attempts, renames of the consumer and
	// restores of the database: hand it to systems outside.
	IdempotencyKey string
}

// DeterministicID returns an id that is the same on every delivery of this
// event to this consumer, for a row that the handler creates. name tells apart
// several rows of one delivery.
func (d *Delivery) DeterministicID(name string) uuid.UUID {
	return uuid.NewSHA1(d.ID, []byte(d.IdempotencyKey+"\x00"+name))
}
