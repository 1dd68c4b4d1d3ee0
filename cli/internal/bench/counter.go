package bench

import (
	"context"
	"strings"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
)

// counter counts what a worker's pgx connections send, where the server does not.
type counter struct{ statements, commits atomic.Int64 }

func (t *counter) now() costs {
	return costs{statements: t.statements.Load(), commits: t.commits.Load()}
}

func (t *counter) restart() {
	t.statements.Store(0)
	t.commits.Store(0)
}

// count leaves out what begins and ends transactions, as the server's count does (statements.sql).
func (t *counter) count(sql string) {
	switch {
	case sql == "commit":
		t.commits.Add(1)
	case sql == "rollback", strings.HasPrefix(sql, "begin"):
	default:
		t.statements.Add(1)
	}
}

// TraceQueryStart implements pgx.QueryTracer.
func (t *counter) TraceQueryStart(ctx context.Context, conn *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	t.count(q.SQL)
	if conn.PgConn().TxStatus() == 'I' && !strings.HasPrefix(q.SQL, "begin") {
		t.commits.Add(1) // it is a transaction by itself
	}
	return ctx
}

// TraceQueryEnd implements pgx.QueryTracer.
func (*counter) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// TraceBatchStart implements pgx.BatchTracer.
func (*counter) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}

// TraceBatchQuery implements pgx.BatchTracer. A batch has its begin and commit in it.
func (t *counter) TraceBatchQuery(_ context.Context, _ *pgx.Conn, q pgx.TraceBatchQueryData) {
	t.count(q.SQL)
}

// TraceBatchEnd implements pgx.BatchTracer.
func (*counter) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}
