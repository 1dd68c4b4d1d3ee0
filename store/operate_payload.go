package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/keylinehq/keyline/keylinetype"
)

// Payload reads an event's payload with the audit, nil where its JSON text is longer than most bytes; size is how
// long it is. ErrNotFound where there is no such event.
func (o *Operate) Payload(ctx context.Context, event uuid.UUID, most int64, actor, reason, target string) (payload json.RawMessage, size int64, err error) {
	var text *string
	err = o.s.lease.QueryRow(ctx, o.s.q("operate_payload"), event, most, actor, reason, target).Scan(&size, &text)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, 0, fmt.Errorf("event %s: %w", event, keylinetype.ErrNotFound)
	}
	if text != nil {
		payload = json.RawMessage(*text)
	}
	return payload, size, translate("read payload", err)
}
