package delivery

import "github.com/keylinehq/keyline/internal/core"

// reloaded takes a new registry and the record as the database has it. What
// this machine knows of consumers that were active is ahead of the database and is kept.
func (m *Machine) reloaded(reg *core.Registry, loaded *core.Loaded) {
	m.reloading = false
	if loaded.Token != m.claim.Token {
		m.stop(StopFenced)
		return
	}
	old := m.lanes
	m.base = loaded.Base
	m.events.load(loaded, m.opts.LoadLimit)
	m.head = max(m.head, loaded.Head, m.events.last())
	lanes := make([]lane, len(reg.Consumers))
	k := 0 // both are ascending by id
	for i, c := range reg.Consumers {
		for k < len(old) && old[k].c.ID < c.ID {
			k++
		}
		known := k < len(old) && old[k].c.ID == c.ID
		if known {
			lanes[i].work = old[k].work
		}
		m.set(&lanes[i], c, loaded)
		if known {
			lanes[i].inherit(&old[k])
		}
	}
	moved := m.reg.Epoch != reg.Epoch
	m.reg, m.lanes = reg, lanes
	if moved && m.running > 0 {
		m.do(Withdraw{}) // what has not begun may not be to begin, by the new registry
	}
	m.commands = m.notYetApplied(loaded.Commands)
	m.mergeRetries(loaded.Retries)
	m.afterLoad()
	m.touch() // rows may be missing or too many by the new registry
}

// inherit keeps what the old lane knows beyond the database.
func (l *lane) inherit(old *lane) {
	l.running, l.inHand, l.beyond, l.ran, l.replay = old.running, old.inHand, old.beyond, old.ran, old.replay
	l.heldUntil, l.singleUntil = old.heldUntil, old.singleUntil
	if old.redeliver == anyNumber && l.c.Hosted {
		old.redeliver = l.redeliver
	}
	l.redeliver, l.redeliverTo, l.untold, l.untried, l.tried = old.redeliver, old.redeliverTo, old.untold, old.untried, old.tried
	l.owes = old.owes
	switch l.c.Status {
	case core.Backfilling, core.Disabled, core.Retired:
		l.mine = false // it comes back where its start rule or the cursor says
	default:
		l.mine = l.mine || old.mine
		if old.mine && old.cp.Seq >= l.cp.Seq {
			l.cp, l.writeAhead, l.aheadOf = old.cp, old.writeAhead, old.aheadOf
			if old.db != nil && l.db != nil && (old.db.Seq > l.db.Seq || old.db.Seq == l.db.Seq && !old.doubt) {
				// A HandleTx may have committed after the load had read its row. Fenced by
				// what was read, the next one would find its claim lost, which it is not.
				l.db = old.db
			}
		}
	}
}

// notYetApplied leaves out commands whose outcome waits to be flushed.
func (m *Machine) notYetApplied(commands []core.Command) []core.Command {
	kept := commands[:0:0]
	for _, c := range commands {
		applied := false
		for _, a := range m.acc.Applied {
			applied = applied || a.ID == c.ID
		}
		if !applied {
			kept = append(kept, c)
		}
	}
	return kept
}

// mergeRetries adds the retries that are not known here. One that is known is
// ahead of the database; one whose end waits to be flushed is left out.
func (m *Machine) mergeRetries(loaded []core.DeadRetry) {
	for _, d := range loaded {
		known := m.retryOf(d.ID) != nil
		for _, u := range m.acc.DeadUpdates {
			known = known || u.ID == d.ID
		}
		if !known {
			m.addRetry(d)
		}
	}
}
