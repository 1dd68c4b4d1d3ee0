package store

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/internal/testdb"
)

var errBoom = errors.New("boom")

func readLevel(to chan<- string) func(context.Context, pgx.Tx) error {
	return func(ctx context.Context, tx pgx.Tx) error {
		var level string
		err := tx.QueryRow(ctx, "show transaction_isolation").Scan(&level)
		to <- level
		return err
	}
}

// completed books a success past seq, and any error as a first failure of it.
func completed(record int64, consumer int32, seq int64) func(error) core.Booking {
	return func(err error) core.Booking {
		b := core.Booking{Checkpoint: core.Checkpoint{Record: record, Consumer: consumer, Seq: seq, State: core.Ready}}
		if err != nil {
			at := time.Date(2031, 1, 2, 3, 4, 5, 0, time.UTC)
			b.Checkpoint.Seq, b.Checkpoint.State, b.Checkpoint.Attempt = seq-1, core.Backoff, 1
			b.Checkpoint.NextAttemptAt, b.Checkpoint.FirstFailedAt, b.Checkpoint.ErrorCode = at, at, "boom"
			b.Failure = &core.Failure{Record: record, Seq: seq, Consumer: consumer, Attempt: 1, At: at, Code: "boom", Message: err.Error()}
		}
		return b
	}
}

// txRig is a record that a transactional consumer is about to get event 1 of.
type txRig struct {
	*rig
	consumer int32
	loaded   core.Loaded
	work     *core.Work
}

func newTxRig(t *testing.T, change ...func(*Config)) *txRig {
	r := newRig(t, change...)
	x := &txRig{rig: r, consumer: r.register(definition("c", func(d *Definition) { d.Transactional = true }))}
	r.sweepAll()
	r.exec("create table effects (n integer unique deferrable initially deferred)")
	x.loaded = r.load(r.claimOne(r.append("r", "t", "t")))
	r.flush1(core.Flush{Record: x.loaded.Record, Token: x.loaded.Token, Head: 2, Upserts: []core.Checkpoint{{Record: x.loaded.Record, Consumer: x.consumer, State: core.Ready}}})
	x.work = &core.Work{Record: x.loaded.Record, Token: x.loaded.Token, Consumer: &core.Consumer{ID: x.consumer}, Events: x.loaded.Events[:1]}
	return x
}

func (x *txRig) run(handler func(context.Context, pgx.Tx) error) core.Outcome {
	x.Helper()
	out := x.RunTx(x.Context(), x.work, handler, completed(x.work.Record, x.consumer, 1))
	x.returned()
	return out
}

// returned: a connection that is destroyed is so in the background.
func (x *txRig) returned() {
	x.Helper()
	testdb.Eventually(x, func() bool { return x.tx.Stat().AcquiredConns() == 0 }, "all connections to be returned")
}

func effect(n int) func(context.Context, pgx.Tx) error {
	return func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "insert into effects values ($1)", n)
		return err
	}
}

func (x *txRig) effects() int64 { x.Helper(); return get[int64](x.rig, "select count(*) from effects") }

// row is the checkpoint row as a word.
func (x *txRig) row() string {
	x.Helper()
	return get[string](x.rig, "select seq || ' ' || state || ' ' || attempt from keyline.checkpoints")
}

func TestAHandlersWritesAndItsCheckpointCommitTogether(t *testing.T) {
	x := newTxRig(t)
	out := x.run(effect(1))
	if out.Err != nil || out.Booked == nil || out.Fenced || x.effects() != 1 || x.row() != "1 ready 0" {
		t.Errorf("%+v, %d effects, row %s", out, x.effects(), x.row())
	}
}

func TestAFailureRollsTheWorkBackAndBooksInTheSameTransaction(t *testing.T) {
	for name, tc := range map[string]struct {
		handler func(context.Context, pgx.Tx) error
		want    func(error) bool
	}{
		"it writes and then fails": {func(ctx context.Context, tx pgx.Tx) error { return errors.Join(effect(1)(ctx, tx), errBoom) },
			func(err error) bool { return errors.Is(err, errBoom) }},
		"an SQL error that it returns": {func(ctx context.Context, tx pgx.Tx) error {
			_ = effect(1)(ctx, tx)
			_, err := tx.Exec(ctx, "select 1/0")
			return err
		}, func(err error) bool { return sqlState(err) == "22012" }},
		"an SQL error that it swallows": {func(ctx context.Context, tx pgx.Tx) error {
			_ = effect(1)(ctx, tx)
			_, _ = tx.Exec(ctx, "select 1/0")
			return nil
		}, func(err error) bool { return errors.Is(err, errSwallowed) }},
		"a lock time-out": {func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "set local lock_timeout = '1ms'")
			if err == nil {
				_, err = tx.Exec(ctx, "lock table busy")
			}
			return err
		}, func(err error) bool { return sqlState(err) == stateLockTimeout }},
		"it rolls a savepoint of its own back": {func(ctx context.Context, tx pgx.Tx) error {
			inner, err := tx.Begin(ctx)
			if err != nil {
				return err
			}
			return errors.Join(effect(1)(ctx, inner), inner.Commit(ctx), errBoom)
		}, func(err error) bool { return errors.Is(err, errBoom) }},
	} {
		t.Run(name, func(t *testing.T) {
			x := newTxRig(t)
			x.exec("create table busy ()")
			lock, err := x.pool.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = lock.Rollback(context.Background()) }()
			if _, err := lock.Exec(t.Context(), "lock table busy"); err != nil {
				t.Fatal(err)
			}
			out := x.run(tc.handler)
			if !tc.want(out.Err) || out.Booked == nil || out.Fenced {
				t.Errorf("%+v", out)
			}
			if x.effects() != 0 || x.row() != "0 backoff 1" || get[int64](x.rig, "select count(*) from keyline.failures") != 1 {
				t.Errorf("%d effects, row %s", x.effects(), x.row())
			}
			if n := x.tx.Stat().TotalConns(); n != 1 {
				t.Errorf("the connection was thrown away: %d", n)
			}
		})
	}
}

func TestAHandlerCannotEndTheTransaction(t *testing.T) {
	x := newTxRig(t)
	var kept pgx.Tx
	out := x.run(func(ctx context.Context, tx pgx.Tx) error {
		kept = tx
		if err := tx.Commit(ctx); !errors.Is(err, errNotYours) {
			t.Errorf("commit: %v", err)
		}
		if err := tx.Rollback(ctx); !errors.Is(err, errNotYours) {
			t.Errorf("rollback: %v", err)
		}
		return effect(1)(ctx, tx)
	})
	if out.Err != nil || out.Booked == nil || x.effects() != 1 {
		t.Errorf("%+v, %d effects", out, x.effects())
	}
	// What a goroutine that it left behind may do with it:
	for what, err := range map[string]error{
		"exec":  func() error { _, err := kept.Exec(t.Context(), "select 1"); return err }(),
		"query": func() error { _, err := kept.Query(t.Context(), "select 1"); return err }(),
		"row":   kept.QueryRow(t.Context(), "select 1").Scan(new(int)),
		"begin": func() error { _, err := kept.Begin(t.Context()); return err }(),
		"batch": kept.SendBatch(t.Context(), &pgx.Batch{}).Close(),
		"copy": func() error {
			_, err := kept.CopyFrom(t.Context(), pgx.Identifier{"effects"}, []string{"n"}, pgx.CopyFromRows(nil))
			return err
		}(),
		"prepare": func() error { _, err := kept.Prepare(t.Context(), "", "select 1"); return err }(),
	} {
		if !errors.Is(err, pgx.ErrTxClosed) {
			t.Errorf("%s after its end: %v", what, err)
		}
	}
}

// Promise: what a handler has begun in its transaction ends with it: a goroutine that it left behind neither writes into a later delivery's transaction nor
// rolls back what that has done so far.
func TestWhatAHandlerHasBegunEndsWithIt(t *testing.T) {
	x := newTxRig(t, func(cfg *Config) { cfg.Pool.MaxConns = 1 })
	var nested, inner pgx.Tx
	out := x.run(func(ctx context.Context, tx pgx.Tx) (err error) {
		if nested, err = tx.Begin(ctx); err != nil {
			return err
		}
		if inner, err = nested.Begin(ctx); err != nil {
			return err
		}
		return effect(1)(ctx, inner)
	})
	if out.Err != nil || out.Booked == nil || x.effects() != 1 {
		t.Fatalf("%+v, %d effects", out, x.effects())
	}
	x.work.Fence, x.work.Events = 1, x.loaded.Events[1:2]
	out = x.RunTx(t.Context(), x.work, func(ctx context.Context, tx pgx.Tx) error {
		later, err := tx.Begin(ctx) // it has the name of the one before
		if err != nil {
			return err
		}
		if err := effect(2)(ctx, later); err != nil {
			return err
		}
		for what, err := range map[string]error{
			"exec":     effect(3)(ctx, nested),
			"deeper":   effect(4)(ctx, inner),
			"begin":    func() error { _, err := nested.Begin(ctx); return err }(),
			"row":      inner.QueryRow(ctx, "select 1").Scan(new(int)),
			"rollback": nested.Rollback(ctx),
			"commit":   inner.Commit(ctx),
		} {
			if !errors.Is(err, pgx.ErrTxClosed) {
				t.Errorf("%s after its end: %v", what, err)
			}
		}
		return later.Commit(ctx)
	}, completed(x.work.Record, x.consumer, 2))
	if out.Err != nil || out.Booked == nil {
		t.Errorf("the later one: %+v", out)
	}
	if n := get[int64](x.rig, "select sum(n) from effects"); n != 3 {
		t.Errorf("effects come to %d, want 1 and 2", n)
	}
}

func TestANestedTransactionOfAHandlerEndsAsItIsTold(t *testing.T) {
	x := newTxRig(t)
	out := x.run(func(ctx context.Context, tx pgx.Tx) error {
		for n, end := range map[int]func(pgx.Tx) error{1: func(n pgx.Tx) error { return n.Commit(ctx) }, 2: func(n pgx.Tx) error { return n.Rollback(ctx) }} {
			nested, err := tx.Begin(ctx)
			if err != nil {
				return err
			}
			if err := errors.Join(effect(n)(ctx, nested), end(nested)); err != nil {
				return err
			}
			if err := nested.Rollback(ctx); !errors.Is(err, pgx.ErrTxClosed) {
				t.Errorf("ended twice: %v", err)
			}
		}
		return nil
	})
	if out.Err != nil || out.Booked == nil || get[int64](x.rig, "select sum(n) from effects") != 1 {
		t.Errorf("%+v", out)
	}
}

func TestAHandlerThatEndsTheTransactionAllTheSameHasFailed(t *testing.T) {
	x := newTxRig(t)
	for _, sql := range []string{"commit", "rollback"} {
		out := x.run(func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, sql)
			return err
		})
		if !errors.Is(out.Err, errEnded) || out.Booked != nil || out.Fenced || x.row() != "0 ready 0" {
			t.Errorf("%s: %+v, row %s", sql, out, x.row())
		}
	}
}

func TestAHandlerThatLeavesRowsOpenHasFailed(t *testing.T) {
	x := newTxRig(t)
	out := x.run(func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Query(ctx, "select generate_series(1, 100000)")
		return err
	})
	if !errors.Is(out.Err, errBusy) || out.Booked != nil || x.row() != "0 ready 0" {
		t.Errorf("%+v, row %s", out, x.row())
	}
	if out := x.run(effect(1)); out.Err != nil || out.Booked == nil {
		t.Errorf("the next one: %+v", out)
	}
}

func TestAPanicGoesThroughAndLeavesNothing(t *testing.T) {
	x := newTxRig(t)
	func() {
		defer func() {
			if v := recover(); v != "oh" {
				t.Errorf("recovered %v", v)
			}
		}()
		x.run(func(ctx context.Context, tx pgx.Tx) error {
			_ = effect(1)(ctx, tx)
			panic("oh")
		})
	}()
	x.returned()
	if x.effects() != 0 || x.row() != "0 ready 0" {
		t.Errorf("%d effects, row %s", x.effects(), x.row())
	}
}

func TestAClaimThatIsLostRunsNoHandler(t *testing.T) {
	x := newTxRig(t)
	x.exec("update keyline.mailboxes set token = nextval('keyline.tokens')")
	out := x.run(func(context.Context, pgx.Tx) error {
		t.Error("it ran")
		return nil
	})
	if !out.Fenced || out.Booked != nil {
		t.Errorf("%+v", out)
	}
}

func TestARefusedCommitIsAFailure(t *testing.T) {
	x := newTxRig(t)
	x.exec("insert into effects values (1)")
	out := x.run(effect(1)) // unique, deferred: seen at commit
	if sqlState(out.Err) != "23505" || out.Booked != nil || out.Fenced || x.effects() != 1 || x.row() != "0 ready 0" {
		t.Errorf("%+v, %d effects, row %s", out, x.effects(), x.row())
	}
}

func TestADeliveryThatHadCommittedBeforeIsBookedAndNotRepeated(t *testing.T) {
	x := newTxRig(t)
	x.run(effect(1))
	out := x.run(effect(2)) // expects row 0, finds 1
	if out.Err != nil || out.Booked == nil || out.Booked.Checkpoint.Seq != 1 || x.effects() != 1 {
		t.Errorf("%+v, %d effects", out, x.effects())
	}
	// Somewhere else altogether: nothing it says counts.
	x.exec("update keyline.checkpoints set seq = 2")
	if out := x.run(effect(3)); !out.Fenced || x.effects() != 1 {
		t.Errorf("%+v, %d effects", out, x.effects())
	}
}

func TestAConnectionLostInTheHandlerIsAnUnbookedFailure(t *testing.T) {
	x := newTxRig(t)
	out := x.run(func(ctx context.Context, tx pgx.Tx) error {
		_ = effect(1)(ctx, tx)
		x.exec("select pg_terminate_backend($1::integer)", int(tx.Conn().PgConn().PID()))
		_, err := tx.Exec(ctx, "select 1")
		return err
	})
	if out.Err == nil || out.Booked != nil || out.Fenced || x.effects() != 0 || x.row() != "0 ready 0" {
		t.Errorf("%+v, %d effects, row %s", out, x.effects(), x.row())
	}
	if out := x.run(effect(1)); out.Booked == nil || out.Err != nil {
		t.Errorf("the next one: %+v", out)
	}
}

func TestPooledConnectionsThatHaveDiedAreNoHandlersFailure(t *testing.T) {
	x := newTxRig(t)
	x.run(func(context.Context, pgx.Tx) error { return errBoom }) // leaves a connection in the pool
	x.exec("select pg_terminate_backend(pid) from pg_stat_activity where application_name = $1", x.applicationName())
	if out := x.run(effect(1)); out.Err != nil || out.Booked == nil {
		t.Errorf("%+v", out)
	}
}

func TestAnOpenTransactionStopsOnlyTheNextClaim(t *testing.T) {
	x := newTxRig(t)
	inside, leave := make(chan struct{}), make(chan struct{})
	outcome := make(chan core.Outcome, 1)
	go func() {
		outcome <- x.RunTx(t.Context(), x.work, func(ctx context.Context, tx pgx.Tx) error {
			close(inside)
			<-leave
			return effect(1)(ctx, tx)
		}, completed(x.work.Record, x.consumer, 1))
	}()
	soon(x.rig, inside, "handler")
	// A flush of the record passes.
	if res := x.flush1(core.Flush{Record: x.work.Record, Token: x.work.Token, Head: 2, Cursor: 0, Clear: true}); res.Status != core.FlushKept {
		t.Errorf("flush: %+v", res)
	}
	// An append passes.
	x.append("r")
	// Recovery passes, and frees the claim.
	other := on(t, x.db)
	if err := x.Leave(t.Context(), x.me); err != nil {
		t.Fatal(err)
	}
	if n, err := other.Recover(t.Context()); n != 1 || err != nil || x.mailbox(x.work.Record) != "due" {
		t.Fatalf("recovery: %d, %v", n, err)
	}
	// A claim passes the record over.
	if got := other.claims(other.me, 10); len(got) != 0 {
		t.Errorf("claimed while the first transaction is open: %v", got)
	}
	close(leave)
	out := soon(x.rig, outcome, "end")
	if out.Booked == nil || out.Err != nil {
		t.Errorf("%+v: its work is done and no other has begun", out)
	}
	if got := other.claims(other.me, 10); len(got) != 1 {
		t.Errorf("claimed afterwards: %v", got)
	}
	if x.effects() != 1 || x.row() != "1 ready 0" {
		t.Errorf("%d effects, row %s", x.effects(), x.row())
	}
}

// newRetryRig has a dead letter of event 1 that is being retried, the row being past it.
func newRetryRig(t *testing.T) (*txRig, func(error) core.Booking) {
	x := newTxRig(t)
	at := time.Date(2031, 1, 2, 3, 4, 5, 0, time.UTC)
	x.exec("update keyline.checkpoints set seq = 2")
	x.exec(`insert into keyline.dead_letters (record_id, seq, consumer_id, event_id, attempt, granted, reason, error_code, first_failed_at, failed_at, status, due_at)
		values ($1, 1, $2, $3, 4, 4, 'exhausted', 'boom', $4, $4, 'retrying', $4)`, x.work.Record, x.consumer, uuid.New(), at)
	l := x.load(core.Claim{Record: x.work.Record, Token: x.work.Token})
	dead := l.Retries[0]
	x.work.Dead, x.work.Checkpoint = &dead, core.Checkpoint{Record: x.work.Record, Consumer: x.consumer, Seq: 2, State: core.Ready}
	return x, func(err error) core.Booking {
		u := core.DeadUpdate{DeadRetry: dead, Status: core.DeadDelivered, At: at}
		u.Attempt = 5
		if err != nil {
			u.Status, u.DueAt = core.DeadWaiting, at
		}
		return core.Booking{Checkpoint: x.work.Checkpoint, Dead: &u}
	}
}

func TestADeadLettersRetryHasTheDeadLetterForItsFence(t *testing.T) {
	x, book := newRetryRig(t)
	out := x.RunTx(t.Context(), x.work, func(ctx context.Context, tx pgx.Tx) error { return errBoom }, book)
	if !errors.Is(out.Err, errBoom) || out.Booked == nil {
		t.Fatalf("%+v", out)
	}
	state := func() string {
		return get[string](x.rig, "select status || ' ' || attempt from keyline.dead_letters")
	}
	if state() != "retrying 5" || x.row() != "2 ready 0" {
		t.Fatalf("dead letter %s, row %s", state(), x.row())
	}
	// A run that expects the attempt before: it is not repeated, and nothing it says counts.
	out = x.RunTx(t.Context(), x.work, effect(1), book)
	if out.Booked != nil || !out.Fenced || x.effects() != 0 {
		t.Errorf("%+v, %d effects", out, x.effects())
	}
	x.work.Dead.Attempt = 5
	out = x.RunTx(t.Context(), x.work, effect(1), book)
	if out.Err != nil || out.Booked == nil || state() != "delivered 5" || x.effects() != 1 || x.row() != "2 ready 0" {
		t.Errorf("%+v, dead letter %s, %d effects, row %s", out, state(), x.effects(), x.row())
	}
	// The same again had committed.
	out = x.RunTx(t.Context(), x.work, effect(2), book)
	if out.Err != nil || out.Booked == nil || x.effects() != 1 {
		t.Errorf("%+v, %d effects", out, x.effects())
	}
}
