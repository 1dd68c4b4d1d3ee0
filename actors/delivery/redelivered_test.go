package delivery

import (
	"testing"
	"time"

	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/keylinetype"
)

// again is the next claim of the record, which finds what a flush left.
func again(t *testing.T, reg *core.Registry, f core.Flush, head int64, change ...func(*core.Loaded)) *script {
	t.Helper()
	return start(t, reg, loaded(head, f.Cursor, append(change, func(l *core.Loaded) {
		l.Events = events(1, head)
		for _, c := range f.Upserts {
			if c.State == core.Backoff {
				c.NextAttemptAt = begin
			}
			l.Checkpoints = append(l.Checkpoints, c)
		}
	})...))
}

// begins expects the next delivery.
func (s *script) begins(consumer int32, seq int64, redelivered bool) core.Work {
	s.t.Helper()
	w := s.start(consumer)
	if w.Events[0].Seq != seq || w.Redelivered != redelivered {
		s.t.Fatalf("seq %d, redelivered %v; want %d, %v", w.Events[0].Seq, w.Redelivered, seq, redelivered)
	}
	return w
}

func TestARunThatWasCancelledIsRememberedAcrossClaims(t *testing.T) {
	reg := registry(consumer(1))
	s := start(t, reg, loaded(2, 0))
	w := s.begins(1, 1, false)
	s.step(Drain{})
	s.step(&Ended{&w, core.Outcome{Err: errHandler, Cancelled: true}})
	s = again(t, reg, s.flush(core.HandBack), 2)
	s.end(s.begins(1, 1, true), nil)
	s.kept().begins(1, 2, false)
}

func TestLaterEventsOfAFailedBatchAreRememberedAcrossClaims(t *testing.T) {
	reg := registry(consumer(1, func(c *core.Consumer) { c.BatchSize, c.Window = 3, 3 }))
	s := start(t, reg, loaded(4, 0))
	s.end(s.begins(1, 1, false), errHandler) // 1, 2 and 3
	s = again(t, reg, s.flush(core.HandBack), 4)
	w := s.begins(1, 1, true)
	s.step(Drain{})
	s.end(w, nil)
	s = again(t, reg, s.flush(core.HandBack), 4) // the row says nothing of 1 any more
	if w = s.begins(1, 2, true); len(w.Events) != 3 {
		t.Fatalf("%d events", len(w.Events))
	}
}

// Else each healthy event before the one that is to blame costs a failure and a backoff.
func TestEventsOfAFailedBatchComeOneAtATimeAcrossClaims(t *testing.T) {
	reg := registry(consumer(1, func(c *core.Consumer) { c.BatchSize, c.Window = 3, 3 }))
	s := start(t, reg, loaded(4, 0))
	s.end(s.begins(1, 1, false), errHandler)          // 1, 2 and 3
	for healthy := int64(1); healthy < 3; healthy++ { // 1 is not to blame, and then 2 is, for a while
		s = again(t, reg, s.flush(core.HandBack), 4)
		one := func(seq int64) core.Work {
			w := s.begins(1, seq, true)
			if len(w.Events) != 1 {
				t.Fatalf("%d events from %d on", len(w.Events), seq)
			}
			return w
		}
		s.end(one(healthy), nil)
		s.end(one(healthy+1), errHandler)
	}
	s = again(t, reg, s.flush(core.HandBack), 4)
	s.end(s.begins(1, 3, true), nil)
	s.begins(1, 4, false)
}

func TestASnoozedHeadThatWasRetriedIsRememberedAcrossClaims(t *testing.T) {
	reg := registry(consumer(1))
	s := start(t, reg, loaded(1, 0))
	s.end(s.begins(1, 1, false), keylinetype.Snooze(time.Hour))
	f := s.flush(core.HandBack)
	s = again(t, reg, f, 1, func(l *core.Loaded) {
		l.Commands = []core.Command{{ID: 1, Record: 1, Kind: core.CommandRetry}}
	})
	w := s.begins(1, 1, true)
	f = s.flush(core.Keep) // what the command did
	s.kept().step(Drain{})
	s.step(NotStarted{Work: &w})
	if last := s.flush(core.HandBack); row(last, 1) != nil || len(last.Deletes) > 0 {
		t.Fatalf("%+v", last)
	}
	s = again(t, reg, f, 1)
	s.begins(1, 1, true)
}

func TestWhatALostClaimRanIsRememberedWhileItsConsumerIsPaused(t *testing.T) {
	active := consumer(1)
	paused := consumer(1, func(c *core.Consumer) { c.Status = core.Paused })
	s := start(t, registry(paused, consumer(2)), loaded(3, 0, func(l *core.Loaded) { l.Unclean = true }))
	s.end(s.begins(2, 1, true), nil)
	f := s.flush(core.Keep)
	if c := row(f, 1); !f.Clear || c == nil || c.RedeliverTo != 1 {
		t.Fatalf("cleared %v, row %+v", f.Clear, c)
	}
	s = again(t, registry(active, consumer(2)), f, 3)
	s.end(s.begins(1, 1, true), nil)
	s.kept().begins(1, 2, false)
}

func TestOfAPausedConsumerThatIsNotHostedAllMayHaveRun(t *testing.T) {
	unhosted := consumer(1, func(c *core.Consumer) { c.Status, c.Hosted = core.Paused, false })
	s := start(t, registry(unhosted), loaded(3, 0, func(l *core.Loaded) { l.Unclean = true }))
	if c := row(s.flush(core.Settle), 1); c == nil || c.RedeliverTo != 3 {
		t.Fatalf("row %+v", c)
	}
}

func TestARowThatDoesNotSayWhatRanIsTakenCarefully(t *testing.T) {
	reg := registry(consumer(1, func(c *core.Consumer) { c.Window = 2 }))
	untold := func(l *core.Loaded) {
		l.Checkpoints = []core.Checkpoint{{Record: 1, Consumer: 1, State: core.Ready, RedeliverTo: core.RedeliverUnknown}}
	}
	s := start(t, reg, loaded(4, 0, untold))
	s.end(s.begins(1, 1, true), nil)
	s.begins(1, 2, true)
	// One that was not begun is not known to the next claim either.
	s = start(t, reg, loaded(4, 0, untold))
	work := s.begins(1, 1, true)
	s.step(Drain{})
	s.end(work, nil)
	if c := row(s.flush(core.HandBack), 1); c == nil || c.RedeliverTo != core.RedeliverUnknown {
		t.Fatalf("row %+v", c)
	}
}

// An event whose version was not supported was passed without a run, so that the lost claim's one run was of the next.
func TestAVersionThatIsNotSupportedIsNoneOfWhatMayHaveRun(t *testing.T) {
	versions := func(c *core.Consumer) { c.Versions, c.OnUnsupported = []int{1}, keylinetype.SkipUnsupported }
	paused := consumer(1, versions, func(c *core.Consumer) { c.Status = core.Paused })
	s := start(t, registry(paused), loaded(3, 0, func(l *core.Loaded) {
		l.Unclean = true
		l.Events[0].Version = 2
	}))
	if c := row(s.flush(core.Settle), 1); c == nil || c.RedeliverTo != 2 {
		t.Fatalf("row %+v", c)
	}
}

// A worker of version 1 that moves a transactional consumer's row leaves redeliver_to as it was. That its head has been
// snoozed, which counts as no attempt, the row's state alone tells then.
func TestAHeadInBackoffHasRunWhateverElseItsRowSays(t *testing.T) {
	s := start(t, registry(consumer(1)), loaded(2, 0, func(l *core.Loaded) {
		l.Checkpoints = []core.Checkpoint{{Record: 1, Consumer: 1, State: core.Backoff, NextAttemptAt: begin}}
	}))
	w := s.begins(1, 1, true)
	if w.Attempt != 1 {
		t.Fatalf("attempt %d", w.Attempt)
	}
	s.end(w, nil)
	s.kept().begins(1, 2, false)
}
