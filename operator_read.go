package keyline

import (
	"context"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/keylinehq/keyline/store"
)

// DeadLetterFilter says which dead letters; its zero fields filter nothing.
type DeadLetterFilter struct {
	// ID is one dead letter's.
	ID int64
	// Consumer, Code and Type are the consumer's name, the error's code and the event's type.
	Consumer, Code, Type string
	// Tenant and Record are nil for all.
	Tenant, Record *string
	// Since and Until bound the last failure: at or after, and before.
	Since, Until time.Time
	// Statuses are among open, retrying, delivered and resolved; nil: all. Bulk acts take the open ones.
	Statuses []string
	// Below is the id to go on below, for the next page; 0: from the newest.
	Below int64
	// Limit is the most of a page; 0 means 100.
	Limit int
}

// DeadLetters implements Operator.
func (o *operator) DeadLetters(ctx context.Context, f DeadLetterFilter) ([]DeadLetter, error) {
	q, ok := o.query(f)
	if !ok {
		return nil, nil
	}
	list, err := o.store.DeadLetters(ctx, q, f.Below, f.Limit)
	return list, operated("list dead letters", err)
}

// Audit implements Operator.
func (o *operator) Audit(ctx context.Context, f AuditFilter) ([]AuditEntry, error) {
	list, err := o.store.Audit(ctx, f, o.cfg.Tenant, o.cfg.Role == RoleViewer)
	return list, operated("read audit", err)
}

// InspectRecord implements Operator.
func (o *operator) InspectRecord(ctx context.Context, key Key, events int) (RecordView, error) {
	const op = "inspect record"
	if !o.sees(key.Tenant) {
		return RecordView{}, noRecord(op, key)
	}
	v, rows, err := o.store.ReadRecord(ctx, key, events)
	if err != nil {
		return v, operated(op, err)
	}
	internal, err := o.hidden(ctx)
	if err != nil {
		return RecordView{}, operated(op, err)
	}
	conceal(&rows, internal)
	v.Positions = positions(&rows)
	v.Events = slices.DeleteFunc(v.Events, func(e store.RecordEvent) bool { return internal[e.Type] })
	return v, nil
}

// hidden are the event types that are not for this role's eyes.
func (o *operator) hidden(ctx context.Context) (map[string]bool, error) {
	if o.cfg.Role != RoleViewer {
		return nil, nil
	}
	return o.store.InternalTypes(ctx)
}

// InspectEvent implements Operator.
func (o *operator) InspectEvent(ctx context.Context, event uuid.UUID) (EventView, error) {
	const op = "inspect event"
	v, err := o.store.InspectEvent(ctx, event)
	if err != nil {
		return v, operated(op, err)
	}
	internal, err := o.hidden(ctx)
	if err != nil {
		return EventView{}, operated(op, err)
	}
	if internal[v.Type] || !o.sees(v.Tenant) {
		return EventView{}, notFound(op, "event %s", event)
	}
	return v, nil
}

// TraceEvent implements Operator.
func (o *operator) TraceEvent(ctx context.Context, event uuid.UUID) (EventTrace, error) {
	// Who may not see the event may not see how it went.
	if _, err := o.InspectEvent(ctx, event); err != nil {
		return EventTrace{}, err
	}
	v, err := o.store.Trace(ctx, event)
	return v, operated("trace event", err)
}

// Overview implements Operator.
func (o *operator) Overview(ctx context.Context) (Overview, error) {
	const op = "read overview"
	if err := o.mayAll(op); err != nil {
		return Overview{}, err
	}
	v, err := o.store.Overview(ctx)
	return v, operated(op, err)
}

// Consumers implements Operator.
func (o *operator) Consumers(ctx context.Context) ([]ConsumerView, error) {
	const op = "list consumers"
	if err := o.mayAll(op); err != nil {
		return nil, err
	}
	list, err := o.store.ConsumerMap(ctx)
	return list, operated(op, err)
}

// InspectConsumer implements Operator.
func (o *operator) InspectConsumer(ctx context.Context, name string) (ConsumerView, error) {
	const op = "inspect consumer"
	list, err := o.Consumers(ctx)
	if err != nil {
		return ConsumerView{}, err
	}
	for _, c := range list {
		if c.Name == name {
			return c, nil
		}
	}
	for _, c := range list {
		if slices.Contains(c.PreviousNames, name) {
			return ConsumerView{}, notFound(op, "consumer %q, which is called %q now", name, c.Name)
		}
	}
	return ConsumerView{}, notFound(op, "consumer %q", name)
}

// Verify implements Operator.
func (o *operator) Verify(ctx context.Context, opts VerifyOptions) (Verification, error) {
	const op = "verify"
	if err := o.mayAll(op); err != nil {
		return Verification{}, err
	}
	v, err := o.store.Verify(ctx, opts)
	return v, operated(op, err)
}

// Why implements Operator.
func (o *operator) Why(ctx context.Context, key Key) (Why, error) {
	const op = "why"
	if !o.sees(key.Tenant) {
		return Why{}, noRecord(op, key)
	}
	rows, err := o.store.WhyRows(ctx, key)
	if err != nil {
		return Why{}, operated(op, err)
	}
	internal, err := o.hidden(ctx)
	if err != nil {
		return Why{}, operated(op, err)
	}
	conceal(&rows, internal)
	return explain(rows), nil
}

// ConsumerHealth implements Operator.
func (o *operator) ConsumerHealth(ctx context.Context) ([]ConsumerHealth, error) {
	const op = "read health"
	if err := o.mayAll(op); err != nil {
		return nil, err
	}
	list, err := o.store.Health(ctx)
	return list, operated(op, err)
}

// Stuck implements Operator.
func (o *operator) Stuck(ctx context.Context, limit int) ([]StuckRecord, error) {
	const op = "read what is stuck"
	if err := o.mayAll(op); err != nil {
		return nil, err
	}
	if limit < 1 {
		return nil, invalid(CodeInvalidArgument, "limit", "%d is not positive", limit)
	}
	list, err := o.store.Stuck(ctx, limit, o.cfg.Role == RoleViewer)
	return list, operated(op, err)
}
