package recorder

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/examples/crm/internal/wrap"
)

const create = `
select pg_advisory_xact_lock(hashtextextended('crm.delivered_log', 0));
create schema if not exists crm;
create table if not exists crm.delivered_log (
  id bigint generated always as identity primary key,
  mark text not null check (mark in ('begin', 'done')),
  -- One call of a handler: more than one row of a mark where it was a batch.
  run uuid not null,
  consumer text not null,
  tenant text not null,
  record_key text not null,
  seq bigint not null,
  attempt integer not null,
  at timestamptz not null default clock_timestamp(),
  worker text not null
)`

// Install makes the log's table where there is none.
func Install(ctx context.Context, pool *pgxpool.Pool) error {
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, create)
		return err
	})
	if err != nil {
		return fmt.Errorf("create the delivered log: %w", err)
	}
	return nil
}

// Record returns the consumers with a recorder around their handlers. worker
// names this process in the log. Install comes first.
func Record(consumers []keyline.Consumer, pool *pgxpool.Pool, worker string) []keyline.Consumer {
	return wrap.Each(consumers, func(_ keyline.Consumer, next wrap.Handler) wrap.Handler {
		return func(ctx context.Context, tx pgx.Tx, batch []*keyline.Delivery) error {
			r := run{id: uuid.New(), worker: worker, batch: batch}
			if err := r.mark(ctx, pool, "begin"); err != nil {
				return err
			}
			err := next(ctx, tx, batch)
			if v, _, _ := keyline.Judge(err); v != keyline.VerdictCompleted && v != keyline.VerdictSkip {
				return err
			}
			// The handler has done its work: a shutdown must not hide that.
			var db execer = pool
			if tx != nil {
				db = tx
			}
			if failed := r.mark(context.WithoutCancel(ctx), db, "done"); failed != nil {
				return failed
			}
			return err
		}
	})
}

type execer interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// run is one call of a handler.
type run struct {
	id     uuid.UUID
	worker string
	batch  []*keyline.Delivery
}

const insertMarks = `
insert into crm.delivered_log (mark, run, consumer, tenant, record_key, seq, attempt, worker)
select $1, $2, $3, $4, $5, b.seq, $7, $8 from unnest($6::bigint[]) with ordinality b (seq, n) order by b.n`

func (r run) mark(ctx context.Context, db execer, mark string) error {
	first := r.batch[0]
	seqs := make([]int64, len(r.batch))
	for i, d := range r.batch {
		seqs[i] = d.Seq
	}
	_, err := db.Exec(ctx, insertMarks, mark, r.id, first.Consumer, first.Tenant, first.Key.Record, seqs, first.Attempt, r.worker)
	if err != nil {
		return fmt.Errorf("record %s: %w", mark, err)
	}
	return nil
}
