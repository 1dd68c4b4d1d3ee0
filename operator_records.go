package keyline

import (
	"context"
	"slices"
)

// RecordFilter says which records, and which page of them; its zero fields filter nothing.
type RecordFilter struct {
	// Tenant is nil for all.
	Tenant *string
	// Prefix is how the record's key begins. With it and without a Tenant, the tenant is "".
	Prefix string
	// After is the last record of the page before; nil: from the first.
	After *Key
	// Limit is the most of a page; 0 means 100.
	Limit int
}

// EventFilter says which page of a record's events.
type EventFilter struct {
	// After is the last seq of the page before; 0: from the first event that is left.
	After int64
	// Limit is the most of a page; 0 means 100. It is a span of seqs: for a viewer, who is not shown events of
	// internal types, a page can be short and not be the last.
	Limit int
}

// defaultList is how many rows a list has where nobody says.
const defaultList = 100

// Records implements Operator.
func (o *operator) Records(ctx context.Context, f RecordFilter) ([]RecordSummary, error) {
	if f.Tenant == nil && (o.cfg.Tenant != nil || f.Prefix != "") {
		f.Tenant = new(string)
		if o.cfg.Tenant != nil {
			f.Tenant = o.cfg.Tenant
		}
	}
	if f.Tenant != nil && !o.sees(*f.Tenant) {
		return nil, nil
	}
	orInt(&f.Limit, defaultList)
	list, err := o.store.Records(ctx, f.Tenant, f.Prefix, f.After, f.Limit)
	return list, operated("list records", err)
}

// Events implements Operator.
func (o *operator) Events(ctx context.Context, key Key, f EventFilter) ([]RecordEvent, error) {
	const op = "list events"
	if !o.sees(key.Tenant) {
		return nil, noRecord(op, key)
	}
	orInt(&f.Limit, defaultList)
	list, err := o.store.Events(ctx, key, f.After, f.Limit)
	if err != nil {
		return nil, operated(op, err)
	}
	internal, err := o.hidden(ctx)
	if err != nil {
		return nil, operated(op, err)
	}
	list = slices.DeleteFunc(list, func(e RecordEvent) bool { return internal[e.Type] })
	return list, nil
}
