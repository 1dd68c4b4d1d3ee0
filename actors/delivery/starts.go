package delivery

import (
	"time"

	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/keylinetype"
)

// startLanes starts what may start. A suspect's deliveries run one at a time,
// each written ahead, and every consumer gets its turn.
func (m *Machine) startLanes() {
	n := len(m.lanes)
	for i := 0; i < n; i++ {
		at := i
		if m.suspect {
			at = (m.turn + i) % n
		}
		m.tryStart(&m.lanes[at], at)
	}
}

// tryStart starts a lane's next delivery, or asks for what has to be durable before it. at is the
// lane's place among the lanes.
func (m *Machine) tryStart(l *lane, at int) {
	if !m.mayStart(l) {
		return
	}
	switch {
	case m.suspect:
		if m.running > 0 || m.someAhead(l) || !m.writtenAhead(l) {
			return
		}
		m.turn = at + 1
	case l.c.Transactional && (l.db == nil || l.owes):
		m.urgent = true // considerFlush writes the row that HandleTx will move, and what it would move past
		m.touch()
		return
	}
	m.start(l)
}

// mayStart reports whether a lane has an event to deliver now, which nothing holds back.
func (m *Machine) mayStart(l *lane) bool {
	switch {
	case !l.hosted() || l.running || l.cp.State == core.Parked || !m.behind(l) || m.retryRuns(l.c.ID):
		return false
	case l.beyond >= l.c.Window:
		return false // until the flush
	case l.c.Transactional && m.flushing && (l.planned != leave || l.owing):
		// Its row is the fence of HandleTx, and what was passed over is to be durable before HandleTx moves the row past it.
		return false
	case !m.headApplies(l):
		return false
	}
	until, held := m.waits(l)
	return !held && m.due(until)
}

// writtenAhead reports whether a suspect's attempt is durable; where that was not asked for yet, it asks.
func (m *Machine) writtenAhead(l *lane) bool {
	if l.writeAhead == notAhead {
		cp := l.cp
		l.writeAhead, l.aheadOf = aheadAsked, &cp
		l.cp.State, l.cp.NextAttemptAt = core.Started, time.Time{}
		l.cp.Attempt++
		m.urgent = true
		m.touch()
	}
	return l.writeAhead == aheadDone
}

// someAhead reports whether another delivery of this suspect is being written ahead.
func (m *Machine) someAhead(l *lane) bool {
	for i := range m.lanes {
		if k := &m.lanes[i]; k != l && k.writeAhead != notAhead {
			return true
		}
	}
	for i := range m.retries {
		if m.retries[i].writeAhead != notAhead {
			return true
		}
	}
	return false
}

func (m *Machine) start(l *lane) {
	events := m.batch(l)
	attempt := l.cp.Attempt + 1
	if l.writeAhead == aheadDone {
		attempt = l.cp.Attempt
	}
	for _, e := range events {
		if l.redeliver > 0 && e.Seq > l.untried {
			l.redeliver--
			l.redeliverTo, l.untried = max(l.redeliverTo, e.Seq), e.Seq
		}
	}
	if l.c.Transactional {
		m.remember(l, false) // HandleTx writes what it is given
	}
	*l.work = core.Work{
		Record: m.claim.Record, Token: m.claim.Token, Consumer: l.c, Events: events, Attempt: attempt,
		Redelivered: attempt > 1 || l.cp.State == core.Backoff || events[0].Seq <= l.redeliverTo || l.replay,
		Checkpoint:  l.cp, Fence: l.fence(), Replay: l.replay,
	}
	l.running, l.inHand, l.heldUntil = true, len(events), time.Time{}
	l.beyond += l.inHand
	m.running++
	m.do(Start{l.work})
}

// batch returns the events of the next delivery, which nobody changes: one, or for a batch consumer
// the next applicable ones, as many as its window leaves. After a failure, and for suspects, one at a time.
func (m *Machine) batch(l *lane) []core.Event {
	e, _, _ := m.events.next(l.cp.Seq)
	most := min(l.c.BatchSize, l.c.Window-l.beyond)
	i := m.events.search(e.Seq - 1)
	if most <= 1 || m.suspect || l.cp.Attempt > 0 || l.cp.State != core.Ready || e.Seq <= l.singleUntil {
		return m.events.events[i : i+1 : i+1]
	}
	batch := make([]core.Event, 0, min(most, 16))
	for seq := l.cp.Seq; len(batch) < most; {
		e, to, known := m.events.next(seq)
		if !known || seq >= m.head {
			break
		}
		if e == nil {
			seq = to
			continue
		}
		applies := m.applies(l, e)
		if applies == core.UnsupportedVersion || m.lockstepHolds(l, e.Seq) || (len(batch) > 0 && e.Seq <= l.singleUntil) {
			break
		}
		if applies == core.Applies {
			batch = append(batch, *e)
		}
		seq = e.Seq
	}
	return batch
}

// requestEvents asks for events that a lane could run and that are not loaded.
func (m *Machine) requestEvents() {
	if m.loading || m.ending {
		return
	}
	var ranges []core.EventRange
	ask := func(from int64, limit int) {
		for _, r := range ranges {
			if r.From == from {
				return
			}
		}
		ranges = append(ranges, core.EventRange{Record: m.claim.Record, From: from, Limit: limit})
	}
	for i := range m.lanes {
		l := &m.lanes[i]
		if !m.wantsEvents(l) {
			continue
		}
		if _, _, known := m.events.next(l.cp.Seq); !known {
			ask(l.cp.Seq, m.opts.LoadLimit)
		}
	}
	if m.reg.Ordering == keylinetype.Lockstep {
		for i := range m.lanes {
			if from, unknown := m.holdsUnknown(&m.lanes[i]); unknown {
				ask(from, m.opts.LoadLimit)
			}
		}
	}
	for i := range m.retries {
		r := &m.retries[i]
		if _, known := m.events.get(r.Seq); !known && r.event == nil && m.due(r.DueAt) {
			ask(r.Seq-1, 1)
		}
	}
	if len(ranges) == 0 {
		return
	}
	m.forgetEvents()
	m.loading = true
	m.events.asked = append(m.events.asked[:0], ranges...)
	m.events.askedTo = m.head
	m.do(LoadEvents{ranges})
}

// wantsEvents reports whether a lane could go on with events that may not be loaded. One that
// is not hosted here makes do with what others have asked for: its own hosts come for the rest.
func (m *Machine) wantsEvents(l *lane) bool {
	if !l.hosted() || l.running || !m.behind(l) {
		return false
	}
	if l.cp.State == core.Parked {
		return l.cp.ErrorCode == core.CodeUnsupportedVersion && !l.reconsidered
	}
	return l.cp.State != core.Backoff || m.due(l.cp.NextAttemptAt)
}

// forgetEvents drops events that every lane is past that has a use for them.
func (m *Machine) forgetEvents() {
	low := m.head
	for i := range m.lanes {
		if l := &m.lanes[i]; l.hosted() && l.cp.State != core.Parked {
			low = min(low, l.cp.Seq)
		}
		if l := &m.lanes[i]; m.reg.Ordering == keylinetype.Lockstep && (l.c.Status == core.Active || l.c.Status == core.Paused) {
			low = min(low, max(l.cp.Seq, l.clearTo)) // it holds the others here, so that little is kept
		}
	}
	m.events.forget(low, m.opts.LoadLimit)
}

// notStarted takes a Start back.
func (m *Machine) notStarted(w *core.Work, until time.Time) {
	m.running--
	if w.Dead != nil {
		m.retryNotStarted(w, until)
		return
	}
	l := m.lane(w.Consumer.ID)
	if l == nil {
		return
	}
	l.running = false
	l.beyond -= len(w.Events)
	l.heldUntil = until
	m.unAhead(l)
}

func (m *Machine) lane(consumer int32) *lane {
	for i := range m.lanes {
		if m.lanes[i].c.ID == consumer {
			return &m.lanes[i]
		}
	}
	return nil
}
