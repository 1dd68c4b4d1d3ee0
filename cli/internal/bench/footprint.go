package bench

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/internal/clock"
)

const idleWorker = "an idle worker"

func footprint(ctx context.Context, p *play) error {
	p.Step("fill the database")
	none, err := p.fill(ctx, workload{consumers: 2}, nil)
	if err != nil {
		return err
	}
	resident := workload{records: p.n(3000), events: 1, consumers: 2} // as many as a worker has by default
	full, err := p.fill(ctx, resident, nil)
	if err != nil {
		return err
	}
	load := workload{records: p.n(100_000), events: 1, consumers: 1}
	many, err := p.fill(ctx, load, nil)
	if err != nil {
		return err
	}
	on := func(template string, f func(ctx context.Context, url string, c *Case) error) func(context.Context, *Case) error {
		return func(ctx context.Context, c *Case) error {
			return p.turn(ctx, template, func(ctx context.Context, url string) error { return f(ctx, url, c) })
		}
	}
	const residents = "a resident record, 2 consumers, beside the worker"
	err = p.alternate(ctx,
		option{idleWorker, on(none, func(ctx context.Context, url string, c *Case) error { return p.idle(ctx, url, c) })},
		option{residents, on(full, func(ctx context.Context, url string, c *Case) error { return p.residents(ctx, url, resident, c) })},
		option{"a delivery", on(many, func(ctx context.Context, url string, c *Case) error {
			before := memory()
			m, err := p.drive(ctx, url, load, nil)
			if err != nil {
				return err
			}
			after := memory()
			p.report.add(m.tally)
			c.add("allocations", "per delivery", float64(after.Mallocs-before.Mallocs)/float64(load.deliveries()))
			c.add("allocated", "bytes per delivery", float64(after.TotalAlloc-before.TotalAlloc)/float64(load.deliveries()))
			return nil
		})})
	if err != nil {
		return err
	}
	p.report.atMost("bytes per resident record", 4096, p.report.of(residents).value("memory"))
	return nil
}

// memory is what the process has, once nothing is left to collect.
func memory() (m runtime.MemStats) {
	runtime.GC()
	runtime.GC() // what finalizers let go of in the first
	runtime.ReadMemStats(&m)
	return m
}

func inUse(m *runtime.MemStats) float64 { return float64(m.HeapAlloc + m.StackInuse) }

// idle is a worker with nothing to do.
func (p *play) idle(ctx context.Context, url string, c *Case) error {
	goroutines, before := runtime.NumGoroutine(), memory()
	return p.holding(ctx, url, nil, func(*keyline.Worker) error {
		after := memory()
		c.add("memory", "bytes", inUse(&after)-inUse(&before))
		c.add("goroutines", "goroutines", float64(runtime.NumGoroutine()-goroutines))
		return nil
	})
}

// residents is a worker whose handlers wait, until all records are with it. What an idle
// worker takes, measured before, is not counted, and one handler alone has begun: a handler's
// goroutine is its own matter.
func (p *play) residents(ctx context.Context, url string, l workload, c *Case) error {
	first, over := make(chan time.Duration, 1), make(chan struct{})
	before := memory()
	idle := inUse(&before) + p.report.of(idleWorker).value("memory")
	began := clock.Real()
	handle := func(ctx context.Context) {
		select {
		case first <- began.Mono():
		default:
		}
		select {
		case <-over:
		case <-ctx.Done():
		}
	}
	return p.holding(ctx, url, handle, func(w *keyline.Worker) error {
		defer close(over)
		for w.Health().Resident < l.records {
			if err := clock.Sleep(ctx, began, settledPoll); err != nil {
				return err
			}
			if began.Mono() > time.Minute {
				return fmt.Errorf("%d of %d records are resident", w.Health().Resident, l.records)
			}
		}
		select {
		case at := <-first:
			c.add("first delivery", "ms after the start", at.Seconds()*1000)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		// Claimed is not loaded yet: what grows no more has settled.
		for last := -1.0; ; {
			m := memory()
			now := inUse(&m)
			if now <= last*1.01 {
				c.add("memory", "bytes per record", (now-idle)/float64(l.records))
				return nil
			}
			last = now
			if err := clock.Sleep(ctx, began, 100*time.Millisecond); err != nil {
				return err
			}
		}
	})
}

// holding runs f beside a started worker of two consumers; handle nil: they do nothing.
func (p *play) holding(ctx context.Context, url string, handle func(context.Context), f func(*keyline.Worker) error) error {
	cfg, err := poolConfig(url)
	if err != nil {
		return err
	}
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return err
	}
	defer pool.Close()
	var list []keyline.Consumer
	for i := range 2 {
		list = append(list, keyline.Consumer{Name: fmt.Sprintf("bench-%d", i), Types: []string{"*"}, Effect: keyline.None(),
			Handle: func(ctx context.Context, _ *keyline.Delivery) error {
				if handle != nil {
					handle(ctx)
				}
				return nil
			}})
	}
	w, err := keyline.NewWorker(pool, keyline.Config{Logger: p.Logger, TracerProvider: noop.NewTracerProvider(), MaxInFlight: 1}, list...)
	if err != nil {
		return err
	}
	if err := w.Start(ctx); err != nil {
		return err
	}
	err = f(w)
	if _, stopErr := w.Stop(context.WithoutCancel(ctx)); err == nil {
		err = stopErr
	}
	return err
}
