package clock_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/keylinehq/keyline/internal/clock"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

func fired(c <-chan time.Time) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func TestFakeStandsStillUntilAdvanced(t *testing.T) {
	f := clock.NewFake(noon)
	if got := f.Now(); !got.Equal(noon) {
		t.Fatalf("Now() = %v, want %v", got, noon)
	}
	f.Advance(time.Minute)
	if got := f.Now(); !got.Equal(noon.Add(time.Minute)) {
		t.Fatalf("Now() = %v after a minute", got)
	}
	if got := f.Mono(); got != time.Minute {
		t.Fatalf("Mono() = %v after a minute", got)
	}
}

func TestFakeStepMovesTheWallClockAlone(t *testing.T) {
	f := clock.NewFake(noon)
	timer := f.NewTimer(time.Minute)
	f.Step(time.Hour)
	if fired(timer.C()) {
		t.Fatal("a wall clock step fired a timer")
	}
	f.Step(-2 * time.Hour)
	if got := f.Mono(); got != 0 {
		t.Fatalf("Mono() = %v after steps of the wall clock", got)
	}
	f.Advance(time.Minute)
	if !fired(timer.C()) {
		t.Fatal("a backward step kept a timer from firing")
	}
	if got, want := f.Now(), noon.Add(-59*time.Minute); !got.Equal(want) {
		t.Fatalf("Now() = %v, want %v", got, want)
	}
}

func TestFakeTimerFiresOnceWhenDueAndNotBefore(t *testing.T) {
	f := clock.NewFake(noon)
	timer := f.NewTimer(time.Second)
	f.Advance(time.Second - 1)
	if fired(timer.C()) {
		t.Fatal("fired early")
	}
	f.Advance(1)
	if !fired(timer.C()) {
		t.Fatal("did not fire when due")
	}
	f.Advance(time.Hour)
	if fired(timer.C()) {
		t.Fatal("fired twice")
	}
	if timer.Stop() {
		t.Fatal("Stop reported that a fired timer was running")
	}
	if !fired(f.NewTimer(0).C()) {
		t.Fatal("a timer of no duration waits")
	}
}

func TestFakeStopAndResetLeaveNoStaleValue(t *testing.T) {
	f := clock.NewFake(noon)
	timer := f.NewTimer(time.Second)
	f.Advance(time.Second)
	if timer.Reset(time.Minute) {
		t.Fatal("Reset reported that a fired timer was running")
	}
	if fired(timer.C()) {
		t.Fatal("the old value survived Reset")
	}
	f.Advance(time.Minute)
	timer.Stop()
	if fired(timer.C()) {
		t.Fatal("the old value survived Stop")
	}
	timer.Reset(time.Second)
	if !timer.Stop() {
		t.Fatal("Stop did not see that the timer was running")
	}
	f.Advance(time.Hour)
	if fired(timer.C()) {
		t.Fatal("fired after Stop")
	}
}

func TestFakeFiresInOrderOfDueTime(t *testing.T) {
	f := clock.NewFake(noon)
	late, early := f.NewTimer(2*time.Second), f.NewTimer(time.Second)
	f.Advance(time.Minute)
	if a, b := <-early.C(), <-late.C(); !a.Equal(noon.Add(time.Second)) || !b.Equal(noon.Add(2*time.Second)) {
		t.Fatalf("timers saw %v and %v", a, b)
	}
}

func TestFakeTickerTicksAndDropsUnreadTicks(t *testing.T) {
	f := clock.NewFake(noon)
	ticker := f.NewTicker(time.Second)
	f.Advance(3 * time.Second)
	if got := <-ticker.C(); !got.Equal(noon.Add(time.Second)) {
		t.Fatalf("first tick at %v", got)
	}
	if fired(ticker.C()) {
		t.Fatal("an unread tick was kept")
	}
	f.Advance(time.Second)
	if !fired(ticker.C()) {
		t.Fatal("no tick after a dropped one")
	}
	ticker.Reset(time.Minute)
	f.Advance(59 * time.Second)
	if fired(ticker.C()) {
		t.Fatal("the old period survived Reset")
	}
	f.Advance(time.Second)
	if !fired(ticker.C()) {
		t.Fatal("no tick in the new period")
	}
	ticker.Stop()
	f.Advance(time.Hour)
	if fired(ticker.C()) {
		t.Fatal("tick after Stop")
	}
}

func TestFakeAfterFuncRunsOffTheCallersGoroutine(t *testing.T) {
	f := clock.NewFake(noon)
	var mu sync.Mutex
	ran := make(chan struct{})
	f.AfterFunc(time.Second, func() {
		mu.Lock()
		defer mu.Unlock()
		_ = f.Now() // would deadlock if Advance held its lock for the call
		close(ran)
	})
	mu.Lock()
	f.Advance(time.Second) // would deadlock if Advance waited for the call
	mu.Unlock()
	<-ran
	stopped := f.AfterFunc(time.Second, func() { t.Error("ran after Stop") })
	stopped.Stop()
	f.Advance(time.Hour)
}

func TestFakeBlockUntilSeesSleepersAcrossGoroutines(t *testing.T) {
	f := clock.NewFake(noon)
	ctx := t.Context()
	const sleepers = 8
	var wg sync.WaitGroup
	for range sleepers {
		wg.Go(func() {
			if err := clock.Sleep(ctx, f, time.Minute); err != nil {
				t.Error(err)
			}
		})
	}
	if err := f.BlockUntil(ctx, sleepers); err != nil {
		t.Fatal(err)
	}
	f.Advance(time.Minute)
	wg.Wait()
	if n := f.Waiting(); n != 0 {
		t.Fatalf("%d timers left behind", n)
	}
	done, cancel := context.WithCancel(ctx)
	cancel()
	if err := f.BlockUntil(done, 1); !errors.Is(err, context.Canceled) {
		t.Fatalf("BlockUntil under a done context: %v", err)
	}
}

func TestSleepReturnsTheCauseOfCancellation(t *testing.T) {
	cause := errors.New("the lease ran out")
	for name, c := range map[string]clock.Clock{"real": clock.Real(), "fake": clock.NewFake(noon)} {
		ctx, cancel := context.WithCancelCause(t.Context())
		errc := make(chan error, 1)
		go func() { errc <- clock.Sleep(ctx, c, time.Hour) }()
		cancel(cause)
		if err := <-errc; !errors.Is(err, cause) {
			t.Errorf("%s: Sleep = %v, want %v", name, err, cause)
		}
		if err := clock.Sleep(ctx, c, 0); !errors.Is(err, cause) {
			t.Errorf("%s: Sleep under a done context = %v", name, err)
		}
	}
}

func TestRealClockMovesForward(t *testing.T) {
	c := clock.Real()
	before, wall := c.Mono(), c.Now()
	if err := clock.Sleep(t.Context(), c, time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if got := c.Mono() - before; got < time.Millisecond {
		t.Fatalf("Mono moved by %v during a sleep of 1ms", got)
	}
	if got := c.Now().Sub(wall); got < time.Millisecond {
		t.Fatalf("Now moved by %v during a sleep of 1ms", got)
	}
	ran := make(chan struct{})
	c.AfterFunc(0, func() { close(ran) })
	<-ran
	ticker := c.NewTicker(time.Microsecond)
	<-ticker.C()
	<-ticker.C()
	ticker.Stop()
}

func TestRandRepeatsFromItsSeed(t *testing.T) {
	seed := clock.RandomSeed()
	a, b := clock.NewRand(seed), clock.NewRand(seed)
	if a.Seed() != seed {
		t.Fatalf("Seed() = %d, want %d", a.Seed(), seed)
	}
	for range 100 {
		if x, y := a.Float64(), b.Float64(); x != y || x < 0 || x >= 1 {
			t.Fatalf("seed %d: drew %v and %v", seed, x, y)
		}
		if x, y := a.Int64N(10), b.Int64N(10); x != y || x < 0 || x >= 10 {
			t.Fatalf("seed %d: drew %v and %v", seed, x, y)
		}
		if x, y := a.IntN(3), b.IntN(3); x != y || x < 0 || x >= 3 {
			t.Fatalf("seed %d: drew %v and %v", seed, x, y)
		}
	}
	if c := clock.NewRand(seed + 1); c.Int64N(1<<62) == clock.NewRand(seed).Int64N(1<<62) {
		t.Fatalf("seeds %d and %d draw the same", seed, seed+1)
	}
}
