package delivery

import (
	"math"
	"time"

	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/keylinetype"
)

// set makes l the lane of a consumer from what the database has.
func (m *Machine) set(l *lane, c *core.Consumer, loaded *core.Loaded) {
	work := l.work
	if work == nil {
		work = &core.Work{}
	}
	*l = lane{c: c, work: work, mine: c.Status == core.Active}
	for i := range loaded.Checkpoints {
		if loaded.Checkpoints[i].Consumer == c.ID {
			l.db = &loaded.Checkpoints[i]
		}
	}
	if l.db != nil {
		l.cp = *l.db
	} else {
		l.cp = core.Checkpoint{Record: m.claim.Record, Consumer: c.ID, Seq: loaded.Base, State: core.Ready}
		if c.Status == core.Backfilling {
			// Its sweep has not come here yet: it stands at the stream's start. An
			// event before its start time will not apply to it.
			l.cp.Seq, l.cp.LiveFrom = 0, loaded.Head
		}
	}
	l.redeliverTo = max(l.cp.RedeliverTo, 0)
	l.untold = l.cp.RedeliverTo == core.RedeliverUnknown
	if l.cp.Attempt > 0 {
		// What failed may have been a batch. Were those behind its first one again, each healthy event before the
		// one that is to blame would cost a failure and a backoff.
		l.singleUntil = l.redeliverTo
	}
	switch {
	case !l.untold && !m.unclean:
	case c.Hosted:
		l.redeliver = max(c.Window, c.BatchSize)
	default:
		l.redeliver = anyNumber // its window is known to its hosts alone
	}
}

// anyNumber of events may have run.
const anyNumber = math.MaxInt

// remember sets what the row says of the events that may have run before. cleared is true where the flush that
// carries the row makes the mailbox clean. As long as that is unclean the next claim learns by it that a window may
// have run, and the row need not say so.
func (m *Machine) remember(l *lane, cleared bool) {
	switch {
	case l.redeliver > 0 && l.untold && m.behind(l):
		l.cp.RedeliverTo = core.RedeliverUnknown
		return
	case l.redeliver > 0 && (cleared || !m.unclean):
		l.redeliverTo = max(l.redeliverTo, m.mayHaveRun(l))
	}
	l.cp.RedeliverTo = 0
	if l.redeliverTo > l.cp.Seq {
		l.cp.RedeliverTo = l.redeliverTo
	}
}

// mayHaveRun is the last of the events that may have run under an earlier claim; where it is not loaded, the head,
// which is too much and does no harm.
func (m *Machine) mayHaveRun(l *lane) int64 {
	seq := max(l.cp.Seq, l.untried)
	for n := l.redeliver; n > 0 && seq < m.head; {
		e, to, known := m.events.next(seq)
		switch {
		case !known:
			return m.head
		case e == nil:
			seq = to
			continue
		case m.applies(l, e) == core.Applies: // a version that is not supported was passed, as one that does not concern it
			n--
		}
		seq = e.Seq
	}
	return seq
}

// fence is where HandleTx expects the lane's row, which it has before it begins.
func (l *lane) fence() int64 {
	if l.db == nil {
		return 0
	}
	return l.db.Seq
}

// hosted reports whether deliveries of this lane may run in this process.
func (l *lane) hosted() bool { return l.c.Hosted && l.c.Status == core.Active }

// participates: active and not parked. Only these count for cursor and settle.
func (l *lane) participates() bool { return l.c.Status == core.Active && l.cp.State != core.Parked }

// behind reports whether the lane has events before it.
func (m *Machine) behind(l *lane) bool { return l.cp.Seq < m.head }

// afterLoad looks at rows that say something about the past: attempts that
// were written ahead and never ended, and parked versions that are supported by now.
func (m *Machine) afterLoad() {
	for i := range m.lanes {
		l := &m.lanes[i]
		if l.c.Status != core.Active {
			continue
		}
		if l.cp.State == core.Started && !l.running && l.writeAhead == notAhead {
			m.crashed(l)
		}
		if l.cp.State == core.Parked && l.cp.ErrorCode == core.CodeUnsupportedVersion {
			m.reconsider(l)
		}
	}
}

// reconsider unparks a lane whose head's version has become supported.
func (m *Machine) reconsider(l *lane) {
	e, _, known := m.events.next(l.cp.Seq)
	if !known {
		return // requestEvents asks for it, passOver looks again
	}
	l.reconsidered = true
	if e == nil || m.applies(l, e) != core.UnsupportedVersion || l.c.OnUnsupported != keylinetype.WaitUnsupported {
		l.cp.State, l.cp.ErrorCode = core.Ready, ""
		m.touch()
	}
}

// applies is the registry's word, but for events from before a consumer's start time, which concern it not at all.
func (m *Machine) applies(l *lane, e *core.Event) core.Applicability {
	if l.c.Start.Kind == keylinetype.StartAt && e.CreatedAt.Before(l.c.Start.Time) {
		return core.NotApplicable
	}
	return m.reg.Applies(l.c, e.Type, e.Version)
}

// passOver moves every active consumer, hosted here or not, past events that do
// not concern it, and hosted ones past versions they do not support. Under lockstep one
// consumer's moving on may let another pass.
func (m *Machine) passOver() {
	for {
		moved := false
		for i := range m.lanes {
			moved = m.passLane(&m.lanes[i]) || moved
		}
		if !moved || m.reg.Ordering != keylinetype.Lockstep {
			return
		}
	}
}

func (m *Machine) passLane(l *lane) (moved bool) {
	if l.c.Status != core.Active || l.running || l.writeAhead != notAhead {
		return false
	}
	if l.cp.State == core.Parked && l.cp.ErrorCode == core.CodeUnsupportedVersion {
		m.reconsider(l)
	}
	from := l.cp.Seq
	for (l.cp.State == core.Ready || l.cp.State == core.Backoff) && m.behind(l) {
		e, to, known := m.events.next(l.cp.Seq)
		if !known {
			break
		}
		if e == nil {
			l.past(to) // pruned
			continue
		}
		if !m.passEvent(l, e) {
			break
		}
	}
	return l.cp.Seq > from
}

// past moves a lane beyond an event, whose retry state ends with it.
func (l *lane) past(seq int64) {
	l.cp = core.Checkpoint{Record: l.cp.Record, Consumer: l.cp.Consumer, Seq: seq, State: core.Ready, LiveFrom: l.cp.LiveFrom}
}

// passEvent moves a lane past one event if it is not to be delivered.
func (m *Machine) passEvent(l *lane, e *core.Event) bool {
	switch m.applies(l, e) {
	case core.NotApplicable:
		l.past(e.Seq)
		return true
	case core.UnsupportedVersion:
		if !l.c.Hosted || m.lockstepHolds(l, e.Seq) {
			return false
		}
		return m.unsupported(l, e)
	default:
		return false
	}
}

func (m *Machine) unsupported(l *lane, e *core.Event) bool {
	switch l.c.OnUnsupported {
	case keylinetype.WaitUnsupported:
		l.cp.State, l.cp.ErrorCode, l.cp.NextAttemptAt = core.Parked, core.CodeUnsupportedVersion, time.Time{}
		m.touch()
		m.holdSiblings(l)
		return false
	case keylinetype.DeadLetterUnsupported:
		w := core.Work{Record: m.claim.Record, Token: m.claim.Token, Consumer: l.c, Events: []core.Event{*e}, Attempt: l.cp.Attempt, Checkpoint: l.cp}
		b := unsupportedBooking(m.now, &w)
		m.book(l, &b)
		m.holdSiblings(l)
		return l.cp.State != core.Parked
	default:
		l.owes = true
		m.acc.Skips = append(m.acc.Skips, core.Skip{Record: m.claim.Record, Seq: e.Seq, Consumer: l.c.ID,
			Code: core.CodeUnsupportedVersion, At: m.now})
		m.count(&core.Counts{Consumer: l.c.ID, Skipped: 1, LastEventAt: e.CreatedAt})
		l.past(e.Seq)
		m.touch()
		return true
	}
}

// inStep reports whether, under lockstep, a lane's events hold the others: also where it is
// paused, parked or unhosted, but not where it is disabled, retired or backfilling.
func (l *lane) inStep() bool {
	return (l.c.Status == core.Active || l.c.Status == core.Paused) && !l.c.ContractOnly
}

// lockstepHolds reports whether, under lockstep, an event in front of seq is not yet
// terminal for some other consumer that it concerns.
func (m *Machine) lockstepHolds(l *lane, seq int64) bool {
	if m.reg.Ordering != keylinetype.Lockstep {
		return false
	}
	for i := range m.lanes {
		k := &m.lanes[i]
		if k == l || !k.inStep() {
			continue
		}
		if m.terminalTo(k, seq-1) < seq-1 {
			return true
		}
	}
	return false
}

// terminalTo is how far, up to limit, events are terminal for a consumer or do not concern it.
func (m *Machine) terminalTo(k *lane, limit int64) int64 {
	at := max(k.cp.Seq, k.clearTo)
	for at < limit {
		e, to, known := m.events.next(at)
		switch {
		case !known:
			return at
		case e == nil:
			at = to
		case m.applies(k, e) == core.NotApplicable:
			at = e.Seq
		default:
			return min(at, limit)
		}
		k.clearTo = at
	}
	return limit
}

// holdsUnknown reports whether, under lockstep, a lane holds others by events
// that are not loaded, and from where they are to be.
func (m *Machine) holdsUnknown(k *lane) (from int64, unknown bool) {
	if k.running || !k.inStep() {
		return 0, false
	}
	limit := int64(0)
	for i := range m.lanes {
		if l := &m.lanes[i]; l != k && l.participates() && !l.c.ContractOnly && !l.running && m.behind(l) {
			limit = max(limit, m.headSeq(l)-1)
		}
	}
	if from = m.terminalTo(k, limit); from >= limit {
		return 0, false
	}
	_, _, known := m.events.next(from)
	return from, !known
}

// lockstepUnknown reports whether some lane holds others by events that are not loaded.
func (m *Machine) lockstepUnknown() bool {
	if m.reg.Ordering != keylinetype.Lockstep {
		return false
	}
	for i := range m.lanes {
		if _, unknown := m.holdsUnknown(&m.lanes[i]); unknown {
			return true
		}
	}
	return false
}

// siblingHolds reports whether an all_for_one sibling in trouble keeps this
// lane from starting. A lane that is in backoff itself may go on, or two of them would wait for each other.
func (m *Machine) siblingHolds(l *lane) bool {
	if l.cp.State == core.Backoff || l.writeAhead != notAhead && l.aheadOf.State == core.Backoff {
		return false
	}
	for i := range m.lanes {
		k := &m.lanes[i]
		if k != l && k.c.Scope == keylinetype.AllForOne && k.c.Status == core.Active &&
			(k.cp.State == core.Backoff || k.cp.State == core.Parked) && !m.lockstepBehind(l, k) {
			return true
		}
	}
	return false
}

// lockstepBehind reports whether, under lockstep, a lane has older events to
// do than another's head: that one waits for them, and must not hold them.
func (m *Machine) lockstepBehind(l, k *lane) bool {
	return m.reg.Ordering == keylinetype.Lockstep && m.headSeq(l) < m.headSeq(k)
}

// waits says until when a lane that has work cannot start it: zero means now,
// held is true where nothing but another's progress will let it.
func (m *Machine) waits(l *lane) (until time.Time, held bool) {
	if m.lockstepHolds(l, m.headSeq(l)) || m.siblingHolds(l) {
		return time.Time{}, true
	}
	if l.cp.State == core.Backoff {
		until = l.cp.NextAttemptAt
	}
	return later(until, l.heldUntil), false
}

// due reports whether a time has come; zero has.
func (m *Machine) due(t time.Time) bool { return !t.After(m.now) }
