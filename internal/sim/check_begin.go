package sim

import (
	"slices"

	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/keylinetype"
)

// begins looks at a delivery as its handler begins.
func (c *checker) begins(t *task) {
	w := &t.work
	if w.Record != t.h.claim.Record || w.Token != t.h.claim.Token || len(w.Events) == 0 {
		fail("a delivery of another claim, or of nothing: %+v", *w)
	}
	c.r.stats.Begun++
	if len(w.Events) > 1 {
		c.r.stats.Batches++
	}
	live := c.twin.Holds(t.h.w.id, w.Record, w.Token)
	if live {
		c.alone(t)
	}
	if w.Dead != nil {
		c.r.stats.DeadRetries++
		c.beginsDead(t, live)
	} else {
		c.concerned(t)
		c.inOrder(t, live)
		if live {
			c.withinWindow(t)
			c.attemptCounts(t)
			c.notEarly(t)
			c.siblings(t)
		}
	}
	if live {
		c.suspects(t)
	}
	for _, e := range w.Events {
		h := c.history(dkey{pair{w.Record, w.Consumer.ID}, e.Seq})
		// With another definition the window above a position is another, too.
		if live && len(c.revisions[w.Consumer.ID]) == 0 && h.begun > 0 && !w.Redelivered && !c.wasDisabled(w) {
			fail("record %d consumer %d seq %d: begun before, and not said to be redelivered", w.Record, w.Consumer.ID, e.Seq)
		}
		if live {
			h.begun++
		}
	}
}

// alone: never two handlers of one pair under live claims, nor in one process.
func (c *checker) alone(t *task) {
	for _, w := range c.r.workers {
		for _, o := range w.runs {
			if o == t || o.state != running || o.work.Record != t.work.Record || o.work.Consumer.ID != t.work.Consumer.ID {
				continue
			}
			if w == t.h.w || c.twin.Holds(w.id, o.work.Record, o.work.Token) {
				fail("record %d consumer %d: two handlers at once", t.work.Record, t.work.Consumer.ID)
			}
		}
	}
}

// concerned: hosted, active, and the events are such as the consumer takes.
func (c *checker) concerned(t *task) {
	w := &t.work
	known := t.h.reg.Consumer(w.Consumer.ID)
	if !w.Consumer.Hosted {
		fail("record %d: a delivery to consumer %d, which is not hosted", w.Record, w.Consumer.ID)
	}
	if w.Consumer.Status != core.Active {
		fail("record %d: a delivery to consumer %d, which is %s", w.Record, w.Consumer.ID, w.Consumer.Status)
	}
	if known == nil || known.Revision != w.Consumer.Revision {
		return // asked for before a reload
	}
	for i := range w.Events {
		early := w.Consumer.Start.Kind == keylinetype.StartAt && w.Events[i].CreatedAt.Before(w.Consumer.Start.Time)
		if early || t.h.reg.Applies(w.Consumer, w.Events[i].Type, w.Events[i].Version) != core.Applies {
			fail("record %d consumer %d: seq %d (%s v%d) does not concern it", w.Record, w.Consumer.ID, w.Events[i].Seq,
				w.Events[i].Type, w.Events[i].Version)
		}
	}
}

// inOrder: everything before is done with, and what is done is not done again
// but for what a fault kept from being flushed.
func (c *checker) inOrder(t *task, live bool) {
	w := &t.work
	k := pair{w.Record, w.Consumer.ID}
	rec := c.twin.record(w.Record)
	pos := c.twin.Position(w.Record, w.Consumer.ID)
	row := c.twin.consumers[w.Consumer.ID-1]
	first := w.Events[0].Seq
	i := 0
	for e := range rec.events {
		ev := &rec.events[e]
		if ev.Seq <= pos && i < len(w.Events) && w.Events[i].Seq == ev.Seq {
			i++
		}
		if ev.Seq <= pos || ev.Seq > w.Events[len(w.Events)-1].Seq || row.Revision != w.Consumer.Revision || row.Status != core.Active {
			continue
		}
		if i < len(w.Events) && w.Events[i].Seq == ev.Seq {
			i++
			continue
		}
		if c.applies(row, ev) == core.NotApplicable || c.doneWith(dkey{k, ev.Seq}, w, live && !c.fromBeforeDisabled(w.Token, k)) {
			continue
		}
		if c.passed(row, ev, w.Token) {
			continue
		}
		if c.applies(row, ev) == core.UnsupportedVersion && row.OnUnsupported != keylinetype.WaitUnsupported {
			continue
		}
		fail("gap: record %d consumer %d seq %d begins, seq %d has not ended (position %d)", w.Record, w.Consumer.ID, first, ev.Seq, pos)
	}
	for _, e := range w.Events {
		if from := c.liveFrom[k]; live && e.Seq <= from && w.Checkpoint.LiveFrom < e.Seq && !c.wasDisabled(w) {
			fail("record %d consumer %d seq %d is from before its backfill at head %d, and is said to be live", k.record, k.consumer, e.Seq, from)
		}
		if live && e.Seq <= pos && !c.wasDisabled(w) {
			fail("record %d consumer %d seq %d is delivered again after it was flushed (position %d)", w.Record, w.Consumer.ID, e.Seq, pos)
		}
		c.mayRepeat(dkey{k, e.Seq}, w, live)
	}
}

// doneWith: the delivery has ended for good, as far as this claim knows.
func (c *checker) doneWith(k dkey, w *core.Work, live bool) bool {
	h := c.seen[k]
	if h != nil {
		if slices.ContainsFunc(h.successes, func(s success) bool { return s.token == w.Token || !live }) {
			return true
		}
		if slices.ContainsFunc(h.ends, func(a attempt) bool { return a.terminal && (a.token == w.Token || !live) }) {
			return true
		}
	}
	return c.deadRow(k) != nil || c.skipped(k) || c.crashed[k] >= c.budget() || c.operatorActs(k.record, k.consumer) ||
		!live && c.commanded(k.record, k.consumer) // what a lost claim has made of a command was not flushed
}

// mayRepeat: what has succeeded comes again only because of a fault.
func (c *checker) mayRepeat(k dkey, w *core.Work, live bool) {
	h := c.seen[k]
	if h == nil {
		return
	}
	for _, s := range h.successes {
		if at, ok := c.loosed[k.pair]; ok && s.at <= at || c.fromBeforeDisabled(s.token, k.pair) {
			continue
		}
		c.r.stats.Redelivered++
		switch {
		case s.token == w.Token:
			fail("record %d consumer %d seq %d is delivered twice under one claim", k.record, k.consumer, k.seq)
		case live && c.clean[s.token]:
			fail("record %d consumer %d seq %d is delivered again, though its claim ended cleanly", k.record, k.consumer, k.seq)
		case !c.r.cfg.Faults && !c.r.cfg.Poison && !c.excused[s.token]:
			fail("record %d consumer %d seq %d is delivered twice without a fault", k.record, k.consumer, k.seq)
		case w.Consumer.Transactional:
			fail("record %d consumer %d seq %d was committed, and is delivered again", k.record, k.consumer, k.seq)
		}
	}
}

// withinWindow: a claim never runs more than the window beyond what is flushed.
func (c *checker) withinWindow(t *task) {
	w := &t.work
	if c.wasDisabled(w) {
		return // its place is no measure any more
	}
	pos := c.twin.Position(w.Record, w.Consumer.ID)
	n := len(w.Events)
	for _, e := range c.twin.record(w.Record).events {
		h := c.seen[dkey{pair{w.Record, w.Consumer.ID}, e.Seq}]
		if h != nil && e.Seq > pos && e.Seq < w.Events[0].Seq &&
			slices.ContainsFunc(h.successes, func(s success) bool { return s.token == w.Token }) {
			n++
		}
	}
	window := 1
	for _, list := range [][]core.Consumer{c.r.cfg.Consumers, c.r.cfg.Late} {
		for _, x := range list {
			if x.Name == w.Consumer.Name {
				window = max(x.Window, x.BatchSize, 1)
			}
		}
	}
	if n > window {
		fail("record %d consumer %d seq %d: %d events beyond the flushed position %d, the window is %d", w.Record, w.Consumer.ID,
			w.Events[0].Seq, n, pos, window)
	}
}

// head is the row of a delivery, if its event is the next of it.
func (c *checker) head(w *core.Work) (core.Checkpoint, bool) {
	row, ok := c.twin.checkpoints[pair{w.Record, w.Consumer.ID}]
	now := c.twin.consumers[w.Consumer.ID-1]
	return row, ok && c.nextSeq(c.twin.record(w.Record), now, row.Seq) == w.Events[0].Seq
}

// wasDisabled: the consumer's row was swept away at some time, and it came back at the cursor.
func (c *checker) wasDisabled(w *core.Work) bool {
	_, ok := c.loosed[pair{w.Record, w.Consumer.ID}]
	return ok
}

// fromBeforeDisabled: the claim may still go by what was so before the consumer was
// disabled, until it hears that it was, and is active again.
func (c *checker) fromBeforeDisabled(token int64, k pair) bool { return token <= c.loosedAt[k] }

// olderDefinition: the work, or the row, may be from when the consumer took other events.
func (c *checker) olderDefinition(w *core.Work) bool {
	return c.twin.consumers[w.Consumer.ID-1].Revision != w.Consumer.Revision || len(c.revisions[w.Consumer.ID]) > 0
}

// attemptCounts: attempts go up by one with every charged run, and never back.
func (c *checker) attemptCounts(t *task) {
	w := &t.work
	want := 1
	row, isHead := c.head(w)
	if isHead {
		want = row.Attempt + 1
		if row.State == core.Started && w.Attempt == row.Attempt {
			want = row.Attempt // written ahead by this claim, as suspects looks at
		}
	}
	h := c.seen[dkey{pair{w.Record, w.Consumer.ID}, w.Events[0].Seq}]
	if c.wasDisabled(w) || c.olderDefinition(w) {
		return // nothing was kept, or the head is another by now
	}
	if h != nil && h.last.token == w.Token && h.last.attempt > 0 {
		want = h.last.attempt
		if h.last.charged {
			want++
		}
	}
	if w.Attempt != want {
		fail("record %d consumer %d seq %d: attempt %d, expected %d (row %+v)", w.Record, w.Consumer.ID, w.Events[0].Seq, w.Attempt, want, row)
	}
}

// notEarly: backoff and parking last until their time or an operator's word.
func (c *checker) notEarly(t *task) {
	w := &t.work
	if c.commanded(w.Record, w.Consumer.ID) || c.wasDisabled(w) || c.olderDefinition(w) {
		return
	}
	now := c.r.latest() // the clock may have gone back since it was decided
	row, isHead := c.head(w)
	if isHead && row.State == core.Backoff && row.NextAttemptAt.After(now) {
		fail("record %d consumer %d seq %d runs %v before its backoff ends", w.Record, w.Consumer.ID, w.Events[0].Seq, row.NextAttemptAt.Sub(now))
	}
	if isHead && row.State == core.Parked && row.ErrorCode != core.CodeUnsupportedVersion {
		fail("record %d consumer %d seq %d runs though it is parked", w.Record, w.Consumer.ID, w.Events[0].Seq)
	}
	h := c.seen[dkey{pair{w.Record, w.Consumer.ID}, w.Events[0].Seq}]
	if h != nil && h.last.token == w.Token && h.last.notBefore.After(now) {
		fail("record %d consumer %d seq %d runs %v before it may", w.Record, w.Consumer.ID, w.Events[0].Seq, h.last.notBefore.Sub(now))
	}
}

// commanded: an operator has ever said something about this consumer on this record.
func (c *checker) commanded(record int64, consumer int32) bool {
	return slices.ContainsFunc(c.twin.commands, func(x *CommandRow) bool {
		return x.Record == record && (x.Consumer == 0 || x.Consumer == consumer || x.DeadLetter != 0)
	})
}

// suspects: one at a time, written ahead.
func (c *checker) suspects(t *task) {
	w := &t.work
	m := c.twin.record(w.Record).mailbox
	if m.Crashes == 0 || c.wasDisabled(w) || c.olderDefinition(w) {
		return
	}
	c.r.stats.WrittenAhead++
	for _, o := range t.h.w.runs {
		if o != t && o.h == t.h && o.state >= running {
			fail("suspect: record %d consumer %d begins beside consumer %d", w.Record, w.Consumer.ID, o.work.Consumer.ID)
		}
	}
	if len(w.Events) > 1 {
		fail("suspect: record %d consumer %d: a batch of %d", w.Record, w.Consumer.ID, len(w.Events))
	}
	if w.Dead != nil {
		if d := c.deadRow(dkey{pair{w.Record, w.Consumer.ID}, w.Dead.Seq}); d == nil || !d.Started || d.Attempt != w.Attempt {
			fail("suspect: record %d consumer %d: the dead letter's attempt %d is not written ahead: %+v", w.Record, w.Consumer.ID, w.Attempt, d)
		}
		return
	}
	row, isHead := c.head(w)
	if !isHead || row.State != core.Started || row.Attempt != w.Attempt {
		fail("suspect: record %d consumer %d seq %d attempt %d is not written ahead: %+v", w.Record, w.Consumer.ID, w.Events[0].Seq, w.Attempt, row)
	}
}

// beginsDead looks at a dead letter's retry.
func (c *checker) beginsDead(t *task, live bool) {
	w := &t.work
	d := c.deadRow(dkey{pair{w.Record, w.Consumer.ID}, w.Dead.Seq})
	if d == nil || len(w.Events) != 1 || w.Events[0].Seq != w.Dead.Seq {
		fail("record %d consumer %d: the retry of a dead letter that is not there: %+v", w.Record, w.Consumer.ID, *w)
	}
	if live && w.Attempt < d.Attempt {
		fail("record %d consumer %d: a dead letter's attempt goes back: %d after %d", w.Record, w.Consumer.ID, w.Attempt, d.Attempt)
	}
}
