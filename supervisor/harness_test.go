package supervisor

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/keylinehq/keyline/internal/clock"
	"github.com/keylinehq/keyline/internal/core"
)

// patience is how long a test waits for what must come.
const patience = 30 * time.Second

// eventually waits for a condition that has no signal.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("never came: %s", what)
		}
	}
}

// receive waits for a signal.
func receive[T any](t *testing.T, what string, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		t.Fatalf("never came: %s", what)
		panic("unreachable")
	}
}

// fakeWakes wakes for what a test notifies and for the due times that Dry
// tells; it has no fallback poll.
type fakeWakes struct {
	c    chan Wake
	dry  chan time.Duration // what Dry said; negative: no due time
	busy atomic.Int64
	more atomic.Int64

	mu    sync.Mutex
	timer *time.Timer
}

func newFakeWakes() *fakeWakes {
	w := &fakeWakes{c: make(chan Wake, 1000), dry: make(chan time.Duration, 100000)}
	w.c <- Wake{Unbounded: true, Cause: "start"}
	return w
}

func (w *fakeWakes) Wait(ctx context.Context) (Wake, error) {
	select {
	case wake := <-w.c:
		return wake, nil
	case <-ctx.Done():
		return Wake{}, ctx.Err()
	}
}

func (w *fakeWakes) Busy() { w.busy.Add(1) }
func (w *fakeWakes) More() { w.more.Add(1) }

func (w *fakeWakes) Dry(d time.Duration, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.timer != nil {
		w.timer.Stop()
	}
	if !ok {
		w.dry <- -1
		return
	}
	w.dry <- d
	w.timer = time.AfterFunc(d, func() { w.c <- Wake{Cause: "due"} })
}

func (w *fakeWakes) notify(records ...int64) { w.c <- Wake{Records: records, Cause: "notified"} }

// recorder is a Runner that keeps what was delivered, and that fails the test
// where two handlers of one (record, consumer) run at a time.
type recorder struct {
	t      *testing.T
	handle func(ctx context.Context, w core.Work) error

	mu      sync.Mutex
	seen    map[string][]int64 // by record and consumer: seqs as they ended well
	running map[string]bool
	runs    int
}

func newRecorder(t *testing.T, handle func(context.Context, core.Work) error) *recorder {
	return &recorder{t: t, handle: handle, seen: map[string][]int64{}, running: map[string]bool{}}
}

func key(record int64, consumer string) string { return fmt.Sprintf("%d/%s", record, consumer) }

func (r *recorder) Run(ctx context.Context, w *core.Work) (out core.Outcome) {
	k := key(w.Record, w.Consumer.Name)
	r.mu.Lock()
	r.runs++
	if r.running[k] {
		r.t.Errorf("two handlers of %s run at a time", k)
	}
	r.running[k] = true
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.running[k] = false
		if out.Err == nil {
			for _, e := range w.Events {
				r.seen[k] = append(r.seen[k], e.Seq)
			}
		}
	}()
	out.Err = errUnfinished // what the deferred function sees of a panic
	if r.handle == nil {
		return core.Outcome{}
	}
	return core.Outcome{Err: r.handle(ctx, *w)}
}

var errUnfinished = fmt.Errorf("handler did not return")

func (r *recorder) got(record int64, consumer string) []int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.seen[key(record, consumer)])
}

func (r *recorder) total() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.runs
}

// worker is a supervisor with its doubles.
type worker struct {
	*Supervisor
	store *twinWorker
	wakes *fakeWakes
}

// newWorker makes a worker that is stopped at the end of the test.
func newWorker(t *testing.T, store *twinStore, r *recorder, change ...func(*Config)) *worker {
	t.Helper()
	w := &worker{store: &twinWorker{twinStore: store}, wakes: newFakeWakes()}
	cfg := Config{Deliveries: w.store, Leases: w.store, Wakes: w.wakes, Runner: r, Joined: w.store.joined, Clock: store.clock,
		Log: slog.New(slog.NewTextHandler(io.Discard, nil)), Random: clock.NewRand(1).Float64, NewsEvery: 5 * time.Millisecond}
	for _, f := range change {
		f(&cfg)
	}
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	w.Supervisor = s
	return w
}

func startWorker(t *testing.T, store *twinStore, r *recorder, change ...func(*Config)) *worker {
	t.Helper()
	w := newWorker(t, store, r, change...)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := w.Start(ctx); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.stop(t) })
	return w
}

func (w *worker) stop(t *testing.T) Status {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	status, err := w.Stop(ctx)
	if err != nil {
		t.Errorf("stop: %v", err)
	}
	return status
}

func (w *worker) idle(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := w.WaitIdle(ctx); err != nil {
		t.Fatalf("not idle: %v: %+v", err, w.Health())
	}
}

func real() clock.Clock { return clock.Real() }
