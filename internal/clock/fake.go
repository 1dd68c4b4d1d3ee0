package clock

import (
	"context"
	"slices"
	"sync"
	"time"
)

// Fake is a clock that stands still until a test moves it. Safe for concurrent
// use.
type Fake struct {
	mu      sync.Mutex
	wall    time.Time
	mono    time.Duration
	waiting map[*fakeTimer]struct{}
	// changed is closed and replaced whenever the set of waiting timers
	// changes, for BlockUntil.
	changed chan struct{}
	order   uint64
}

// NewFake makes a fake clock whose wall clock stands at t and whose monotonic
// one at 0.
func NewFake(t time.Time) *Fake {
	// Round(0) drops the monotonic reading: with it, differences between two
	// fake times would come from the machine's clock.
	return &Fake{wall: t.Round(0), waiting: map[*fakeTimer]struct{}{}, changed: make(chan struct{})}
}

// Now is the fake wall clock.
func (f *Fake) Now() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.wall
}

// Mono is the sum of all advances.
func (f *Fake) Mono() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mono
}

// Advance moves both clocks forward by d and fires what comes due on the way,
// in order of due time. Functions of AfterFunc run on goroutines of their own,
// which Advance does not wait for. A negative d panics: only the wall clock
// can go back (Step).
func (f *Fake) Advance(d time.Duration) {
	if d < 0 {
		panic("clock: Advance by a negative duration")
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	end := f.mono + d
	for {
		t := f.nextDue(end)
		if t == nil {
			break
		}
		f.moveTo(max(t.due, f.mono))
		f.fire(t)
	}
	f.moveTo(end)
}

// Step moves the wall clock alone, in either direction, as an administrator or
// NTP would. Timers do not notice.
func (f *Fake) Step(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.wall = f.wall.Add(d)
}

// Waiting is the number of timers and tickers that are running.
func (f *Fake) Waiting() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.waiting)
}

// BlockUntil waits until at least n timers and tickers are running: the signal
// that the code under test has gone to sleep and Advance will wake it.
func (f *Fake) BlockUntil(ctx context.Context, n int) error {
	for {
		f.mu.Lock()
		enough, changed := len(f.waiting) >= n, f.changed
		f.mu.Unlock()
		if enough {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// BlockUntilDue waits until a timer is due in exactly one of these durations, and says in
// which: where others than the code under test have timers on this clock, their number says nothing.
func (f *Fake) BlockUntilDue(ctx context.Context, in ...time.Duration) (time.Duration, error) {
	for {
		f.mu.Lock()
		changed := f.changed
		for t := range f.waiting {
			if d := t.due - f.mono; slices.Contains(in, d) {
				f.mu.Unlock()
				return d, nil
			}
		}
		f.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
}

// NewTimer makes a timer; one with d <= 0 fires at once.
func (f *Fake) NewTimer(d time.Duration) Timer {
	t := &fakeTimer{clock: f, ch: make(chan time.Time, 1)}
	t.Reset(d)
	return t
}

// AfterFunc calls fn on its own goroutine once the clock has advanced by d.
func (f *Fake) AfterFunc(d time.Duration, fn func()) Timer {
	t := &fakeTimer{clock: f, fn: fn}
	t.Reset(d)
	return t
}

// NewTicker makes a ticker with period d.
func (f *Fake) NewTicker(d time.Duration) Ticker {
	t := fakeTicker{&fakeTimer{clock: f, ch: make(chan time.Time, 1)}}
	t.Reset(d)
	return t
}

// nextDue finds the running timer that is due first, not later than end; of
// two due at the same time, the one that was set first.
func (f *Fake) nextDue(end time.Duration) *fakeTimer {
	var first *fakeTimer
	for t := range f.waiting {
		if t.due > end {
			continue
		}
		if first == nil || t.due < first.due || (t.due == first.due && t.order < first.order) {
			first = t
		}
	}
	return first
}

func (f *Fake) moveTo(mono time.Duration) {
	f.wall = f.wall.Add(mono - f.mono)
	f.mono = mono
}

func (f *Fake) fire(t *fakeTimer) {
	if t.period > 0 {
		t.due += t.period
	} else {
		f.remove(t)
	}
	if t.fn != nil {
		go t.fn()
		return
	}
	select {
	case t.ch <- f.wall:
	default: // a tick that nobody has read yet stands for this one too
	}
}

func (f *Fake) add(t *fakeTimer, d time.Duration) {
	f.order++
	t.due, t.order = f.mono+d, f.order
	f.waiting[t] = struct{}{}
	f.notify()
}

func (f *Fake) remove(t *fakeTimer) bool {
	if _, ok := f.waiting[t]; !ok {
		return false
	}
	delete(f.waiting, t)
	f.notify()
	return true
}

func (f *Fake) notify() {
	close(f.changed)
	f.changed = make(chan struct{})
}

// fakeTimer is a timer or, with a period, a ticker. Its fields are guarded by
// the clock's mutex.
type fakeTimer struct {
	clock  *Fake
	ch     chan time.Time // nil for AfterFunc
	fn     func()
	due    time.Duration
	period time.Duration
	order  uint64
}

func (t *fakeTimer) C() <-chan time.Time { return t.ch }

func (t *fakeTimer) Stop() bool {
	t.clock.mu.Lock()
	defer t.clock.mu.Unlock()
	t.drain()
	return t.clock.remove(t)
}

func (t *fakeTimer) Reset(d time.Duration) bool {
	t.clock.mu.Lock()
	defer t.clock.mu.Unlock()
	t.drain()
	was := t.clock.remove(t)
	t.clock.add(t, d)
	if d <= 0 {
		t.clock.fire(t)
	}
	return was
}

// drain drops a value that was sent and not yet received, as the standard
// library's timers do since Go 1.23.
func (t *fakeTimer) drain() {
	select {
	case <-t.ch:
	default:
	}
}

type fakeTicker struct{ t *fakeTimer }

func (k fakeTicker) C() <-chan time.Time { return k.t.ch }
func (k fakeTicker) Stop()               { k.t.Stop() }

func (k fakeTicker) Reset(d time.Duration) {
	if d <= 0 {
		panic("clock: non-positive ticker period")
	}
	k.t.clock.mu.Lock()
	defer k.t.clock.mu.Unlock()
	k.t.drain()
	k.t.clock.remove(k.t)
	k.t.period = d
	k.t.clock.add(k.t, d)
}
