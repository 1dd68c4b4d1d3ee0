package delivery

import (
	"fmt"

	"github.com/keylinehq/keyline/internal/core"
)

// applyCommands applies the operators' commands whose consumer is idle here.
// No act races a live delivery: the others wait until it has ended.
func (m *Machine) applyCommands() {
	if len(m.commands) == 0 || m.flushing {
		return
	}
	waiting := m.commands[:0:0]
	for _, c := range m.commands {
		if m.commandWaits(&c) {
			waiting = append(waiting, c)
			continue
		}
		done, detail := m.apply(&c)
		m.acc.Applied = append(m.acc.Applied, core.AppliedCommand{ID: c.ID, Done: done, Detail: detail})
		m.urgent = true
		m.touch()
	}
	m.commands = waiting
}

// commandWaits reports whether a delivery that the command is about is under way.
func (m *Machine) commandWaits(c *core.Command) bool {
	for i := range m.lanes {
		l := &m.lanes[i]
		if (c.Consumer == 0 || l.c.ID == c.Consumer) && (l.running || l.writeAhead != notAhead) {
			return true
		}
	}
	for i := range m.retries {
		r := &m.retries[i]
		if r.ID == c.DeadLetter && (r.running || r.writeAhead != notAhead) {
			return true
		}
	}
	return false
}

func (m *Machine) apply(c *core.Command) (done bool, detail string) {
	switch c.Kind {
	case core.CommandRetry:
		return m.applyRetry(c)
	case core.CommandSkip:
		return m.applySkip(c)
	case core.CommandRetryDead:
		return m.applyRetryDead(c)
	case core.CommandResolveDead:
		return m.applyResolveDead(c)
	}
	return false, fmt.Sprintf("unknown command %q", c.Kind)
}

const nothingToDo = "nothing to do: no delivery of it is in backoff or parked"

// isAbout reports whether a command is about a lane's head, and that is in backoff or parked.
func (m *Machine) isAbout(c *core.Command, l *lane) bool {
	if c.Consumer != 0 && l.c.ID != c.Consumer {
		return false
	}
	if l.cp.State != core.Backoff && l.cp.State != core.Parked {
		return false
	}
	return c.Seq == 0 || c.Seq == m.headSeq(l)
}

// headSeq is the seq of a lane's next event; where that is not loaded, the least that it can be.
func (m *Machine) headSeq(l *lane) int64 {
	if e, _, known := m.events.next(l.cp.Seq); known && e != nil {
		return e.Seq
	}
	return l.cp.Seq + 1
}

func (m *Machine) applyRetry(c *core.Command) (bool, string) {
	n := 0
	for i := range m.lanes {
		l := &m.lanes[i]
		if m.isAbout(c, l) {
			m.grant(l)
			n++
		}
	}
	if n == 0 {
		return false, nothingToDo
	}
	return true, fmt.Sprintf("due now: %d", n)
}

// grant makes a lane's head due now with a fresh retry budget. Attempts go on counting.
func (m *Machine) grant(l *lane) {
	l.cp.State, l.cp.NextAttemptAt = core.Ready, zeroTime
	l.cp.Granted, l.cp.Crashes = l.cp.Attempt, 0
	l.heldUntil = zeroTime
	l.replay, l.mine = true, true
}

func (m *Machine) applySkip(c *core.Command) (bool, string) {
	for i := range m.lanes {
		l := &m.lanes[i]
		if c.Consumer == l.c.ID && m.isAbout(c, l) {
			m.giveUp(l, c)
			return true, "skipped"
		}
	}
	return false, nothingToDo
}

// giveUp makes a lane's head terminal by an operator's word.
func (m *Machine) giveUp(l *lane, c *core.Command) {
	seq := m.headSeq(l)
	l.owes = true
	m.acc.Skips = append(m.acc.Skips, core.Skip{Record: m.claim.Record, Seq: seq, Consumer: l.c.ID, Attempt: l.cp.Attempt,
		Code: core.SkipOperator, Reason: Sanitize(c.Reason), At: m.now})
	m.deadUpdate(m.closed(core.DeadRetry{Record: m.claim.Record, Consumer: l.c.ID, Seq: seq,
		Attempt: l.cp.Attempt, Granted: l.cp.Granted}, core.DeadResolved, c))
	m.count(&core.Counts{Consumer: l.c.ID, Skipped: 1})
	l.past(seq)
	l.mine = true
}

func (m *Machine) closed(d core.DeadRetry, status core.DeadRetryStatus, c *core.Command) core.DeadUpdate {
	return core.DeadUpdate{DeadRetry: d, Status: status, Actor: Sanitize(c.Actor), Note: Sanitize(c.Reason), At: m.now}
}

// applyRetryDead redelivers a dead letter: in order where its consumer is
// parked on it, beside the checkpoint otherwise.
func (m *Machine) applyRetryDead(c *core.Command) (bool, string) {
	l := m.lane(c.Consumer)
	d, open := m.deadNow(c)
	switch {
	case l == nil || l.c.Status == core.Disabled || l.c.Status == core.Retired:
		return false, "its consumer is no longer there"
	case !open:
		return false, "nothing to do: the dead letter is not open"
	case l.cp.State == core.Parked && m.headSeq(l) == c.Seq:
		m.grant(l)
		return true, "redelivered in order"
	case l.cp.Seq < c.Seq:
		return false, "nothing to do: it is being delivered in order"
	}
	d.Granted, d.Crashes, d.Started, d.DueAt = d.Attempt, 0, false, m.now
	m.deadUpdate(core.DeadUpdate{DeadRetry: d, Status: core.DeadWaiting, At: m.now})
	m.addRetry(d)
	return true, "redelivered beside younger events"
}

// deadNow is the dead letter that a command is about, and whether it is open:
// as it was when the commands were read, and as what waits to be flushed leaves it.
func (m *Machine) deadNow(c *core.Command) (d core.DeadRetry, open bool) {
	if c.Dead == nil {
		return d, false
	}
	d, open = *c.Dead, c.DeadOpen
	for _, x := range m.acc.DeadLetters {
		if x.Consumer == d.Consumer && x.Seq == d.Seq {
			d.Attempt, d.Granted, d.Crashes, open = x.Attempt, 0, 0, true
		}
	}
	for _, u := range m.acc.DeadUpdates {
		switch {
		case u.ID == d.ID:
			d, open = u.DeadRetry, u.Status == core.DeadAgain
		case u.ID == 0 && u.Consumer == d.Consumer && u.Seq == d.Seq:
			open = false
		}
	}
	return d, open && m.retryOf(d.ID) == nil
}

// readAgain has the commands that wait read again, where dead letters have
// become durable that they may be about.
func (m *Machine) readAgain(dead bool) {
	m.stale = m.stale || dead && len(m.commands) > 0
}

func (m *Machine) applyResolveDead(c *core.Command) (bool, string) {
	d, open := m.deadNow(c)
	if !open && !m.dropRetry(c.DeadLetter) {
		return false, "nothing to do: the dead letter is not open"
	}
	if l := m.lane(c.Consumer); l != nil && (l.c.Status == core.Active || l.c.Status == core.Paused) && l.cp.Seq < c.Seq {
		if m.headSeq(l) != c.Seq {
			return false, "nothing to do: it is to be delivered in order"
		}
		m.giveUp(l, c)
		return true, "given up, its consumer goes on"
	}
	if d.ID == 0 {
		d = core.DeadRetry{ID: c.DeadLetter, Record: m.claim.Record, Consumer: c.Consumer, Seq: c.Seq}
	}
	m.deadUpdate(m.closed(d, core.DeadResolved, c))
	return true, "resolved"
}
