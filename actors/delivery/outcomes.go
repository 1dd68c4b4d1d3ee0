package delivery

import (
	"time"

	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/keylinetype"
)

// ended takes a handler's outcome.
func (m *Machine) ended(w *core.Work, out *core.Outcome) {
	m.running--
	if out.Fenced {
		m.stop(StopFenced)
		return
	}
	if w.Dead != nil {
		m.retryEnded(w, out)
		return
	}
	l := m.lane(w.Consumer.ID)
	if l == nil {
		return
	}
	l.running, l.ran, l.replay = false, true, false
	if l.writeAhead == aheadDone {
		l.writeAhead = notAhead
	}
	last := w.Events[len(w.Events)-1].Seq
	switch {
	case out.Err == nil:
		l.tried = max(l.tried, last)
	case !out.Cancelled:
		l.tried = max(l.tried, w.Events[0].Seq) // of a failed batch, only this one has had its turn
	}
	if out.Err != nil {
		l.redeliverTo = max(l.redeliverTo, last)
	}
	if w.Events[0].Seq <= l.cp.Seq && (out.Booked == nil || out.Booked.Checkpoint.Seq < l.cp.Seq) {
		l.beyond = max(l.beyond-len(w.Events), 0)
		return // the lane is past it: its consumer was disabled meanwhile, and came back at the cursor
	}
	// The row may have learned more since the work began (its db part), the
	// booking is about the position and retry state.
	if out.Booked != nil {
		m.bookDurable(l, out.Booked)
		m.holdSiblings(l)
		return
	}
	b := Decide(m.now, m.opts.Random, w.Consumer, w, out)
	if len(w.Events) > 1 && b.Failure != nil {
		l.singleUntil = w.Events[len(w.Events)-1].Seq
	}
	m.book(l, &b)
	m.holdSiblings(l)
}

// holdSiblings takes back what siblings have not begun, where this lane's trouble is theirs.
func (m *Machine) holdSiblings(l *lane) {
	if l.c.Scope == keylinetype.AllForOne && (l.cp.State == core.Backoff || l.cp.State == core.Parked) && m.running > 0 {
		m.do(Withdraw{})
	}
}

// book takes a booking into what the next flush carries.
func (m *Machine) book(l *lane, b *core.Booking) {
	l.cp = b.Checkpoint
	l.owes = l.owes || b.DeadLetter != nil || b.Skip != nil
	if b.DeadLetter != nil {
		m.deadLetter(*b.DeadLetter)
	}
	if b.Dead != nil {
		m.deadUpdate(*b.Dead)
	}
	if b.Failure != nil {
		m.acc.Failures = append(m.acc.Failures, *b.Failure)
		m.urgent = true
	}
	if b.Skip != nil {
		m.acc.Skips = append(m.acc.Skips, *b.Skip)
	}
	m.count(&b.Counts)
	m.touch()
}

// deadUpdate adds to what the next flush carries. There is one update for a
// dead letter in a flush: the latest.
func (m *Machine) deadUpdate(u core.DeadUpdate) {
	for i := range m.acc.DeadUpdates {
		if o := &m.acc.DeadUpdates[i]; o.ID == u.ID && (u.ID != 0 || o.Consumer == u.Consumer && o.Seq == u.Seq) {
			*o = u
			return
		}
	}
	m.acc.DeadUpdates = append(m.acc.DeadUpdates, u)
}

// deadLetter adds to what the next flush carries: one for a delivery.
func (m *Machine) deadLetter(d core.DeadLetter) {
	for i := range m.acc.DeadLetters {
		if o := &m.acc.DeadLetters[i]; o.Consumer == d.Consumer && o.Seq == d.Seq {
			*o = d
			return
		}
	}
	m.acc.DeadLetters = append(m.acc.DeadLetters, d)
}

// bookDurable takes what HandleTx has already written.
func (m *Machine) bookDurable(l *lane, b *core.Booking) {
	l.db, l.cp = &b.Checkpoint, b.Checkpoint
	l.beyond = 0
	m.readAgain(b.Dead != nil || b.DeadLetter != nil)
	m.count(&b.Counts)
	m.touch() // the cursor follows
}

// touch notes that something waits to be flushed.
func (m *Machine) touch() {
	if m.dirtySince.IsZero() {
		m.dirtySince = m.now
	}
}

// count adds to the counts that the next flush carries, one row per consumer.
func (m *Machine) count(c *core.Counts) {
	if *c == (core.Counts{Consumer: c.Consumer}) {
		return
	}
	for i := range m.acc.Counts {
		a := &m.acc.Counts[i]
		if a.Consumer != c.Consumer {
			continue
		}
		a.Completed += c.Completed
		a.Failed += c.Failed
		a.Skipped += c.Skipped
		a.Dead += c.Dead
		a.Ignored += c.Ignored
		a.Retried += c.Retried
		a.LastEventAt = later(a.LastEventAt, c.LastEventAt)
		a.LastSuccessAt = later(a.LastSuccessAt, c.LastSuccessAt)
		a.LastFailureAt = later(a.LastFailureAt, c.LastFailureAt)
		return
	}
	m.acc.Counts = append(m.acc.Counts, *c)
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
