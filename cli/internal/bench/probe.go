package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/internal/clock"
)

// probe is a worker in this process that notes when the handler of each record begins.
type probe struct {
	clock  clock.Clock
	pool   *pgxpool.Pool
	client *keyline.Client
	worker *keyline.Worker

	mu     sync.Mutex
	starts map[string][]start
	news   chan struct{} // one slot: something has begun
}

// start is when a handler began.
type start struct {
	mono time.Duration
	at   time.Time
}

// probeConsumer is the one consumer that all templates have, unless retry makes it another.
func probeConsumer(retry keyline.RetryPolicy, handle func(context.Context, *keyline.Delivery) error) keyline.Consumer {
	c := keyline.Consumer{Name: "bench-0", Types: []string{"*"}, Effect: keyline.None(), Handle: handle}
	if retry.Delays != nil {
		c.Retry, c.Revision = retry, 2
	}
	return c
}

// newProbe starts it; handle is told the run of a record's handler, counted from 1, and may be nil.
func (p *play) newProbe(ctx context.Context, url string, lease time.Duration, retry keyline.RetryPolicy, handle func(ctx context.Context, run int) error) (*probe, error) {
	cfg, err := poolConfig(url)
	if err != nil {
		return nil, err
	}
	r := &probe{clock: clock.Real(), starts: map[string][]start{}, news: make(chan struct{}, 1)}
	if r.client, err = keyline.NewClient(keyline.ClientConfig{TracerProvider: noop.NewTracerProvider()}); err != nil {
		return nil, err
	}
	if r.pool, err = pgxpool.NewWithConfig(ctx, cfg); err != nil {
		return nil, err
	}
	r.worker, err = keyline.NewWorker(r.pool, keyline.Config{Logger: p.Logger, Lease: lease, TracerProvider: noop.NewTracerProvider()},
		probeConsumer(retry, func(ctx context.Context, d *keyline.Delivery) error {
			run := r.began(d.Key.Record)
			if handle == nil {
				return nil
			}
			return handle(ctx, run)
		}))
	if err == nil {
		err = r.worker.Start(ctx)
	}
	if err != nil {
		r.pool.Close()
		return nil, err
	}
	return r, nil
}

func (r *probe) began(record string) (run int) {
	now := start{r.clock.Mono(), r.clock.Now()}
	r.mu.Lock()
	r.starts[record] = append(r.starts[record], now)
	run = len(r.starts[record])
	r.mu.Unlock()
	select {
	case r.news <- struct{}{}:
	default:
	}
	return run
}

// await waits until the handler of each record has begun so many times, and returns the last of each.
func (r *probe) await(ctx context.Context, records []string, times int) ([]start, error) {
	for {
		var list []start
		r.mu.Lock()
		for _, record := range records {
			if s := r.starts[record]; len(s) >= times {
				list = append(list, s[times-1])
			}
		}
		r.mu.Unlock()
		if len(list) == len(records) {
			return list, nil
		}
		select {
		case <-r.news:
		case <-ctx.Done():
			return list, fmt.Errorf("%d of %d handlers have begun: %w", len(list), len(records), context.Cause(ctx))
		}
	}
}

// again counts the starts beyond those that were to be.
func (r *probe) again(times int) (n int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.starts {
		n += int64(max(0, len(s)-times))
	}
	return n
}

// close stops the worker where that has not been done yet.
func (r *probe) close(ctx context.Context) error {
	_, err := r.worker.Stop(context.WithoutCancel(ctx))
	r.pool.Close()
	return err
}

// append appends an event to each record.
func (r *probe) append(ctx context.Context, records []string) error {
	return appendTo(ctx, r.client, r.pool, records)
}

func appendTo(ctx context.Context, client *keyline.Client, on keyline.PGX, records []string) error {
	for _, record := range records {
		if _, err := client.Append(ctx, on, benchEvent(record)); err != nil {
			return err
		}
	}
	return nil
}

// RunHolder is the life of a worker process whose handlers never end: it says that it is ready and works until in ends.
func RunHolder(ctx context.Context, url string, lease time.Duration, in io.Reader, out io.Writer, log *slog.Logger) error {
	cfg, err := poolConfig(url)
	if err != nil {
		return err
	}
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return err
	}
	defer pool.Close()
	w, err := keyline.NewWorker(pool, keyline.Config{Logger: log, Lease: lease, TracerProvider: noop.NewTracerProvider()},
		probeConsumer(keyline.RetryPolicy{}, func(ctx context.Context, _ *keyline.Delivery) error {
			<-ctx.Done()
			return ctx.Err()
		}))
	if err == nil {
		err = w.Start(ctx)
	}
	if err != nil {
		return err
	}
	if _, err := io.WriteString(out, "ready\n"); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, in) // to its end
	over, cancel := context.WithCancel(context.WithoutCancel(ctx))
	cancel() // its handlers would not end
	_, _ = w.Stop(over)
	return errors.Join(err, context.Cause(ctx))
}
