// Package clock is the one place where the process reads time and draws
// random numbers. Everything else is handed a [Clock] (and, where it needs
// chance, a [Rand]), so that tests and the simulator can be in charge of both;
// the linter refuses time.Now, time.Sleep and the global generators elsewhere.
//
// A Clock tells two times. Now is the wall clock: good for showing to people
// and for logs, and it may jump. Mono only ever moves forward, at the same
// pace whatever happens to the wall clock: every decision of the kind "has
// this been silent for a whole lease" uses Mono. What two processes must agree
// on is decided by the database's clock, which is neither.
package clock

import (
	"context"
	"time"
)

// Clock tells time and makes timers. All methods are safe for concurrent use.
type Clock interface {
	// Now is the wall clock time.
	Now() time.Time
	// Mono is the time since an arbitrary origin, fixed for the life of the
	// clock. It never runs backwards and is not touched by wall clock steps.
	Mono() time.Duration
	// NewTimer makes a timer that fires once, d from now.
	NewTimer(d time.Duration) Timer
	// AfterFunc calls f on a goroutine of its own, d from now. The channel of
	// the timer that it returns is nil.
	AfterFunc(d time.Duration, f func()) Timer
	// NewTicker makes a ticker with period d, which must be positive. Ticks
	// that nobody reads are dropped.
	NewTicker(d time.Duration) Ticker
}

// Timer is a *time.Timer, or its equal under a fake clock. As with the
// standard one, no stale value is received after Stop or Reset has returned.
type Timer interface {
	// C delivers the time at which the timer fired.
	C() <-chan time.Time
	// Stop prevents the timer from firing and reports whether it did.
	Stop() bool
	// Reset makes the timer fire d from now and reports whether it was running.
	Reset(d time.Duration) bool
}

// Ticker is a *time.Ticker, or its equal under a fake clock.
type Ticker interface {
	// C delivers the ticks.
	C() <-chan time.Time
	// Stop ends the ticks; it does not close the channel.
	Stop()
	// Reset changes the period; the next tick comes after a whole new one.
	Reset(d time.Duration)
}

// Sleep waits for d, or until ctx is done, whose cause it then returns.
func Sleep(ctx context.Context, c Clock, d time.Duration) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if d <= 0 {
		return nil
	}
	t := c.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C():
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Real is the clock of the operating system.
func Real() Clock { return realClock{origin: time.Now()} }

type realClock struct{ origin time.Time }

func (realClock) Now() time.Time        { return time.Now() }
func (c realClock) Mono() time.Duration { return time.Since(c.origin) }

func (realClock) NewTimer(d time.Duration) Timer { return realTimer{time.NewTimer(d)} }

func (realClock) AfterFunc(d time.Duration, f func()) Timer {
	return realTimer{time.AfterFunc(d, f)}
}

func (realClock) NewTicker(d time.Duration) Ticker { return realTicker{time.NewTicker(d)} }

type realTimer struct{ *time.Timer }

func (t realTimer) C() <-chan time.Time { return t.Timer.C }

type realTicker struct{ *time.Ticker }

func (t realTicker) C() <-chan time.Time { return t.Ticker.C }
