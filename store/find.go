package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/keylinehq/keyline/keylinetype"
)

// FindRecord returns a record's id; ErrNotFound where there is none.
func (s *Store) FindRecord(ctx context.Context, key keylinetype.Key) (id int64, err error) {
	err = s.lookUp(ctx, s.hot, "find_record", []any{key.Tenant, key.Record}, &id)
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
	err = s.lookUp(ctx, s.hot, "find_event", []any{id}, &p.Record, &p.Seq, &p.Key.Tenant, &p.Key.Record, &p.Type)
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
