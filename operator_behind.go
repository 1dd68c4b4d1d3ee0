package keyline

import (
	"context"

	"github.com/keylinehq/keyline/store"
)

// BehindFilter says which records, and which page of them; its zero fields filter nothing.
type BehindFilter struct {
	// Tenant is nil for all.
	Tenant *string
	// After is the Next of the page before; 0: from the first.
	After int64
	// Limit is the most of a page; 0 means 100.
	Limit int
}

// BehindPage is a page of the records on which a consumer has something to do.
type BehindPage struct {
	Consumer string         `json:"consumer"`
	Records  []BehindRecord `json:"records"`
	// Next is the After of the next page, 0 where this was the last. A page may be
	// short, or empty, and not be the last.
	Next int64 `json:"next"`
}

// BehindRecord is a record, and why the consumer is where it is on it.
type BehindRecord struct {
	Tenant string `json:"tenant"`
	Key    string `json:"key"`
	Head   int64  `json:"head"`
	WhyConsumer
}

// Behind implements Operator.
func (o *operator) Behind(ctx context.Context, consumer string, f BehindFilter) (BehindPage, error) {
	const op = "behind"
	page := BehindPage{Consumer: consumer, Records: []BehindRecord{}}
	if f.Tenant != nil && !o.sees(*f.Tenant) {
		return page, nil
	}
	if f.Tenant == nil {
		f.Tenant = o.cfg.Tenant
	}
	orInt(&f.Limit, defaultList)
	id, list, next, err := o.store.Behind(ctx, consumer, f.Tenant, f.After, f.Limit)
	if err != nil {
		return page, operated(op, err)
	}
	internal, err := o.hidden(ctx)
	if err != nil {
		return page, operated(op, err)
	}
	page.Next = next
	for i := range list {
		conceal(&list[i], internal)
		if r, ok := behind(&list[i], id); ok {
			page.Records = append(page.Records, r)
		}
	}
	return page, nil
}

// behind explains one consumer on one record; not ok where nothing waits there for it.
func behind(v *store.WhyRows, consumer int32) (BehindRecord, bool) {
	for i := range v.Consumers {
		c := &v.Consumers[i]
		if c.ID != consumer {
			continue
		}
		r := BehindRecord{Tenant: v.Key.Tenant, Key: v.Key.Record, Head: v.Head, WhyConsumer: explainConsumer(v, c)}
		return r, r.Reason != ReasonDone
	}
	return BehindRecord{}, false
}
