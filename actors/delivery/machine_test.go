package delivery

import (
	"slices"
	"testing"
	"time"

	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/keylinetype"
)

func TestOneEventSettlesInOneFlush(t *testing.T) {
	s := start(t, registry(consumer(1), consumer(2)), loaded(1, 0))
	w1, w2 := s.start(1), s.start(2)
	if w1.Attempt != 1 || w1.Redelivered || w1.Events[0].Seq != 1 {
		t.Fatalf("first delivery: %+v", w1)
	}
	none[Flush](s.end(w1, nil)) // its sibling still runs
	f := s.end(w2, nil).flush(core.Settle)
	if f.Cursor != 1 || len(f.Upserts)+len(f.Deletes) != 0 {
		t.Fatalf("settling writes rows: %+v", f)
	}
	if why := only[Stop](s.gone()).Why; why != StopSettled {
		t.Fatalf("stop: %v", why)
	}
}

func TestConsumerIsSerialAndNeverOutrunsItsWindow(t *testing.T) {
	for _, window := range []int{1, 3} {
		s := start(t, registry(consumer(1, func(c *core.Consumer) { c.Window = window })), loaded(5, 0))
		for seq := 1; seq <= window; seq++ {
			w := s.start(1)
			if got := w.Events[0].Seq; got != int64(seq) {
				t.Fatalf("window %d: delivered %d, want %d", window, got, seq)
			}
			s.end(w, nil)
		}
		none[Start](s)
		s.flush(core.Keep)
		if got := s.kept().start(1).Events[0].Seq; got != int64(window+1) {
			t.Fatalf("window %d: after the flush delivered %d", window, got)
		}
	}
}

func TestFailureIsRecordedBeforeTheSiblingEnds(t *testing.T) {
	s := start(t, registry(consumer(1), consumer(2)), loaded(1, 0))
	w1, w2 := s.start(1), s.start(2)
	f := s.end(w1, errHandler).flush(core.Keep)
	c := row(f, 1)
	if c == nil || c.State != core.Backoff || c.Attempt != 1 || !c.NextAttemptAt.Equal(begin.Add(time.Minute)) || len(f.Failures) != 1 {
		t.Fatalf("failure: %+v", f)
	}
	none[Start](s.kept())
	f = s.end(w2, nil).flush(core.HandBack)
	if f.Cursor != 1 || !f.DueAt.Equal(begin.Add(time.Minute)) || row(f, 2) != nil || len(f.Deletes) != 0 {
		t.Fatalf("hand-back: %+v", f)
	}
	if only[Stop](s.gone()).Why != StopHandedBack {
		t.Fatal("not handed back")
	}
}

func TestBackoffIsKeptAcrossClaims(t *testing.T) {
	inBackoff := func(l *core.Loaded) {
		l.Checkpoints = []core.Checkpoint{{Record: 1, Consumer: 1, Seq: 0, State: core.Backoff, Attempt: 2, NextAttemptAt: begin.Add(time.Minute)}}
	}
	s := start(t, registry(consumer(1)), loaded(1, 0, inBackoff))
	none[Start](s)
	s.flush(core.HandBack)

	s = start(t, registry(consumer(1)), loaded(1, 0, inBackoff, func(l *core.Loaded) { l.Checkpoints[0].NextAttemptAt = begin }))
	if w := s.start(1); w.Attempt != 3 || !w.Redelivered {
		t.Fatalf("retry: %+v", w)
	}
}

func TestRetryBudgetEndsInADeadLetterThenAdvancesOrParks(t *testing.T) {
	for _, onDead := range []keylinetype.OnDead{keylinetype.Advance, keylinetype.Park} {
		reg := registry(consumer(1, func(c *core.Consumer) { c.OnDead = onDead }))
		l := loaded(2, 0, func(l *core.Loaded) {
			l.Checkpoints = []core.Checkpoint{{Record: 1, Consumer: 1, State: core.Backoff, Attempt: 3, NextAttemptAt: begin}}
		})
		s := start(t, reg, l)
		s.end(s.start(1), errHandler)
		var f core.Flush
		if onDead == keylinetype.Advance {
			f = s.flush(core.Keep) // the younger event waits for the window
			if got := s.kept().start(1).Events[0].Seq; got != 2 {
				t.Fatalf("after advance: seq %d", got)
			}
		} else {
			f = s.flush(core.Settle)
			if c := row(f, 1); c == nil || c.State != core.Parked || c.Seq != 0 {
				t.Fatalf("parked row: %+v", f)
			}
		}
		if len(f.DeadLetters) != 1 || f.DeadLetters[0].Seq != 1 || f.DeadLetters[0].Attempt != 4 || f.DeadLetters[0].Reason != core.DeadExhausted {
			t.Fatalf("%s: dead letters: %+v", onDead, f.DeadLetters)
		}
	}
}

func TestUnhostedConsumerIsWantedAndMovedPastWhatDoesNotConcernIt(t *testing.T) {
	other := consumer(2, func(c *core.Consumer) { c.Hosted = false })
	s := start(t, registry(consumer(1), other), loaded(1, 0))
	f := s.end(s.start(1), nil).flush(core.HandBack)
	if len(f.Wants) != 1 || f.Wants[0] != 2 || !f.DueAt.IsZero() || row(f, 2) == nil {
		t.Fatalf("wants: %+v", f)
	}
	other = consumer(2, func(c *core.Consumer) { c.Hosted, c.Types = false, []string{"other.*"} })
	s = start(t, registry(consumer(1), other), loaded(1, 0))
	if f := s.end(s.start(1), nil).flush(core.Settle); len(f.Upserts) != 0 {
		t.Fatalf("passed over: %+v", f)
	}
}

func TestPausedConsumerKeepsItsPlaceWhileTheCursorMovesOn(t *testing.T) {
	paused := consumer(2, func(c *core.Consumer) { c.Status = core.Paused })
	s := start(t, registry(consumer(1), paused), loaded(1, 0))
	f := s.end(s.start(1), nil).flush(core.Settle)
	if c := row(f, 2); c == nil || c.Seq != 0 {
		t.Fatalf("paused: %+v", f)
	}
}

func TestTransactionalRowExistsBeforeTheFirstRun(t *testing.T) {
	s := start(t, registry(consumer(1, func(c *core.Consumer) { c.Transactional = true })), loaded(1, 0))
	none[Start](s)
	if c := row(s.flush(core.Keep), 1); c == nil || c.Seq != 0 {
		t.Fatal("no row")
	}
	w := s.kept().start(1)
	if w.Fence != 0 {
		t.Fatalf("fence: %+v", w)
	}
	moved := w.Checkpoint
	moved.Seq = 1
	f := s.step(&Ended{&w, core.Outcome{Booked: &core.Booking{Checkpoint: moved}}}).flush(core.Settle)
	if len(f.Upserts)+len(f.Deletes) != 0 || f.Cursor != 1 {
		t.Fatalf("a transactional consumer keeps its row: %+v", f)
	}
}

func TestSettleTriesAgainWhileAnAppenderHoldsTheRecordThenReleases(t *testing.T) {
	s := start(t, registry(consumer(1)), loaded(1, 0))
	s.end(s.start(1), nil)
	for spent := time.Duration(0); ; {
		f := only[Flush](s).Flush
		if f.Then == core.Release {
			if spent < busyMost {
				t.Fatalf("released after %s", spent)
			}
			return
		}
		s.step(&Flushed{core.FlushResult{Status: core.FlushKept, Busy: true}})
		if len(find[Flush](s)) == 1 {
			continue // it has waited long enough
		}
		at := only[WakeAt](s).At
		spent += at.Sub(s.now)
		s.after(at.Sub(s.now))
	}
}

func TestHeadThatMovedIsLoadedInsteadOfSettled(t *testing.T) {
	s := start(t, registry(consumer(1)), loaded(1, 0))
	s.end(s.start(1), nil).flush(core.Settle)
	s.step(&Flushed{core.FlushResult{Status: core.FlushKept, Head: 2}})
	r := only[LoadEvents](s).Ranges
	if len(r) != 1 || r[0].From != 1 {
		t.Fatalf("ranges: %+v", r)
	}
	if got := s.step(EventsLoaded{events(2, 2)}).start(1).Events[0].Seq; got != 2 {
		t.Fatalf("seq %d", got)
	}
}

// Two consumers stand at different places of a long stream: what is read above both is read once, and counts for both.
func TestRangesThatOverlapAreNotAskedForAgain(t *testing.T) {
	const limit = 4
	var c cache
	c.asked, c.askedTo = []core.EventRange{{Record: 1, From: 5, Limit: limit}, {Record: 1, From: 6, Limit: limit}}, 100
	c.add(slices.Concat(events(6, 9), events(7, 10)))
	if got := len(c.events); got != 5 {
		t.Errorf("%d events are kept, want 5", got)
	}
	for seq := int64(5); seq < 10; seq++ {
		if e, _, known := c.next(seq); !known || e == nil || e.Seq != seq+1 {
			t.Errorf("after %d: %v, known %v", seq, e, known)
		}
	}
	if _, _, known := c.next(10); known {
		t.Error("what was not read is known")
	}
}

func TestPrunedEventsDoNotStopAConsumer(t *testing.T) {
	s := start(t, registry(consumer(1)), loaded(9, 0, func(l *core.Loaded) { l.Events = events(7, 9) }))
	if got := s.start(1).Events[0].Seq; got != 7 {
		t.Fatalf("seq %d", got)
	}
	s = start(t, registry(consumer(1)), loaded(9, 0, func(l *core.Loaded) { l.Events = nil }))
	if f := s.flush(core.Settle); f.Cursor != 9 {
		t.Fatalf("cursor %d", f.Cursor)
	}
}

func TestSuspectsAttemptIsWrittenBeforeItRuns(t *testing.T) {
	suspect := func(l *core.Loaded) { l.Crashes = 1 }
	s := start(t, registry(consumer(1), consumer(2)), loaded(1, 0, suspect))
	none[Start](s)
	f := s.flush(core.Keep)
	if c := row(f, 1); c == nil || c.State != core.Started || c.Attempt != 1 || row(f, 2) != nil {
		t.Fatalf("write-ahead: %+v", f)
	}
	w := s.kept().start(1)
	if w.Attempt != 1 || !w.Redelivered || len(s.starts()) != 1 {
		t.Fatalf("suspect: %+v", w)
	}
	f = s.end(w, nil).flush(core.Keep)
	if f.Clear {
		t.Fatal("cleared before its sibling ran")
	}
	f = s.kept().end(s.start(2), nil).flush(core.Settle)
	if !f.Clear {
		t.Fatal("not cleared")
	}
}

func TestEventThatEndsTheProcessBecomesADeadLetter(t *testing.T) {
	begun := func(l *core.Loaded) {
		l.Crashes = 3
		l.Checkpoints = []core.Checkpoint{{Record: 1, Consumer: 1, State: core.Started, Attempt: 3, Granted: 2, Crashes: 2}}
	}
	s := start(t, registry(consumer(1)), loaded(1, 0, begun))
	f := s.flush(core.Settle)
	if len(f.DeadLetters) != 1 || f.DeadLetters[0].Reason != core.DeadCrashes || !f.Clear {
		t.Fatalf("crash budget: %+v", f)
	}
	s = start(t, registry(consumer(1)), loaded(1, 0, begun, func(l *core.Loaded) { l.Checkpoints[0].Crashes = 0 }))
	f = s.flush(core.Keep)
	if c := row(f, 1); c == nil || c.Crashes != 1 || c.State != core.Started || c.Attempt != 4 || c.Granted != 3 {
		t.Fatalf("a crash is not an attempt of the retry budget: %+v", f)
	}
}

func TestEpochThatMovedReloadsAndKeepsWhatIsKnown(t *testing.T) {
	s := start(t, registry(consumer(1)), loaded(1, 0))
	s.end(s.start(1), nil).flush(core.Settle)
	s.step(&Flushed{core.FlushResult{Status: core.FlushEpoch}})
	only[Reload](s)
	reg := core.NewRegistry(2, keylinetype.Independent, []*core.Consumer{consumer(1), consumer(2)}, nil)
	s.step(Reloaded{reg, loaded(1, 0)})
	if _, again := s.starts()[1]; again {
		t.Fatal("an event that was done is delivered again")
	}
	w := s.start(2)
	if f := s.flush(core.Keep); f.Counts[0].Completed != 1 {
		t.Fatalf("what the refused flush carried is lost: %+v", f)
	}
	s.kept().end(w, nil).flush(core.Settle)
}

func TestDrainHandsBackWhatHasNotBegun(t *testing.T) {
	s := start(t, registry(consumer(1)), loaded(2, 0))
	w := s.start(1)
	only[Withdraw](s.step(Drain{}))
	f := s.end(w, nil).flush(core.HandBack)
	if f.Cursor != 1 || f.DueAt.After(s.now) || f.DueAt.IsZero() {
		t.Fatalf("drain: %+v", f)
	}
}

func TestBreakerHoldIsADueTime(t *testing.T) {
	s := start(t, registry(consumer(1)), loaded(1, 0))
	probe := begin.Add(15 * time.Second)
	f := s.step(NotStarted{Work: new(s.start(1)), Until: probe}).flush(core.HandBack)
	if !f.DueAt.Equal(probe) || len(f.Failures) != 0 || row(f, 1) != nil {
		t.Fatalf("held: %+v", f)
	}
}

// The sibling's handler may run for hours: nothing but a timer would tell the machine that the retry may begin.
func TestARetryThatABreakerHoldsIsTriedAgainThoughASiblingRuns(t *testing.T) {
	s := start(t, registry(consumer(1), consumer(2)), loaded(2, 1, func(l *core.Loaded) {
		l.Checkpoints = []core.Checkpoint{{Record: 1, Consumer: 2, Seq: 2, State: core.Ready}}
		l.Retries = []core.DeadRetry{{ID: 3, Record: 1, Consumer: 2, Seq: 1, Attempt: 4, Granted: 4, DueAt: begin}}
	}))
	s.start(1) // and does not end
	retry := s.step(EventsLoaded{events(1, 1)}).start(2)
	until := begin.Add(15 * time.Second)
	s.step(NotStarted{&retry, until})
	none[Start](s)
	if at := only[WakeAt](s).At; !at.Equal(until) {
		t.Fatalf("wakes at %s, want %s", at, until)
	}
	if w := s.after(15 * time.Second).start(2); w.Dead == nil || w.Attempt != 5 {
		t.Fatalf("retry: %+v", w)
	}
}

func TestLockstepHoldsYoungerEvents(t *testing.T) {
	reg := core.NewRegistry(1, keylinetype.Lockstep, []*core.Consumer{consumer(1), consumer(2)}, nil)
	s := start(t, reg, loaded(2, 0))
	w1, w2 := s.start(1), s.start(2)
	none[Start](s.end(w1, nil))
	none[Start](s.end(w2, nil)) // the window
	if s.kept(); len(s.starts()) != 2 {
		t.Fatalf("both go on: %+v", s.got)
	}
}

func TestAllForOneHoldsSiblings(t *testing.T) {
	reg := registry(consumer(1, func(c *core.Consumer) { c.Scope = keylinetype.AllForOne }), consumer(2))
	s := start(t, reg, loaded(2, 0))
	w1, w2 := s.start(1), s.start(2)
	s.end(w1, errHandler)
	f := s.kept().end(w2, nil).flush(core.HandBack)
	if !f.DueAt.Equal(begin.Add(time.Minute)) {
		t.Fatalf("sibling starts: %+v", f)
	}
}

func TestParkedHeadIsRetriedInOrder(t *testing.T) {
	parked := func(l *core.Loaded) {
		l.Checkpoints = []core.Checkpoint{{Record: 1, Consumer: 1, State: core.Parked, Attempt: 4, ErrorCode: "error"}}
		l.Commands = []core.Command{{ID: 9, Record: 1, Kind: core.CommandRetryDead, Consumer: 1, Seq: 1, DeadLetter: 3,
			Dead: &core.DeadRetry{ID: 3, Record: 1, Consumer: 1, Seq: 1, Attempt: 4}, DeadOpen: true}}
	}
	s := start(t, registry(consumer(1, func(c *core.Consumer) { c.OnDead = keylinetype.Park })), loaded(2, 0, parked))
	w := s.start(1)
	if w.Attempt != 5 || w.Events[0].Seq != 1 || !w.Redelivered {
		t.Fatalf("retry: %+v", w)
	}
	if f := s.flush(core.Keep); len(f.Applied) != 1 || !f.Applied[0].Done || f.Applied[0].ID != 9 {
		t.Fatalf("command: %+v", f)
	}
	f := s.kept().end(w, nil).flush(core.Keep)
	if len(f.DeadUpdates) != 1 || f.DeadUpdates[0].Status != core.DeadDelivered || f.DeadUpdates[0].Seq != 1 {
		t.Fatalf("its dead letter is closed: %+v", f)
	}
	if got := s.kept().start(1).Events[0].Seq; got != 2 {
		t.Fatalf("then the younger: %d", got)
	}
}

func TestDeadLetterRetriedAfterAdvanceNeverMovesTheCheckpoint(t *testing.T) {
	retry := func(l *core.Loaded) {
		l.Retries = []core.DeadRetry{{ID: 3, Record: 1, Consumer: 1, Seq: 1, Attempt: 4, Granted: 4, DueAt: begin}}
	}
	s := start(t, registry(consumer(1)), loaded(5, 5, retry))
	r := only[LoadEvents](s).Ranges
	if r[0].From != 0 || r[0].Limit != 1 {
		t.Fatalf("ranges: %+v", r)
	}
	w := s.step(EventsLoaded{events(1, 1)}).start(1)
	if w.Dead == nil || w.Attempt != 5 {
		t.Fatalf("retry: %+v", w)
	}
	f := s.end(w, errHandler).flush(core.HandBack)
	if f.Cursor != 5 || len(f.DeadUpdates) != 1 || f.DeadUpdates[0].Status != core.DeadWaiting || !f.DueAt.Equal(begin.Add(time.Minute)) {
		t.Fatalf("failed retry waits: %+v", f)
	}
}
