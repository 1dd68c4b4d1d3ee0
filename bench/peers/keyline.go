package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	tracenoop "go.opentelemetry.io/otel/trace/noop"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/migrations"
)

// keylineOn installs Keyline into a fresh database.
func (b *bench) keylineOn(ctx context.Context) (*pgxpool.Pool, *keyline.Client, func(), error) {
	pool, drop, err := b.fresh(ctx)
	if err != nil {
		return nil, nil, nil, err
	}
	conn, err := pool.Acquire(ctx)
	if err == nil {
		_, _, err = migrations.Up(ctx, conn.Conn(), migrations.DefaultSchema)
		conn.Release()
	}
	if err != nil {
		drop()
		return nil, nil, nil, err
	}
	client, err := keyline.NewClient(keyline.ClientConfig{TracerProvider: tracenoop.NewTracerProvider(), MeterProvider: metricnoop.NewMeterProvider()})
	return pool, client, drop, err
}

// keylineWorker makes a worker with n consumers, at the default settings.
func keylineWorker(pool *pgxpool.Pool, n int, handle func(consumer int, d *keyline.Delivery)) (*keyline.Worker, error) {
	consumers := make([]keyline.Consumer, n)
	for i := range consumers {
		consumers[i] = keyline.Consumer{Name: "c" + strconv.Itoa(i), Types: []string{"*"}, Effect: keyline.None(),
			Handle: func(_ context.Context, d *keyline.Delivery) error { handle(i, d); return nil }}
	}
	return keyline.NewWorker(pool, keyline.Config{TracerProvider: tracenoop.NewTracerProvider(), MeterProvider: metricnoop.NewMeterProvider()}, consumers...)
}

// keylineTxWorker makes a worker whose one consumer writes a row in the
// transaction that also moves its checkpoint.
func keylineTxWorker(pool *pgxpool.Pool, _ int, handle func(consumer int, d *keyline.Delivery)) (*keyline.Worker, error) {
	return keyline.NewWorker(pool, keyline.Config{TracerProvider: tracenoop.NewTracerProvider(), MeterProvider: metricnoop.NewMeterProvider()},
		keyline.Consumer{Name: "c0", Types: []string{"*"}, Effect: keyline.Database(), HandleTx: func(ctx context.Context, tx pgx.Tx, d *keyline.Delivery) error {
			if _, err := tx.Exec(ctx, effect, thing(d)); err != nil {
				return err
			}
			handle(0, d)
			return nil
		}})
}

// thing is the number in a record's key.
func thing(d *keyline.Delivery) int {
	n, _ := strconv.Atoi(d.Key.Record[len("thing:"):])
	return n
}

// keylineLeft counts what is not done, of the first that is not.
const keylineLeft = "select count(*) from (select from keyline.mailboxes limit 1) m"

// started starts a worker and returns how to stop it.
func started(ctx context.Context, w *keyline.Worker) (stop func() error, err error) {
	return func() error {
		_, err := w.Stop(context.WithoutCancel(ctx))
		return err
	}, w.Start(ctx)
}

// register lets a worker run before there is work, so that its consumers are
// registered as in any installation.
func register(ctx context.Context, pool *pgxpool.Pool, w *keyline.Worker) error {
	if err := w.Start(ctx); err != nil {
		return err
	}
	if err := swept(ctx, pool); err != nil {
		return err
	}
	_, err := w.Stop(ctx)
	return err
}

func keylineDrain(consumers int) func(context.Context, *bench) (outcome, error) {
	return func(ctx context.Context, b *bench) (outcome, error) {
		pool, client, drop, err := b.keylineOn(ctx)
		if err != nil {
			return outcome{}, err
		}
		defer drop()
		worker := keylineWorker
		if b.Tx {
			worker = keylineTxWorker
		}
		books := newBooks(b.Records * consumers)
		handle := func(consumer int, d *keyline.Delivery) {
			books.handled(thing(d)*consumers + consumer)
		}
		w, err := worker(pool, consumers, handle)
		if err != nil {
			return outcome{}, err
		}
		if err := register(ctx, pool, w); err != nil {
			return outcome{}, err
		}
		for from := 0; from < b.Records; from += insertBatch {
			var events []keyline.NewEvent
			for i := from; i < min(from+insertBatch, b.Records); i++ {
				events = append(events, keyline.NewEvent{Key: keyline.Key{Record: fmt.Sprintf("thing:%d", i)}, Type: "thing.done", Payload: payload})
			}
			if _, err := client.AppendMany(ctx, pool, events); err != nil {
				return outcome{}, err
			}
		}
		if _, err := pool.Exec(ctx, "vacuum analyze"); err != nil {
			return outcome{}, err
		}
		if w, err = worker(pool, consumers, handle); err != nil {
			return outcome{}, err
		}
		return b.drain(ctx, pool, books, b.Records, keylineLeft, func() (func() error, error) { return started(ctx, w) })
	}
}

// swept waits for the walk over all records that a registration leaves to do
// once: it is not part of a drain.
func swept(ctx context.Context, pool *pgxpool.Pool) error {
	for {
		var left int
		if err := pool.QueryRow(ctx, "select count(*) from keyline.consumers where sweep is not null").Scan(&left); err != nil || left == 0 {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// insertBatch is how many events or jobs are inserted in one call.
const insertBatch = 5000

var payload = []byte(`{"by":"u1","note":"the quick brown fox"}`)

// How an append wakes.
const (
	adaptive = "adaptive wake"
	noWake   = "no wake"
	always   = "NOTIFY always"
)

func keylineAppend(wake string, beside bool) func(context.Context, *bench) (outcome, error) {
	return func(ctx context.Context, b *bench) (outcome, error) {
		pool, client, drop, err := b.keylineOn(ctx)
		if err != nil {
			return outcome{}, err
		}
		defer drop()
		if beside {
			w, err := keylineWorker(pool, 1, func(int, *keyline.Delivery) {})
			if err != nil {
				return outcome{}, err
			}
			if err := w.Start(ctx); err != nil {
				return outcome{}, err
			}
			defer func() { _, _ = w.Stop(context.WithoutCancel(ctx)) }()
		}
		cfg := pool.Config()
		if wake != adaptive {
			cfg.ConnConfig.RuntimeParams["keyline.wake"] = "off"
		}
		appenders, err := pgxpool.NewWithConfig(ctx, cfg)
		if err != nil {
			return outcome{}, err
		}
		defer appenders.Close()
		return b.appending(ctx, pool, "select count(*) from keyline.events", func(ctx context.Context, c, i int) error {
			return pgx.BeginFunc(ctx, appenders, func(tx pgx.Tx) error {
				_, err := client.Append(ctx, tx, keyline.NewEvent{Key: keyline.Key{Record: fmt.Sprintf("thing:%d.%d", c, i)}, Type: "thing.done", Payload: payload})
				if err == nil && wake == always {
					_, err = tx.Exec(ctx, "select pg_notify('keyline_wake', 'more')")
				}
				return err
			})
		})
	}
}

func keylineLatency(ctx context.Context, b *bench) (outcome, error) {
	pool, client, drop, err := b.keylineOn(ctx)
	if err != nil {
		return outcome{}, err
	}
	defer drop()
	watch := newStopwatch(b.Rate)
	w, err := keylineWorker(pool, 1, func(_ int, d *keyline.Delivery) {
		n, _ := strconv.ParseInt(d.Key.Record[len("thing:"):], 10, 64)
		watch.started(n)
	})
	if err != nil {
		return outcome{}, err
	}
	if err := w.Start(ctx); err != nil {
		return outcome{}, err
	}
	err = openLoop(ctx, b.Rate, b.Duration, func(ctx context.Context, i int64) error {
		_, err := client.Append(ctx, pool, keyline.NewEvent{Key: keyline.Key{Record: fmt.Sprintf("thing:%d", i)}, Type: "thing.done", Payload: payload})
		watch.committed(i)
		return err
	})
	err = errors.Join(err, watch.settled(ctx, pool, keylineLeft))
	_, stopErr := w.Stop(context.WithoutCancel(ctx))
	if err == nil {
		err = stopErr
	}
	return watch.outcome(), err
}
