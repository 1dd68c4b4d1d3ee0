package main

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

// job is what a queue is given for one event and consumer.
type job struct {
	N    int64  `json:"n"`
	By   string `json:"by"`
	Note string `json:"note"`
}

func (job) Kind() string { return "thing.done" }

func newJob(n int64) job { return job{N: n, By: "u1", Note: "the quick brown fox"} }

type riverWorker struct {
	river.WorkerDefaults[job]
	handle func(n int64)
	// pool, where it is set, is for a transaction that also completes the job.
	pool *pgxpool.Pool
}

func (w *riverWorker) Work(ctx context.Context, j *river.Job[job]) error {
	if w.pool != nil {
		err := pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, effect, j.Args.N); err != nil {
				return err
			}
			_, err := river.JobCompleteTx[*riverpgxv5.Driver](ctx, tx, j)
			return err
		})
		if err != nil {
			return err
		}
	}
	w.handle(j.Args.N)
	return nil
}

// riverWay is how River is set; zero is as it comes.
type riverWay struct {
	workers        int
	cooldown, poll time.Duration
}

func (w riverWay) given() own {
	return own{"max_workers": cmp.Or(w.workers, riverWorkers), "fetch_cooldown": cmp.Or(w.cooldown, river.FetchCooldownDefault).String(),
		"fetch_poll_interval": cmp.Or(w.poll, river.FetchPollIntervalDefault).String()}
}

// riverWorkers is what River's documentation has for a queue, which has no default.
const riverWorkers = 100

// riverOn installs River into a fresh database and makes a client.
func (b *bench) riverOn(ctx context.Context, way riverWay, handle func(n int64)) (*pgxpool.Pool, *river.Client[pgx.Tx], func(), error) {
	pool, drop, err := b.fresh(ctx)
	if err != nil {
		return nil, nil, nil, err
	}
	driver := riverpgxv5.New(pool)
	migrator, err := rivermigrate.New(driver, nil)
	if err == nil {
		_, err = migrator.Migrate(ctx, rivermigrate.DirectionUp, nil)
	}
	if err != nil {
		drop()
		return nil, nil, nil, err
	}
	workers := river.NewWorkers()
	worker := &riverWorker{handle: handle}
	if b.Tx {
		worker.pool = pool
	}
	river.AddWorker(workers, worker)
	cfg := &river.Config{Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: cmp.Or(way.workers, riverWorkers)}}, Workers: workers,
		FetchCooldown: way.cooldown, FetchPollInterval: way.poll}
	client, err := river.NewClient(driver, cfg)
	if err != nil {
		drop()
		return nil, nil, nil, err
	}
	return pool, client, drop, nil
}

// riverLeft counts what is not done, of the first that is not.
const riverLeft = "select count(*) from (select from river_job where state <> 'completed' limit 1) j"

func riverDrain(consumers int, way riverWay) func(context.Context, *bench) (outcome, error) {
	return func(ctx context.Context, b *bench) (outcome, error) {
		jobs := b.Records * consumers
		books := newBooks(jobs)
		pool, client, drop, err := b.riverOn(ctx, way, func(n int64) { books.handled(int(n)) })
		if err != nil {
			return outcome{}, err
		}
		defer drop()
		for from := 0; from < jobs; from += insertBatch {
			var batch []river.InsertManyParams
			for n := from; n < min(from+insertBatch, jobs); n++ {
				batch = append(batch, river.InsertManyParams{Args: newJob(int64(n))})
			}
			if _, err := client.InsertManyFast(ctx, batch); err != nil {
				return outcome{}, err
			}
		}
		if _, err := pool.Exec(ctx, "vacuum analyze"); err != nil {
			return outcome{}, err
		}
		return b.drain(ctx, pool, books, b.Records, riverLeft, func() (func() error, error) {
			return func() error { return client.Stop(context.WithoutCancel(ctx)) }, client.Start(ctx)
		})
	}
}

func riverAppend(way riverWay, beside bool) func(context.Context, *bench) (outcome, error) {
	return func(ctx context.Context, b *bench) (outcome, error) {
		pool, client, drop, err := b.riverOn(ctx, way, func(int64) {})
		if err != nil {
			return outcome{}, err
		}
		defer drop()
		if beside {
			if err := client.Start(ctx); err != nil {
				return outcome{}, err
			}
			defer func() { _ = client.Stop(context.WithoutCancel(ctx)) }()
		}
		return b.appending(ctx, pool, "select count(*) from river_job", func(ctx context.Context, c, i int) error {
			return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
				_, err := client.InsertTx(ctx, tx, newJob(int64(i)), nil)
				return err
			})
		})
	}
}

func riverLatency(way riverWay) func(context.Context, *bench) (outcome, error) {
	return func(ctx context.Context, b *bench) (outcome, error) {
		watch := newStopwatch(b.Rate)
		pool, client, drop, err := b.riverOn(ctx, way, watch.started)
		if err != nil {
			return outcome{}, err
		}
		defer drop()
		if err := client.Start(ctx); err != nil {
			return outcome{}, err
		}
		err = openLoop(ctx, b.Rate, b.Duration, func(ctx context.Context, i int64) error {
			_, err := client.Insert(ctx, newJob(i), nil)
			watch.committed(i)
			return err
		})
		err = errors.Join(err, watch.settled(ctx, pool, riverLeft))
		stopErr := client.Stop(context.WithoutCancel(ctx))
		if err == nil {
			err = stopErr
		}
		return watch.outcome(), err
	}
}
