package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/keylinehq/keyline/internal/clock"
	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/keylinetype"
	"github.com/keylinehq/keyline/migrations"
)

// Operate is what operators see and do. It has no connections, worker or
// committer of its own: everything runs on the caller's pool, and nothing has to be closed.
type Operate struct{ s *Store }

// NewOperate makes an Operate on a pool; schema "" means migrations.DefaultSchema.
func NewOperate(pool *pgxpool.Pool, schema string) (*Operate, error) {
	if schema == "" {
		schema = migrations.DefaultSchema
	}
	if err := migrations.CheckSchemaName(schema); err != nil {
		return nil, err
	}
	sql, err := statements(schema)
	if err != nil {
		return nil, err
	}
	return &Operate{&Store{
		schema: schema, instance: uuid.New(), clock: &databaseClock{Clock: clock.Real()}, rand: clock.NewRand(clock.RandomSeed()),
		sql: sql, hot: pool, lease: pool,
	}}, nil
}

// Given is a command that an operator gave.
type Given struct {
	ID int64
	// Joined is true where the same command was waiting already: it is that one.
	Joined bool
}

// Give gives a command to a record with its audit, or joins the same one that
// still waits. Only the record's claim holder applies it: Await waits for that. target is what
// the audit says that it was about. ErrNotFound: no such record; ErrInvalid: no actor, or no such kind of command.
func (o *Operate) Give(ctx context.Context, c core.Command, target string) (g Given, err error) {
	if c.Actor == "" {
		return g, fmt.Errorf("command: an actor is required: %w", keylinetype.ErrInvalid)
	}
	// One round trip, so that appenders wait for no more than that.
	err = o.s.pinned(ctx, o.s.hot, "begin isolation level read committed", func(b *pgx.Batch) {
		b.Queue(o.s.q("operate_lock_record"), c.Record)
		b.Queue(o.s.q("operate_give"), c.Record, c.Kind, c.Consumer, c.Seq, c.DeadLetter, c.Actor, c.Reason, target).
			QueryRow(func(row pgx.Row) error { return row.Scan(&g.ID, &g.Joined) })
	})
	return g, translate("command", err)
}

// How often Await and AwaitDrained look.
const (
	awaitFirst = 5 * time.Millisecond
	awaitMost  = 250 * time.Millisecond
)

// Await waits until a command has been applied, or ctx ends: then the command
// stays, and is applied when a worker comes to the record. ErrNotFound: no such command.
func (o *Operate) Await(ctx context.Context, id int64) (core.AppliedCommand, error) {
	out := core.AppliedCommand{ID: id}
	for pause := awaitFirst; ; pause = min(2*pause, awaitMost) {
		var applied bool
		err := o.s.lookUp(ctx, o.s.hot, "command_outcome", []any{id}, &applied, &out.Done, &out.Detail)
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			return out, fmt.Errorf("command %d: %w", id, keylinetype.ErrNotFound)
		case err != nil:
			return out, translate("await command", err)
		case applied:
			return out, nil
		}
		if err := clock.Sleep(ctx, o.s.clock, pause); err != nil {
			return out, fmt.Errorf("command %d is not applied yet: %w", id, err)
		}
	}
}

// SetStatus changes a consumer's status, as Store.SetStatus does.
func (o *Operate) SetStatus(ctx context.Context, name string, to core.Status, actor, reason string) error {
	return o.s.SetStatus(ctx, name, to, actor, reason)
}

// FindRecord returns a record's id; ErrNotFound where there is none.
func (o *Operate) FindRecord(ctx context.Context, key keylinetype.Key) (int64, error) {
	return o.s.FindRecord(ctx, key)
}

// FindEvent returns where an event lies; ErrNotFound where there is none.
func (o *Operate) FindEvent(ctx context.Context, id uuid.UUID) (EventPlace, error) {
	return o.s.FindEvent(ctx, id)
}

// Standing is where a consumer stands to one event of a record.
type Standing struct {
	Consumer int32
	Status   core.Status
	// Seq is the last event that it is done with, State what its own row says of the next.
	Seq   int64
	State core.State
	// DeadLetter is the id of the dead letter that it has of the event, 0: none; DeadStatus how that stands.
	DeadLetter int64
	DeadStatus string
}

// Standing reads where a consumer stands to an event; ErrNotFound where there is no such record or consumer.
func (o *Operate) Standing(ctx context.Context, record, seq int64, consumer string) (st Standing, err error) {
	err = o.s.hot.QueryRow(ctx, o.s.q("operate_delivery"), record, seq, consumer).
		Scan(&st.Consumer, &st.Status, &st.Seq, &st.State, &st.DeadLetter, &st.DeadStatus)
	return st, foundOr(err, "consumer %q", consumer)
}

// Waiting is a delivery that a retry can help.
type Waiting struct {
	Consumer   int32
	Name       string
	DeadLetter int64 // 0: a head in backoff or parked without one
}

// EventWaits reads the deliveries of an event that a retry can help.
func (o *Operate) EventWaits(ctx context.Context, record, seq int64) ([]Waiting, error) {
	rows, err := o.s.hot.Query(ctx, o.s.q("operate_event_waits"), record, seq)
	if err != nil {
		return nil, translate("read deliveries", err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Waiting])
	return list, translate("read deliveries", err)
}

// AuditRow is a line of the audit.
type AuditRow struct {
	ID    int64     `json:"id"`
	At    time.Time `json:"at"`
	Actor string    `json:"actor"`
	// SessionUser is the database role that the act came with: what the actor cannot claim.
	SessionUser string         `json:"session_user"`
	Action      string         `json:"action"`
	Target      string         `json:"target"`
	Reason      string         `json:"reason"`
	Detail      map[string]any `json:"detail"`
	// AppliedAt, Done and Outcome are of the command that the act gave, nil and "" where
	// it gave none or is not applied yet.
	AppliedAt *time.Time `json:"applied_at,omitempty"`
	Done      *bool      `json:"done,omitempty"`
	Outcome   string     `json:"outcome,omitempty"`
}

// AuditFilter says which lines of the audit; its zero fields filter nothing.
type AuditFilter struct {
	Actor, Action string
	// Below is the id to go on below, for the next page.
	Below int64
	// Limit is the most rows; 0 means 100.
	Limit int
}

// Audit lists the audit, the newest first; with a tenant, only commands to its records; with hideInternal without what is about
// one event of an internal type.
func (o *Operate) Audit(ctx context.Context, f AuditFilter, tenant *string, hideInternal bool) ([]AuditRow, error) {
	if f.Limit == 0 {
		f.Limit = defaultPage
	}
	rows, err := o.s.hot.Query(ctx, o.s.q("operate_audit"), unlessEmpty(f.Actor), unlessEmpty(f.Action), unlessZero(f.Below), f.Limit, tenant, hideInternal)
	if err != nil {
		return nil, translate("read audit", err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[AuditRow])
	return list, translate("read audit", err)
}

// defaultPage is how many rows a list has where nobody says.
const defaultPage = 100

func unlessZero[T int32 | int64](v T) *T {
	if v == 0 {
		return nil
	}
	return &v
}

func unlessEmpty(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}
