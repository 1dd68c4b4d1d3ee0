package bench

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/internal/clock"
	"github.com/keylinehq/keyline/store"
)

// bare drains a database with the bare loop and returns events per second.
func (d *drain) bare(ctx context.Context, url string) (float64, error) {
	cfg, err := poolConfig(url)
	if err != nil {
		return 0, err
	}
	s, err := store.Open(ctx, store.Config{Pool: cfg, Logger: d.Logger})
	if err != nil {
		return 0, err
	}
	defer s.Close()
	r, err := s.BareDrain(ctx, store.BareOptions{})
	if err != nil {
		return 0, err
	}
	if want := int64(d.Records) * int64(d.Events); r.Events != want {
		return 0, fmt.Errorf("the bare loop drained %d of %d events", r.Events, want)
	}
	return r.PerSecond, nil
}

// worker drains a database with a worker and returns events per second. Its
// time begins before it has connected and ends when the last record has settled.
func (d *drain) worker(ctx context.Context, url string) (float64, error) {
	cfg, err := poolConfig(url)
	if err != nil {
		return 0, err
	}
	sent := &counter{}
	if !d.statements {
		cfg.ConnConfig.Tracer = sent
	}
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return 0, err
	}
	defer pool.Close()
	t := newTally(recordPrefix, d.Consumers, d.Records, d.Events)
	w, err := keyline.NewWorker(pool, keyline.Config{Logger: d.Logger, TracerProvider: noop.NewTracerProvider()}, consumers(t)...)
	if err != nil {
		return 0, err
	}
	meter, err := d.meter(ctx, url)
	if err != nil {
		return 0, err
	}
	defer meter.close(ctx)
	c := clock.Real()
	began := c.Mono()
	if err := w.Start(ctx); err != nil {
		return 0, err
	}
	err = await(ctx, c, t, meter)
	took := c.Mono() - began
	if _, stopErr := w.Stop(ctx); err == nil {
		err = stopErr
	}
	if err != nil {
		return 0, err
	}
	cost, err := meter.read(ctx, c)
	if err != nil {
		return 0, err
	}
	cost.statements += sent.n.Load()
	d.costs.add(cost)
	d.result.OrderViolations += t.violations.Load()
	d.result.Duplicates += t.duplicates.Load()
	d.result.Lost += t.lost()
	if what := t.firstUnexpected.Load(); what != nil {
		return 0, fmt.Errorf("%d deliveries that nobody has appended, the first %s", t.unknown.Load(), *what)
	}
	return float64(d.Records) * float64(d.Events) / took.Seconds(), nil
}

// await waits until all is delivered and then until all has settled. Nobody
// looks at the tables before that: it would be measured too.
func await(ctx context.Context, c clock.Clock, t *tally, m *meter) error {
	tick := c.NewTicker(settledPoll)
	defer tick.Stop()
	for delivered := t.done; ; {
		select {
		case <-delivered:
			delivered = nil
		case <-tick.C():
			if delivered != nil {
				continue
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if settled, err := m.settled(ctx); settled || err != nil {
			return err
		}
	}
}

// consumers do nothing but check what they are given.
func consumers(t *tally) []keyline.Consumer {
	list := make([]keyline.Consumer, t.consumers)
	for i := range list {
		list[i] = keyline.Consumer{
			Name: fmt.Sprintf("bench-%d", i), Types: []string{"*"}, Effect: keyline.None(),
			Handle: func(_ context.Context, d *keyline.Delivery) error {
				t.handle(i, d)
				return nil
			},
		}
	}
	return list
}

// poolConfig is the same for both turns.
func poolConfig(url string) (*pgxpool.Config, error) {
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	cfg.MaxConns = 4
	return cfg, nil
}

// counter counts statements where the server does not: those of the worker's
// pgx connections.
type counter struct{ n atomic.Int64 }

// TraceQueryStart implements pgx.QueryTracer.
func (t *counter) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	t.n.Add(1)
	return ctx
}

// TraceQueryEnd implements pgx.QueryTracer.
func (*counter) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// TraceBatchStart implements pgx.BatchTracer.
func (*counter) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}

// TraceBatchQuery implements pgx.BatchTracer.
func (t *counter) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) { t.n.Add(1) }

// TraceBatchEnd implements pgx.BatchTracer.
func (*counter) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}
