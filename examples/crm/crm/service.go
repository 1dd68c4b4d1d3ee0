package crm

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/keylinehq/keyline"
)

// DB begins transactions and reads; a *pgxpool.Pool.
type DB interface {
	Begin(ctx context.Context) (pgx.Tx, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// Service carries out operations on activities. It is safe for concurrent use.
type Service struct {
	db     DB
	events keyline.Publisher
}

// NewService makes a service. events is what NewClient makes; a program's test
// may hand in an in-process publisher instead.
func NewService(db DB, events keyline.Publisher) *Service { return &Service{db: db, events: events} }

// Request is what every operation needs to know about who asks for it.
type Request struct {
	// Organization is the tenant. Required.
	Organization string
	// Actor is who asks. Required.
	Actor string
	// IdempotencyKey, if not empty, makes the operation repeatable: the same
	// request again gets the same answer and changes nothing.
	IdempotencyKey string
	// IfVersion, if not 0, is the version that the activity must have (ErrStale).
	IfVersion int64
	// CorrelationID names the business transaction that this belongs to, and
	// CausationID what asked for it: a request, or an event. They go into the
	// event, so that what comes of it can be followed.
	CorrelationID, CausationID string
}

// change is one operation on its way through the transaction.
type change struct {
	Request
	op    Operation
	id    uuid.UUID
	input any // what else was asked, for the idempotency key's fingerprint
	// apply changes the row and returns what it has become.
	apply func(context.Context, pgx.Tx) (Activity, error)
	// payload makes the event's payload from that.
	payload func(Activity) any
}

// carryOut is the one transaction of every operation: the change, the event that
// says so, and the audit log. It has three rules. All statements go through tx,
// so that they commit together or not at all. The event comes after the change and is made of
// what the change returned, so that it cannot tell of anything else. Nothing
// waits for a consumer.
func (s *Service) carryOut(ctx context.Context, c change) (Activity, error) {
	var a Activity
	err := pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error {
		answered, err := c.claimKey(ctx, tx, &a)
		if answered || err != nil {
			return err
		}
		if a, err = c.apply(ctx, tx); err != nil {
			return err
		}
		event, err := s.events.Append(ctx, tx, c.event(a))
		if err != nil {
			return fmt.Errorf("append %s: %w", typeOf[c.op].name, err)
		}
		if err := c.audit(ctx, tx, a, event); err != nil {
			return fmt.Errorf("write audit log: %w", err)
		}
		return c.keepAnswer(ctx, tx, a)
	})
	if err != nil {
		return Activity{}, fmt.Errorf("%s activity: %w", c.op, classify(err))
	}
	return a, nil
}

// event is the event of a change. Its expected seq ties the activity's version
// to its stream: should anything else ever append here or skip an event, the
// next change fails instead of going on beside its history.
func (c change) event(a Activity) keyline.NewEvent {
	before := a.Version - 1
	var payload any = a.Snapshot
	if c.payload != nil {
		payload = c.payload(a)
	}
	return keyline.NewEvent{
		Key: Key(c.Organization, a.ID), Type: typeOf[c.op].name, Version: typeOf[c.op].version, Payload: payload,
		IdempotencyKey: c.IdempotencyKey, CorrelationID: c.CorrelationID, CausationID: c.CausationID,
		OccurredAt: a.UpdatedAt, ExpectedSeq: &before,
	}
}

const insertAudit = `
insert into crm.audit_log (event_id, organization, activity_id, version, action, actor, correlation_id, at)
values ($1, $2, $3, $4, $5, $6, $7, $8)`

func (c change) audit(ctx context.Context, tx pgx.Tx, a Activity, event keyline.Appended) error {
	_, err := tx.Exec(ctx, insertAudit, event.ID, c.Organization, a.ID, a.Version, c.op, c.Actor, c.CorrelationID, a.UpdatedAt)
	return err
}

const selectActivity = `select ` + columns + ` from crm.activities where organization = $1 and id = $2`

// Get returns an activity as it is now.
func (s *Service) Get(ctx context.Context, organization string, id uuid.UUID) (Activity, error) {
	a, err := get(ctx, s.db, organization, id)
	if err != nil {
		return Activity{}, fmt.Errorf("get activity: %w", classify(err))
	}
	return a, nil
}

type queryer interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

func get(ctx context.Context, db queryer, organization string, id uuid.UUID) (Activity, error) {
	rows, err := db.Query(ctx, selectActivity, organization, id)
	if err != nil {
		return Activity{}, err
	}
	a, err := pgx.CollectExactlyOneRow(rows, scanActivity)
	if errors.Is(err, pgx.ErrNoRows) {
		return Activity{}, ErrNotFound
	}
	return a, err
}
