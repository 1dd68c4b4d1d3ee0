package store

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/keylinehq/keyline/internal/core"
)

// Statuses of the flush function that are not a core.FlushStatus as they are.
const statusLocked = 4

type flushed struct {
	record        int64
	status        int16
	head          int64
	pending, busy bool
}

func (f flushed) flushStatus() core.FlushStatus {
	return [...]core.FlushStatus{core.FlushKept, core.FlushGone, core.FlushFenced, core.FlushEpoch}[f.status]
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

// flush sends one group commit. batch is sorted by record and of one epoch.
func (s *Store) flush(ctx context.Context, batch []pending, lane int16, number int64) ([]flushed, error) {
	a := newArguments(len(batch))
	for _, p := range batch {
		a.add(&p.flush)
	}
	args, err := a.list(s.workerID(), batch[0].epoch, lane, number)
	if err != nil {
		return nil, err
	}
	results := make([]flushed, 0, len(batch))
	err = autocommit(ctx, s.hot, s.q("flush"), args, func(rows pgx.Rows) error {
		var f flushed
		if err := rows.Scan(&f.record, &f.status, &f.head, &f.pending, &f.busy); err != nil {
			return err
		}
		results = append(results, f)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("flush: %w", err)
	}
	return results, nil
}

// arguments are the flush function's arrays, column by column.
type arguments struct {
	records, tokens, heads, cursors []int64
	dispositions                    []int16
	dues                            []*time.Time
	clears                          []bool
	wanting                         map[string]wanting

	cpRecord, cpSeq, cpLiveFrom                 []int64
	cpConsumer, cpAttempt, cpGranted, cpCrashes []int32
	cpState                                     []string
	cpNext, cpFirst                             []*time.Time
	cpCode                                      []*string
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
		dispositions: make([]int16, 0, n), dues: make([]*time.Time, 0, n), clears: make([]bool, 0, n),
		cpRecord: []int64{}, cpSeq: []int64{}, cpLiveFrom: []int64{}, cpConsumer: []int32{}, cpAttempt: []int32{}, cpGranted: []int32{},
		cpCrashes: []int32{}, cpState: []string{}, cpNext: []*time.Time{}, cpFirst: []*time.Time{}, cpCode: []*string{},
		delRecord: []int64{}, delConsumer: []int32{},
	}
}

func (a *arguments) add(f *core.Flush) {
	a.records, a.tokens = append(a.records, f.Record), append(a.tokens, f.Token)
	a.heads, a.cursors = append(a.heads, f.Head), append(a.cursors, f.Cursor)
	a.dispositions, a.clears = append(a.dispositions, int16(f.Then)), append(a.clears, f.Clear)
	a.dues = append(a.dues, optional(f.DueAt))
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
	for _, c := range f.Counts {
		a.count(c)
	}
}

func (a *arguments) checkpoint(record int64, c *core.Checkpoint) {
	a.cpRecord, a.cpConsumer, a.cpSeq = append(a.cpRecord, record), append(a.cpConsumer, c.Consumer), append(a.cpSeq, c.Seq)
	a.cpState, a.cpAttempt = append(a.cpState, string(c.State)), append(a.cpAttempt, int32(c.Attempt))
	a.cpGranted, a.cpCrashes = append(a.cpGranted, int32(c.Granted)), append(a.cpCrashes, int32(c.Crashes))
	a.cpNext, a.cpFirst = append(a.cpNext, optional(c.NextAttemptAt)), append(a.cpFirst, optional(c.FirstFailedAt))
	a.cpLiveFrom = append(a.cpLiveFrom, c.LiveFrom)
	var code *string
	if c.ErrorCode != "" {
		code = &c.ErrorCode
	}
	a.cpCode = append(a.cpCode, code)
}

// count adds a consumer's counts to the batch's: one row per consumer.
func (a *arguments) count(c core.Counts) {
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
	Consumer    int32      `json:"consumer"`
	Completed   int64      `json:"completed"`
	Failed      int64      `json:"failed"`
	Skipped     int64      `json:"skipped"`
	Dead        int64      `json:"dead"`
	Retried     int64      `json:"retried"`
	LastEvent   *time.Time `json:"last_event"`
	LastSuccess *time.Time `json:"last_success"`
	LastFailure *time.Time `json:"last_failure"`
}

func (c *counts) merge(d core.Counts) {
	c.Completed += d.Completed
	c.Failed += d.Failed
	c.Skipped += d.Skipped
	c.Dead += d.Dead
	c.Retried += d.Retried
	later := func(dst **time.Time, t time.Time) {
		if !t.IsZero() && (*dst == nil || t.After(**dst)) {
			*dst = &t
		}
	}
	later(&c.LastEvent, d.LastEventAt)
	later(&c.LastSuccess, d.LastSuccessAt)
	later(&c.LastFailure, d.LastFailureAt)
}

// list returns the arguments in the order of the flush function.
func (a *arguments) list(worker, epoch int64, lane int16, number int64) ([]any, error) {
	var wanting, extras, counts []byte
	var err error
	if a.wanting != nil {
		if wanting, err = json.Marshal(a.wanting); err != nil {
			return nil, fmt.Errorf("encode wants: %w", err)
		}
	}
	if !a.extras.empty() {
		if extras, err = json.Marshal(a.extras); err != nil {
			return nil, fmt.Errorf("encode outcomes: %w", err)
		}
	}
	if a.counts != nil {
		if counts, err = json.Marshal(a.counts); err != nil {
			return nil, fmt.Errorf("encode counts: %w", err)
		}
	}
	return []any{
		worker, epoch, lane, number,
		a.records, a.tokens, a.heads, a.cursors, a.dispositions, a.dues, a.clears, wanting,
		a.cpRecord, a.cpConsumer, a.cpSeq, a.cpState, a.cpAttempt, a.cpGranted, a.cpCrashes, a.cpNext, a.cpFirst, a.cpCode, a.cpLiveFrom,
		a.delRecord, a.delConsumer, extras, counts,
	}, nil
}
