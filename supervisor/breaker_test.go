package supervisor

import (
	"context"
	"errors"
	"math"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/keylinehq/keyline/internal/clock"
	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/keylinetype"
)

func TestBreakerOpensAtTheThreshold(t *testing.T) {
	b := newBreaker(keylinetype.Breaker{})
	now := time.Second
	for i := range 19 {
		if b.ended(now, true, false) {
			t.Fatalf("over after %d runs", i+1)
		}
	}
	if !b.ended(now, true, false) {
		t.Fatal("not over after 20 failures")
	}
	if a := b.allow(now); a.ok {
		t.Error("something starts while the trip is on its way")
	}
	if a := b.allow(now + overHold); !a.ok {
		t.Error("a trip that never comes holds starts for ever")
	}
	if !b.trip(now) || b.trip(now) {
		t.Fatal("it trips once")
	}
	if a := b.allow(now + 14*time.Second); a.ok || a.wait != time.Second {
		t.Errorf("while open: %+v", a)
	}
}

func TestABreakerWithoutAnEndOfItsCoolDownStaysOpen(t *testing.T) {
	b := newBreaker(keylinetype.Breaker{CoolDown: math.MaxInt64})
	b.trip(time.Hour)
	if a := b.allow(2 * time.Hour); a.ok || a.wait <= 0 {
		t.Errorf("%+v", a)
	}
}

func TestBreakerForgetsWhatIsOlderThanItsPeriod(t *testing.T) {
	b := newBreaker(keylinetype.Breaker{})
	for range 19 {
		b.ended(time.Second, true, false)
	}
	if b.ended(12*time.Second, true, false) {
		t.Error("failures of the last period count")
	}
}

func TestBreakerLetsOneProbeThrough(t *testing.T) {
	b := newBreaker(keylinetype.Breaker{CoolDown: 10 * time.Second})
	b.trip(0)
	now := 10 * time.Second
	if a := b.allow(now); !a.ok || !a.probe {
		t.Fatalf("the probe: %+v", a)
	}
	if a := b.allow(now); a.ok || a.wait <= 0 {
		t.Fatalf("beside the probe: %+v", a)
	}
	if b.ended(now, true, false); !b.opened {
		t.Fatal("a run from before it opened decides")
	}
	if !b.ended(now, true, true) || !b.trip(now) {
		t.Fatal("a failed probe opens it again")
	}
	now += 10 * time.Second
	if a := b.allow(now); !a.probe {
		t.Fatalf("the next probe: %+v", a)
	}
	b.withdrawn(true)
	if a := b.allow(now); !a.probe {
		t.Fatalf("after a probe that did not happen: %+v", a)
	}
	// A probe that hangs does not hold it half-open for ever.
	now += 10 * time.Second
	if a := b.allow(now); !a.probe {
		t.Fatalf("beside a probe that hangs: %+v", a)
	}
	if b.ended(now, false, true); b.opened || b.state(now) != BreakerClosed {
		t.Fatal("a good probe closes it")
	}
	if runs, _ := b.counts(now); runs != 0 {
		t.Error("it begins anew")
	}
}

func TestDisabledBreakerNeverOpens(t *testing.T) {
	b := newBreaker(keylinetype.Breaker{Disabled: true})
	for range 100 {
		if b.ended(0, true, false) {
			t.Fatal("over")
		}
	}
	if b.trip(0) {
		t.Fatal("tripped")
	}
}

// Against a naive count: over exactly when the period's share says so.
func TestBreakerCountsAsANaiveOneDoes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := newBreaker(keylinetype.Breaker{Period: time.Second, MinRuns: rapid.IntRange(1, 10).Draw(t, "min")})
		type run struct {
			slot   int64
			failed bool
		}
		var all []run
		now := time.Duration(0)
		for range rapid.IntRange(1, 60).Draw(t, "runs") {
			now += time.Duration(rapid.IntRange(0, 400).Draw(t, "ms")) * time.Millisecond
			failed := rapid.Bool().Draw(t, "failed")
			all = append(all, run{int64(now / (100 * time.Millisecond)), failed})
			runs, failures := 0, 0
			for _, r := range all {
				if r.slot > int64(now/(100*time.Millisecond))-10 {
					runs++
					if r.failed {
						failures++
					}
				}
			}
			want := failed && runs >= b.cfg.MinRuns && 2*failures >= runs
			if got := b.ended(now, failed, false); got != want {
				t.Fatalf("at %v: over %v, want %v (%d of %d)", now, got, want, failures, runs)
			}
		}
	})
}

// FAULTS 31, at one worker: downstream fails for everybody; runs stay within
// the threshold, what was in flight, and probes; nothing else is charged; when
// it recovers, everything is delivered. Time passes only while all wait for it: a
// probe that a busy machine keeps from ending is not one that hangs.
func TestAnOutageOpensTheBreakerAndChargesOnlyWhatRan(t *testing.T) {
	synctest.Test(t, outageOpensTheBreaker)
}

func outageOpensTheBreaker(t *testing.T) {
	const inFlight, minRuns, coolDown = 5, 20, 50 * time.Millisecond
	store := newTwinStore(t, real())
	a, other := store.consumer("a", func(c *core.Consumer) {
		c.Retry.Delays = []time.Duration{time.Millisecond, time.Millisecond, time.Millisecond, time.Millisecond, time.Millisecond}
	}), store.consumer("other")
	records := store.records(t, 200, 1)
	var down atomic.Bool
	down.Store(true)
	var failed atomic.Int64
	r := newRecorder(t, func(ctx context.Context, w core.Work) error {
		if w.Consumer.ID == a && down.Load() {
			failed.Add(1)
			// It takes a while to fail, so that the others ask meanwhile.
			return errors.Join(errors.New("downstream is down"), clock.Sleep(ctx, real(), coolDown/2))
		}
		return nil
	})
	w := startWorker(t, store, r, func(c *Config) {
		c.Consumers = map[string]Limits{"a": {MaxInFlight: inFlight, Breaker: keylinetype.Breaker{CoolDown: coolDown}}}
	})
	state := func() ConsumerHealth {
		for _, c := range w.Health().Consumers {
			if c.Name == "a" {
				return c
			}
		}
		return ConsumerHealth{}
	}
	eventually(t, "the other consumer", func() bool { return store.through(records, 1, other) })
	eventually(t, "a probe that failed", func() bool { return w.Health().BreakerTrips >= 3 })
	trips := w.Health().BreakerTrips + 1 // the next probe may run by now
	if n := failed.Load(); n > minRuns+inFlight+trips {
		t.Errorf("%d failures with %d trips", n, trips)
	}
	if c := state(); c.Refused == 0 || c.Failed != failed.Load() && c.Failed > failed.Load() {
		t.Errorf("health: %+v", c)
	}
	down.Store(false)
	eventually(t, "recovery", func() bool { return store.through(records, 1, a) })
	if c := state(); c.Breaker != BreakerClosed {
		t.Errorf("health after: %+v", c)
	}
	if n := r.total(); int64(n) != failed.Load()+2*int64(len(records)) {
		t.Errorf("%d runs, %d failures, %d deliveries", n, failed.Load(), 2*len(records))
	}
}
