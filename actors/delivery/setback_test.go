package delivery

import (
	"testing"
	"time"

	"github.com/keylinehq/keyline/internal/core"
)

// A specimen of what staged faults (internal/faults, scenario 7) have found: pauses of the
// machine's own were told by the database's clock, and as much longer as that was set back.

func TestAnOutcomeIsFlushedInTimeThoughTheClockWasSetBack(t *testing.T) {
	s := start(t, registry(consumer(1), consumer(2)), loaded(1, 0))
	one, two := s.start(1), s.start(2)
	s.after(time.Second) // both run
	none[Flush](s.end(one, nil))
	s.now = s.now.Add(-time.Hour)
	s.after(100 * time.Millisecond) // the tick that was asked for
	if at := only[WakeAt](s).At; at.Sub(s.now) > 100*time.Millisecond {
		t.Fatalf("asked to be woken in %s", at.Sub(s.now))
	}
	s.after(100 * time.Millisecond)
	if row(s.flush(core.Keep), 2) == nil {
		t.Error("the other's place is not kept")
	}
	s.kept()
	s.end(two, nil).flush(core.Settle)
}

func TestABusyRecordIsTriedAgainInTimeThoughTheClockWasSetBack(t *testing.T) {
	s := start(t, registry(consumer(1)), loaded(1, 0))
	s.end(s.start(1), nil)
	for spent := time.Duration(0); spent < 4*busyMost; {
		if only[Flush](s).Flush.Then == core.Release {
			return
		}
		s.step(&Flushed{core.FlushResult{Status: core.FlushKept, Busy: true}})
		if spent == 0 {
			s.now = s.now.Add(-time.Hour)
			s.after(0)
		}
		if len(find[Flush](s)) == 1 {
			continue // it has waited long enough
		}
		pause := only[WakeAt](s).At.Sub(s.now)
		spent += pause
		s.after(pause)
	}
	t.Fatal("the claim is not released")
}

func TestAHeldConsumerGoesOnInTimeThoughTheClockWasSetBack(t *testing.T) {
	s := start(t, registry(consumer(1), consumer(2)), loaded(1, 0))
	one := s.start(1)
	s.start(2) // runs for long
	s.step(NotStarted{Work: &one, Until: s.now.Add(time.Minute)})
	s.now = s.now.Add(-time.Hour)
	s.after(30 * time.Second) // the step is seen
	s.after(time.Minute)
	s.start(1)
}
