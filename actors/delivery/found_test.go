package delivery

import (
	"testing"
	"time"

	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/keylinetype"
)

// Specimens of what random schedules (internal/sim) have found.

func TestRedeliveryIsSaidWhereEventsWerePassedOver(t *testing.T) {
	// Events 1 and 2 do not concern the consumer; an earlier claim ran 3 and was lost.
	s := start(t, registry(consumer(1, func(c *core.Consumer) { c.Types = []string{"other.*"} })), loaded(4, 0, func(l *core.Loaded) {
		l.Unclean = true
		l.Events[2].Type, l.Events[3].Type = "other.done", "other.done"
	}))
	w := s.start(1)
	if w.Events[0].Seq != 3 || !w.Redelivered {
		t.Fatalf("after an unclean claim: %+v", w)
	}
	s.end(w, nil)
	if w = s.kept().start(1); w.Events[0].Seq != 4 || w.Redelivered {
		t.Fatalf("beyond the window of the earlier claim: %+v", w)
	}
}

func TestEveryEventOfAFailedBatchIsRedelivered(t *testing.T) {
	batch := consumer(1, func(c *core.Consumer) { c.BatchSize = 2 })
	s := start(t, registry(batch), loaded(2, 0))
	s.end(s.start(1), errHandler)
	f := s.flush(core.HandBack)
	s.gone()
	s = start(t, registry(batch), loaded(2, 0, func(l *core.Loaded) {
		c := *row(f, 1)
		c.State, c.NextAttemptAt = core.Backoff, begin
		l.Checkpoints = append(l.Checkpoints, c)
	}))
	for seq := int64(1); seq <= 2; seq++ {
		w := s.start(1)
		if len(w.Events) != 1 || w.Events[0].Seq != seq || !w.Redelivered {
			t.Fatalf("after a failed batch: %+v", w)
		}
		s.end(w, nil)
	}
}

func suspect(l *core.Loaded) { l.Crashes, l.Unclean = 1, true }

func TestWriteAheadAskedForWhileSuspicionEndsIsTakenBack(t *testing.T) {
	s := &script{t: t, now: begin}
	m, effects := New(registry(consumer(1), consumer(2)),
		loaded(2, 0, suspect, func(l *core.Loaded) { l.Events = l.Events[:1] }), Options{Now: begin, LoadLimit: 1})
	s.m = m
	s.take(effects)
	s.kept()
	s.end(s.start(1), nil)
	only[LoadEvents](s)
	s.kept()
	s.end(s.start(2), nil)
	f := s.flush(core.Keep)
	if !f.Clear {
		t.Fatalf("suspicion goes on: %+v", f)
	}
	s.step(EventsLoaded{events(2, 2)}) // it asks to be written ahead
	s.step(&Flushed{core.FlushResult{Record: 1, Token: 7, Status: core.FlushKept}})
	if w := s.start(1); w.Attempt != 1 {
		t.Fatalf("attempt: %+v", w)
	}
}

func TestWrittenAheadRowThatIsThereAlreadyIsNoDeadEnd(t *testing.T) {
	// The write-ahead was executed, its answer was lost, and when it was repeated the registry had moved.
	reg := registry(consumer(1))
	s := start(t, reg, loaded(1, 0, suspect))
	f := s.flush(core.Keep)
	s.step(&Flushed{core.FlushResult{Record: 1, Token: 7, Status: core.FlushEpoch}})
	only[Reload](s)
	s.step(Reloaded{Registry: core.NewRegistry(2, reg.Ordering, reg.Consumers, nil), Loaded: loaded(1, 0, suspect, func(l *core.Loaded) {
		l.Checkpoints = append(l.Checkpoints, *row(f, 1))
	})})
	if w := s.kept().start(1); w.Attempt != 1 {
		t.Fatalf("attempt: %+v", w)
	}
}

func TestWrittenAheadRowWhoseAnswerWasLostIsTakenBackByADrain(t *testing.T) {
	// As above, and the record had a row before; then nothing may start any more.
	reg := registry(consumer(1))
	plain := core.Checkpoint{Record: 1, Consumer: 1, State: core.Ready, Attempt: 1, FirstFailedAt: begin}
	s := start(t, reg, loaded(1, 0, suspect, func(l *core.Loaded) { l.Checkpoints = []core.Checkpoint{plain} }))
	f := s.flush(core.Keep)
	s.step(Drain{})
	s.step(&Flushed{core.FlushResult{Record: 1, Token: 7, Status: core.FlushEpoch}})
	only[Reload](s)
	s.step(Reloaded{Registry: core.NewRegistry(2, reg.Ordering, reg.Consumers, nil), Loaded: loaded(1, 0, suspect, func(l *core.Loaded) {
		l.Checkpoints = append(l.Checkpoints, *row(f, 1))
	})})
	if c := row(s.flush(core.HandBack), 1); c == nil || *c != plain {
		t.Fatalf("the row stays as of a run that crashed, though none began: %+v", c)
	}
}

func TestRowWhoseAnswerWasLostIsWrittenBackThoughItIsAsItWas(t *testing.T) {
	// A retry of a head parked for its version was executed, its answer was lost, the registry moved, and the version is still not supported.
	unsupported := consumer(1, func(c *core.Consumer) { c.Versions, c.OnUnsupported = []int{2}, keylinetype.WaitUnsupported })
	reg := registry(unsupported)
	parked := core.Checkpoint{Record: 1, Consumer: 1, State: core.Parked, ErrorCode: core.CodeUnsupportedVersion}
	s := start(t, reg, loaded(1, 1, func(l *core.Loaded) {
		l.Checkpoints = []core.Checkpoint{parked}
		l.Commands = []core.Command{{ID: 1, Record: 1, Kind: core.CommandRetry, Consumer: 1}}
	}))
	only[LoadEvents](s)
	f := s.flush(core.Keep)
	if c := row(f, 1); c == nil || c.State != core.Ready {
		t.Fatalf("the retry: %+v", f)
	}
	written := *row(f, 1)
	s.step(EventsLoaded{events(1, 1)})
	s.step(&Flushed{core.FlushResult{Record: 1, Token: 7, Status: core.FlushEpoch}})
	s.step(Reloaded{Registry: core.NewRegistry(2, reg.Ordering, reg.Consumers, nil), Loaded: loaded(1, 1, func(l *core.Loaded) {
		l.Checkpoints = []core.Checkpoint{written}
	})})
	if c := row(s.flush(core.Settle), 1); c == nil || c.State != core.Parked {
		t.Fatalf("the record settles with work for which there is no mailbox: %+v", c)
	}
}

func TestATimeThatComesTooEarlyIsAskedForAgain(t *testing.T) {
	// A timer runs by the monotonic clock; the database's has been set back since.
	s := start(t, registry(consumer(1)), loaded(1, 1))
	s.flush(core.Settle)
	s.step(&Flushed{core.FlushResult{Record: 1, Token: 7, Status: core.FlushKept, Busy: true}})
	only[WakeAt](s)
	s.now = begin.Add(-time.Second)
	if at := only[WakeAt](s.step(Tick{})).At; at != s.now.Add(busyFirst) {
		t.Fatalf("the machine is woken at %v", at)
	}
}

func TestSkipIsDurableBeforeHandleTxMovesTheRowPastIt(t *testing.T) {
	s := start(t, registry(consumer(1, func(c *core.Consumer) { c.Transactional, c.Versions = true, []int{1} })), loaded(2, 0, func(l *core.Loaded) {
		l.Checkpoints = []core.Checkpoint{{Record: 1, Consumer: 1, State: core.Ready}}
		l.Events[0].Version = 2
	}))
	none[Start](s)
	if f := s.flush(core.Keep); len(f.Skips) != 1 || row(f, 1) == nil || row(f, 1).Seq != 1 {
		t.Fatalf("the skip is not written: %+v", f)
	}
	if w := s.kept().start(1); w.Events[0].Seq != 2 || w.Fence != 1 {
		t.Fatalf("after the skip: %+v", w)
	}
}

func TestCommandsSeeWhatEarlierOnesMadeOfTheDeadLetter(t *testing.T) {
	command := func(id int64, kind core.CommandKind) core.Command {
		return core.Command{ID: id, Record: 1, Kind: kind, Consumer: 1, Seq: 1, DeadLetter: 5, DeadOpen: true,
			Dead: &core.DeadRetry{ID: 5, Record: 1, Consumer: 1, Seq: 1, Attempt: 2, FirstFailedAt: begin}}
	}
	s := start(t, registry(consumer(1)), loaded(3, 3, func(l *core.Loaded) {
		l.Commands = []core.Command{command(1, core.CommandRetryDead), command(2, core.CommandRetryDead), command(3, core.CommandResolveDead)}
	}))
	none[Start](s)
	f := s.flush(core.Settle)
	if len(f.DeadUpdates) != 1 || f.DeadUpdates[0].Status != core.DeadResolved {
		t.Fatalf("updates of the dead letter: %+v", f.DeadUpdates)
	}
	if len(f.Applied) != 3 || !f.Applied[0].Done || f.Applied[1].Done || !f.Applied[2].Done {
		t.Fatalf("commands: %+v", f.Applied)
	}
}

func lockstep(consumers ...*core.Consumer) *core.Registry {
	return core.NewRegistry(1, keylinetype.Lockstep, consumers, nil)
}

func TestNobodyStartsAVersionThatItsSiblingLetItPass(t *testing.T) {
	// Consumer 2 passes event 1, which lets consumer 1 pass event 2 and leaves 3 to both.
	first := consumer(1, func(c *core.Consumer) { c.Versions = []int{1} })
	second := consumer(2, func(c *core.Consumer) { c.Versions = []int{1} })
	s := start(t, lockstep(first, second), loaded(3, 0, func(l *core.Loaded) {
		l.Events[0].Version, l.Events[1].Version = 2, 2
	}))
	if a, b := s.start(1), s.start(2); a.Events[0].Seq != 3 || b.Events[0].Seq != 3 {
		t.Fatalf("started %d and %d", a.Events[0].Seq, b.Events[0].Seq)
	}
}

func TestTroubleOfAnAllForOneConsumerTakesBackItsSiblings(t *testing.T) {
	s := start(t, registry(consumer(1, func(c *core.Consumer) { c.Scope = keylinetype.AllForOne }), consumer(2)), loaded(1, 0))
	w1, w2 := s.start(1), s.start(2)
	only[Withdraw](s.end(w1, errHandler))
	s.kept()
	s.step(NotStarted{Work: &w2})
	none[Start](s)
	f := s.flush(core.HandBack)
	if c := row(f, 1); !f.DueAt.Equal(begin.Add(time.Minute)) || c != nil {
		t.Fatalf("hand-back: %+v", f)
	}
}

func TestWriteAheadThatIsHeldIsTakenBack(t *testing.T) {
	reg := registry(consumer(1), consumer(2, func(c *core.Consumer) { c.Status, c.Scope = core.Paused, keylinetype.AllForOne }))
	parked := core.Checkpoint{Record: 1, Consumer: 2, Seq: 0, State: core.Parked, Attempt: 1, ErrorCode: "error"}
	s := start(t, reg, loaded(2, 0, suspect, func(l *core.Loaded) { l.Checkpoints = []core.Checkpoint{parked} }))
	f := s.flush(core.Keep)
	if row(f, 1) == nil || row(f, 1).State != core.Started {
		t.Fatalf("not written ahead: %+v", f)
	}
	// By the time that it is durable, the parked sibling is resumed.
	s.step(RegistryMoved{})
	s.step(&Flushed{core.FlushResult{Record: 1, Token: 7, Status: core.FlushKept}})
	only[Reload](s)
	resumed := core.NewRegistry(2, reg.Ordering, []*core.Consumer{consumer(1), consumer(2, func(c *core.Consumer) { c.Scope = keylinetype.AllForOne })}, nil)
	s.step(Reloaded{Registry: resumed, Loaded: loaded(2, 0, suspect, func(l *core.Loaded) {
		l.Checkpoints = []core.Checkpoint{*row(f, 1), parked}
	})})
	none[Start](s)
	if f := s.flush(core.HandBack); row(f, 1) != nil && row(f, 1).State == core.Started {
		t.Fatalf("left as started: %+v", f)
	}
}

func TestRetryOfADeadLetterIsDurableBeforeHandleTxMovesIt(t *testing.T) {
	tx := consumer(1, func(c *core.Consumer) { c.Transactional = true })
	s := start(t, registry(tx), loaded(2, 2, func(l *core.Loaded) {
		l.Checkpoints = []core.Checkpoint{{Record: 1, Consumer: 1, Seq: 2, State: core.Ready}}
		l.Events = events(1, 2)
		l.Commands = []core.Command{{ID: 1, Record: 1, Kind: core.CommandRetryDead, Consumer: 1, Seq: 1, DeadLetter: 5, DeadOpen: true,
			Dead: &core.DeadRetry{ID: 5, Record: 1, Consumer: 1, Seq: 1, Attempt: 2, FirstFailedAt: begin}}}
	}))
	none[Start](s)
	s.step(EventsLoaded{events(1, 1)})
	none[Start](s)
	if f := s.inflight(); len(f.DeadUpdates) != 1 || f.DeadUpdates[0].Status != core.DeadWaiting {
		t.Fatalf("the retry is not written: %+v", f)
	}
	s.step(&Flushed{core.FlushResult{Record: 1, Token: 7, Status: core.FlushKept}})
	if w := s.start(1); w.Dead == nil || w.Attempt != 3 {
		t.Fatalf("retry: %+v", w)
	}
}

func (s *script) inflight() core.Flush { return *s.m.inflight }

func TestEveryEventThatACrashMayHaveRunIsRedelivered(t *testing.T) {
	s := start(t, registry(consumer(1, func(c *core.Consumer) { c.Window = 2 })), loaded(3, 0, suspect))
	for seq := int64(1); seq <= 3; seq++ {
		if f := s.flush(core.Keep); f.Clear {
			t.Fatalf("suspicion ends before seq %d: %+v", seq, f)
		}
		w := s.kept().start(1)
		if w.Events[0].Seq != seq || w.Redelivered != (seq < 3) {
			t.Fatalf("seq %d: %+v", seq, w)
		}
		s.end(w, nil)
	}
	if f := s.flush(core.Settle); !f.Clear {
		t.Fatalf("suspicion goes on: %+v", f)
	}
}

func TestCommandsThatWaitedAreReadAgainOnceADeadLetterIsClosed(t *testing.T) {
	tx := consumer(1, func(c *core.Consumer) { c.Transactional, c.OnDead = true, keylinetype.Park })
	parked := core.Checkpoint{Record: 1, Consumer: 1, State: core.Ready, Attempt: 1, Granted: 1, FirstFailedAt: begin}
	s := start(t, registry(tx), loaded(1, 0, func(l *core.Loaded) { l.Checkpoints = []core.Checkpoint{parked} }))
	w := s.start(1)
	s.step(News{Head: 1, Pending: true})
	only[Reload](s)
	s.step(Reloaded{Registry: s.m.reg, Loaded: loaded(1, 0, func(l *core.Loaded) {
		l.Checkpoints = []core.Checkpoint{parked}
		l.Commands = []core.Command{{ID: 1, Record: 1, Kind: core.CommandResolveDead, Consumer: 1, Seq: 1, DeadLetter: 5, DeadOpen: true,
			Dead: &core.DeadRetry{ID: 5, Record: 1, Consumer: 1, Seq: 1, Attempt: 1, FirstFailedAt: begin}}}
	})})
	b := Decide(s.now, nil, tx, &w, &core.Outcome{})
	s.step(&Ended{&w, core.Outcome{Booked: &b}})
	only[Reload](s) // the delivery has closed the dead letter
}

func TestLockstepOlderEventsAreNotHeldByATroubleThatWaitsForThem(t *testing.T) {
	trouble := consumer(1, func(c *core.Consumer) { c.Scope = keylinetype.AllForOne })
	s := start(t, lockstep(trouble, consumer(2)), loaded(2, 0, func(l *core.Loaded) {
		l.Checkpoints = []core.Checkpoint{{Record: 1, Consumer: 1, Seq: 1, State: core.Backoff, Attempt: 1, FirstFailedAt: begin, NextAttemptAt: begin}}
	}))
	if w := s.start(2); w.Events[0].Seq != 1 {
		t.Fatalf("started %+v", w)
	}
}

func TestNothingOfALaneThatWasSweptAwayIsKept(t *testing.T) {
	// Written ahead; then the consumer was disabled, its row swept, and it was enabled
	// again, while a sibling moved the cursor on.
	reg := registry(consumer(1), consumer(2))
	s := start(t, reg, loaded(2, 0, suspect))
	if f := s.flush(core.Keep); row(f, 1) == nil {
		t.Fatalf("not written ahead: %+v", f)
	}
	s.step(&Flushed{core.FlushResult{Record: 1, Token: 7, Status: core.FlushEpoch}})
	s.step(Reloaded{Registry: core.NewRegistry(3, reg.Ordering, reg.Consumers, nil), Loaded: loaded(2, 1, suspect)})
	f := s.flush(core.Keep)
	for _, c := range f.Upserts {
		if c.State == core.Started && c.Attempt != 1 || c.Attempt < 0 {
			t.Fatalf("row: %+v", c)
		}
	}
}

func TestCommitThatAReloadHasReadIsTakenAsItIs(t *testing.T) {
	tx := consumer(1, func(c *core.Consumer) { c.Transactional = true })
	at := func(seq int64) func(*core.Loaded) {
		return func(l *core.Loaded) {
			l.Checkpoints = []core.Checkpoint{{Record: 1, Consumer: 1, Seq: seq, State: core.Ready}}
		}
	}
	s := start(t, registry(tx), loaded(2, 0, at(0)))
	w := s.start(1)
	b := Decide(s.now, nil, tx, &w, &core.Outcome{}) // committed; the answer is under way
	s.step(News{Head: 2, Pending: true})
	s.step(Reloaded{Registry: s.m.reg, Loaded: loaded(2, 0, at(1))})
	s.step(&Ended{&w, core.Outcome{Booked: &b}})
	if next := s.start(1); next.Events[0].Seq != 2 || next.Fence != 1 {
		t.Fatalf("after the commit: %+v", next)
	}
}

func TestCommitThatAReloadHasReadTooEarlyStays(t *testing.T) {
	tx := consumer(1, func(c *core.Consumer) { c.Transactional = true })
	at := func(seq int64) func(*core.Loaded) {
		return func(l *core.Loaded) {
			l.Checkpoints = []core.Checkpoint{{Record: 1, Consumer: 1, Seq: seq, State: core.Ready}}
		}
	}
	s := start(t, registry(tx), loaded(2, 0, at(0)))
	w := s.start(1)
	b := Decide(s.now, nil, tx, &w, &core.Outcome{})
	s.step(News{Head: 2, Pending: true}) // a reload begins, and reads the row
	s.step(&Ended{&w, core.Outcome{Booked: &b}})
	s.step(Reloaded{Registry: s.m.reg, Loaded: loaded(2, 0, at(0))}) // as of before the commit
	if next := s.start(1); next.Events[0].Seq != 2 || next.Fence != 1 {
		t.Fatalf("after the reload: %+v", next)
	}
}

func TestWithdrawnWriteAheadLeavesWhatItFound(t *testing.T) {
	snoozed := core.Checkpoint{Record: 1, Consumer: 1, State: core.Backoff, NextAttemptAt: begin}
	s := start(t, registry(consumer(1)), loaded(1, 0, suspect, func(l *core.Loaded) { l.Checkpoints = []core.Checkpoint{snoozed} }))
	w := s.kept().start(1)
	s.step(NotStarted{Work: &w, Until: begin.Add(time.Minute)})
	snoozed.RedeliverTo = 1 // by the claim that was lost
	if c := row(s.flush(core.HandBack), 1); c == nil || *c != snoozed {
		t.Fatalf("row: %+v", c)
	}
}

func TestSuspicionOutlivesARunThatWasWithdrawn(t *testing.T) {
	s := start(t, registry(consumer(1, func(c *core.Consumer) { c.Window = 2 })), loaded(2, 0, suspect))
	s.kept()
	s.end(s.start(1), nil)
	w := s.kept().start(1)
	s.step(Drain{})
	s.step(NotStarted{Work: &w})
	if f := s.flush(core.HandBack); f.Clear {
		t.Fatalf("event 2 may have run, and is forgotten: %+v", f)
	}
}

func TestPausedTransactionalRowIsNotWrittenWhileItsHandlerRuns(t *testing.T) {
	tx := func(status core.Status) *core.Consumer {
		return consumer(1, func(c *core.Consumer) { c.Transactional, c.Status = true, status })
	}
	rows := func(l *core.Loaded) { l.Checkpoints = []core.Checkpoint{{Record: 1, Consumer: 1, State: core.Ready}} }
	s := start(t, registry(tx(core.Active), consumer(2)), loaded(2, 0, rows))
	s.start(1)
	s.end(s.start(2), nil)
	s.step(&Flushed{core.FlushResult{Record: 1, Token: 7, Status: core.FlushEpoch}})
	s.step(Reloaded{Registry: core.NewRegistry(2, keylinetype.Independent, []*core.Consumer{tx(core.Paused), consumer(2)}, nil),
		Loaded: loaded(2, 0, func(l *core.Loaded) {
			l.Checkpoints = []core.Checkpoint{{Record: 1, Consumer: 1, Seq: 1, State: core.Ready}}
		})})
	if f := s.flush(core.Keep); row(f, 1) != nil {
		t.Fatalf("written beside HandleTx: %+v", f)
	}
}

func TestTroubledConsumersOfASuspectDoNotTakeTurnsInWaiting(t *testing.T) {
	one := func(id int32) *core.Consumer {
		return consumer(id, func(c *core.Consumer) { c.Scope = keylinetype.AllForOne })
	}
	trouble := func(id int32) core.Checkpoint {
		return core.Checkpoint{Record: 1, Consumer: id, State: core.Backoff, Attempt: 1, FirstFailedAt: begin, NextAttemptAt: begin}
	}
	s := start(t, registry(one(1), one(2)), loaded(1, 0, suspect, func(l *core.Loaded) {
		l.Checkpoints = []core.Checkpoint{trouble(1), trouble(2)}
	}))
	if w := s.kept().start(1); w.Attempt != 2 {
		t.Fatalf("started %+v", w)
	}
}

func TestCrashBudgetsDeadLetterIsDurableBeforeHandleTxGoesOn(t *testing.T) {
	tx := consumer(1, func(c *core.Consumer) { c.Transactional = true })
	s := start(t, registry(tx), loaded(2, 0, func(l *core.Loaded) {
		l.Checkpoints = []core.Checkpoint{{Record: 1, Consumer: 1, State: core.Started, Attempt: 3, Granted: 2, Crashes: 2, FirstFailedAt: begin}}
	}))
	none[Start](s)
	if f := s.flush(core.Keep); len(f.DeadLetters) != 1 || row(f, 1) == nil || row(f, 1).Seq != 1 {
		t.Fatalf("the dead letter is not written: %+v", f)
	}
	if w := s.kept().start(1); w.Events[0].Seq != 2 {
		t.Fatalf("started %+v", w)
	}
}

func TestLockstepAsksForTheEventsByWhichASiblingWouldHold(t *testing.T) {
	// The paused consumer takes none of the events up to 3, which it takes to know.
	paused := consumer(2, func(c *core.Consumer) { c.Status, c.Types = core.Paused, []string{"other"} })
	s := &script{t: t, now: begin}
	m, effects := New(lockstep(consumer(1), paused), loaded(4, 3, func(l *core.Loaded) {
		l.Checkpoints = []core.Checkpoint{{Record: 1, Consumer: 2, Seq: 0, State: core.Ready}}
		l.Events = append(events(1, 1), events(4, 4)...)
	}), Options{Now: begin, LoadLimit: 1})
	s.m = m
	s.take(effects)
	for seq := int64(2); seq <= 3; seq++ {
		if r := only[LoadEvents](s).Ranges; len(r) != 1 || r[0].From != seq-1 {
			t.Fatalf("asked for %+v", r)
		}
		none[Flush](s)
		s.step(EventsLoaded{events(seq, seq)})
	}
	if w := s.start(1); w.Events[0].Seq != 4 {
		t.Fatalf("started %+v", w)
	}
}

func TestDrainHandsBackWhatOnlyUnloadedEventsWouldHold(t *testing.T) {
	// The consumer hosted elsewhere takes none of events 1 to 3; a drain comes before all are loaded.
	elsewhere := consumer(2, func(c *core.Consumer) { c.Hosted, c.Types = false, []string{"other"} })
	s := &script{t: t, now: begin}
	m, effects := New(lockstep(consumer(1), elsewhere), loaded(4, 3, func(l *core.Loaded) {
		l.Checkpoints = []core.Checkpoint{{Record: 1, Consumer: 2, Seq: 0, State: core.Ready}}
		l.Events = append(events(1, 1), events(4, 4)...)
	}), Options{Now: begin, LoadLimit: 1})
	s.m = m
	s.take(effects)
	only[LoadEvents](s)
	s.step(Drain{}).step(EventsLoaded{events(2, 2)})
	if f := s.flush(core.HandBack); !f.DueAt.Equal(begin) {
		t.Fatalf("nothing holds event 4, and it is due %v", f.DueAt)
	}
}

func TestDeadLetterOfAParkedVersionIsClosedWithItsDelivery(t *testing.T) {
	park := func(versions ...int) *core.Consumer {
		return consumer(1, func(c *core.Consumer) {
			c.Versions, c.OnUnsupported, c.OnDead = versions, keylinetype.DeadLetterUnsupported, keylinetype.Park
		})
	}
	s := start(t, registry(park(2)), loaded(1, 0))
	parked := *row(s.flush(core.Settle), 1)
	s = start(t, registry(park(1, 2)), loaded(1, 0, func(l *core.Loaded) {
		l.Checkpoints = []core.Checkpoint{parked}
		l.Commands = []core.Command{{ID: 1, Record: 1, Kind: core.CommandRetry, Consumer: 1}}
	}))
	w := s.start(1)
	s.kept()
	f := s.end(w, nil).flush(core.Settle)
	if len(f.DeadUpdates) != 1 || f.DeadUpdates[0].Status != core.DeadDelivered {
		t.Fatalf("the dead letter stays open: %+v", f)
	}
}

func TestSuspicionOutlivesARunThatWasCutShort(t *testing.T) {
	s := start(t, registry(consumer(1)), loaded(1, 0, suspect))
	w := s.kept().start(1)
	s.step(Drain{})
	s.step(&Ended{&w, core.Outcome{Err: errHandler, Cancelled: true}})
	if f := s.flush(core.HandBack); f.Clear {
		t.Fatalf("event 1 may have run before, and is forgotten: %+v", f)
	}
}

func TestLockstepKeepsTheEventsByWhichSiblingsHold(t *testing.T) {
	// Two paused consumers hold, one by event 12 and one by event 14; four others were further when lockstep came.
	stream := func(from, to int64) []core.Event {
		list := events(from, to)
		for i := range list {
			switch list[i].Seq {
			case 12:
				list[i].Type = "twelfth"
			case 14:
				list[i].Type = "fourteenth"
			}
		}
		return list
	}
	paused := func(id int32, takes string) *core.Consumer {
		return consumer(id, func(c *core.Consumer) { c.Status, c.Types = core.Paused, []string{takes} })
	}
	reg := lockstep(consumer(1), consumer(2), consumer(3), consumer(4), paused(5, "twelfth"), paused(6, "fourteenth"))
	s := &script{t: t, now: begin}
	m, effects := New(reg, loaded(40, 30, func(l *core.Loaded) {
		l.Events = nil
		for i, seq := range []int64{18, 22, 26, 30, 0, 12} {
			l.Checkpoints = append(l.Checkpoints, core.Checkpoint{Record: 1, Consumer: int32(i + 1), Seq: seq, State: core.Ready})
		}
		for _, seq := range []int64{0, 12, 18, 22, 26, 30} {
			l.Events = append(l.Events, stream(seq+1, seq+2)...)
		}
	}), Options{Now: begin, LoadLimit: 2})
	s.m = m
	s.take(effects)
	for range 20 {
		asked := find[LoadEvents](s)
		if len(asked) == 0 {
			break
		}
		var answer []core.Event
		for _, r := range asked[0].Ranges {
			answer = append(answer, stream(r.From+1, r.From+2)...)
		}
		s.step(EventsLoaded{answer})
	}
	none[LoadEvents](s)
	none[Start](s)
	s.flush(core.HandBack)
}

func TestParkedVersionKeepsItsAttempts(t *testing.T) {
	c := consumer(1, func(c *core.Consumer) {
		c.Versions, c.OnUnsupported, c.OnDead = []int{2}, keylinetype.DeadLetterUnsupported, keylinetype.Park
	})
	s := start(t, registry(c), loaded(1, 0, func(l *core.Loaded) {
		l.Checkpoints = []core.Checkpoint{{Record: 1, Consumer: 1, State: core.Ready, Attempt: 3, Granted: 3, FirstFailedAt: begin}}
	}))
	f := s.flush(core.Settle)
	if len(f.DeadLetters) != 1 || f.DeadLetters[0].Attempt != 3 || row(f, 1).Attempt != 3 {
		t.Fatalf("dead letter: %+v", f)
	}
}

func TestVersionThatIsNoLongerSupportedEndsItsBackoff(t *testing.T) {
	for _, onDead := range []keylinetype.OnDead{keylinetype.Park, keylinetype.Advance} {
		c := consumer(1, func(c *core.Consumer) {
			c.Versions, c.OnUnsupported, c.OnDead = []int{2}, keylinetype.DeadLetterUnsupported, onDead
		})
		s := start(t, registry(c), loaded(1, 0, func(l *core.Loaded) {
			l.Checkpoints = []core.Checkpoint{{Record: 1, Consumer: 1, State: core.Backoff, Attempt: 1, NextAttemptAt: begin.Add(time.Minute), FirstFailedAt: begin}}
		}))
		f := s.flush(core.Settle)
		if k := row(f, 1); len(f.DeadLetters) != 1 || k != nil && !k.NextAttemptAt.IsZero() {
			t.Errorf("%s: it is due, and in no backoff: %+v", onDead, f)
		}
	}
}

func TestFailedBatchDoesNotEndSuspicion(t *testing.T) {
	s := start(t, registry(consumer(1, func(c *core.Consumer) { c.BatchSize = 2 })), loaded(2, 0, func(l *core.Loaded) { l.Unclean = true }))
	s.end(s.start(1), errHandler)
	if f := s.flush(core.HandBack); f.Clear {
		t.Fatalf("event 2 may have run under the last claim, and is forgotten: %+v", f)
	}
}

func TestCommandsAreReadAgainOnceARetryHasCommitted(t *testing.T) {
	tx := consumer(1, func(c *core.Consumer) { c.Transactional = true })
	retry := core.DeadRetry{ID: 5, Record: 1, Consumer: 1, Seq: 1, Attempt: 2, Granted: 2, DueAt: begin, FirstFailedAt: begin}
	state := func(l *core.Loaded) {
		l.Checkpoints = []core.Checkpoint{{Record: 1, Consumer: 1, Seq: 1, State: core.Ready}}
		l.Retries, l.Events = []core.DeadRetry{retry}, events(1, 1)
	}
	s := start(t, registry(tx), loaded(1, 1, state))
	s.step(EventsLoaded{events(1, 1)})
	w := s.start(1)
	s.step(News{Head: 1, Pending: true})
	s.step(Reloaded{Registry: s.m.reg, Loaded: loaded(1, 1, state, func(l *core.Loaded) {
		l.Commands = []core.Command{{ID: 1, Record: 1, Kind: core.CommandResolveDead, Consumer: 1, Seq: 1, DeadLetter: 5, Dead: &retry}}
	})})
	b := Decide(s.now, nil, tx, &w, &core.Outcome{Err: keylinetype.Permanent(errHandler)})
	s.step(&Ended{&w, core.Outcome{Err: errHandler, Booked: &b}})
	only[Reload](s) // the dead letter is open again, with another attempt
}

func TestRunningRetryOfADisabledConsumerIsLeftToItsHandler(t *testing.T) {
	// HandleTx writes the dead letter with its outcome; a flush meanwhile would overwrite it.
	tx := consumer(1, func(c *core.Consumer) { c.Transactional = true })
	state := func(l *core.Loaded) {
		l.Checkpoints = []core.Checkpoint{{Record: 1, Consumer: 1, Seq: 1, State: core.Ready}}
		l.Retries = []core.DeadRetry{{ID: 5, Record: 1, Consumer: 1, Seq: 1, Attempt: 2, Granted: 2, DueAt: begin, FirstFailedAt: begin}}
		l.Events = events(1, 1)
	}
	s := start(t, registry(tx), loaded(1, 1, state))
	s.step(EventsLoaded{events(1, 1)})
	w := s.start(1)
	disabled := consumer(1, func(c *core.Consumer) { c.Transactional, c.Status = true, core.Disabled })
	s.step(RegistryMoved{}).step(Reloaded{Registry: core.NewRegistry(2, s.m.reg.Ordering, []*core.Consumer{disabled}, nil), Loaded: loaded(1, 1, state)})
	for _, f := range find[Flush](s) {
		if len(f.Flush.DeadUpdates) > 0 {
			t.Fatalf("the dead letter is written under its handler: %+v", f.Flush.DeadUpdates)
		}
	}
	if !s.m.retryRuns(1) {
		t.Fatal("the run is forgotten")
	}
	b := Decide(s.now, nil, tx, &w, &core.Outcome{Err: keylinetype.Permanent(errHandler)})
	s.step(&Ended{&w, core.Outcome{Err: errHandler, Booked: &b}})
	if s.m.retryRuns(1) {
		t.Fatal("the run has ended")
	}
}

func TestAnActOnAPausedConsumerOutlivesAResume(t *testing.T) {
	// Found by a staged fault (34b): the act was applied, and the registry had moved before it was written.
	parks := func(status core.Status) *core.Consumer {
		return consumer(1, func(c *core.Consumer) { c.OnDead, c.Status = keylinetype.Park, status })
	}
	for _, kind := range []core.CommandKind{core.CommandResolveDead, core.CommandSkip, core.CommandRetryDead} {
		state := func(l *core.Loaded) {
			l.Events = events(1, 2)
			l.Checkpoints = []core.Checkpoint{{Record: 1, Consumer: 1, State: core.Parked, Attempt: 1, FirstFailedAt: begin, ErrorCode: "x"}}
			l.Commands = []core.Command{{ID: 9, Record: 1, Kind: kind, Consumer: 1, Seq: 1, DeadLetter: 5, DeadOpen: true,
				Dead: &core.DeadRetry{ID: 5, Record: 1, Consumer: 1, Seq: 1, Attempt: 1, FirstFailedAt: begin}}}
		}
		s := start(t, registry(parks(core.Paused), consumer(2)), loaded(2, 0, state))
		for _, f := range find[Flush](s) {
			if len(f.Flush.Applied) != 1 || !f.Flush.Applied[0].Done {
				t.Fatalf("%s is not applied: %+v", kind, f.Flush.Applied)
			}
		}
		s.flush(core.Keep)
		s.step(&Flushed{core.FlushResult{Record: 1, Token: 7, Status: core.FlushEpoch}})
		only[Reload](s)
		s.step(Reloaded{Registry: core.NewRegistry(2, s.m.reg.Ordering, []*core.Consumer{parks(core.Active), consumer(2)}, nil), Loaded: loaded(2, 0, state)})
		want := int64(2) // given up: it goes on
		if kind == core.CommandRetryDead {
			want = 1 // in order
		}
		if w, ok := s.starts()[1]; !ok || w.Events[0].Seq != want {
			t.Errorf("after %s, and a resume, it starts %+v, want event %d", kind, w, want)
		}
	}
}
