package store

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// errNotYours is what a handler gets that tries to end the transaction which
// also carries its checkpoint.
var errNotYours = errors.New("keyline: a handler's transaction is ended by the runtime: return nil to commit it, an error to roll it back")

// handlerTx is the transaction as a handler sees it. It cannot be committed or
// rolled back (Begin gives a nested one that can), and is closed when the handler has returned, with all
// that was begun in it, so that a goroutine left behind cannot write into the next user's transaction, nor end parts of it.
type handlerTx struct {
	tx     pgx.Tx
	closed *atomic.Bool // shared with what is nested in it
	nested bool
}

var _ pgx.Tx = (*handlerTx)(nil)

func guardTx(tx pgx.Tx) *handlerTx { return &handlerTx{tx: tx, closed: new(atomic.Bool)} }

func (t *handlerTx) Begin(ctx context.Context) (pgx.Tx, error) {
	if t.closed.Load() {
		return nil, pgx.ErrTxClosed
	}
	tx, err := t.tx.Begin(ctx)
	if err != nil {
		return nil, err
	}
	return &handlerTx{tx: tx, closed: t.closed, nested: true}, nil
}

func (t *handlerTx) Commit(ctx context.Context) error   { return t.end(ctx, t.tx.Commit) }
func (t *handlerTx) Rollback(ctx context.Context) error { return t.end(ctx, t.tx.Rollback) }

func (t *handlerTx) end(ctx context.Context, how func(context.Context) error) error {
	switch {
	case !t.nested:
		return errNotYours
	case t.closed.Load():
		return pgx.ErrTxClosed
	}
	return how(ctx)
}

func (t *handlerTx) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, src pgx.CopyFromSource) (int64, error) {
	if t.closed.Load() {
		return 0, pgx.ErrTxClosed
	}
	return t.tx.CopyFrom(ctx, table, columns, src)
}

func (t *handlerTx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	if t.closed.Load() {
		return pgx.FailedBatchResults(b, pgx.ErrTxClosed)
	}
	return t.tx.SendBatch(ctx, b)
}

// LargeObjects are pgx's own, which lets nobody say by which transaction they are: they are not closed with t.
func (t *handlerTx) LargeObjects() pgx.LargeObjects { return t.tx.LargeObjects() }

func (t *handlerTx) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	if t.closed.Load() {
		return nil, pgx.ErrTxClosed
	}
	return t.tx.Prepare(ctx, name, sql)
}

func (t *handlerTx) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if t.closed.Load() {
		return pgconn.CommandTag{}, pgx.ErrTxClosed
	}
	return t.tx.Exec(ctx, sql, args...)
}

func (t *handlerTx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if t.closed.Load() {
		return nil, pgx.ErrTxClosed
	}
	return t.tx.Query(ctx, sql, args...)
}

func (t *handlerTx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if t.closed.Load() {
		return closedRow{}
	}
	return t.tx.QueryRow(ctx, sql, args...)
}

// Conn is the connection beneath, for what pgx offers on it alone.
func (t *handlerTx) Conn() *pgx.Conn { return t.tx.Conn() }

type closedRow struct{}

func (closedRow) Scan(...any) error { return pgx.ErrTxClosed }
