package keyline

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/google/uuid"
)

// Redact takes out of a payload what nobody is to read; the event is there without it. Its error is
// what the reader gets instead, so that nothing is shown by accident.
type Redact func(e EventView, payload json.RawMessage) (json.RawMessage, error)

// DefaultShownPayload is how many bytes of JSON text a payload may have to be shown.
const DefaultShownPayload = 64 << 10

// EventPayload is an event's payload, for those who may read it.
type EventPayload struct {
	ID uuid.UUID `json:"id"`
	// Bytes is how long its JSON text is.
	Bytes int64 `json:"bytes"`
	// Omitted is true where it is longer than what is shown; Payload is then null.
	Omitted bool            `json:"omitted"`
	Payload json.RawMessage `json:"payload"`
}

// Payload implements Operator.
func (o *operator) Payload(ctx context.Context, event uuid.UUID, reason string) (EventPayload, error) {
	const op = "read payload"
	if err := o.may(op, reason, true); err != nil {
		return EventPayload{}, err
	}
	v, err := o.InspectEvent(ctx, event)
	if err != nil {
		return EventPayload{}, err
	}
	target := fmt.Sprintf("event %d of %s", v.Seq, quoted(Key{Tenant: v.Tenant, Record: v.Record}))
	payload, size, err := o.store.Payload(ctx, event, o.cfg.PayloadLimit, o.cfg.Actor, reason, target)
	if err != nil {
		return EventPayload{}, operated(op, err)
	}
	p := EventPayload{ID: event, Bytes: size, Omitted: payload == nil, Payload: payload}
	if p.Omitted || o.cfg.Redact == nil {
		return p, nil
	}
	if p.Payload, err = o.cfg.Redact(v, payload); err != nil {
		// What the hook says may hold what it was to take out.
		return EventPayload{}, &Error{Code: CodeInvalidPayload, Message: "the payload could not be redacted, so it is not shown", op: op, class: ErrInvalid}
	}
	return p, nil
}
