package store

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/keylinehq/keyline/internal/core"
)

// flushed is what the flush function says of one record.
type flushed struct {
	status  core.FlushStatus
	skipped bool // somebody had the mailbox locked: to be sent again
	again   bool // another record of the batch was fenced or skipped: to be sent again at once
	head    int64
	pending bool
	busy    bool
}

// SetWorker says which incarnation flushes are made for.
func (s *Store) SetWorker(id int64) {
	s.workerMu.Lock()
	defer s.workerMu.Unlock()
	s.worker = id
}

func (s *Store) workerID() int64 {
	s.workerMu.Lock()
	defer s.workerMu.Unlock()
	return s.worker
}

// flush sends one group commit. batch is sorted by record and of one epoch;
// the results are in its order.
func (s *Store) flush(ctx context.Context, batch []pending, lane int16, number int64) ([]flushed, error) {
	a := newArguments(len(batch))
	for i := range batch {
		a.add(batch[i].flush)
	}
	args, err := a.list(s.workerID(), batch[0].epoch, lane, number)
	if err != nil {
		return nil, err
	}
	var r flushReply
	s.calls.flushes.Add(1)
	err = autocommit(ctx, s.flushes, s.q("flush"), args, one(&r.moved, &r.fenced, &r.skipped, &r.gone, &r.looked, &r.heads, &r.waiting))
	if err != nil {
		return nil, fmt.Errorf("flush: %w", err)
	}
	return r.results(batch), nil
}

// flushReply is the flush function's answer: positions in the batch, from 1.
type flushReply struct {
	moved                                  bool
	fenced, skipped, gone, looked, waiting []int32
	heads                                  []int64
}

func (r *flushReply) results(batch []pending) []flushed {
	out := make([]flushed, len(batch))
	refused := len(r.fenced)+len(r.skipped) > 0
	for i := range batch {
		then := batch[i].flush.Then
		out[i] = flushed{again: refused, busy: then == core.Settle || then == core.HandBack}
		if r.moved {
			out[i] = flushed{status: core.FlushEpoch}
		}
	}
	for k, i := range r.looked {
		out[i-1].busy, out[i-1].head = false, r.heads[k]
	}
	for _, i := range r.waiting {
		out[i-1].pending = true
	}
	for _, i := range r.gone {
		out[i-1].status = core.FlushGone
	}
	for _, i := range r.fenced {
		out[i-1] = flushed{status: core.FlushFenced}
	}
	for _, i := range r.skipped {
		out[i-1] = flushed{skipped: true}
	}
	return out
}

// arguments are the flush function's arrays, column by column.
type arguments struct {
	records, tokens, heads, cursors []int64
	dispositions                    []int16
	dues                            []pgtype.Timestamptz
	clears                          []bool
	wanting                         map[string]wanting

	cpRecord, cpSeq, cpLiveFrom                 []int64
	cpConsumer, cpAttempt, cpGranted, cpCrashes []int32
	cpState                                     []string
	cpNext, cpFirst                             []*time.Time
	cpCode                                      []*string
	cpRedeliverTo                               []*int64
	delRecord                                   []int64
	delConsumer                                 []int32
	extras                                      extras
	counts                                      []counts
}

type wanting struct {
	Consumers []int32   `json:"consumers"`
	DueAt     time.Time `json:"due_at"`
}

func newArguments(n int) *arguments {
	return &arguments{
		records: make([]int64, 0, n), tokens: make([]int64, 0, n), heads: make([]int64, 0, n), cursors: make([]int64, 0, n),
		dispositions: make([]int16, 0, n), dues: make([]pgtype.Timestamptz, 0, n), clears: make([]bool, 0, n),
		cpRecord: []int64{}, cpSeq: []int64{}, cpLiveFrom: []int64{}, cpConsumer: []int32{}, cpAttempt: []int32{}, cpGranted: []int32{},
		cpCrashes: []int32{}, cpState: []string{}, cpNext: []*time.Time{}, cpFirst: []*time.Time{}, cpCode: []*string{}, cpRedeliverTo: []*int64{},
		delRecord: []int64{}, delConsumer: []int32{},
	}
}

func (a *arguments) add(f *core.Flush) {
	a.records, a.tokens = append(a.records, f.Record), append(a.tokens, f.Token)
	a.heads, a.cursors = append(a.heads, f.Head), append(a.cursors, f.Cursor)
	a.dispositions, a.clears = append(a.dispositions, int16(f.Then)), append(a.clears, f.Clear)
	a.dues = append(a.dues, dueAt(f))
	if len(f.Wants) > 0 {
		if a.wanting == nil {
			a.wanting = map[string]wanting{}
		}
		a.wanting[strconv.FormatInt(f.Record, 10)] = wanting{f.Wants, f.WantsDueAt}
	}
	for i := range f.Upserts {
		a.checkpoint(f.Record, &f.Upserts[i])
	}
	for _, c := range f.Deletes {
		a.delRecord, a.delConsumer = append(a.delRecord, f.Record), append(a.delConsumer, c)
	}
	a.extras.add(f)
	for i := range f.Counts {
		a.count(&f.Counts[i])
	}
}

// dueAt says when a claim that ends is due again. The array has no nulls, so
// that the function reaches its elements by position.
func dueAt(f *core.Flush) pgtype.Timestamptz {
	t := pgtype.Timestamptz{Time: f.DueAt, Valid: true}
	switch {
	case !f.DueAt.IsZero():
	case f.Then == core.Release:
		t.InfinityModifier = pgtype.NegativeInfinity // now
	default:
		t.InfinityModifier = pgtype.Infinity
	}
	return t
}

func (a *arguments) checkpoint(record int64, c *core.Checkpoint) {
	a.cpRecord, a.cpConsumer, a.cpSeq = append(a.cpRecord, record), append(a.cpConsumer, c.Consumer), append(a.cpSeq, c.Seq)
	a.cpState, a.cpAttempt = append(a.cpState, string(c.State)), append(a.cpAttempt, int32(c.Attempt))
	a.cpGranted, a.cpCrashes = append(a.cpGranted, int32(c.Granted)), append(a.cpCrashes, int32(c.Crashes))
	a.cpNext, a.cpFirst = append(a.cpNext, optional(c.NextAttemptAt)), append(a.cpFirst, optional(c.FirstFailedAt))
	a.cpLiveFrom = append(a.cpLiveFrom, c.LiveFrom)
	a.cpCode = append(a.cpCode, unlessEmpty(c.ErrorCode))
	var redeliverTo *int64
	if c.RedeliverTo != core.RedeliverUnknown {
		redeliverTo = &c.RedeliverTo
	}
	a.cpRedeliverTo = append(a.cpRedeliverTo, redeliverTo)
}

// count adds a consumer's counts to the batch's: one row per consumer.
func (a *arguments) count(c *core.Counts) {
	for i := range a.counts {
		if a.counts[i].Consumer == c.Consumer {
			a.counts[i].merge(c)
			return
		}
	}
	a.counts = append(a.counts, counts{Consumer: c.Consumer})
	a.counts[len(a.counts)-1].merge(c)
}

// counts are a consumer's health deltas, in the shape of the flush function's argument.
type counts struct {
	Consumer    int32     `json:"consumer"`
	Completed   int64     `json:"completed"`
	Failed      int64     `json:"failed"`
	Skipped     int64     `json:"skipped"`
	Dead        int64     `json:"dead"`
	Retried     int64     `json:"retried"`
	LastEvent   time.Time `json:"last_event,omitzero"`
	LastSuccess time.Time `json:"last_success,omitzero"`
	LastFailure time.Time `json:"last_failure,omitzero"`
}

func (c *counts) merge(d *core.Counts) {
	c.Completed += d.Completed
	c.Failed += d.Failed
	c.Skipped += d.Skipped
	c.Dead += d.Dead
	c.Retried += d.Retried
	later := func(dst *time.Time, t time.Time) {
		if t.After(*dst) {
			*dst = t
		}
	}
	later(&c.LastEvent, d.LastEventAt)
	later(&c.LastSuccess, d.LastSuccessAt)
	later(&c.LastFailure, d.LastFailureAt)
}

// jsonText encodes an argument of type jsonb. It is bound as text and cast in the
// statement: bytes are bytea to a driver that does not ask the server for types (behind a pooler).
func jsonText(v any) (*string, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	text := string(b)
	return &text, nil
}

// list returns the arguments in the order of the flush function.
func (a *arguments) list(worker, epoch int64, lane int16, number int64) ([]any, error) {
	var wanting, extras, counts *string
	var err error
	if a.wanting != nil {
		if wanting, err = jsonText(a.wanting); err != nil {
			return nil, fmt.Errorf("wants: %w: %w", errUnencodable, err)
		}
	}
	if !a.extras.empty() {
		if extras, err = jsonText(a.extras); err != nil {
			return nil, fmt.Errorf("outcomes: %w: %w", errUnencodable, err)
		}
	}
	if a.counts != nil {
		if counts, err = jsonText(a.counts); err != nil {
			return nil, fmt.Errorf("counts: %w: %w", errUnencodable, err)
		}
	}
	return []any{
		worker, epoch, lane, number,
		a.records, a.tokens, a.heads, a.cursors, a.dispositions, a.dues, a.clears, wanting,
		a.cpRecord, a.cpConsumer, a.cpSeq, a.cpState, a.cpAttempt, a.cpGranted, a.cpCrashes, a.cpNext, a.cpFirst, a.cpCode, a.cpLiveFrom, a.cpRedeliverTo,
		a.delRecord, a.delConsumer, extras, counts,
	}, nil
}
