package main

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/vgarvardt/gue/v5"
	"github.com/vgarvardt/gue/v5/adapter/pgxv5"
)

// gueSchema is what gue's documentation has its users migrate to: it has no
// migrator of its own.
const gueSchema = `
	create table gue_jobs (
		job_id text not null primary key, priority smallint not null, run_at timestamptz not null,
		job_type text not null, args bytea not null, error_count integer not null default 0, last_error text,
		queue text not null, created_at timestamptz not null, updated_at timestamptz not null);
	create index idx_gue_jobs_selector on gue_jobs (queue, run_at, priority)`

// gueLeft counts what is not done, of the first that is not.
const gueLeft = "select count(*) from (select from gue_jobs limit 1) j"

// gueWay is how gue is set.
type gueWay struct {
	workers int
	poll    time.Duration // 0: as it comes, 5 s
	byRunAt bool          // the poll strategy whose order the index has
}

func (w gueWay) given() own {
	g := own{"pool_size": w.workers, "poll_interval": "5s", "poll_strategy": string(gue.PriorityPollStrategy)}
	if w.poll > 0 {
		g["poll_interval"] = w.poll.String()
	}
	if w.byRunAt {
		g["poll_strategy"] = string(gue.RunAtPollStrategy)
	}
	return g
}

func (w gueWay) options() []gue.WorkerPoolOption {
	var o []gue.WorkerPoolOption
	if w.poll > 0 {
		o = append(o, gue.WithPoolPollInterval(w.poll))
	}
	if w.byRunAt {
		o = append(o, gue.WithPoolPollStrategy(gue.RunAtPollStrategy))
	}
	return o
}

// gueRun is gue in a database of its own.
type gueRun struct {
	pool   *pgxpool.Pool
	client *gue.Client
	works  *gue.WorkerPool
	drop   func()
}

func (b *bench) gueOn(ctx context.Context, way gueWay, handle func(n int64)) (*gueRun, error) {
	pool, drop, err := b.fresh(ctx)
	if err != nil {
		return nil, err
	}
	r := &gueRun{pool: pool, drop: drop}
	if _, err = pool.Exec(ctx, gueSchema); err == nil {
		r.client, err = gue.NewClient(pgxv5.NewConnPool(pool))
	}
	if err == nil {
		r.works, err = gue.NewWorkerPool(r.client, gue.WorkMap{"thing.done": func(ctx context.Context, j *gue.Job) error {
			if b.Tx {
				if _, err := j.Tx().Exec(ctx, effect, numberOf(j.Args)); err != nil {
					return err
				}
			}
			handle(numberOf(j.Args))
			return nil
		}}, way.workers, way.options()...)
	}
	if err != nil {
		drop()
		return nil, err
	}
	return r, nil
}

// start lets the pool work until what it returns is called, which waits for
// the jobs at hand.
func (r *gueRun) start(ctx context.Context) (stop func() error) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- r.works.Run(ctx) }()
	return func() error { cancel(); return <-ended }
}

func gueJob(n int64) *gue.Job { return &gue.Job{Type: "thing.done", Args: numbered(n)} }

func gueDrain(consumers int, way gueWay) runner {
	return func(ctx context.Context, b *bench) (outcome, error) {
		jobs := b.Records * consumers
		books := newBooks(jobs)
		r, err := b.gueOn(ctx, way, func(n int64) { books.handled(int(n)) })
		if err != nil {
			return outcome{}, err
		}
		defer r.drop()
		for from := 0; from < jobs; from += insertBatch {
			var batch []*gue.Job
			for n := from; n < min(from+insertBatch, jobs); n++ {
				batch = append(batch, gueJob(int64(n)))
			}
			if err := r.client.EnqueueBatch(ctx, batch); err != nil {
				return outcome{}, err
			}
		}
		if _, err := r.pool.Exec(ctx, "vacuum analyze"); err != nil {
			return outcome{}, err
		}
		return b.drain(ctx, r.pool, books, b.Records, gueLeft, func() (func() error, error) { return r.start(ctx), nil })
	}
}

func gueAppend(way gueWay, beside bool) runner {
	return func(ctx context.Context, b *bench) (outcome, error) {
		r, err := b.gueOn(ctx, way, func(int64) {})
		if err != nil {
			return outcome{}, err
		}
		defer r.drop()
		if beside {
			stop := r.start(ctx)
			defer func() { _ = stop() }()
		}
		stored := "select count(*) from gue_jobs"
		if beside {
			stored = "" // a job that is done is gone
		}
		return b.appending(ctx, r.pool, stored, func(ctx context.Context, _, i int) error {
			return pgx.BeginFunc(ctx, r.pool, func(tx pgx.Tx) error {
				return r.client.EnqueueTx(ctx, gueJob(int64(i)), pgxv5.NewTx(tx))
			})
		})
	}
}

func gueLatency(way gueWay) runner {
	return func(ctx context.Context, b *bench) (outcome, error) {
		watch := newStopwatch(b.Rate)
		r, err := b.gueOn(ctx, way, watch.started)
		if err != nil {
			return outcome{}, err
		}
		defer r.drop()
		stop := r.start(ctx)
		err = openLoop(ctx, b.Rate, b.Duration, func(ctx context.Context, i int64) error {
			err := r.client.Enqueue(ctx, gueJob(i))
			watch.committed(i)
			return err
		})
		err = errors.Join(err, watch.settled(ctx, r.pool, gueLeft))
		if stopErr := stop(); err == nil {
			err = stopErr
		}
		return watch.outcome(), err
	}
}
