package main

import (
	"context"
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
}

func (w *riverWorker) Work(_ context.Context, j *river.Job[job]) error {
	w.handle(j.Args.N)
	return nil
}

// riverGiven are the settings that riverOn gives.
func riverGiven(how string) own {
	if how == tuned {
		return own{"max_workers": 2000, "fetch_cooldown": "2ms", "fetch_poll_interval": "20ms"}
	}
	return own{"max_workers": 100, "fetch_cooldown": "100ms", "fetch_poll_interval": "1s"}
}

// riverOn installs River into a fresh database and makes a client.
func (b *bench) riverOn(ctx context.Context, how string, handle func(n int64)) (*pgxpool.Pool, *river.Client[pgx.Tx], func(), error) {
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
	river.AddWorker(workers, &riverWorker{handle: handle})
	cfg := &river.Config{Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 100}}, Workers: workers}
	if how == tuned {
		cfg.Queues[river.QueueDefault] = river.QueueConfig{MaxWorkers: 2000}
		cfg.FetchCooldown, cfg.FetchPollInterval = 2*time.Millisecond, 20*time.Millisecond
	}
	client, err := river.NewClient(driver, cfg)
	if err != nil {
		drop()
		return nil, nil, nil, err
	}
	return pool, client, drop, nil
}

func riverDrain(consumers int, how string) func(context.Context, *bench) (outcome, error) {
	return func(ctx context.Context, b *bench) (outcome, error) {
		jobs := b.Records * consumers
		books := newBooks(jobs)
		pool, client, drop, err := b.riverOn(ctx, how, func(n int64) { books.handled(int(n)) })
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
		return b.drain(ctx, pool, books, b.Records, "select count(*) from (select from river_job where state <> 'completed' limit 1) j", func() (func() error, error) {
			return func() error { return client.Stop(context.WithoutCancel(ctx)) }, client.Start(ctx)
		})
	}
}

func riverAppend(how string, beside bool) func(context.Context, *bench) (outcome, error) {
	return func(ctx context.Context, b *bench) (outcome, error) {
		pool, client, drop, err := b.riverOn(ctx, how, func(int64) {})
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

func riverLatency(how string) func(context.Context, *bench) (outcome, error) {
	return func(ctx context.Context, b *bench) (outcome, error) {
		watch := newStopwatch()
		_, client, drop, err := b.riverOn(ctx, how, watch.started)
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
		time.Sleep(time.Second) // the last ones arrive
		stopErr := client.Stop(context.WithoutCancel(ctx))
		if err == nil {
			err = stopErr
		}
		return watch.outcome(), err
	}
}
