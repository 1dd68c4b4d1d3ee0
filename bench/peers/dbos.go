package main

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/dbos-inc/dbos-transact-golang/dbos"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"
)

const dbosQueue = "things"

// dbosLeft counts what is not done, of the first that is not.
const dbosLeft = `select count(*) from (select from dbos.workflow_status where status in ('ENQUEUED', 'PENDING', 'DELAYED') limit 1) w`

// dbosWay is how DBOS is set.
type dbosWay struct {
	poll      time.Duration // of the queue; 0: as it comes, 1 s
	unordered bool          // a plain queue; else one partition per record, each one workflow at a time
}

func (w dbosWay) given() own {
	g := own{"queue_base_polling_interval": "1s", "partition_key": "the record", "partition_concurrency": 1}
	if w.poll > 0 {
		g["queue_base_polling_interval"] = w.poll.String()
	}
	if w.unordered {
		g["partition_key"], g["partition_concurrency"] = "none", "none"
	}
	return g
}

// dbosRun is DBOS in a database of its own: one workflow without steps per event.
type dbosRun struct {
	way  dbosWay
	pool *pgxpool.Pool
	dbos dbos.Context
	// shutdown ends its work; end its database, too.
	shutdown, end func()
}

func (b *bench) dbosOn(ctx context.Context, way dbosWay, handle func(n int64)) (*dbosRun, error) {
	pool, drop, err := b.fresh(ctx)
	if err != nil {
		return nil, err
	}
	r := &dbosRun{way: way, pool: pool, end: drop}
	var level slog.LevelVar
	level.Set(slog.LevelError)
	r.dbos, err = dbos.NewContext(ctx, dbos.Config{AppName: "keyline-bench", ApplicationVersion: "1", SystemDBPool: pool,
		Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: &level}))})
	if err != nil {
		drop()
		return nil, err
	}
	r.shutdown = sync.OnceFunc(func() {
		level.Set(slog.LevelError + 1) // what a shutdown cancels, it tells as errors
		dbos.Shutdown(r.dbos, 10*time.Second)
	})
	r.end = func() { r.shutdown(); drop() }
	dbos.RegisterWorkflow(r.dbos, func(_ dbos.Context, j job) (bool, error) {
		handle(j.N)
		return true, nil
	}, dbos.WithWorkflowName("thing.done"))
	var options []dbos.QueueOption
	if way.poll > 0 {
		options = append(options, dbos.WithQueueBasePollingInterval(way.poll))
	}
	if !way.unordered {
		options = append(options, dbos.WithPartitionConcurrency(1))
	}
	if _, err := dbos.RegisterQueue(r.dbos, dbosQueue, options...); err != nil {
		r.end()
		return nil, err
	}
	return r, nil
}

// enqueue gives the workflow of one event of a record to the queue, in a
// transaction of the caller's or, where tx is nil, in one of its own.
func (r *dbosRun) enqueue(tx pgx.Tx, record, n int64) error {
	var options []dbos.EnqueueOption
	if !r.way.unordered {
		options = append(options, dbos.WithEnqueueQueuePartitionKey("thing:"+strconv.FormatInt(record, 10)))
	}
	if tx != nil {
		options = append(options, dbos.WithEnqueueTransaction(tx))
	}
	_, err := dbos.Enqueue[bool](r.dbos, dbosQueue, "thing.done", newJob(n), options...)
	return err
}

// fillers is how many goroutines enqueue beforehand: there is no call for many.
const fillers = 8

// fill enqueues so many events of so many records. The records take turns, and
// each one's events are enqueued one after the other.
func (r *dbosRun) fill(ctx context.Context, records, events int) error {
	var g errgroup.Group
	for filler := range fillers {
		g.Go(func() error {
			for event := range events {
				for record := filler; record < records; record += fillers {
					if err := r.enqueue(nil, int64(record), int64(record*events+event)); err != nil {
						return err
					}
				}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	_, err := r.pool.Exec(ctx, "vacuum analyze")
	return err
}

// dbosDrain runs a workflow for each consumer and event.
func dbosDrain(consumers int, way dbosWay) runner {
	return func(ctx context.Context, b *bench) (outcome, error) {
		books := newBooks(b.Records * consumers)
		r, err := b.dbosOn(ctx, way, func(n int64) { books.handled(int(n)) })
		if err != nil {
			return outcome{}, err
		}
		defer r.end()
		// A consumer waits for none of the others: it has partitions of its own.
		if err := r.fill(ctx, b.Records*consumers, 1); err != nil {
			return outcome{}, err
		}
		return b.drain(ctx, r.pool, books, b.Records, dbosLeft, func() (func() error, error) {
			return func() error { r.shutdown(); return nil }, dbos.Launch(r.dbos)
		})
	}
}

func dbosHot(shape hotShape, way dbosWay) runner {
	return func(ctx context.Context, b *bench) (outcome, error) {
		records, events := shape(b.settings)
		books := newOrderedBooks(records, events)
		r, err := b.dbosOn(ctx, way, func(n int64) { books.handledInOrder(int(n)/events, int(n)%events) })
		if err != nil {
			return outcome{}, err
		}
		defer r.end()
		if err := r.fill(ctx, records, events); err != nil {
			return outcome{}, err
		}
		return b.drain(ctx, r.pool, books, records*events, dbosLeft, func() (func() error, error) {
			return func() error { r.shutdown(); return nil }, dbos.Launch(r.dbos)
		})
	}
}

func dbosAppend(way dbosWay, beside bool) runner {
	return func(ctx context.Context, b *bench) (outcome, error) {
		r, err := b.dbosOn(ctx, way, func(int64) {})
		if err != nil {
			return outcome{}, err
		}
		defer r.end()
		if beside {
			if err := dbos.Launch(r.dbos); err != nil {
				return outcome{}, err
			}
		}
		return b.appending(ctx, r.pool, "select count(*) from dbos.workflow_status", func(ctx context.Context, c, i int) error {
			return pgx.BeginFunc(ctx, r.pool, func(tx pgx.Tx) error { return r.enqueue(tx, int64(c)<<32|int64(i), int64(i)) })
		})
	}
}

func dbosLatency(way dbosWay) runner {
	return func(ctx context.Context, b *bench) (outcome, error) {
		watch := newStopwatch(b.Rate)
		r, err := b.dbosOn(ctx, way, watch.started)
		if err != nil {
			return outcome{}, err
		}
		defer r.end()
		if err := dbos.Launch(r.dbos); err != nil {
			return outcome{}, err
		}
		err = openLoop(ctx, b.Rate, b.Duration, func(_ context.Context, i int64) error {
			err := r.enqueue(nil, i, i)
			watch.committed(i)
			return err
		})
		err = errors.Join(err, watch.settled(ctx, r.pool, dbosLeft))
		return watch.outcome(), err
	}
}
