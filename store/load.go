package store

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/keylinehq/keyline/internal/core"
)

// pgtypeTime reads a timestamp that may be infinite.
type pgtypeTime struct{ pgtype.Timestamptz }

// finite returns the time, or zero where it is null or infinite.
func (t pgtypeTime) finite() time.Time {
	if !t.Valid || t.InfinityModifier != pgtype.Finite {
		return time.Time{}
	}
	return t.Time
}

// Load implements core.Deliveries. It runs after the claim has committed, as
// one pipelined round trip without locks (two, where a consumer stands elsewhere than the record's cursor); the claim keeps everybody
// else from changing what it reads, but for sweeps, which a flush finds out by the registry's epoch.
func (s *Store) Load(ctx context.Context, requests []core.LoadRequest) ([]core.Loaded, error) {
	if len(requests) == 0 {
		return nil, nil
	}
	ids, tokens, limit := make([]int64, len(requests)), make([]int64, len(requests)), 0
	for i, r := range requests {
		ids[i], tokens[i], limit = r.Record, r.Token, max(limit, r.Limit)
	}
	asked := limit
	limit = s.ahead.most(limit)
	l := newLoading(len(requests), asked, limit)
	s.calls.loads.Add(1)
	err := s.read(ctx, s.loads, func(b *pgx.Batch) {
		b.Queue(s.q("load_records"), ids, tokens, limit).Query(each(func(rows pgx.Rows) error { return l.record(rows) }))
		b.Queue(s.q("load_checkpoints"), ids).Query(each(l.checkpoint))
		b.Queue(s.q("load_commands"), ids).Query(each(l.command))
		b.Queue(s.q("load_retries"), ids).Query(each(l.retry))
	})
	if behind := l.elsewhere(); err == nil && len(behind) > 0 {
		err = s.read(ctx, s.loads, func(b *pgx.Batch) { b.Queue(s.q("load_behind"), behind, limit).Query(each(l.behind)) })
	}
	if err != nil {
		return nil, translate("load", err)
	}
	s.ahead.read(l.dropped)
	l.order()
	return s.sound(l.loaded), nil
}

// sound leaves out records whose position is beyond their stream, as after a restore that was not whole: events that are
// appended until it is reached would be passed over without a word. Their claims have no holder then, and come again.
func (s *Store) sound(loaded []core.Loaded) []core.Loaded {
	beyond := func(l core.Loaded) bool { return l.Base > l.Head }
	i := slices.IndexFunc(loaded, beyond)
	if i < 0 {
		return loaded
	}
	all, first := len(loaded), loaded[i]
	loaded = slices.DeleteFunc(loaded, beyond)
	s.log.Error("records have a position beyond their last event, and are not delivered: `keyline verify` lists them",
		"records", all-len(loaded), "record", first.Record, "position", first.Base, "head", first.Head)
	return loaded
}

// LoadEvents implements core.Deliveries.
func (s *Store) LoadEvents(ctx context.Context, ranges []core.EventRange) ([]core.Event, error) {
	ids, froms, limits := make([]int64, len(ranges)), make([]int64, len(ranges)), make([]int32, len(ranges))
	rations, dropped := make(map[position]*ration, len(ranges)), 0
	for i, r := range ranges {
		most := s.ahead.most(r.Limit)
		ids[i], froms[i], limits[i] = r.Record, r.From, int32(most)
		rations[position{r.Record, r.From}] = &ration{limit: most, asked: r.Limit}
	}
	var events []core.Event
	err := s.read(ctx, s.hot, func(b *pgx.Batch) {
		b.Queue(s.q("load_range"), ids, froms, limits).Query(each(func(rows pgx.Rows) error {
			var e core.Event
			var from int64
			if err := scanEvent(rows, &e, &e.Tenant, &e.Event.Key.Record, &from); err != nil {
				return err
			}
			if !rations[position{e.Record, from}].take(&events, e) {
				dropped++
			}
			return nil
		}))
	})
	if err == nil {
		s.ahead.read(dropped)
	}
	return events, translate("load events", err)
}

// each calls f for every row.
func each(f func(pgx.Rows) error) func(pgx.Rows) error {
	return func(rows pgx.Rows) error {
		defer rows.Close()
		for rows.Next() {
			if err := f(rows); err != nil {
				return err
			}
		}
		return rows.Err()
	}
}

// loading collects the parts of a Load by record.
type loading struct {
	place  map[int64]int
	loaded []core.Loaded
	row    recordRow

	asked, limit int                  // of events above each position: what was asked for, and what is read
	bases        []ration             // of the events above the base, by place
	rows         map[position]*ration // of those above rows
	dropped      int
}

func newLoading(records, asked, limit int) *loading {
	return &loading{place: make(map[int64]int, records), loaded: make([]core.Loaded, 0, records), asked: asked, limit: limit,
		bases: make([]ration, 0, records)}
}

// recordRow is what the rows of load_records are read into, one after the
// other, without allocations: they are most of what is read.
type recordRow struct {
	record               core.Loaded
	tenant, key          pgtype.DriverBytes
	seq                  pgtype.Int8
	id                   pgtype.UUID
	kind                 pgtype.DriverBytes
	version              pgtype.Int4
	payload              []byte
	headers              pgtype.DriverBytes
	occurred, created    pgtype.Timestamptz
	into                 []any
	lastKind, lastTenant string
}

func (r *recordRow) scan(rows pgx.Rows, more []any) error {
	if r.into == nil {
		l := &r.record
		r.into = []any{&l.Record, &l.Token, &l.Crashes, &l.Unclean, &r.tenant, &r.key, &l.Head, &l.Base, &l.Epoch,
			&r.seq, &r.id, &r.kind, &r.version, &r.payload, &r.headers, &r.occurred, &r.created}
	}
	return rows.Scan(append(r.into, more...)...)
}

// shared returns b as a string, without a new one where it says the same as the last.
func shared(last *string, b []byte) string {
	if string(b) != *last {
		*last = string(b)
	}
	return *last
}

func (l *loading) of(record int64) *core.Loaded {
	i, ok := l.place[record]
	if !ok {
		return nil
	}
	return &l.loaded[i]
}

// record takes a record's row, once for each of its events; more are the columns after its own.
func (l *loading) record(rows pgx.Rows, more ...any) error {
	r := &l.row
	if err := r.scan(rows, more); err != nil {
		return err
	}
	of := l.of(r.record.Record)
	if of == nil {
		r.record.Tenant, r.record.Key = shared(&r.lastTenant, r.tenant), string(r.key)
		l.place[r.record.Record] = len(l.loaded)
		l.loaded, l.bases = append(l.loaded, r.record), append(l.bases, ration{limit: l.limit, asked: l.asked})
		of = &l.loaded[len(l.loaded)-1]
	}
	if !r.seq.Valid {
		return nil
	}
	e := core.Event{Record: r.record.Record}
	e.Tenant, e.Event.Key.Record = of.Tenant, of.Key
	e.Seq, e.ID, e.Type, e.Version = r.seq.Int64, r.id.Bytes, shared(&r.lastKind, r.kind), int(r.version.Int32)
	e.Payload, e.OccurredAt, e.CreatedAt = r.payload, r.occurred.Time, r.created.Time
	if err := scanHeaders(r.headers, &e.Headers); err != nil {
		return err
	}
	if !l.bases[l.place[e.Record]].take(&of.Events, e) {
		l.dropped++
	}
	return nil
}

func (l *loading) checkpoint(rows pgx.Rows) error {
	var (
		c           core.Checkpoint
		next, first *time.Time
	)
	if err := rows.Scan(&c.Record, &c.Consumer, &c.Seq, &c.State, &c.Attempt, &c.Granted, &c.Crashes, &next, &first, &c.ErrorCode, &c.LiveFrom, &c.RedeliverTo); err != nil {
		return err
	}
	c.NextAttemptAt, c.FirstFailedAt = value(next), value(first)
	if r := l.of(c.Record); r != nil {
		r.Checkpoints = append(r.Checkpoints, c)
	}
	return nil
}

func (l *loading) command(rows pgx.Rows) error {
	var (
		c     core.Command
		d     core.DeadRetry
		id    *int64
		first *time.Time
	)
	if err := rows.Scan(&c.ID, &c.Record, &c.Kind, &c.Consumer, &c.Seq, &c.DeadLetter, &c.Reason, &c.Actor,
		&id, &d.Attempt, &d.Granted, &d.Crashes, &first, &d.ErrorCode, &c.DeadOpen); err != nil {
		return err
	}
	if id != nil {
		d.ID, d.Record, d.Consumer, d.Seq, d.FirstFailedAt = *id, c.Record, c.Consumer, c.Seq, value(first)
		c.Dead = &d
	}
	if r := l.of(c.Record); r != nil {
		r.Commands = append(r.Commands, c)
	}
	return nil
}

func (l *loading) retry(rows pgx.Rows) error {
	var d core.DeadRetry
	if err := rows.Scan(&d.ID, &d.Record, &d.Consumer, &d.Seq, &d.Attempt, &d.Granted, &d.Crashes, &d.Started, &d.DueAt, &d.FirstFailedAt, &d.ErrorCode); err != nil {
		return err
	}
	if r := l.of(d.Record); r != nil {
		r.Retries = append(r.Retries, d)
	}
	return nil
}

// elsewhere are the records that have a row from which a consumer may go on, and which is not at the base.
func (l *loading) elsewhere() (ids []int64) {
	for i := range l.loaded {
		r := &l.loaded[i]
		if slices.ContainsFunc(r.Checkpoints, func(c core.Checkpoint) bool { return c.State != core.Parked && c.Seq != r.Base }) {
			ids = append(ids, r.Record)
		}
	}
	return ids
}

func (l *loading) behind(rows pgx.Rows) error {
	var e core.Event
	var from int64
	if err := scanEvent(rows, &e, &from); err != nil {
		return err
	}
	r := l.of(e.Record)
	if r == nil {
		return nil
	}
	e.Tenant, e.Event.Key.Record = r.Tenant, r.Key
	at := position{e.Record, from}
	if l.rows[at] == nil {
		if l.rows == nil {
			l.rows = map[position]*ration{}
		}
		l.rows[at] = &ration{limit: l.limit, asked: l.asked}
	}
	if !l.rows[at].take(&r.Events, e) {
		l.dropped++
	}
	return nil
}

// order sorts the events of records that have been read from several
// positions, whose ranges may overlap, and commands and retries by age. (In the statements it would be a reason to read another index.)
func (l *loading) order() {
	// Of two of one event, the one that is a cut comes first, and stays.
	bySeq := func(a, b core.Event) int {
		if c := cmp.Compare(a.Seq, b.Seq); c != 0 || a.Cut == b.Cut {
			return c
		}
		if a.Cut {
			return -1
		}
		return 1
	}
	same := func(a, b core.Event) bool { return a.Seq == b.Seq }
	for i := range l.loaded {
		r := &l.loaded[i]
		slices.SortFunc(r.Commands, func(a, b core.Command) int { return cmp.Compare(a.ID, b.ID) })
		slices.SortFunc(r.Retries, func(a, b core.DeadRetry) int { return cmp.Compare(a.ID, b.ID) })
		if len(r.Events) > 1 {
			slices.SortStableFunc(r.Events, bySeq)
			r.Events = slices.CompactFunc(r.Events, same)
		}
	}
}

func scanEvent(rows pgx.Rows, e *core.Event, more ...any) error {
	var headers []byte
	dst := append([]any{&e.Record}, &e.Seq, (*[16]byte)(&e.ID), &e.Type, &e.Version, (*[]byte)(&e.Payload),
		&headers, &e.OccurredAt, &e.CreatedAt)
	if err := rows.Scan(append(dst, more...)...); err != nil {
		return err
	}
	return scanHeaders(headers, &e.Headers)
}

// scanHeaders spares most events a JSON decoder: most have no headers.
func scanHeaders(raw []byte, dst *map[string]string) error {
	if len(raw) == 2 {
		return nil
	}
	if err := json.Unmarshal(raw, dst); err != nil {
		return errors.Join(errors.New("headers are not an object of strings"), fmt.Errorf("decode headers: %w", err))
	}
	return nil
}
