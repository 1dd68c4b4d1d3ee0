package delivery

import (
	"time"

	"github.com/keylinehq/keyline/internal/core"
)

const (
	// busyFirst is the first pause after an appender held the record's row; it doubles.
	busyFirst = 2 * time.Millisecond
	// busyMost is how long the machine tries before it releases the claim.
	busyMost = 50 * time.Millisecond
	// releasePause is when a record whose appender stays open is looked at
	// again: that appender found the record claimed and will wake nobody.
	releasePause = 500 * time.Millisecond
)

// end ends the claim: nothing runs here and nothing can start.
func (m *Machine) end() {
	if !m.due(m.busyUntil) {
		return
	}
	if m.release {
		m.releaseClaim()
		return
	}
	due, wants, wantsDue, work := m.left()
	if !work {
		m.flush(core.Settle)
		return
	}
	m.acc.DueAt, m.acc.Wants, m.acc.WantsDueAt = due, wants, wantsDue
	m.flush(core.HandBack)
}

// releaseClaim gives the claim up without looking: whoever claims next looks.
func (m *Machine) releaseClaim() {
	m.acc.DueAt = m.now
	if !m.draining {
		m.acc.DueAt = m.now.Add(releasePause)
	}
	m.flush(core.Release)
}

// left says what work is left: when what is hosted here is due, and which
// consumers that are not hosted here have work, due when. What is held by lockstep, scope or
// a parked sibling has no due time: whatever releases it makes the record due.
// Where only events that are not loaded would tell whether anything holds it (a
// drain loads none), whoever claims next is to look.
func (m *Machine) left() (due time.Time, wants []int32, wantsDue time.Time, work bool) {
	sooner := func(at *time.Time, t time.Time) {
		if t.Before(m.now) {
			t = m.now
		}
		if at.IsZero() || t.Before(*at) {
			*at = t
		}
	}
	unknown := m.lockstepUnknown()
	for i := range m.lanes {
		l := &m.lanes[i]
		if l.c.Status != core.Active || l.c.ContractOnly || l.cp.State == core.Parked || !m.behind(l) {
			continue
		}
		work = true
		until, held := m.waits(l)
		switch {
		case held && !unknown:
		case l.c.Hosted:
			sooner(&due, until)
		default:
			wants = append(wants, l.c.ID)
			sooner(&wantsDue, until)
		}
	}
	for i := range m.retries {
		r := &m.retries[i]
		l := m.lane(r.Consumer)
		work = true
		switch {
		case l == nil || l.c.Status != core.Active:
		case l.c.Hosted:
			sooner(&due, later(r.DueAt, r.heldUntil))
		default:
			wants = append(wants, l.c.ID)
			sooner(&wantsDue, r.DueAt)
		}
	}
	return due, wants, wantsDue, work
}

// notEnded looks at why a claim did not end as asked: the head moved, commands
// wait, or an appender is in flight. For the last it tries again, for a while.
func (m *Machine) notEnded(asked core.Disposition, r core.FlushResult) {
	if asked == core.Keep {
		return
	}
	if m.draining {
		m.release = true
		return
	}
	if !r.Busy {
		m.busyPause, m.busySince, m.busyUntil = 0, time.Time{}, time.Time{}
		return
	}
	if m.busySince.IsZero() {
		m.busySince, m.busyPause = m.now, busyFirst
	} else {
		m.busyPause *= 2
	}
	m.busyUntil = m.now.Add(m.busyPause)
	if m.now.Sub(m.busySince) >= busyMost {
		m.release, m.busyUntil = true, time.Time{}
	}
}
