package supervisor

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/keylinehq/keyline/actors"
	"github.com/keylinehq/keyline/actors/delivery"
	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/keylinetype"
)

// brittle is a machine that panics when fails says so: a bug in the shell or in
// the machine.
type brittle struct {
	*delivery.Machine
	fails func(record int64, m delivery.Message) bool
}

func (b *brittle) Step(now time.Time, m delivery.Message) []delivery.Effect {
	if b.fails(b.Claim().Record, m) {
		panic("a bug")
	}
	return b.Machine.Step(now, m)
}

func brittleMachines(fails func(record int64, m delivery.Message) bool) func(*Config) {
	return func(c *Config) {
		c.Machine = func(r *core.Registry, l core.Loaded, o delivery.Options) (actors.Machine, []delivery.Effect) {
			m, effects := delivery.New(r, l, o)
			return &brittle{m, fails}, effects
		}
	}
}

// once is true the first time that cond holds.
func once(cond func(record int64, m delivery.Message) bool) func(int64, delivery.Message) bool {
	var done atomic.Bool
	return func(record int64, m delivery.Message) bool {
		return cond(record, m) && done.CompareAndSwap(false, true)
	}
}

func endedOf(consumer string) func(int64, delivery.Message) bool {
	return func(_ int64, m delivery.Message) bool {
		e, ok := m.(*delivery.Ended)
		return ok && e.Work.Consumer.Name == consumer
	}
}

func TestARecordActorThatFailsIsRestartedUnderTheSameClaim(t *testing.T) {
	store := newTwinStore(t, real())
	a := store.consumer("a")
	records := store.records(t, 1, 3)
	var mu sync.Mutex
	var works []core.Work
	r := newRecorder(t, func(_ context.Context, w core.Work) error {
		mu.Lock()
		defer mu.Unlock()
		works = append(works, w)
		return nil
	})
	w := startWorker(t, store, r, brittleMachines(once(func(_ int64, m delivery.Message) bool {
		e, ok := m.(*delivery.Ended)
		return ok && e.Work.Events[0].Seq == 2
	})))
	eventually(t, "delivered", func() bool { return store.through(records, 3, a) })
	w.idle(t)
	if got := r.got(records[0], "a"); !slices.Equal(got, []int64{1, 2, 2, 3}) {
		t.Errorf("delivered: %v", got)
	}
	for _, work := range works {
		if work.Token != works[0].Token {
			t.Error("the claim was given up")
		}
	}
	if len(works) == 4 && !works[2].Redelivered {
		t.Error("what may have run before is not marked")
	}
	// A seat whose actor has failed is never used again.
	w.table.mu.Lock()
	defer w.table.mu.Unlock()
	if len(w.table.places) != 0 || w.table.settled != 1 {
		t.Errorf("%d seats left, %d settled", len(w.table.places), w.table.settled)
	}
}

// The restarts under one claim are capped; then the claim goes back, and other
// records never notice.
func TestARecordActorThatKeepsFailingGivesItsClaimUp(t *testing.T) {
	store := newTwinStore(t, real())
	a := store.consumer("a")
	records := store.records(t, 6, 1)
	var failures atomic.Int64
	var mended atomic.Bool
	w := startWorker(t, store, newRecorder(t, nil), func(c *Config) { c.Lease = time.Second },
		brittleMachines(func(record int64, m delivery.Message) bool {
			if _, ok := m.(*delivery.Ended); !ok || record != records[0] || mended.Load() {
				return false
			}
			failures.Add(1)
			return true
		}))
	eventually(t, "the others", func() bool { return store.through(records[1:], 1, a) })
	eventually(t, "the cap", func() bool { return failures.Load() == actors.MaxRestarts+1 && w.room.n.Load() == 0 })
	mended.Store(true)
	eventually(t, "the orphan sweep gives it back", func() bool {
		w.wakes.notify()
		return store.through(records, 1, a)
	})
	if w.Health().Orphans == 0 {
		t.Error("it was not handed back as an orphan")
	}
}

// A record actor that fails over the very message that fences it does not begin
// again, and does not keep the worker from coming back.
func TestARecordActorThatFailsWhileItIsFenced(t *testing.T) {
	store := newTwinStore(t, real())
	a := store.consumer("a")
	records := store.records(t, 1, 1)
	var runs, token atomic.Int64
	r := newRecorder(t, func(ctx context.Context, w core.Work) error {
		if runs.Add(1) == 1 {
			token.Store(w.Token)
			<-ctx.Done()
			return ctx.Err()
		}
		if w.Token == token.Load() {
			t.Error("begun again under the claim that was given up")
		}
		return nil
	})
	w := startWorker(t, store, r, func(c *Config) { c.Lease = time.Second }, brittleMachines(once(func(_ int64, m delivery.Message) bool {
		_, ok := m.(delivery.Fenced)
		return ok
	})))
	eventually(t, "the handler runs", func() bool { return runs.Load() == 1 })
	first := w.Worker()
	w.noticeFence(keylinetype.ErrFenced)
	eventually(t, "a new incarnation", func() bool { return w.Worker() > first })
	eventually(t, "delivered", func() bool {
		w.wakes.notify()
		return store.through(records, 1, a)
	})
}

// A new incarnation waits for the handlers of the old one: the record must not
// be settled or handed back beside them, nor the pair run twice.
func TestARestartWaitsForRunningHandlers(t *testing.T) {
	store := newTwinStore(t, real())
	slow, quick := store.consumer("slow"), store.consumer("quick")
	records := store.records(t, 1, 1)
	begun, cancelled, release := make(chan struct{}), make(chan struct{}), make(chan struct{})
	var slowRuns atomic.Int64
	r := newRecorder(t, func(ctx context.Context, w core.Work) error {
		if w.Consumer.ID == quick {
			<-begun
			return nil
		}
		if w.Record == 1 && slowRuns.Add(1) == 1 {
			close(begun)
			<-ctx.Done()
			close(cancelled)
			<-release
		}
		return nil
	})
	w := startWorker(t, store, r, brittleMachines(once(endedOf("quick"))))
	receive(t, "the incarnation's context ends", cancelled)
	w.restarted(t)
	// Whatever the new incarnation has asked of the loader goes before this.
	others := store.records(t, 1, 1)
	w.wakes.notify()
	eventually(t, "another record", func() bool { return store.through(others, 1, slow, quick) })
	if n := store.get(func() int { return store.loads[records[0]] }); n != 1 {
		t.Errorf("loaded %d times while a handler runs", n)
	}
	close(release)
	eventually(t, "delivered", func() bool { return store.through(records, 1, slow, quick) })
	if n := slowRuns.Load(); n != 2 {
		t.Errorf("%d runs: what ended under the old incarnation does not count", n)
	}
}

// restarted waits until a seat has its second incarnation.
func (w *worker) restarted(t *testing.T) {
	t.Helper()
	eventually(t, "the restart", func() bool {
		for p := range w.places() {
			if p.seat.Incarnations() == 2 {
				return true
			}
		}
		return false
	})
}

func (w *worker) places() map[*place]struct{} {
	w.table.mu.Lock()
	defer w.table.mu.Unlock()
	out := map[*place]struct{}{}
	for p := range w.table.places {
		out[p] = struct{}{}
	}
	return out
}

// A new incarnation waits for the flush of the old one: what it made durable is
// not delivered again.
func TestARestartWaitsForTheFlushInFlight(t *testing.T) {
	store := newTwinStore(t, real())
	first, second := store.consumer("first"), store.consumer("second")
	records := store.records(t, 1, 2)
	hold, flushed := make(chan struct{}), make(chan struct{})
	store.set(func() { store.holdFlush = hold })
	var once1 sync.Once
	r := newRecorder(t, func(_ context.Context, w core.Work) error {
		if w.Consumer.ID == second && w.Events[0].Seq == 1 {
			<-flushed
		}
		return nil
	})
	w := startWorker(t, store, r, brittleMachines(once(endedOf("second"))))
	eventually(t, "the first one's outcome is with the committer", func() bool {
		if len(r.got(records[0], "first")) == 1 && w.waitsForFlush() {
			once1.Do(func() { close(flushed) })
			return true
		}
		return false
	})
	w.restarted(t)
	store.set(func() { store.holdFlush = nil })
	close(hold)
	eventually(t, "delivered", func() bool { return store.through(records, 2, first, second) })
	if got := r.got(records[0], "first"); !slices.Equal(got, []int64{1, 2}) {
		t.Errorf("first: %v", got)
	}
}

// waitsForFlush reports whether the committer has something that it holds.
func (w *worker) waitsForFlush() bool {
	w.store.twinStore.mu.Lock()
	defer w.store.twinStore.mu.Unlock()
	return w.store.pendingFlushes > 0
}
