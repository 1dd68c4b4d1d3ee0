package store

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/keylinehq/keyline/internal/core"
)

// begin begins an application's transaction, which ends with the test.
func (r *rig) begin() pgx.Tx {
	r.Helper()
	conn := r.session
	if conn == nil {
		conn = r.db.Connect()
	}
	tx, err := conn.Begin(r.Context())
	if err != nil {
		r.Fatal(err)
	}
	return tx
}

// in runs a statement in a transaction.
func (r *rig) in(tx pgx.Tx, sql string, args ...any) {
	r.Helper()
	if _, err := tx.Exec(r.Context(), r.named(sql), args...); err != nil {
		r.Fatalf("%s: %v", sql, err)
	}
}

func (r *rig) commit(tx pgx.Tx) {
	r.Helper()
	if err := tx.Commit(r.Context()); err != nil {
		r.Fatal(err)
	}
}

func (r *rig) rollbackTx(tx pgx.Tx) {
	r.Helper()
	if err := tx.Rollback(r.Context()); err != nil {
		r.Fatal(err)
	}
}

// background runs f and gives its result.
func background[T any](f func() T) <-chan T {
	done := make(chan T, 1)
	go func() { done <- f() }()
	return done
}

// send hands a flush to the committer.
func (r *rig) send(f core.Flush, epoch int64) <-chan core.FlushResult {
	done := make(chan core.FlushResult, 1)
	r.Flush(&f, epoch, func(res core.FlushResult) { done <- res })
	return done
}

// together hands flushes to the committer so that they come into one batch: it
// is kept busy until all are queued.
func (r *rig) together(flushes ...core.Flush) []<-chan core.FlushResult {
	r.Helper()
	epoch := r.epoch()
	plug := core.Flush{Record: 1_000_000, Token: -1}
	gate := r.begin()
	r.in(gate, "select pg_advisory_xact_lock(keyline.barrier_key())")
	plugged := r.send(plug, epoch)
	r.blocked(".flush(")
	var waits []<-chan core.FlushResult
	for _, f := range flushes {
		waits = append(waits, r.send(f, epoch))
	}
	r.commit(gate)
	soon(r, plugged, "the flush that held the committer up")
	return waits
}

// appendTo appends to n new records.
func (r *rig) appendTo(prefix string, n int) (ids []int64) {
	r.Helper()
	for i := range n {
		ids = append(ids, r.append(prefix+keyOf(i)))
	}
	return ids
}

// box is a record's mailbox.
type box struct {
	exists, due, unclean, endless bool
	claimedBy                     int64
	token, cursor                 int64
	crashes                       int
	wants                         []int32
	dueIn                         float64 // seconds
}

func (r *rig) box(record int64) (b box) {
	r.Helper()
	err := r.pool.QueryRow(r.Context(), r.named(`select true, due_at <= clock_timestamp(), unclean, due_at = 'infinity', coalesce(claimed_by, 0),
		token, cursor, crashes, wants, case when due_at = 'infinity' then 0 else extract(epoch from due_at - clock_timestamp()) end::double precision
		from keyline.mailboxes where record_id = $1`), record).
		Scan(&b.exists, &b.due, &b.unclean, &b.endless, &b.claimedBy, &b.token, &b.cursor, &b.crashes, &b.wants, &b.dueIn)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		r.Fatal(err)
	}
	return b
}

// row is a consumer's checkpoint row; nil: it has none.
func (r *rig) row(record int64, consumer int32) *core.Checkpoint {
	r.Helper()
	var c core.Checkpoint
	err := r.pool.QueryRow(r.Context(), r.named(`select record_id, consumer_id, seq, state, attempt, granted, crashes, coalesce(error_code, ''), live_from, coalesce(redeliver_to, -1)
		from keyline.checkpoints where record_id = $1 and consumer_id = $2`), record, consumer).
		Scan(&c.Record, &c.Consumer, &c.Seq, &c.State, &c.Attempt, &c.Granted, &c.Crashes, &c.ErrorCode, &c.LiveFrom, &c.RedeliverTo)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	if err != nil {
		r.Fatal(err)
	}
	return &c
}

// count counts rows; where may be empty.
func (r *rig) count(table, where string, args ...any) int {
	r.Helper()
	if where != "" {
		where = " where " + where
	}
	return get[int](r, "select count(*) from keyline."+table+where, args...)
}

// noneStranded fails if a record has events above its cursor and no mailbox:
// nobody would ever come to it.
func (r *rig) noneStranded() {
	r.Helper()
	if n := r.count("records r", "r.head > r.cursor and not exists (select from keyline.mailboxes m where m.record_id = r.id)"); n != 0 {
		r.Errorf("%d records have events and no mailbox", n)
	}
}

// appendRaw appends outside the test's goroutine.
func appendRaw(ctx context.Context, on execer, key string) error {
	var seq int64
	return on.QueryRow(ctx, "select seq from keyline.append($1, 't', '{}')", key).Scan(&seq)
}

// sub is the rig for a part of its test.
func (r *rig) sub(t *testing.T) *rig {
	s := *r
	s.T = t
	return &s
}

// settleAt asks to settle a claimed record at a head.
func settleAt(c core.Claim, head int64) core.Flush {
	return core.Flush{Record: c.Record, Token: c.Token, Head: head, Cursor: head, Then: core.Settle}
}

// backoff is a checkpoint whose next event is due again at a time.
func backoff(consumer int32, seq int64, attempt int, due time.Time) core.Checkpoint {
	return core.Checkpoint{Consumer: consumer, Seq: seq, State: core.Backoff, Attempt: attempt, NextAttemptAt: due, FirstFailedAt: due, ErrorCode: "error"}
}

// flushIn is a group commit of one record whose transaction stays open.
func (r *rig) flushIn(tx pgx.Tx, f core.Flush) {
	r.Helper()
	a := newArguments(1)
	a.add(&f)
	args, err := a.list(r.me, r.epoch(), 0, 1_000_000)
	if err != nil {
		r.Fatal(err)
	}
	if _, err := tx.Exec(r.Context(), r.q("flush"), args...); err != nil {
		r.Fatal(err)
	}
}
