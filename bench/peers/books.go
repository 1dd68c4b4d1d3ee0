package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// limit is how long a run may take to handle everything. What is left then is lost.
const limit = 10 * time.Minute

// books are what the handlers of one run keep, beside the runtime under test.
type books struct {
	seen      []atomic.Int32 // by job
	remaining atomic.Int64
	done      chan struct{}

	// Only where order is promised.
	events     int // of each record
	records    []line
	disordered atomic.Int64
}

// line is what is known of one record's order.
type line struct {
	inside  atomic.Int32 // handlers at work on it
	highest atomic.Int64 // event that was begun, plus one
}

func newBooks(jobs int) *books {
	b := &books{seen: make([]atomic.Int32, jobs), done: make(chan struct{})}
	b.remaining.Store(int64(jobs))
	return b
}

// newOrderedBooks are for records with so many events each, in order.
func newOrderedBooks(records, events int) *books {
	b := newBooks(records * events)
	b.events, b.records = events, make([]line, records)
	return b
}

func (b *books) handled(job int) {
	if b.seen[job].Add(1) == 1 && b.remaining.Add(-1) == 0 {
		close(b.done)
	}
}

// handledInOrder is handled, for the job of one event of one record, both
// counted from 0. Out of order is an event that is begun after a later one of
// its record, or beside another.
func (b *books) handledInOrder(record, event int) {
	l, job := &b.records[record], record*b.events+event
	if l.inside.Add(1) > 1 {
		b.disordered.Add(1)
	} else if highest := l.highest.Load(); highest > int64(event)+1 && b.seen[job].Load() == 0 {
		b.disordered.Add(1)
	} else if highest <= int64(event) {
		l.highest.Store(int64(event) + 1)
	}
	b.handled(job)
	l.inside.Add(-1)
}

func (b *books) outcome(value float64) outcome {
	o := outcome{Value: value, OrderViolations: b.disordered.Load()}
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
	case <-time.After(limit):
		return 0, fmt.Errorf("%d jobs were not handled", b.remaining.Load())
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
	for time.Since(begun) < limit {
		var n int
		if err := pool.QueryRow(ctx, left).Scan(&n); err != nil {
			return 0, err
		}
		if n == 0 {
			return time.Since(begun), nil
		}
		time.Sleep(5 * time.Millisecond)
	}
	return 0, errors.New("everything was handled, but jobs are left in the database")
}

// stopwatch measures from commit to handler start. What is numbered below warm
// is counted, but not measured: it comes while everything is run for the first time.
type stopwatch struct {
	warm   int64
	mu     sync.Mutex
	commit map[int64]time.Time
	start  map[int64]time.Time
	again  int64
	late   int64
}

// warmUp is the part of a latency run that is not measured.
const warmUp = time.Second

// newStopwatch is for a run at a steady rate, which is per second.
func newStopwatch(rate int) *stopwatch {
	return &stopwatch{warm: int64(float64(rate) * warmUp.Seconds()), commit: map[int64]time.Time{}, start: map[int64]time.Time{}}
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
	} else {
		s.again++
	}
	s.mu.Unlock()
}

// arrival is how long the last events of a latency run may take.
const arrival = 20 * time.Second

// settled waits until everything that was committed has been started, at most
// for arrival. What has not by then, while left still finds work in the
// database, is late: how long it has waited so far is what it counts with.
func (s *stopwatch) settled(ctx context.Context, pool *pgxpool.Pool, left string) error {
	for begun := time.Now(); time.Since(begun) < arrival && ctx.Err() == nil; time.Sleep(20 * time.Millisecond) {
		s.mu.Lock()
		waiting := len(s.commit) - len(s.start)
		s.mu.Unlock()
		if waiting <= 0 {
			return nil
		}
	}
	var n int
	if err := pool.QueryRow(ctx, left).Scan(&n); err != nil || n == 0 {
		return err
	}
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for id := range s.commit {
		if _, ok := s.start[id]; !ok {
			s.start[id] = now
			s.late++
		}
	}
	return nil
}

func (s *stopwatch) outcome() outcome {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := outcome{Duplicates: s.again, Late: s.late}
	var ms []float64
	for id, at := range s.commit {
		switch start, ok := s.start[id]; {
		case !ok:
			o.Lost++
		case id >= s.warm:
			// A handler may start before the appender has heard of its own commit.
			ms = append(ms, max(start.Sub(at), 0).Seconds()*1000)
		}
	}
	slices.Sort(ms)
	if n := len(ms); n > 0 {
		o.Value, o.P99, o.Max = ms[n/2], ms[n*99/100], ms[n-1]
	}
	return o
}
