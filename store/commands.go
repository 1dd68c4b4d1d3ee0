package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/keylinehq/keyline/internal/clock"
	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/keylinetype"
)

// Command gives an operator's command to a record and returns its id. Only the
// record's claim holder applies it: AwaitCommand waits for that. target is what the audit
// says that it was about. ErrNotFound: no such record; ErrInvalid: no actor, or no such kind of command.
func (s *Store) Command(ctx context.Context, c core.Command, target string) (id int64, err error) {
	if c.Actor == "" {
		return 0, fmt.Errorf("command: an actor is required: %w", keylinetype.ErrInvalid)
	}
	err = autocommit(ctx, s.hot, s.q("command"),
		[]any{c.Record, c.Kind, c.Consumer, c.Seq, c.DeadLetter, c.Actor, c.Reason, target}, one(&id))
	return id, translate("command", err)
}

// How often AwaitCommand looks.
const (
	awaitFirst = 5 * time.Millisecond
	awaitMost  = 250 * time.Millisecond
)

// AwaitCommand waits until a command has been applied, or ctx ends: then the
// command stays, and is applied when a worker comes to the record.
func (s *Store) AwaitCommand(ctx context.Context, id int64) (core.AppliedCommand, error) {
	out := core.AppliedCommand{ID: id}
	for pause := awaitFirst; ; pause = min(2*pause, awaitMost) {
		var applied bool
		err := s.hot.QueryRow(ctx, s.q("command_outcome"), id).Scan(&applied, &out.Done, &out.Detail)
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			return out, fmt.Errorf("command %d: %w", id, keylinetype.ErrNotFound)
		case err != nil:
			return out, translate("await command", err)
		case applied:
			return out, nil
		}
		if err := clock.Sleep(ctx, s.clock, pause); err != nil {
			return out, fmt.Errorf("command %d is not applied yet: %w", id, err)
		}
	}
}

// FindRecord returns a record's id; ErrNotFound where there is none.
func (s *Store) FindRecord(ctx context.Context, key keylinetype.Key) (id int64, err error) {
	err = s.hot.QueryRow(ctx, s.q("find_record"), key.Tenant, key.Record).Scan(&id)
	return id, foundOr(err, "record %q of tenant %q", key.Record, key.Tenant)
}

// FindConsumer returns a registered consumer's id; ErrNotFound where there is none.
func (s *Store) FindConsumer(ctx context.Context, name string) (id int32, err error) {
	err = s.hot.QueryRow(ctx, s.q("find_consumer"), name).Scan(&id)
	return id, foundOr(err, "consumer %q", name)
}

// EventPlace is where an event lies.
type EventPlace struct {
	Record int64
	Seq    int64
	Key    keylinetype.Key
	Type   string
}

// FindEvent returns where an event lies; ErrNotFound where there is none.
func (s *Store) FindEvent(ctx context.Context, id uuid.UUID) (p EventPlace, err error) {
	err = s.hot.QueryRow(ctx, s.q("find_event"), id).Scan(&p.Record, &p.Seq, &p.Key.Tenant, &p.Key.Record, &p.Type)
	return p, foundOr(err, "event %s", id)
}

// foundOr makes ErrNotFound of an empty answer.
func foundOr(err error, format string, args ...any) error {
	what := fmt.Sprintf(format, args...)
	if errors.Is(err, pgx.ErrNoRows) {
		return fmt.Errorf("%s: %w", what, keylinetype.ErrNotFound)
	}
	return translate("find "+what, err)
}

// DeadLetterRow is a dead letter as operators see it. It never has the payload.
type DeadLetterRow struct {
	ID            int64      `json:"id"`
	Record        int64      `json:"-"`
	Tenant        string     `json:"tenant"`
	Key           string     `json:"record_key"`
	Seq           int64      `json:"seq"`
	ConsumerID    int32      `json:"-"`
	Consumer      string     `json:"consumer"`
	EventID       uuid.UUID  `json:"event_id"`
	Type          string     `json:"type"`
	Attempt       int        `json:"attempt"`
	Reason        string     `json:"reason"`
	Code          string     `json:"code"`
	Message       string     `json:"message"`
	FirstFailedAt time.Time  `json:"first_failed_at"`
	FailedAt      time.Time  `json:"failed_at"`
	Status        string     `json:"status"`
	DueAt         *time.Time `json:"due_at,omitempty"`
	ResolvedAt    *time.Time `json:"resolved_at,omitempty"`
	ResolvedBy    string     `json:"resolved_by,omitempty"`
	Resolution    string     `json:"resolution,omitempty"`
}

// DeadLetterFilter says which dead letters; its zero fields filter nothing.
type DeadLetterFilter struct {
	ID       int64
	Consumer int32
	// Tenant is nil for all tenants.
	Tenant   *string
	Record   int64
	Statuses []string
	// Below is the id to go on below, for the next page.
	Below int64
	// Limit is the most rows; 0 means 100.
	Limit int
}

// DeadLetters lists dead letters, the newest first.
func (s *Store) DeadLetters(ctx context.Context, f DeadLetterFilter) ([]DeadLetterRow, error) {
	if f.Limit == 0 {
		f.Limit = 100
	}
	rows, err := s.hot.Query(ctx, s.q("dead_letters"), unlessZero(f.ID), unlessZero(f.Consumer), f.Tenant, unlessZero(f.Record),
		f.Statuses, unlessZero(f.Below), f.Limit)
	if err != nil {
		return nil, translate("list dead letters", err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[DeadLetterRow])
	return list, translate("list dead letters", err)
}

// DeadLetter returns one dead letter; ErrNotFound where there is none.
func (s *Store) DeadLetter(ctx context.Context, id int64) (DeadLetterRow, error) {
	list, err := s.DeadLetters(ctx, DeadLetterFilter{ID: id, Limit: 1})
	if err == nil && len(list) == 0 {
		err = fmt.Errorf("dead letter %d: %w", id, keylinetype.ErrNotFound)
	}
	if err != nil {
		return DeadLetterRow{}, err
	}
	return list[0], nil
}

func unlessZero[T int32 | int64](v T) *T {
	if v == 0 {
		return nil
	}
	return &v
}
