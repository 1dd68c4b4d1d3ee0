package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/internal/clock"
)

// appenders is how many clients append at once.
const appenders = 32

// How an append wakes.
const (
	adaptive = "as it is"
	noWake   = "no wake"
	always   = "NOTIFY in each"
)

func appends(ctx context.Context, p *play) error {
	p.Step("prepare the database")
	template, err := p.fill(ctx, workload{consumers: 1}, nil)
	if err != nil {
		return err
	}
	besides := []string{"no worker", "a worker that keeps up", "a worker whose handlers are blocked"}
	var options []option
	for _, beside := range besides {
		for _, wake := range []string{adaptive, noWake, always} {
			options = append(options, option{beside + ", " + wake, func(ctx context.Context, c *Case) error {
				return p.turn(ctx, template, func(ctx context.Context, url string) error { return p.appending(ctx, url, beside, wake, c) })
			}})
		}
	}
	if err := p.alternate(ctx, options...); err != nil {
		return err
	}
	for _, beside := range besides {
		p.report.atLeast(beside+": of the rate without a wake", 0.9, p.report.ratio("appends", beside+", "+adaptive, beside+", "+noWake))
		p.report.atLeast(beside+": of the rate with a NOTIFY in each", 4, p.report.ratio("appends", beside+", "+adaptive, beside+", "+always))
	}
	return nil
}

func (p *play) appending(ctx context.Context, url, beside, wake string, c *Case) (err error) {
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return err
	}
	cfg.MaxConns = appenders
	if wake != adaptive {
		cfg.ConnConfig.RuntimeParams["keyline.wake"] = "off"
	}
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return err
	}
	defer pool.Close()
	if beside != "no worker" {
		end, err := p.besideAppenders(ctx, url, beside != "a worker that keeps up")
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, end()) }()
	}
	client, err := keyline.NewClient(keyline.ClientConfig{TracerProvider: noop.NewTracerProvider()})
	if err != nil {
		return err
	}
	rate, err := together(ctx, appenders, p.duration, func(ctx context.Context, who, i int) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			_, err := client.Append(ctx, tx, benchEvent(fmt.Sprintf("%s%d.%d", recordPrefix, who, i)))
			if err == nil && wake == always {
				_, err = tx.Exec(ctx, "select pg_notify('keyline_wake', 'more')")
			}
			return err
		})
	})
	c.add("appends", "transactions/s", rate)
	return err
}

// besideAppenders starts a worker. blocked says that its handlers wait for its end.
func (p *play) besideAppenders(ctx context.Context, url string, blocked bool) (end func() error, err error) {
	cfg, err := poolConfig(url)
	if err != nil {
		return nil, err
	}
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	over := make(chan struct{})
	w, err := keyline.NewWorker(pool, keyline.Config{Logger: p.Logger, TracerProvider: noop.NewTracerProvider()}, keyline.Consumer{
		Name: "bench-0", Types: []string{"*"}, Effect: keyline.None(),
		Handle: func(ctx context.Context, _ *keyline.Delivery) error {
			if blocked {
				select {
				case <-over:
				case <-ctx.Done():
				}
			}
			return nil
		},
	})
	if err == nil {
		err = w.Start(ctx)
	}
	if err != nil {
		pool.Close()
		return nil, err
	}
	return func() error {
		close(over)
		_, err := w.Stop(context.WithoutCancel(ctx))
		pool.Close()
		return err
	}, nil
}

// benchEvent is what is appended.
func benchEvent(key string) keyline.NewEvent {
	return keyline.NewEvent{Key: keyline.Key{Record: key}, Type: "bench.event", Payload: struct {
		N    int    `json:"n"`
		Text string `json:"text"`
	}{1, "sixty-four bytes of text, more or less, as an event may have them"}}
}

// together lets n clients call f again and again, and returns calls per second.
func together(ctx context.Context, n int, d time.Duration, f func(ctx context.Context, who, i int) error) (float64, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var calls atomic.Int64
	var wg sync.WaitGroup
	c := clock.Real()
	for who := range n {
		wg.Go(func() {
			for i := 0; c.Mono() < d && ctx.Err() == nil; i++ {
				if err := f(ctx, who, i); err != nil {
					cancel(err)
					return
				}
				calls.Add(1)
			}
		})
	}
	wg.Wait()
	return float64(calls.Load()) / c.Mono().Seconds(), context.Cause(ctx)
}
