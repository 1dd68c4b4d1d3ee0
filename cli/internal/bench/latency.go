package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/internal/clock"
)

func latency(ctx context.Context, p *play) error {
	p.Step("prepare the database")
	template, err := p.fill(ctx, workload{consumers: 1}, nil)
	if err != nil {
		return err
	}
	var options []option
	for _, rate := range []int{50, 500, 2000} {
		options = append(options, option{fmt.Sprintf("%d events/s", rate), func(ctx context.Context, c *Case) error {
			return p.turn(ctx, template, func(ctx context.Context, url string) error { return p.steady(ctx, url, rate, c) })
		}})
	}
	if err := p.alternate(ctx, options...); err != nil {
		return err
	}
	at500 := p.report.of("500 events/s")
	p.report.atMost("median at 500 events/s, ms", 5, at500.value("p50"))
	p.report.atMost("p99 at 500 events/s, ms", 30, at500.value("p99"))
	return nil
}

// steady appends at a rate, whatever becomes of the events, and notes how long
// each waited for its handler.
func (p *play) steady(ctx context.Context, url string, rate int, c *Case) (err error) {
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return err
	}
	cfg.MaxConns = appenders
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return err
	}
	defer pool.Close()
	watch := newStopwatch(int(warmUp.Seconds()*float64(rate)), max(1, int(p.duration.Seconds()*float64(rate))))
	w, err := keyline.NewWorker(pool, keyline.Config{Logger: p.Logger, TracerProvider: noop.NewTracerProvider()}, keyline.Consumer{
		Name: "bench-0", Types: []string{"*"}, Effect: keyline.None(),
		Handle: func(_ context.Context, d *keyline.Delivery) error { watch.started(d.Key.Record); return nil },
	})
	if err != nil {
		return err
	}
	if err := w.Start(ctx); err != nil {
		return err
	}
	client, err := keyline.NewClient(keyline.ClientConfig{TracerProvider: noop.NewTracerProvider()})
	if err == nil {
		err = watch.run(ctx, rate, func(ctx context.Context, key string) error {
			_, err := client.Append(ctx, pool, benchEvent(key))
			return err
		})
	}
	_, stopErr := w.Stop(context.WithoutCancel(ctx))
	if err = errors.Join(err, stopErr); err != nil {
		return err
	}
	waits, lost := watch.waits()
	p.report.Lost += lost
	p.report.Duplicates += watch.again
	if len(waits) == 0 {
		return nil
	}
	at := func(share float64) float64 { return waits[int(share*float64(len(waits)-1))].Seconds() * 1000 }
	c.add("p50", "ms", at(0.5))
	c.add("p99", "ms", at(0.99))
	c.add("max", "ms", at(1))
	return nil
}

// warmUp precedes what is measured: sessions connect and plan in it, and all code runs for the first time.
const warmUp = time.Second

// stopwatch measures from commit to handler.
type stopwatch struct {
	clock clock.Clock
	n     int // all events; the first warm are not measured
	warm  int
	done  chan struct{}

	mu      sync.Mutex
	commits map[string]time.Duration
	starts  map[string]time.Duration
	again   int64
}

func newStopwatch(warm, measured int) *stopwatch {
	return &stopwatch{clock: clock.Real(), n: warm + measured, warm: warm, done: make(chan struct{}), commits: map[string]time.Duration{}, starts: map[string]time.Duration{}}
}

func (s *stopwatch) started(key string) {
	now := s.clock.Mono()
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, twice := s.starts[key]; twice {
		s.again++
		return
	}
	s.starts[key] = now
	if len(s.starts) == s.n {
		close(s.done)
	}
}

// lastWait is how long the last events may take to arrive before they count as lost.
const lastWait = 10 * time.Second

// run appends n events at a rate and waits for the last ones.
func (s *stopwatch) run(ctx context.Context, rate int, f func(ctx context.Context, key string) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	tick := s.clock.NewTicker(time.Second / time.Duration(rate))
	defer tick.Stop()
	for i := range s.n {
		select {
		case <-tick.C():
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			break
		}
		wg.Go(func() {
			key := fmt.Sprintf("%s%d", recordPrefix, i)
			if err := f(ctx, key); err != nil {
				cancel(err)
				return
			}
			now := s.clock.Mono()
			s.mu.Lock()
			s.commits[key] = now
			s.mu.Unlock()
		})
	}
	wg.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	last := s.clock.NewTimer(lastWait)
	defer last.Stop()
	select {
	case <-s.done:
	case <-last.C():
	case <-ctx.Done():
	}
	return context.Cause(ctx)
}

// waits are those measured, sorted. A handler may start before the appender has heard of its own commit. What has not started is lost.
func (s *stopwatch) waits() (list []time.Duration, lost int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.n {
		key := fmt.Sprintf("%s%d", recordPrefix, i)
		at, committed := s.commits[key]
		switch start, ok := s.starts[key]; {
		case committed && !ok:
			lost++
		case committed && i >= s.warm:
			list = append(list, max(start-at, 0))
		}
	}
	slices.Sort(list)
	return list, lost
}
