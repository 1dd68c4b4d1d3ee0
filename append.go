package keyline

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/google/uuid"
)

// Append appends an event to its record's stream, in db's transaction. The
// record's row stays locked until that transaction ends: which is why seq order
// is commit order, and why a slow transaction delays its own record only.
//
// Errors are of type *Error. ErrInvalid: the event can never be accepted, or is
// another tenant's than the client's. ErrConflict: the record has another seq
// than ExpectedSeq; the idempotency key or the ID was used for something else;
// or the transaction must be run again (CodeSerialization, CodeDeadlock).
// ErrUnavailable: the database does not serve now.
func (c *Client) Append(ctx context.Context, db PGX, event NewEvent) (Appended, error) {
	if db == nil {
		return Appended{}, noDatabase(appendOperation)
	}
	return c.append(ctx, pgxQuery(db), event)
}

// AppendMany appends several events in one round trip; the results are in the
// order of the events. Events of one record keep their order. Records are
// locked in the order of their names, so that calls over the same records wait for each
// other and cannot deadlock. Either all are appended or none is. Many events of one record in one transaction cost more
// each the more there are (each writes a version of the record's row): a thousand at a time are well, ten thousand take two to three times as long for each. Errors are as
// with Append; Field names the event where it is known. No events: no round trip.
func (c *Client) AppendMany(ctx context.Context, db PGX, events []NewEvent) ([]Appended, error) {
	if db == nil {
		return nil, noDatabase(appendOperation)
	}
	return c.appendMany(ctx, pgxQuery(db), events)
}

// AppendSQL is Append for database/sql.
func (c *Client) AppendSQL(ctx context.Context, db SQL, event NewEvent) (Appended, error) {
	if db == nil {
		return Appended{}, noDatabase(appendOperation)
	}
	return c.append(ctx, sqlQuery(db), event)
}

// AppendManySQL is AppendMany for database/sql.
func (c *Client) AppendManySQL(ctx context.Context, db SQL, events []NewEvent) ([]Appended, error) {
	if db == nil {
		return nil, noDatabase(appendOperation)
	}
	return c.appendMany(ctx, sqlQuery(db), events)
}

func noDatabase(op string) error {
	err := wrong("db", "is nil")
	err.op = op
	return err
}

func (c *Client) append(ctx context.Context, run query, event NewEvent) (a Appended, err error) {
	ctx, end := c.watch.start(ctx, []NewEvent{event})
	var p prepared
	defer func() { end([]prepared{p}, []Appended{a}, err) }()
	if p, err = c.check.prepare(ctx, event, -1); err != nil {
		return Appended{}, withOp(appendOperation, err)
	}
	a, err = c.appendOne(ctx, run, p)
	return a, translate(appendOperation, err)
}

func (c *Client) appendOne(ctx context.Context, run query, p prepared) (Appended, error) {
	headers, err := json.Marshal(p.headers)
	if err != nil {
		return Appended{}, err
	}
	args := []any{optional(p.record), p.eventType, string(p.payload), p.tenant, p.version, string(headers),
		optional(p.idempotencyKey), optional(p.id), optional(p.occurredAt), nil}
	if p.expectedSeq != nil {
		args[9] = *p.expectedSeq
	}
	results := make([]Appended, 0, 1)
	if err := run(ctx, c.sql.Append, args, collect(&results, []prepared{p})); err != nil {
		return Appended{}, err
	}
	if err := complete(results, 1); err != nil {
		return Appended{}, err
	}
	return results[0], nil
}

func (c *Client) appendMany(ctx context.Context, run query, events []NewEvent) (list []Appended, err error) {
	if len(events) == 0 {
		return nil, nil
	}
	ctx, end := c.watch.start(ctx, events)
	batch := make([]prepared, len(events))
	defer func() { end(batch, list, err) }()
	for i, e := range events {
		if batch[i], err = c.check.prepare(ctx, e, i); err != nil {
			return nil, withOp(appendOperation, err)
		}
	}
	text, err := json.Marshal(batch)
	if err != nil {
		return nil, withOp(appendOperation, err)
	}
	results := make([]Appended, 0, len(batch))
	if err := run(ctx, c.sql.AppendMany, []any{string(text)}, collect(&results, batch)); err != nil {
		return nil, translate(appendOperation, err)
	}
	return results, translate(appendOperation, complete(results, len(batch)))
}

// collect reads append's rows, which come in the order of the events.
func collect(results *[]Appended, batch []prepared) func(func(...any) error) error {
	return func(scan func(...any) error) error {
		var (
			a  Appended
			id string
		)
		if err := scan(&id, &a.Seq, &a.Duplicate); err != nil {
			return err
		}
		if len(*results) == len(batch) {
			return errTooManyRows
		}
		p := batch[len(*results)]
		var err error
		if a.ID, err = uuid.Parse(id); err != nil {
			return err
		}
		a.Key = Key{Tenant: p.tenant, Record: p.record}
		if p.record == "" {
			a.Key.Record = id
		}
		*results = append(*results, a)
		return nil
	}
}

var (
	errTooManyRows = errors.New("append returned more rows than events")
	errTooFewRows  = errors.New("append returned fewer rows than events")
)

func complete(results []Appended, want int) error {
	if len(results) != want {
		return errTooFewRows
	}
	return nil
}

// optional is null for the empty string.
func optional(s string) any {
	if s == "" {
		return nil
	}
	return s
}

func withOp(op string, err error) error {
	if own := (*Error)(nil); errors.As(err, &own) && own.op == "" {
		own.op = op
	}
	return err
}
