package supervisor

import (
	"context"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/keylinehq/keyline/internal/clock"
)

// Against a naive model: every alarm fires at the time that was set last, no
// sooner, and once.
func TestTimersFireWhatWasSetLast(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c := clock.NewFake(time.Unix(0, 0))
		tm := newTimers(c)
		const n = 5
		fired := make([]int, n)
		want := make([]time.Duration, n) // 0: none
		alarms := make([]*alarm, n)
		for i := range alarms {
			alarms[i] = &alarm{fire: func() { fired[i]++ }}
		}
		for range 60 {
			i := rapid.IntRange(0, n-1).Draw(rt, "alarm")
			switch rapid.IntRange(0, 3).Draw(rt, "act") {
			case 0, 1:
				at := c.Mono() + time.Duration(rapid.IntRange(1, 50).Draw(rt, "in"))*time.Millisecond
				tm.set(alarms[i], at)
				want[i] = at
			case 2:
				tm.clear(alarms[i])
				want[i] = 0
			case 3:
				c.Advance(time.Duration(rapid.IntRange(0, 30).Draw(rt, "advance")) * time.Millisecond)
				next := tm.fireDue(c.Mono())
				for i := range want {
					expect := 0
					if want[i] != 0 && want[i] <= c.Mono() {
						expect, want[i] = 1, 0
					}
					if fired[i] != expect {
						rt.Fatalf("alarm %d fired %d times, want %d", i, fired[i], expect)
					}
					fired[i] = 0
					if want[i] != 0 && next > want[i] {
						rt.Fatalf("the next look at %v is after alarm %d at %v", next, i, want[i])
					}
				}
			}
		}
	})
}

func TestTimersGoroutineKeepsTime(t *testing.T) {
	c := clock.NewFake(time.Unix(0, 0))
	tm := newTimers(c)
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	group.Go(func() { _ = tm.run(ctx) })
	fired := make(chan int, 10)
	late, soon := &alarm{fire: func() { fired <- 2 }}, &alarm{fire: func() { fired <- 1 }}
	tm.set(late, 2*time.Second)
	tm.set(soon, time.Second)
	for want := 1; want <= 2; want++ {
		// The clock moves only forward; an alarm is never early.
		eventually(t, "an alarm", func() bool {
			c.Advance(10 * time.Millisecond)
			return len(fired) > 0
		})
		if got := <-fired; got != want {
			t.Errorf("fired %d, want %d", got, want)
		}
	}
	cancel()
	group.Wait()
}

// A record that wants to be woken at the end of all times does not want it now.
func TestAWakeAtTheEndOfAllTimesDoesNotComeAtOnce(t *testing.T) {
	c := clock.NewFake(time.Date(2031, 1, 1, 0, 0, 0, 0, time.UTC))
	c.Advance(time.Hour)
	s := &Supervisor{cfg: Config{Clock: c}, timers: newTimers(c)}
	fired := 0
	p := &place{s: s, alarm: alarm{fire: func() { fired++ }}}
	p.WakeAt(time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC))
	if next := s.timers.fireDue(c.Mono()); fired != 0 || next <= c.Mono() {
		t.Errorf("fired %d times, the next at %s", fired, next)
	}
	p.WakeAt(c.Now().Add(time.Second))
	c.Advance(time.Second)
	if s.timers.fireDue(c.Mono()); fired != 1 {
		t.Errorf("an earlier wish: fired %d times", fired)
	}
}
