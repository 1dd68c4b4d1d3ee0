package store

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/keylinehq/keyline/internal/clock"
	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/keylinetype"
)

// Errors of HandleTx transactions that are the handler's doing.
var (
	// errSwallowed: to commit would be to roll back.
	errSwallowed = errors.New("the handler returned nil although a statement of its transaction had failed")
	errEnded     = errors.New("the handler ended its transaction itself")
	errBusy      = errors.New("the handler returned with rows or a batch of its transaction still open")
)

// Errors of HandleTx transactions that nobody has made.
var (
	errUnknown = errors.New("the reply to the commit was lost, and the row by which it could be known was swept away")
	// errNoXact: something between here and the server swallows notices.
	errNoXact = errors.New("the database has not told the transaction's id")
)

const (
	// bookTimeout bounds the statements that follow a handler: its own context
	// may have ended by then, and what it did is to be booked all the same.
	bookTimeout = 30 * time.Second
	// resolveTimeout bounds one look at a transaction in doubt.
	resolveTimeout = 10 * time.Second
)

// RunTx runs a handler in a transaction that also carries the outcome: the
// handler's writes, and what book makes of its error, commit together or not at all.
//
// Where the transaction cannot be begun the handler has not run, and nothing is charged: the Outcome's Err has the
// verdict of a snooze. So it has, with all rolled back, where the handler has succeeded and what its outcome is booked in
// stays locked for longer than the session waits (statement_timeout, lock_timeout). Where the limit is one that the handler has set
// and left, the next try does without.
//
// After a failure the handler's writes are rolled back and the failure is
// booked in the same transaction, under the same hold on the claim. Where that cannot be had (begin or
// commit failed, the connection broke) the Outcome has Err and no Booked: nothing of
// it is in the database, and the next flush books it. Fenced: the claim was lost, or it cannot be known what
// the database has; whoever claims the record next reads it there.
//
// A handler's panic goes through, after the transaction has been rolled back. A panic of somebody else while the outcome is booked
// does not: Fenced.
func (s *Store) RunTx(ctx context.Context, w *core.Work, handler func(context.Context, pgx.Tx) error, book func(error) core.Booking) core.Outcome {
	r := txRun{store: s, w: w, worker: s.workerID(), book: book}
	s.calls.transactions.Add(1)
	tx, err := r.begin(ctx)
	if err != nil {
		return r.notBegun(err)
	}
	defer r.conn.Release() // destroys it unless it is idle and whole
	out := r.run(ctx, tx, handler)
	if out.Booked == nil && out.Err != nil && s.fenced.Load() == r.worker {
		out.Fenced = true // it is this store that has cut the connection: no failure of the handler's
	}
	return out
}

// beginTries is how often a transaction is begun: after a restart of the
// database every pooled connection is dead, which is no handler's failure.
const beginTries = 4

// txRun is one HandleTx transaction.
type txRun struct {
	store  *Store
	w      *core.Work
	worker int64
	conn   *pgxpool.Conn
	book   func(error) core.Booking
	xact   string // the transaction's id
}

// begin begins the transaction, holds the claim and sets the savepoint, in one round trip.
func (r *txRun) begin(ctx context.Context) (pgx.Tx, error) {
	options := pgx.TxOptions{BeginQuery: fmt.Sprintf(r.store.q("begin_hold"), r.w.Record, r.worker, r.w.Token)}
	for try := 1; ; try++ {
		conn, err := r.store.tx.Acquire(ctx)
		if err == nil {
			r.conn = conn
			var tx pgx.Tx
			tx, err = conn.BeginTx(ctx, options)
			r.xact = notedXact(conn.Conn().PgConn())
			if err == nil && r.xact == "" {
				err = errNoXact
			}
			if err == nil {
				return tx, nil
			}
			r.rollback(ctx)
			conn.Release()
		}
		if try == beginTries || ctx.Err() != nil || !unavailable(err) {
			return nil, err
		}
	}
}

// xactNote is where a connection keeps the id of its transaction.
const xactNote = "keyline transaction"

// noteXact keeps what hold says of the transaction: it is the only way back from a statement that begins one.
func noteXact(next pgconn.NoticeHandler) pgconn.NoticeHandler {
	return func(conn *pgconn.PgConn, n *pgconn.Notice) {
		if n.Code == stateXact {
			conn.CustomData()[xactNote] = n.Message
		} else if next != nil {
			next(conn, n)
		}
	}
}

// notedXact is what noteXact has kept; it is told once.
func notedXact(conn *pgconn.PgConn) string {
	id, _ := conn.CustomData()[xactNote].(string)
	delete(conn.CustomData(), xactNote)
	return id
}

// beginPause is the least time until a delivery whose transaction could not be begun, or booked, is tried again; at most twice that.
const beginPause = time.Second

// notBegun is the outcome where the handler did not run. What the server lacks (connections, the time to wait for a lock,
// this role's password or its rights) is no failure of this delivery: charged, a minute of it would make dead letters of all that was due.
func (r *txRun) notBegun(err error) core.Outcome {
	reason := translate("begin", err)
	if lost := sqlState(err) == stateClaimLost; lost || errors.Is(err, context.Canceled) {
		return core.Outcome{Err: reason, Fenced: lost}
	}
	return r.putOff("a handler's transaction could not be begun, and is tried again", reason)
}

// putOff is the outcome where the delivery is not to be charged for what has happened to its transaction.
func (r *txRun) putOff(what string, reason error) core.Outcome {
	r.store.log.Warn(what, "record", r.w.Record, "consumer", r.w.Consumer.Name, "error", reason)
	pause := time.Duration(float64(beginPause) * (1 + r.store.rand.Float64()))
	return core.Outcome{Err: errors.Join(reason, keylinetype.Snooze(pause))}
}

func (r *txRun) run(ctx context.Context, tx pgx.Tx, handler func(context.Context, pgx.Tx) error) core.Outcome {
	whole, err := r.handle(ctx, tx, handler)
	if !whole {
		return core.Outcome{Err: err}
	}
	return r.end(ctx, err, r.book(err))
}

// handle calls the handler and brings the transaction into a state in which
// the outcome can be booked; whole is false where it cannot.
func (r *txRun) handle(ctx context.Context, tx pgx.Tx, handler func(context.Context, pgx.Tx) error) (whole bool, err error) {
	guarded := guardTx(tx)
	returned := false
	patience(r.conn.Conn(), true)
	defer func() {
		guarded.closed.Store(true)
		if !returned { // it panicked
			r.rollback(ctx)
		}
	}()
	err = handler(ctx, guarded)
	returned = true
	patience(r.conn.Conn(), false)

	pg := r.conn.Conn().PgConn()
	switch {
	case pg.IsClosed():
		return false, orElse(err, errors.New("the connection was lost"))
	case pg.IsBusy():
		return false, orElse(err, errBusy)
	case pg.TxStatus() == 'I':
		return false, orElse(err, errEnded)
	case pg.TxStatus() == 'E':
		err = orElse(err, errSwallowed)
	}
	if err == nil {
		return true, nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), bookTimeout)
	defer cancel()
	if _, undoErr := r.conn.Exec(ctx, "rollback to savepoint keyline_handler"); undoErr != nil {
		r.rollback(ctx)
		return false, r.unbooked(err, "roll back to savepoint", undoErr).Err
	}
	return true, err
}

func orElse(err, other error) error {
	if err != nil {
		return err
	}
	return other
}

// end books an outcome and commits, in one round trip: where the booking is refused, the server passes over the commit. What is
// refused is a failure; what was sent without an answer is looked into.
func (r *txRun) end(ctx context.Context, handled error, b core.Booking) (out core.Outcome) {
	batch, err := r.ending(&b)
	if err != nil {
		r.rollback(ctx)
		return r.unbooked(handled, "book", err)
	}
	defer func() {
		if v := recover(); v != nil {
			out = r.interrupted(v)
		}
	}()
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), bookTimeout)
	defer cancel()
	booked, tag, err := send(limited, r.conn, batch)
	switch closed := r.conn.Conn().IsClosed(); {
	case tag.String() == "COMMIT": // whatever came after it
		return core.Outcome{Err: handled, Booked: &b}
	case err == nil:
		return r.unbooked(handled, "commit", pgx.ErrTxCommitRollback)
	case closed:
		return r.resolve(ctx, handled, b, err)
	}
	r.rollback(ctx)
	switch state := sqlState(err); {
	case booked: // a deferred constraint
		return r.unbooked(handled, "commit", err)
	case state == stateNoRow:
		return r.moved(ctx, handled)
	case handled == nil && (state == stateCancelled || state == stateLockTimeout):
		// The handler had done its work; that somebody has locked what it is booked in, for longer than the role waits, is no failure of it.
		r.store.hasty.Store(r.w.Consumer.ID, true) // or the limit was its own
		return r.putOff("a handler's outcome could not be booked; it is rolled back and tried again", translate("book", err))
	case state == statePrivilege:
		err = fmt.Errorf("the handler's session may not book its outcome; a role that it takes on is to be given back (reset role): %w", err)
	}
	return r.unbooked(handled, "book", err)
}

// ending are the statements that book an outcome, and the commit.
func (r *txRun) ending(b *core.Booking) (*pgx.Batch, error) {
	batch := &pgx.Batch{}
	if _, hasty := r.store.hasty.Load(r.w.Consumer.ID); hasty {
		batch.Queue("set local statement_timeout to default")
		batch.Queue("set local lock_timeout to default")
	}
	batch.Queue(r.store.q("pin")) // the handler has planned its statements
	c := &b.Checkpoint
	if r.w.Dead == nil {
		batch.Queue(r.store.q("book_checkpoint"), r.w.Record, r.w.Consumer.ID, r.w.Fence, c.Seq, c.State, c.Attempt, c.Granted, c.Crashes,
			optional(c.NextAttemptAt), optional(c.FirstFailedAt), unlessEmpty(c.ErrorCode), c.LiveFrom, c.RedeliverTo)
	} else {
		batch.Queue(r.store.q("book_retry"), r.w.Dead.ID, r.w.Dead.Attempt)
	}
	var x extras
	x.booking(b)
	if !x.empty() {
		encoded, err := jsonText(x)
		if err != nil {
			return nil, fmt.Errorf("outcome: %w: %w", errUnencodable, err)
		}
		batch.Queue(r.store.q("book_extras"), r.worker, r.w.Record, encoded)
	}
	batch.Queue("commit")
	return batch, nil
}

// send sends a batch whose last statement is a commit; booked is true where all before it went well.
func send(ctx context.Context, conn *pgxpool.Conn, batch *pgx.Batch) (booked bool, tag pgconn.CommandTag, err error) {
	results := conn.SendBatch(ctx, batch)
	for i := range batch.Len() {
		booked = i == batch.Len()-1
		if tag, err = results.Exec(); err != nil {
			break
		}
	}
	return booked, tag, errors.Join(err, results.Close())
}

// unbooked is a plain failure of which the database has nothing. The handler's
// own error, if any, is what counts.
func (r *txRun) unbooked(handled error, what string, err error) core.Outcome {
	if handled == nil {
		return core.Outcome{Err: translate(what, err)}
	}
	r.store.log.Warn("an outcome could not be booked in its transaction", "record", r.w.Record, "step", what, "error", err)
	return core.Outcome{Err: handled}
}

// interrupted is the outcome where the program's own code (the tracer of its pool, its logger) has panicked while the outcome was
// booked. To pass it on would be to charge the handler, and to run it again, for what may have committed.
func (r *txRun) interrupted(value any) (out core.Outcome) {
	out.Fenced = true
	defer func() { _ = recover() }() // of the logger
	r.store.log.Error("a panic while a handler's outcome was booked; the database knows whether it is", "record", r.w.Record,
		"consumer", r.w.Consumer.Name, "panic", fmt.Sprint(value), "stack", string(debug.Stack()))
	return out
}

// rollback leaves an idle connection behind, or a closed one.
func (r *txRun) rollback(ctx context.Context) {
	conn := r.conn.Conn()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeGrace)
	defer cancel()
	if conn.IsClosed() || conn.PgConn().TxStatus() == 'I' && !conn.PgConn().IsBusy() {
		return
	}
	if !conn.PgConn().IsBusy() {
		if _, err := conn.Exec(ctx, "rollback"); err == nil {
			return
		}
	}
	if err := conn.Close(ctx); err != nil {
		r.store.log.Debug("close connection", "error", err)
	}
}

// resolve finds out what became of a commit whose reply was lost, or which has perhaps not arrived yet. The server tells it by the
// transaction's id, or else the row. Where it committed and the row has something else (disabling has swept it away), it is not
// known what the delivery is to be now: it is not charged, and begins where the row is then found.
func (r *txRun) resolve(ctx context.Context, handled error, b core.Booking, cause error) core.Outcome {
	pid := r.conn.Conn().PgConn().PID()
	r.store.log.Warn("the reply to a commit was lost", "record", r.w.Record, "error", cause)
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		found, err := r.look(ctx, pid, r.xact)
		switch {
		case err == nil && found.fate == inProgress: // its session ends, and sees nothing of this end before
		case err == nil && !found.mine:
			return core.Outcome{Fenced: true}
		case err == nil && found.fate == "aborted":
			return r.unbooked(handled, "commit", cause)
		case err == nil && found.has(r.w, &b):
			return core.Outcome{Err: handled, Booked: &b}
		case err == nil:
			return core.Outcome{Err: errors.Join(handled, errUnknown), Cancelled: true}
		}
		if sleepErr := clock.Sleep(ctx, r.store.clock, pause); sleepErr != nil {
			// To say that it failed could undo what was committed.
			return core.Outcome{Fenced: true}
		}
	}
}

// moved decides where the row was not where it was expected: this delivery
// had committed before, or the claim is lost.
func (r *txRun) moved(ctx context.Context, handled error) core.Outcome {
	found, err := r.look(ctx, 0, "")
	if err != nil || !found.mine || !found.row {
		return core.Outcome{Err: errors.Join(handled, err), Fenced: true}
	}
	b := r.book(nil)
	if found.has(r.w, &b) {
		return core.Outcome{Booked: &b}
	}
	return core.Outcome{Err: handled, Fenced: true}
}

// found is what the database has of a delivery.
type found struct {
	mine, row                 bool
	seq                       int64
	state                     string
	attempt, granted, crashes int
	due                       *time.Time
	fate                      string // of the transaction; empty where it is not known
}

// has reports whether the database has what b says.
func (f *found) has(w *core.Work, b *core.Booking) bool {
	seq, state, attempt, granted, crashes, due := b.Checkpoint.Seq, string(b.Checkpoint.State), b.Checkpoint.Attempt, b.Checkpoint.Granted,
		b.Checkpoint.Crashes, b.Checkpoint.NextAttemptAt
	if w.Dead != nil {
		seq, state, attempt, granted, crashes, due = f.seq, string(b.Dead.Status), b.Dead.Attempt, b.Dead.Granted, b.Dead.Crashes, b.Dead.DueAt
		if b.Dead.Status != core.DeadWaiting {
			due = time.Time{}
		}
	}
	return f.row && f.seq == seq && f.state == state && f.attempt == attempt && f.granted == granted && f.crashes == crashes &&
		value(f.due).Sub(due).Abs() <= time.Microsecond
}

// inProgress is a transaction's fate while it has none: what has been sent may not have been carried out yet.
const inProgress = "in progress"

// look reads what became of transaction xact, if it is not "", and then what the database has: in this order, as what is read
// of a transaction that has ended is the last of it. The session with process id pid, if not 0, is ended first: its client is gone.
func (r *txRun) look(ctx context.Context, pid uint32, xact string) (f found, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), resolveTimeout)
	defer cancel()
	s := r.store
	err = pgx.BeginTxFunc(ctx, s.hot, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, s.q("pin")); err != nil {
			return err
		}
		if pid != 0 {
			if _, err := tx.Exec(ctx, s.q("end_session"), int64(pid), s.applicationName()); err != nil {
				return err
			}
		}
		if xact != "" {
			var fate *string
			if err := tx.QueryRow(ctx, s.q("xact_fate"), xact).Scan(&fate); err != nil {
				return err
			}
			if fate != nil {
				f.fate = *fate
			}
			if f.fate == inProgress {
				return nil
			}
		}
		var row pgx.Row
		if r.w.Dead == nil {
			row = tx.QueryRow(ctx, s.q("booked_checkpoint"), r.w.Record, r.w.Consumer.ID)
		} else {
			row = tx.QueryRow(ctx, s.q("booked_retry"), r.w.Dead.ID)
		}
		switch err := row.Scan(&f.seq, &f.state, &f.attempt, &f.granted, &f.crashes, &f.due); {
		case errors.Is(err, pgx.ErrNoRows):
		case err != nil:
			return err
		default:
			f.row = true
		}
		return tx.QueryRow(ctx, s.q("still_mine"), r.w.Record, r.worker, r.w.Token).Scan(&f.mine)
	})
	return f, translate("look at a transaction in doubt", err)
}
