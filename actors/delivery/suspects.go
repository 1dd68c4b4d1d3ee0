package delivery

import (
	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/keylinetype"
)

// crashed books the end of the process during a written-ahead attempt. It
// counts against the crash budget, and, by the grant, not against the retry budget.
func (m *Machine) crashed(l *lane) {
	l.cp.State = core.Ready
	l.cp.Crashes++
	l.cp.Granted = min(l.cp.Granted+1, l.cp.Attempt)
	if l.cp.FirstFailedAt.IsZero() {
		l.cp.FirstFailedAt = m.now
	}
	l.cp.ErrorCode = core.CodeCrash
	m.urgent = true
	m.touch()
	e, _, known := m.events.next(l.cp.Seq)
	if !known || e == nil {
		return
	}
	failure := core.Failure{Record: m.claim.Record, Seq: e.Seq, Consumer: l.c.ID, Attempt: l.cp.Attempt, At: m.now, Code: core.CodeCrash,
		Message: "the process ended while the handler ran"}
	m.acc.Failures = append(m.acc.Failures, failure)
	m.count(&core.Counts{Consumer: l.c.ID, Failed: 1, LastEventAt: e.CreatedAt, LastFailureAt: m.now})
	if l.cp.Crashes < m.opts.CrashBudget {
		return
	}
	l.owes = true
	m.deadLetter(core.DeadLetter{Record: m.claim.Record, Seq: e.Seq, Consumer: l.c.ID, Attempt: l.cp.Attempt,
		EventID: e.ID, Reason: core.DeadCrashes, Code: core.CodeCrash, Message: failure.Message,
		FirstFailedAt: l.cp.FirstFailedAt, FailedAt: m.now})
	m.count(&core.Counts{Consumer: l.c.ID, Dead: 1})
	l.ran = true
	if l.c.OnDead == keylinetype.Park {
		l.cp.State = core.Parked
		return
	}
	l.past(e.Seq)
}

// unAhead takes back an attempt that was written ahead and will not run now: a
// row left as started would be read as a crash.
func (m *Machine) unAhead(l *lane) {
	if l.writeAhead == notAhead {
		return
	}
	l.writeAhead, l.cp = notAhead, *l.aheadOf
	m.touch()
}

// clear ends suspicion: what has asked to be written ahead while the flush was
// under way starts without.
func (m *Machine) clear() {
	m.suspect, m.unclean = false, false
	for i := range m.lanes {
		if l := &m.lanes[i]; l.writeAhead == aheadAsked {
			m.unAhead(l)
		}
	}
	for i := range m.retries {
		if r := &m.retries[i]; r.writeAhead == aheadAsked {
			m.retryUnAhead(r)
		}
	}
}

// headApplies reports whether a lane's next event is loaded, and one to be delivered.
func (m *Machine) headApplies(l *lane) bool {
	e, _, known := m.events.next(l.cp.Seq)
	return known && e != nil && m.applies(l, e) == core.Applies
}

// dropAhead takes back what was written ahead and may no longer start.
func (m *Machine) dropAhead() {
	if m.flushing {
		return // it may be on its way
	}
	for i := range m.lanes {
		l := &m.lanes[i]
		if l.writeAhead == notAhead || l.running {
			continue
		}
		if until, held := m.waits(l); held || !m.due(until) || m.draining || !l.hosted() || !m.headApplies(l) {
			m.unAhead(l)
		}
	}
	for i := range m.retries {
		r := &m.retries[i]
		l := m.lane(r.Consumer)
		if r.writeAhead != notAhead && !r.running && (m.draining || l == nil || !l.hosted()) {
			m.retryUnAhead(r)
		}
	}
}
