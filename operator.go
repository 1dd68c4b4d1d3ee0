package keyline

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/keylinetype"
	"github.com/keylinehq/keyline/store"
)

// Codes of an Operator's errors, beside those of every Error.
const (
	// CodeNothingToDo (ErrConflict): what was asked for is so already, or there is nothing that it could change.
	CodeNothingToDo = "nothing_to_do"
	// CodeNotAppliedYet (ErrUnavailable): the command is given and stays given, and
	// no worker had applied it when the context ended. Asking again waits for the same one.
	CodeNotAppliedYet = "not_applied_yet"
)

// HealthEvery is how often what waits is counted while workers run: a count that is much older says that none does.
const HealthEvery = store.HealthEvery

// Role is what an operator may do here. Over SQL the database role is what
// decides; the audit keeps it beside the actor.
type Role string

// The roles.
const (
	// RoleViewer reads, but nothing about event types that are internal (default).
	RoleViewer Role = "viewer"
	// RoleOperator also acts, and reads payloads.
	RoleOperator Role = "operator"
	// RoleAdmin also says who may use the admin API.
	RoleAdmin Role = "admin"
)

func (r Role) known() bool { return r == RoleViewer || r == RoleOperator || r == RoleAdmin }

// OperatorConfig says who operates, and on what.
type OperatorConfig struct {
	// Schema is Keyline's schema; "" means "keyline".
	Schema string
	// Actor is who acts, as the audit names them. Required to act; an Operator
	// is cheap, so make one for each person.
	Actor string
	// Role is what they may do; "" means RoleViewer.
	Role Role
	// Tenant is the one tenant whose records they see and change; nil: all. What
	// belongs to other tenants is not found. What concerns all tenants (consumers, workers, recovery, retention,
	// verification) is refused with CodePermissionDenied; of the audit there is what was done to the tenant's records.
	Tenant *string
	// Redact sees each payload before whoever reads it does; nil: they are shown as they are.
	Redact Redact
	// PayloadLimit is how many bytes of JSON text a payload may have to be shown; 0 means DefaultShownPayload.
	PayloadLimit int64
}

// Operator is what operators see and do: the one contract of the command line
// and of everything else that operates an installation.
//
// Every act writes its audit in its own transaction, changes nothing that is so
// already, and returns when it is applied. Acts on a record are commands that
// only the record's claim holder applies, so that none races a live delivery: a
// worker has to run. The context bounds the wait; a command outlives it.
//
// Errors of acts are *Error: CodePermissionDenied (the role, or a tenant's operator and all tenants), ErrNotFound (no
// such thing), ErrInvalid (no actor, or no reason where one is required),
// ErrConflict with CodeNothingToDo, ErrUnavailable with CodeNotAppliedYet.
type Operator interface {
	// RetryConsumer has one consumer's failed delivery of an event run again now:
	// its head that is in backoff or parked, or its dead letter. Runs that
	// succeeded are never repeated. Attempts go on counting.
	RetryConsumer(ctx context.Context, event uuid.UUID, consumer, reason string) (Act, error)
	// RetryEvent does that for every consumer whose delivery of the event has failed.
	RetryEvent(ctx context.Context, event uuid.UUID, reason string) ([]Act, error)
	// RetryDeadLetter delivers an open dead letter again, marked as redelivered:
	// in order where its consumer is parked on it, else beside younger events.
	RetryDeadLetter(ctx context.Context, id int64, reason string) (Act, error)
	// ResolveDeadLetter gives an open dead letter up; a consumer that is parked on it goes on. A reason is required.
	ResolveDeadLetter(ctx context.Context, id int64, reason string) (Act, error)
	// SkipHead gives up the event that a consumer is in backoff or parked on: that of seq, so that somebody else's skip, or one of
	// which the answer was lost, never makes it another one; 0: whichever it is. A reason is required.
	SkipHead(ctx context.Context, key Key, consumer string, seq int64, reason string) (Act, error)

	// PauseConsumer stops a consumer's deliveries; it keeps its place.
	PauseConsumer(ctx context.Context, name, reason string) error
	// ResumeConsumer makes a paused or disabled consumer active.
	ResumeConsumer(ctx context.Context, name, reason string) error
	// DisableConsumer lets events pass a consumer as ignored: it loses its place
	// on every record. A reason is required.
	DisableConsumer(ctx context.Context, name, reason string) error
	// RetireConsumer ends a consumer for ever. A reason is required.
	RetireConsumer(ctx context.Context, name, reason string) error

	// DrainWorker has one worker, by its id, finish what runs, hand back the rest and
	// leave; it waits until that is so. Where its process goes on as another worker, since it has fenced itself, that one does. The worker hears of it within a third of its
	// lease, and cancels handlers that outlive its shutdown grace. One that is asked already is waited for with the
	// others that ask. CodeWorkerNotLive: it was lost before it had left.
	DrainWorker(ctx context.Context, id int64, reason string) (DrainedWorker, error)
	// RecoverStaleClaims marks workers lost that stay silent for a whole lease
	// while it watches, and frees all claims that no live worker holds.
	RecoverStaleClaims(ctx context.Context, reason string) (Recovered, error)

	// Prune deletes settled events that are older than a policy, of each record the
	// oldest first and never what a consumer (active, paused or backfilling), an open dead letter or a
	// waiting command still needs; the report says what holds events back. It also deletes failed attempts and
	// ended workers of long ago. It is no error if there is nothing to delete.
	Prune(ctx context.Context, reason string, opts PruneOptions) (PruneReport, error)

	// RetryDeadLetters and ResolveDeadLetters act on all open dead letters that a
	// filter takes, however many. What dies meanwhile is left alone.
	RetryDeadLetters(ctx context.Context, f DeadLetterFilter, reason string, opts BulkOptions) (BulkReport, error)
	ResolveDeadLetters(ctx context.Context, f DeadLetterFilter, reason string, opts BulkOptions) (BulkReport, error)

	// InspectRecord reads a record with its last events, at most so many, payload-free.
	InspectRecord(ctx context.Context, key Key, events int) (RecordView, error)
	// InspectEvent reads an event with the state of each delivery, payload-free.
	InspectEvent(ctx context.Context, event uuid.UUID) (EventView, error)
	// TraceEvent reads how an event went: when it was appended and in which trace, and each consumer's failures, dead
	// letter, skips and what operators did about it.
	TraceEvent(ctx context.Context, event uuid.UUID) (EventTrace, error)
	// Records lists records by tenant and key, in pages.
	Records(ctx context.Context, f RecordFilter) ([]RecordSummary, error)
	// Events lists a record's events by seq, with the state of each delivery, in pages, payload-free.
	Events(ctx context.Context, key Key, f EventFilter) ([]RecordEvent, error)
	// Payload reads an event's payload, capped and redacted, with an audit. A reason is required.
	Payload(ctx context.Context, event uuid.UUID, reason string) (EventPayload, error)
	// Overview reads the installation at a glance.
	Overview(ctx context.Context) (Overview, error)
	// Consumers lists the registered consumers, with who runs each and how it fares.
	Consumers(ctx context.Context) ([]ConsumerView, error)
	// InspectConsumer reads a registered consumer, with who runs it and how it fares.
	InspectConsumer(ctx context.Context, name string) (ConsumerView, error)
	// Workers lists the workers that live, those that were lost within the hour, and those whose claims are still to be freed.
	Workers(ctx context.Context) ([]WorkerView, error)
	// ConsumerHealth reads how every consumer fares: what it has done, and what waits for it, as a worker that leads last counted it.
	ConsumerHealth(ctx context.Context) ([]ConsumerHealth, error)
	// Stuck lists the records that have waited longest, the longest first, at most so many: due and taken by nobody,
	// claimed, in backoff, parked. It is cheap at any size, and may miss some where thousands wait.
	Stuck(ctx context.Context, limit int) ([]StuckRecord, error)
	// DeadLetters lists dead letters, the newest first.
	DeadLetters(ctx context.Context, f DeadLetterFilter) ([]DeadLetter, error)
	// Audit lists who did what, the newest first.
	Audit(ctx context.Context, f AuditFilter) ([]AuditEntry, error)
	// Why says why a record is where it is, and what to do next.
	Why(ctx context.Context, key Key) (Why, error)
	// Behind lists the records on which a consumer is behind their head, each with the
	// reason, in pages. Records that the start of a new consumer has not reached yet are not among them.
	Behind(ctx context.Context, consumer string, f BehindFilter) (BehindPage, error)
	// Verify looks for what must not be, in chunks, beside live traffic.
	Verify(ctx context.Context, opts VerifyOptions) (Verification, error)

	// Tokens lists the tokens of the admin API, the newest first, also those that have ended. It takes RoleAdmin,
	// as do the next two; one tenant's admin sees, makes and revokes that tenant's alone.
	Tokens(ctx context.Context, f TokenFilter) ([]Token, error)
	// CreateToken makes a token; its secret is in what it returns and nowhere else.
	CreateToken(ctx context.Context, n NewToken, reason string) (IssuedToken, error)
	// RevokeToken ends a token: from then on nobody comes in with it.
	RevokeToken(ctx context.Context, id int64, reason string) (Token, error)
}

// What operators read.
type (
	// RecordView is a record as it stands.
	RecordView = store.RecordView
	// RecordWork is its work that waits, or is under way.
	RecordWork = store.RecordWork
	// RecordSummary is a record in a list.
	RecordSummary = store.RecordSummary
	// RecordEvent is an event in a list, with the state of each delivery.
	RecordEvent = store.RecordEvent
	// EventView is an event as it stands.
	EventView = store.EventView
	// EventTrace is how an event went.
	EventTrace = store.EventTrace
	// TracedDelivery is how one delivery of an event went.
	TracedDelivery = store.TracedDelivery
	// Overview is an installation at a glance.
	Overview = store.Overview
	// ConsumerView is a registered consumer, who runs it and how it fares.
	ConsumerView = store.OverviewConsumer
	// WorkerView is a worker as it stands.
	WorkerView = store.OverviewWorker
	// ConsumerHealth is how a consumer fares.
	ConsumerHealth = store.ConsumerHealth
	// StuckRecord is a record that waits.
	StuckRecord = store.StuckRecord
	// DeadLetter is a delivery that ended without success, by reference.
	DeadLetter = store.DeadLetterRow
	// AuditEntry is a line of the audit.
	AuditEntry = store.AuditRow
	// AuditFilter says which lines of the audit.
	AuditFilter = store.AuditFilter
	// Recovered is what a recovery found.
	Recovered = store.Recovered
	// Verification is what a verification found.
	Verification = store.Verification
	// CheckResult is what one check of a verification found.
	CheckResult = store.CheckResult
	// VerifyOptions are the settings of a verification.
	VerifyOptions = store.VerifyOptions
)

// Act is an act on one delivery that was applied.
type Act struct {
	Tenant   string `json:"tenant"`
	Record   string `json:"record"`
	Seq      int64  `json:"seq"`
	Consumer string `json:"consumer"`
	// DeadLetter is the one that it was about, 0: none.
	DeadLetter int64 `json:"dead_letter,omitempty"`
	// Command is the command's id; Joined is true where the same was waiting already.
	Command int64 `json:"command"`
	Joined  bool  `json:"joined"`
	// Outcome is what the claim holder says that it did.
	Outcome string `json:"outcome"`
}

// operator implements Operator.
type operator struct {
	cfg   OperatorConfig
	store *store.Operate
}

// NewOperator makes an Operator on a pool, which stays the caller's. Nothing is
// connected. The error names the field that is wrong.
func NewOperator(pool *pgxpool.Pool, cfg OperatorConfig) (Operator, error) {
	if pool == nil {
		return nil, wrong("pool", "is nil")
	}
	if cfg.Role == "" {
		cfg.Role = RoleViewer
	}
	if !cfg.Role.known() {
		return nil, wrong("Role", "must be %q, %q or %q", RoleViewer, RoleOperator, RoleAdmin)
	}
	if cfg.PayloadLimit == 0 {
		cfg.PayloadLimit = DefaultShownPayload
	}
	s, err := store.NewOperate(pool, cfg.Schema)
	if err != nil {
		return nil, wrong("Schema", "%v", err)
	}
	return &operator{cfg: cfg, store: s}, nil
}

// nothing is the error of an act that would change nothing.
func nothing(op, format string, args ...any) *Error {
	return &Error{Code: CodeNothingToDo, Message: fmt.Sprintf(format, args...), op: op, class: ErrConflict}
}

// operated reads an error of the store, which has classed it already.
func operated(op string, err error) error {
	var state interface{ SQLState() string }
	if err == nil || errors.As(err, &state) {
		return translate(op, err)
	}
	e := &Error{Message: err.Error(), op: op, cause: err}
	switch {
	case errors.Is(err, ErrNotFound):
		e.Code, e.class = CodeNotFound, ErrNotFound
	case errors.Is(err, ErrConflict):
		e.Code, e.class = CodeNothingToDo, ErrConflict
	case errors.Is(err, ErrInvalid):
		e.Code, e.class = CodeInvalidArgument, ErrInvalid
	default:
		return translate(op, err)
	}
	e.Message = bare(e.Message)
	if errors.Is(e.class, ErrNotFound) {
		e.Message = "there is no " + e.Message
	}
	return e
}

// bare leaves out what the class says anyway.
func bare(message string) string {
	for _, class := range []error{ErrNotFound, ErrConflict, ErrInvalid} {
		message = strings.TrimSuffix(message, ": "+class.Error())
	}
	return strings.TrimPrefix(message, "change registry: ")
}

// give gives a command and waits until it is applied.
func (o *operator) give(ctx context.Context, op string, c core.Command, act Act, reason string) (Act, error) {
	act, err := o.start(ctx, op, c, act, reason)
	if err != nil {
		return act, err
	}
	return o.finish(ctx, op, act)
}

// start gives a command.
func (o *operator) start(ctx context.Context, op string, c core.Command, act Act, reason string) (Act, error) {
	c.Actor, c.Reason = o.cfg.Actor, reason
	given, err := o.store.Give(ctx, c, target(act))
	act.Command, act.Joined = given.ID, given.Joined
	return act, operated(op, err)
}

// finish waits until a command is applied. A command that had nothing to do is an error.
func (o *operator) finish(ctx context.Context, op string, act Act) (Act, error) {
	applied, err := o.store.Await(ctx, act.Command)
	switch {
	case err != nil && ctx.Err() != nil:
		return act, &Error{Code: CodeNotAppliedYet, op: op, class: ErrUnavailable, cause: ctx.Err(),
			Message: fmt.Sprintf("command %d is given, but no worker has applied it yet; it stays, and the record's next holder applies it", act.Command)}
	case err != nil:
		return act, operated(op, err)
	}
	act.Outcome = applied.Detail
	if !applied.Done {
		return act, nothing(op, "%s", strings.TrimPrefix(applied.Detail, "nothing to do: "))
	}
	return act, nil
}

// target is what the audit says that an act was about.
func target(a Act) string {
	name := a.Record
	if a.Tenant != "" {
		name = a.Tenant + "/" + a.Record
	}
	t := fmt.Sprintf("%s #%d for %s", name, a.Seq, a.Consumer)
	if a.DeadLetter != 0 {
		t = fmt.Sprintf("dead letter %d: %s", a.DeadLetter, t)
	}
	return t
}

func actOn(key keylinetype.Key, seq int64, consumer string, deadLetter int64) Act {
	return Act{Tenant: key.Tenant, Record: key.Record, Seq: seq, Consumer: consumer, DeadLetter: deadLetter}
}
