package main

import (
	"context"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/keylinehq/keyline/internal/pgdev"
)

// bench is the server that all sides share.
type bench struct {
	settings
	server *pgdev.Server
	n      int
}

// fresh makes a database for one run and a pool on it.
func (b *bench) fresh(ctx context.Context) (*pgxpool.Pool, func(), error) {
	b.n++
	name := fmt.Sprintf("bench_%d", b.n)
	admin, err := pgx.Connect(ctx, b.server.URL("postgres"))
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = admin.Close(ctx) }()
	if _, err := admin.Exec(ctx, "create database "+name); err != nil {
		return nil, nil, err
	}
	cfg, err := pgxpool.ParseConfig(b.server.URL(name))
	if err != nil {
		return nil, nil, err
	}
	cfg.MaxConns = b.MaxConns
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, nil, err
	}
	return pool, func() {
		pool.Close()
		ctx := context.WithoutCancel(ctx)
		if admin, err := pgx.Connect(ctx, b.server.URL("postgres")); err == nil {
			_, _ = admin.Exec(ctx, "drop database if exists "+name+" with (force)")
			_ = admin.Close(ctx)
		}
	}, nil
}

// books are what the handlers of one run keep, beside the runtime under test.
type books struct {
	seen      []atomic.Int32 // by job
	remaining atomic.Int64
	done      chan struct{}
}

func newBooks(jobs int) *books {
	b := &books{seen: make([]atomic.Int32, jobs), done: make(chan struct{})}
	b.remaining.Store(int64(jobs))
	return b
}

func (b *books) handled(job int) {
	if b.seen[job].Add(1) == 1 && b.remaining.Add(-1) == 0 {
		close(b.done)
	}
}

func (b *books) outcome(value float64) outcome {
	o := outcome{Value: value}
	for i := range b.seen {
		switch n := b.seen[i].Load(); {
		case n == 0:
			o.Lost++
		case n > 1:
			o.Duplicates += int64(n - 1)
		}
	}
	return o
}

// drained waits until every job was handled and none is left in the database,
// and returns how long it took from begun.
func (b *books) drained(ctx context.Context, pool *pgxpool.Pool, begun time.Time, left string) (time.Duration, error) {
	select {
	case <-b.done:
	case <-time.After(10 * time.Minute):
		return 0, fmt.Errorf("%d jobs were not handled", b.remaining.Load())
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
	for {
		var n int
		if err := pool.QueryRow(ctx, left).Scan(&n); err != nil {
			return 0, err
		}
		if n == 0 {
			return time.Since(begun), nil
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// clients runs f again and again on n goroutines for a time, and returns how
// often per second it succeeded.
func clients(ctx context.Context, n int, d time.Duration, f func(ctx context.Context, client, i int) error) (float64, error) {
	var (
		count atomic.Int64
		wg    sync.WaitGroup
		once  sync.Once
		fail  error
	)
	begun := time.Now()
	for c := range n {
		wg.Go(func() {
			for i := 0; time.Since(begun) < d && ctx.Err() == nil; i++ {
				if err := f(ctx, c, i); err != nil {
					once.Do(func() { fail = err })
					return
				}
				count.Add(1)
			}
		})
	}
	wg.Wait()
	return float64(count.Load()) / time.Since(begun).Seconds(), fail
}

// stopwatch measures from commit to handler start.
type stopwatch struct {
	mu     sync.Mutex
	commit map[int64]time.Time
	start  map[int64]time.Time
}

func newStopwatch() *stopwatch {
	return &stopwatch{commit: map[int64]time.Time{}, start: map[int64]time.Time{}}
}

func (s *stopwatch) committed(id int64) {
	now := time.Now()
	s.mu.Lock()
	s.commit[id] = now
	s.mu.Unlock()
}

func (s *stopwatch) started(id int64) {
	now := time.Now()
	s.mu.Lock()
	if _, again := s.start[id]; !again {
		s.start[id] = now
	}
	s.mu.Unlock()
}

func (s *stopwatch) outcome() outcome {
	s.mu.Lock()
	defer s.mu.Unlock()
	var o outcome
	var ms []float64
	for id, at := range s.commit {
		if start, ok := s.start[id]; ok {
			// A handler may start before the appender has heard of its own commit.
			ms = append(ms, max(start.Sub(at), 0).Seconds()*1000)
		} else {
			o.Lost++
		}
	}
	slices.Sort(ms)
	if n := len(ms); n > 0 {
		o.Value, o.P99, o.Max = ms[n/2], ms[n*99/100], ms[n-1]
	}
	return o
}

// openLoop calls f at a rate, whether or not the earlier calls have ended.
func openLoop(ctx context.Context, rate int, d time.Duration, f func(ctx context.Context, i int64) error) error {
	var wg sync.WaitGroup
	var once sync.Once
	var fail error
	tick := time.NewTicker(time.Second / time.Duration(rate))
	defer tick.Stop()
	begun := time.Now()
	for i := int64(0); time.Since(begun) < d && ctx.Err() == nil; i++ {
		<-tick.C
		wg.Go(func() {
			if err := f(ctx, i); err != nil {
				once.Do(func() { fail = err })
			}
		})
	}
	wg.Wait()
	return fail
}

// version returns a dependency's version, as built in.
func version(module string) string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	for _, d := range info.Deps {
		if d.Path == module {
			return d.Version
		}
	}
	return ""
}
