package supervisor

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/keylinehq/keyline/internal/core"
)

func TestSuspectsTakeTurns(t *testing.T) {
	s := suspects{yield: time.Second}
	item := func(record int64) claimItem { return claimItem{claim: core.Claim{Record: record, Token: record * 10}} }
	for record := range int64(4) {
		s.add(item(record + 1))
	}
	c, ok, _ := s.next(0)
	if !ok || c.claim.Record != 1 {
		t.Fatalf("the first: %+v %v", c, ok)
	}
	if _, ok, look := s.next(400 * time.Millisecond); ok || look != 600*time.Millisecond {
		t.Fatalf("beside it: %v, %v", ok, look)
	}
	if s.ended(1, 99) || s.ended(2, 20) {
		t.Fatal("another claim's end frees the place")
	}
	if !s.ended(1, 10) {
		t.Fatal("its end does not")
	}
	if c, ok, _ = s.next(500 * time.Millisecond); !ok || c.claim.Record != 2 {
		t.Fatalf("the second: %+v %v", c, ok)
	}
	if c, ok, _ = s.next(1500 * time.Millisecond); !ok || c.claim.Record != 3 {
		t.Fatalf("after the yield: %+v %v", c, ok)
	}
	if s.ended(2, 20) {
		t.Fatal("the one that yielded frees the place")
	}
	s.add(item(5))
	if got := s.excess(1); len(got) != 1 || got[0].claim.Record != 5 {
		t.Fatalf("excess: %+v", got)
	}
	if got := s.drop(); len(got) != 1 || got[0].claim.Record != 4 {
		t.Fatalf("dropped: %+v", got)
	}
	if _, ok, look := s.next(time.Hour); ok || look != 0 {
		t.Fatal("an empty queue")
	}
}

// makeSuspects lets a worker die with claims on the records.
func makeSuspects(store *twinStore, records []int64) {
	store.set(func() {
		dead := store.twin.Join()
		for _, r := range records {
			store.twin.Claim(core.ClaimRequest{Worker: dead, Record: r, Limit: 1})
		}
		store.twin.MarkLost(dead)
		store.twin.Recover(1 << 20)
	})
}

// The records of a worker that died run one at a time, while healthy ones do
// not wait for them.
func TestOneSuspectRunsAtATime(t *testing.T) {
	store := newTwinStore(t, real())
	a, b := store.consumer("a"), store.consumer("b")
	suspect, healthy := store.records(t, 12, 2), store.records(t, 12, 2)
	makeSuspects(store, suspect)
	var now, most atomic.Int64
	hold, held := make(chan struct{}), make(chan struct{}, 1)
	r := newRecorder(t, func(_ context.Context, w core.Work) error {
		if !slices.Contains(suspect, w.Record) {
			return nil
		}
		n := now.Add(1)
		for {
			if m := most.Load(); n <= m || most.CompareAndSwap(m, n) {
				break
			}
		}
		select {
		case held <- struct{}{}:
			<-hold
		default:
		}
		now.Add(-1)
		return nil
	})
	startWorker(t, store, r, func(c *Config) { c.SuspectYield = time.Hour })
	receive(t, "a suspect runs", held)
	eventually(t, "the healthy ones", func() bool { return store.through(healthy, 2, a, b) })
	close(hold)
	eventually(t, "the suspects", func() bool { return store.through(suspect, 2, a, b) })
	if most.Load() != 1 {
		t.Errorf("%d suspects' handlers ran at a time", most.Load())
	}
}

// A suspect that runs long yields its place, though not its run.
func TestALongSuspectYields(t *testing.T) {
	store := newTwinStore(t, real())
	a := store.consumer("a")
	records := store.records(t, 5, 1)
	makeSuspects(store, records)
	hold, held := make(chan int64, 1), make(chan int64, 1)
	r := newRecorder(t, func(_ context.Context, w core.Work) error {
		select {
		case held <- w.Record:
			<-hold
		default:
		}
		return nil
	})
	startWorker(t, store, r, func(c *Config) { c.SuspectYield = 20 * time.Millisecond })
	eventually(t, "the others", func() bool { return r.total() == 5 })
	long := receive(t, "the long one", held)
	if store.through([]int64{long}, 1, a) {
		t.Error("it has ended")
	}
	close(hold)
	eventually(t, "all", func() bool { return store.through(records, 1, a) })
}
