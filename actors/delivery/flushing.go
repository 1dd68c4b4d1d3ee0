package delivery

import (
	"time"

	"github.com/keylinehq/keyline/internal/core"
)

// considerFlush writes what is to be written, and ends the claim where nothing
// is left to do here.
func (m *Machine) considerFlush() {
	if m.flushing || m.reloading {
		return
	}
	if m.running == 0 && !m.loading && !m.startable() {
		m.end()
		return
	}
	if m.dirtySince.IsZero() {
		return
	}
	if m.urgent || m.running == 0 || m.windowUsedUp() || m.due(m.dirtySince.Add(m.opts.FlushDelay)) {
		m.flush(core.Keep)
	}
}

// windowUsedUp reports whether a lane waits for a flush to go on.
func (m *Machine) windowUsedUp() bool {
	for i := range m.lanes {
		l := &m.lanes[i]
		if l.hosted() && !l.running && l.beyond >= l.c.Window && m.behind(l) && l.cp.State != core.Parked {
			if until, held := m.waits(l); !held && m.due(until) {
				return true
			}
		}
	}
	return false
}

// startable reports whether something could start here now or once a flush is
// durable, so that the claim must not end.
func (m *Machine) startable() bool {
	if m.draining {
		return false
	}
	for i := range m.lanes {
		if m.ready(&m.lanes[i]) {
			return true
		}
	}
	for i := range m.retries {
		if m.retryReady(&m.retries[i]) {
			return true
		}
	}
	return len(m.commands) > 0
}

// ready reports whether a lane has work that may start now.
func (m *Machine) ready(l *lane) bool {
	if !l.hosted() || l.running || !m.behind(l) || l.cp.State == core.Parked {
		return false
	}
	if l.writeAhead != notAhead {
		return true
	}
	until, held := m.waits(l)
	return !held && m.due(until)
}

// flush sends what is unflushed. then says what is to become of the claim.
func (m *Machine) flush(then core.Disposition) {
	m.planRetries()
	f := m.acc
	m.acc, m.spare = empty(m.spare), nil
	f.Record, f.Token, f.Head, f.Then = m.claim.Record, m.claim.Token, m.head, then
	f.Cursor = m.newCursor()
	if then == core.Settle {
		f.Cursor = m.head // parked ones have rows of their own
	}
	f.Clear = m.unclean && m.allRan()
	for i := range m.lanes {
		m.planRow(&m.lanes[i], f)
	}
	m.inflight = f
	m.flushing, m.ending = true, then != core.Keep
	m.urgent, m.dirtySince = false, time.Time{}
	m.do(Flush{f})
}

// newCursor is the highest position of a participating consumer, never below the old cursor.
func (m *Machine) newCursor() int64 {
	cursor, active := m.base, false
	for i := range m.lanes {
		l := &m.lanes[i]
		active = active || l.c.Status == core.Active
		if l.participates() {
			cursor = max(cursor, l.cp.Seq)
		}
	}
	if !active {
		return m.head // nobody to wait for
	}
	return cursor
}

// planRow decides what becomes of a consumer's row in this flush.
func (m *Machine) planRow(l *lane, f *core.Flush) {
	l.planned, l.inFlush = leave, l.beyond
	l.owes, l.owing = false, l.owes
	if l.running {
		l.inFlush = l.beyond - l.inHand
	}
	m.remember(l, f.Clear)
	want := l.wantedRow(f.Cursor)
	switch {
	case l.c.Transactional && l.running && l.db != nil: // HandleTx moves it
	case want == remove && l.db != nil:
		l.planned = remove
		f.Deletes = append(f.Deletes, l.c.ID)
	case want == upsert && (l.db == nil || l.cp != *l.db || l.writeAhead == aheadAsked):
		cp := l.cp
		l.planned, l.plannedCP = upsert, &cp
		f.Upserts = append(f.Upserts, l.cp)
		if l.writeAhead == aheadAsked {
			l.writeAhead = aheadSent
		}
	}
}

// wantedRow says what is to become of a consumer's row where the record's cursor comes to stand at cursor.
func (l *lane) wantedRow(cursor int64) plan {
	plain := l.cp.Plain() && l.cp.Seq == cursor
	switch l.c.Status {
	case core.Disabled, core.Retired:
		return remove
	case core.Active:
		if plain && !l.c.Transactional && l.cp.LiveFrom <= l.cp.Seq {
			return remove
		}
	case core.Paused:
		if plain && l.db == nil {
			return leave // while the cursor stays it tells the place, and once it moves a row does
		}
	case core.Backfilling:
	}
	return upsert
}

// allRan reports whether suspicion ends: every written-ahead attempt has ended
// and every consumer with work has run once under this claim.
func (m *Machine) allRan() bool {
	for i := range m.lanes {
		l := &m.lanes[i]
		if l.c.Status != core.Active {
			continue
		}
		if l.running || l.writeAhead != notAhead || l.cp.State == core.Started {
			return false
		}
		if (!l.ran || l.redeliver > 0 || l.tried < l.untried) && m.behind(l) && l.cp.State != core.Parked && !l.c.ContractOnly {
			return false
		}
	}
	for i := range m.retries {
		if m.retries[i].running || !m.retries[i].ran {
			return false
		}
	}
	return true
}

// flushed takes a flush's answer.
func (m *Machine) flushed(r core.FlushResult) {
	f := m.inflight
	m.inflight = nil
	m.flushing, m.ending = false, false
	switch r.Status {
	case core.FlushFenced:
		m.stop(StopFenced)
		return
	case core.FlushGone:
		m.spare = f
		if f.Then == core.Settle {
			m.stop(StopSettled)
		} else {
			m.stop(StopHandedBack)
		}
		return
	case core.FlushEpoch:
		m.takeBack(f)
		m.stale = true
		return
	}
	m.base = f.Cursor
	if f.Clear {
		m.clear()
	}
	for i := range m.lanes {
		m.lanes[i].durable()
	}
	m.retriesDurable()
	m.head = max(m.head, r.Head)
	m.stale = m.stale || r.Pending
	m.readAgain(len(f.DeadLetters)+len(f.DeadUpdates) > 0)
	m.notEnded(f.Then, r)
	m.spare = f
}

// durable notes that a lane's part of the flush has been written.
func (l *lane) durable() {
	switch l.planned {
	case upsert:
		l.db = l.plannedCP
	case remove:
		l.db = nil
	}
	l.planned, l.plannedCP, l.owing = leave, nil, false
	l.beyond -= l.inFlush
	l.inFlush = 0
	if l.writeAhead == aheadSent {
		l.writeAhead = aheadDone
	}
}

// takeBack returns a flush that was not written to what the next one carries.
func (m *Machine) takeBack(f *core.Flush) {
	later := m.acc
	m.acc = &core.Flush{
		DeadLetters: f.DeadLetters, DeadUpdates: f.DeadUpdates,
		Failures: append(f.Failures, later.Failures...), Skips: append(f.Skips, later.Skips...),
		Applied: append(f.Applied, later.Applied...), Counts: f.Counts,
	}
	for _, d := range later.DeadLetters {
		m.deadLetter(d)
	}
	for _, u := range later.DeadUpdates {
		m.deadUpdate(u)
	}
	for i := range later.Counts {
		m.count(&later.Counts[i])
	}
	for i := range m.lanes {
		l := &m.lanes[i]
		l.doubt = l.doubt || l.planned != leave
		l.planned, l.inFlush = leave, 0
		l.owes, l.owing = l.owes || l.owing, false
		if l.writeAhead == aheadSent {
			l.writeAhead = aheadAsked
		}
	}
	m.retriesTakeBack()
	m.urgent = true
	m.touch()
}
