package keyline

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/google/uuid"
)

// DefaultEventsLimit is how many events Events returns where limit is 0.
const DefaultEventsLimit = 1000

// Events reads a record's stream: the events with seq fromSeq and above, in
// order, at most limit of them (0: 1000). Seqs are without gaps, so a result
// shorter than limit is the end of the stream as db's transaction sees it, and
// the next page begins at the last Seq + 1. A record that does not exist has no
// events. An event that became its own record is read under its id.
func (c *Client) Events(ctx context.Context, db PGX, key Key, fromSeq int64, limit int) ([]Event, error) {
	const op = "read events"
	if db == nil {
		return nil, noDatabase(op)
	}
	tenant, bad := c.check.tenantOf(key.Tenant)
	switch {
	case bad != nil:
	case strings.IndexByte(key.Record, 0) >= 0, !usable(key.Record):
		bad = wrong("Record", "is not the key of a record")
	case limit < 0:
		bad = wrong("limit", "is negative")
	}
	if bad != nil {
		return nil, withOp(op, bad)
	}
	if limit == 0 {
		limit = DefaultEventsLimit
	}
	key.Tenant = tenant
	var events []Event
	err := pgxQuery(db)(ctx, c.sql.Events, []any{key.Tenant, key.Record, fromSeq, int64(limit)}, func(scan func(...any) error) error {
		e, err := scanEvent(scan, key)
		events = append(events, e)
		return err
	})
	if err != nil {
		return nil, translate(op, err)
	}
	return events, nil
}

func scanEvent(scan func(...any) error, key Key) (Event, error) {
	e := Event{Key: key}
	var id, payload, headers string
	if err := scan(&e.Seq, &id, &e.Type, &e.Version, &payload, &headers, &e.OccurredAt, &e.CreatedAt); err != nil {
		return Event{}, err
	}
	var err error
	if e.ID, err = uuid.Parse(id); err != nil {
		return Event{}, err
	}
	e.Payload = json.RawMessage(payload)
	e.OccurredAt, e.CreatedAt = e.OccurredAt.UTC(), e.CreatedAt.UTC()
	if err := json.Unmarshal([]byte(headers), &e.Headers); err != nil {
		return Event{}, fmt.Errorf("headers of event %s: %w", id, err)
	}
	return e, nil
}
