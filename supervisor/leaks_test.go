package supervisor

import (
	"context"
	"flag"
	"io"
	"log/slog"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/keylinehq/keyline/internal/core"
)

// activations is how many records TestManyActivationsLeaveNothingBehind runs; make test/leaks runs 100,000.
var activations = flag.Int("leaks.records", 10_000, "how many records are activated in search of leaks")

// stores is a store that is exchanged for another between rounds.
type stores struct{ now atomic.Pointer[instantStore] }

func (s *stores) Claim(ctx context.Context, r core.ClaimRequest) ([]core.Claim, error) {
	return s.now.Load().Claim(ctx, r)
}

func (s *stores) ClaimRecord(ctx context.Context, r core.ClaimRequest, limit int) ([]core.Claim, []core.Loaded, error) {
	return s.now.Load().ClaimRecord(ctx, r, limit)
}

func (s *stores) NextDue(ctx context.Context, hosted []int32) (time.Duration, bool, error) {
	return s.now.Load().NextDue(ctx, hosted)
}

func (s *stores) Load(ctx context.Context, rs []core.LoadRequest) ([]core.Loaded, error) {
	return s.now.Load().Load(ctx, rs)
}

func (s *stores) LoadEvents(ctx context.Context, r []core.EventRange) ([]core.Event, error) {
	return s.now.Load().LoadEvents(ctx, r)
}

func (s *stores) Flush(f *core.Flush, epoch int64, done func(core.FlushResult)) {
	s.now.Load().Flush(f, epoch, done)
}

func (s *stores) News(ctx context.Context, records []int64) (int64, []core.News, error) {
	return s.now.Load().News(ctx, records)
}

func (s *stores) Registry(ctx context.Context) (*core.Registry, error) {
	return s.now.Load().Registry(ctx)
}

// TestManyActivationsLeaveNothingBehind: records that were activated, delivered
// and settled leave memory and goroutines where they were. Record and consumer actors, machines,
// tickets and claims are the real ones.
func TestManyActivationsLeaveNothingBehind(t *testing.T) {
	w := newFakeWakes()
	receive(t, "the first wake", w.c)
	const inFlight = 32
	all := &stores{}
	all.now.Store(newInstantStore(0, 2))
	s, err := New(Config{Deliveries: all, Leases: quietLeases{}, Wakes: w, Runner: instantRunner{}, MaxInFlight: inFlight, Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	round := func(records int) {
		t.Helper()
		store := newInstantStore(records, 2)
		go store.commit()
		defer close(store.flushes)
		all.now.Store(store)
		w.c <- Wake{Unbounded: true, Cause: "test"}
		select {
		case <-store.done:
		case <-time.After(10 * patience): // as many as they are
			t.Fatalf("%d of %d records have settled", store.settled.Load(), records)
		}
		eventually(t, "the last record to be let go", func() bool { return s.Health().Resident == 0 })
	}
	// Goroutines of handlers, and thousands of seats, are kept for use again.
	goroutines := runtime.NumGoroutine() + 8*inFlight
	round(5_000) // everything that is kept for use again has been made
	_, heap := rest(s, goroutines)
	round(*activations)
	after, held := rest(s, goroutines)
	t.Logf("%d records: goroutines at most %d, there are %d; heap %d KiB, then %d", *activations, goroutines, after, heap>>10, held>>10)
	if after > goroutines {
		t.Errorf("%d goroutines, at most %d are allowed", after, goroutines)
	}
	// An actor that stays would be a KiB for each record.
	if most := uint64(6 << 20); held > heap+most {
		t.Errorf("the heap has grown by %d KiB over %d records", (held-heap)>>10, *activations)
	}
	if _, err := s.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// rest is how many goroutines there are and what the heap holds, once nothing
// goes on any more: while there are more goroutines than wanted, it waits a little.
func rest(s *Supervisor, goroutines int) (int, uint64) {
	var m runtime.MemStats
	n := 0
	for range 1000 {
		runtime.GC()
		if n = runtime.NumGoroutine(); s.Health().Resident == 0 && n <= goroutines {
			break
		}
		runtime.Gosched()
	}
	runtime.GC() // what finalizers and pools held
	runtime.ReadMemStats(&m)
	return n, m.HeapAlloc
}
