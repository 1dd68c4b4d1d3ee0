package sim

import (
	"slices"
	"time"

	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/keylinetype"
)

// moment is a record's positions before a transaction.
type moment struct {
	record int64
	pos    map[int32]int64
}

func (c *checker) before(recordID int64) moment {
	m := moment{recordID, map[int32]int64{}}
	for _, row := range c.twin.consumers {
		m.pos[row.ID] = c.twin.Position(recordID, row.ID)
	}
	return m
}

// flushed looks at what a flush has done.
func (c *checker) flushed(was moment, worker int64, f *core.Flush, res core.FlushResult) {
	switch res.Status {
	case core.FlushFenced, core.FlushEpoch:
		return
	case core.FlushGone:
		c.clean[f.Token] = true
		c.endedAt[f.Record] = c.twin.Now
	case core.FlushKept:
	}
	for _, u := range f.Upserts {
		if k := (pair{f.Record, u.Consumer}); c.startedBy[k] == worker {
			c.startedBy[k] = 0 // it says itself what became of the attempt
		}
	}
	c.accounted(was, f.Token)
	c.sparse(f.Record)
	if f.Clear {
		for k, row := range c.twin.checkpoints {
			if k.record == f.Record && row.State == core.Started && c.twin.consumers[k.consumer-1].Status == core.Active {
				fail("record %d: suspicion ends while consumer %d seq %d is written ahead", f.Record, k.consumer, row.Seq+1)
			}
		}
	}
}

// booked looks at what a HandleTx has committed.
func (c *checker) booked(was moment, t *task) { c.accounted(was, t.work.Token) }

// accounted: no position moves past an event that concerns its consumer and
// has not ended for good under the claim that moved it.
func (c *checker) accounted(was moment, token int64) {
	rec := c.twin.record(was.record)
	for _, row := range c.twin.consumers {
		if row.Status != core.Active && row.Status != core.Paused {
			continue
		}
		from, to := was.pos[row.ID], c.twin.Position(rec.id, row.ID)
		for seq := c.nextSeq(rec, row, from); seq > 0 && seq <= to; seq = c.nextSeq(rec, row, seq) {
			k := dkey{pair{rec.id, row.ID}, seq}
			h := c.seen[k]
			ok := h != nil && slices.ContainsFunc(h.successes, func(s success) bool { return s.token == token })
			disabled := c.fromBeforeDisabled(token, k.pair)
			_, ever := c.loosed[k.pair]
			if d := c.deadRow(k); ok && !ever && d != nil && d.Status == core.DeadAgain {
				fail("record %d consumer %d seq %d was delivered, its dead letter stays open: %+v", rec.id, row.ID, seq, *d)
			}
			ok = ok || disabled
			if !ok && c.deadRow(k) == nil && !c.skipped(k) && !c.passed(row, &rec.events[seq-1], token) {
				fail("lost: record %d consumer %d is moved from %d to %d, seq %d has not ended", rec.id, row.ID, from, to, seq)
			}
		}
	}
}

// sparse: no plain row at the cursor, none of consumers that are gone, and one
// for every transactional consumer.
func (c *checker) sparse(recordID int64) {
	rec := c.twin.record(recordID)
	for _, row := range c.twin.consumers {
		cp, ok := c.twin.checkpoints[pair{recordID, row.ID}]
		switch {
		case row.Status == core.Disabled || row.Status == core.Retired:
			if ok && !row.Transactional { // HandleTx holds its row, and the sweep takes it
				fail("record %d: consumer %d is %s and keeps a row", recordID, row.ID, row.Status)
			}
		case row.Status == core.Active && row.Transactional:
			if !ok {
				fail("record %d: transactional consumer %d has no row", recordID, row.ID)
			}
		case row.Status == core.Active && ok && cp.Plain() && cp.Seq == rec.base() && cp.LiveFrom <= cp.Seq:
			fail("record %d: consumer %d has a row that says nothing: %+v", recordID, row.ID, cp)
		}
	}
}

// state looks at everything after every step.
func (c *checker) state() {
	for _, row := range c.twin.consumers {
		c.statusOf(row)
	}
	for _, rec := range c.twin.records {
		if rec.head == 0 {
			continue
		}
		c.positions(rec)
		if rec.open == nil && !c.twin.sweeping(rec.id) {
			c.work(rec)
		}
	}
	c.deadLetters()
}

func (c *checker) statusOf(row *consumerRow) {
	was := c.status[row.ID]
	if was == row.Status {
		return
	}
	c.status[row.ID] = row.Status
	c.interrupted[row.ID] = c.interrupted[row.ID] || was == core.Active
	for _, rec := range c.twin.records {
		k := pair{rec.id, row.ID}
		if row.Status == core.Disabled {
			c.loosed[k] = c.r.mono() + time.Hour // until it is enabled
		}
		if was == core.Disabled {
			c.loosed[k], c.loosedAt[k] = c.r.mono(), c.twin.tokens
			c.pos[k] = c.twin.Position(rec.id, row.ID)
		}
	}
}

// positions never go back, never go past the head, and attempts do not go back either.
func (c *checker) positions(rec *record) {
	base := rec.base()
	if base < c.base[rec.id] || base > rec.head {
		fail("record %d: the base goes from %d to %d, the head is %d", rec.id, c.base[rec.id], base, rec.head)
	}
	c.base[rec.id] = base
	for _, row := range c.twin.consumers {
		k := pair{rec.id, row.ID}
		if row.Status != core.Active && row.Status != core.Paused {
			delete(c.rows, k)
			continue
		}
		p := c.twin.Position(rec.id, row.ID)
		if p < c.pos[k] || p > rec.head {
			fail("record %d consumer %d: the position goes from %d to %d, the head is %d", rec.id, row.ID, c.pos[k], p, rec.head)
		}
		c.pos[k] = p
		c.attempts(k)
	}
}

func (c *checker) attempts(k pair) {
	now, ok := c.twin.checkpoints[k]
	was, before := c.rows[k]
	if before && was.Seq != c.pos[k] {
		delete(c.forgiven, k)
	}
	if before && was.Seq == c.pos[k] {
		if was.State == core.Started && now.State == core.Ready && now.Attempt == was.Attempt {
			c.forgiven[k] = was.Attempt
			if by := c.startedBy[k]; now.Crashes == was.Crashes && by > 0 && c.twin.workers[by-1].status == "lost" {
				fail("record %d consumer %d seq %d: worker %d was lost during attempt %d, which is given back", k.record, k.consumer, was.Seq+1, by, was.Attempt)
			}
		}
		least := was.Attempt
		if was.State == core.Started || c.forgiven[k] == was.Attempt {
			least--
		}
		if now.Attempt < least {
			fail("record %d consumer %d seq %d: attempts go from %d to %d", k.record, k.consumer, was.Seq+1, was.Attempt, now.Attempt)
		}
	}
	if now.State == core.Started && was.State != core.Started {
		c.inTrouble[k] = was.State == core.Backoff
	}
	if now.State == core.Started && now != was {
		if c.startedBy[k] = 0; c.twin.record(k.record).mailbox != nil {
			c.startedBy[k] = c.twin.record(k.record).mailbox.ClaimedBy
		}
	}
	if ok {
		c.rows[k] = now
		c.liveFrom[k] = max(c.liveFrom[k], now.LiveFrom)
		if now.State == core.Parked && (!before || was.State != core.Parked) {
			c.r.stats.Parked++
		}
	} else {
		delete(c.rows, k)
	}
}

// deadLetters have a cause that the books know.
func (c *checker) deadLetters() {
	for _, d := range c.twin.dead {
		was, known := c.deads[d.ID]
		if known && was == *d {
			continue
		}
		c.deads[d.ID] = *d
		if was.Started && !d.Started && d.Status == core.DeadWaiting && d.Attempt == was.Attempt {
			c.forgivenDead[d.ID] = was.Attempt
		}
		_, disabled := c.loosed[pair{d.Record, d.Consumer}] // then the delivery began anew
		if !disabled && (d.Attempt < was.Attempt-1 || d.Attempt < was.Attempt && !was.Started && c.forgivenDead[d.ID] != was.Attempt) {
			fail("dead letter %d: attempts go from %d to %d", d.ID, was.Attempt, d.Attempt)
		}
		if d.Status == core.DeadAgain && (!known || was.Status != core.DeadAgain) {
			c.cause(d)
		}
	}
}

func (c *checker) cause(d *DeadRow) {
	k := dkey{pair{d.Record, d.Consumer}, d.Seq}
	h := c.history(k)
	row := c.twin.consumers[d.Consumer-1]
	ok := false
	switch d.Reason {
	case core.DeadExhausted, core.DeadPermanent:
		ok = slices.ContainsFunc(h.ends, func(a attempt) bool { return a.reason == d.Reason && a.attempt == d.Attempt })
		if row.Status == core.Disabled || row.Status == core.Retired || d.ErrorCode == core.CodeConsumerGone && c.interrupted[d.Consumer] {
			ok = true // reopened: its consumer was no longer there
		}
	case core.DeadUnsupported:
		ok = row.OnUnsupported == keylinetype.DeadLetterUnsupported
	case core.DeadCrashes:
		ok = c.crashed[k] >= c.budget()
	case core.DeadInvalid:
	}
	if !ok {
		fail("dead letter without a cause: %+v; last run %+v, crashes %d", *d, h.last, c.crashed[k])
	}
}

func (c *checker) budget() int {
	if c.r.cfg.CrashBudget > 0 {
		return c.r.cfg.CrashBudget
	}
	return 3
}

// work: whatever can be done has a mailbox, by which a host of it can claim it
// when it is due.
func (c *checker) work(rec *record) {
	m := rec.mailbox
	if m != nil && m.ClaimedBy != 0 {
		return
	}
	if m == nil && (c.twin.commandsWait(rec.id) || c.twin.retriesWait(rec.id)) {
		fail("record %d has commands or retries, and no mailbox", rec.id)
	}
	soon := c.endedAt[rec.id].Add(time.Second)
	if c.twin.commandsWait(rec.id) && m.DueAt.After(c.r.latest()) && m.DueAt.After(soon) {
		fail("record %d: a command waits until %v", rec.id, m.DueAt.Sub(epochStart))
	}
	for _, row := range c.twin.consumers {
		k := pair{rec.id, row.ID}
		if row.Status != core.Active || row.ContractOnly {
			continue
		}
		cp, has := c.twin.checkpoints[k]
		if has && cp.State == core.Parked {
			continue
		}
		seq := c.nextSeq(rec, row, c.twin.Position(rec.id, row.ID))
		if seq == 0 || c.held(rec, row, seq, cp) {
			continue
		}
		due := time.Time{}
		if cp.State == core.Backoff {
			due = cp.NextAttemptAt
		}
		c.offered(rec, row.ID, seq, due)
	}
	for _, d := range c.twin.dead {
		if d.Record == rec.id && d.Status == core.DeadWaiting && c.twin.consumers[d.Consumer-1].Status == core.Active {
			c.offered(rec, d.Consumer, d.Seq, d.DueAt)
		}
	}
}

// offered: the mailbox is due for a host of this consumer in time.
func (c *checker) offered(rec *record, consumer int32, seq int64, due time.Time) {
	m := rec.mailbox
	if m == nil {
		fail("record %d: consumer %d has seq %d to do, and there is no mailbox", rec.id, consumer, seq)
	}
	latest := due
	for _, t := range []time.Time{c.r.latest(), c.refusedTo[consumer], c.endedAt[rec.id].Add(time.Second)} {
		if t.After(latest) {
			latest = t
		}
	}
	if !m.DueAt.After(latest) || slices.Contains(m.Wants, consumer) && !m.WantsDueAt.After(latest) {
		return
	}
	fail("record %d: consumer %d has seq %d to do at %v, the mailbox is due %v and wants %v at %v", rec.id, consumer, seq,
		due.Sub(epochStart), m.DueAt.Sub(epochStart), m.Wants, m.WantsDueAt.Sub(epochStart))
}

// held: what lockstep or a sibling holds has no due time of its own.
func (c *checker) held(rec *record, row *consumerRow, seq int64, own core.Checkpoint) bool {
	for _, other := range c.twin.consumers {
		if other.ID == row.ID {
			continue
		}
		k := pair{rec.id, other.ID}
		cp := c.twin.checkpoints[k]
		if c.lockstep() && (other.Status == core.Active || other.Status == core.Paused) && !other.ContractOnly {
			if next := c.nextSeq(rec, other, c.twin.Position(rec.id, other.ID)); next > 0 && next < seq {
				return true
			}
		}
		if other.Scope == keylinetype.AllForOne && other.Status == core.Active && own.State != core.Backoff &&
			!(c.lockstep() && len(c.revisions[other.ID]) == 0 && seq < c.nextSeq(rec, other, c.twin.Position(rec.id, other.ID))) && (cp.State == core.Backoff || cp.State == core.Parked) {
			return true
		}
	}
	return false
}
