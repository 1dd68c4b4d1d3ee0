package delivery

import (
	"slices"
	"time"

	"github.com/keylinehq/keyline/internal/core"
)

// retry is a dead letter that is delivered again beside its consumer's
// checkpoint, which it never moves.
type retry struct {
	core.DeadRetry
	event      *core.Event // once it is loaded
	running    bool
	ran        bool
	heldUntil  time.Time
	writeAhead stage
}

func (m *Machine) addRetry(d core.DeadRetry) {
	if d.Started {
		// Its last run ended with the process.
		d.Started = false
		d.Crashes++
		d.Granted++
	}
	m.retries = append(m.retries, retry{DeadRetry: d})
}

// dropRetry forgets a retry; false where there is none, or it runs.
func (m *Machine) dropRetry(id int64) bool {
	for i := range m.retries {
		if m.retries[i].ID == id && !m.retries[i].running {
			m.retries = slices.Delete(m.retries, i, i+1)
			return true
		}
	}
	return false
}

// retryRuns reports whether a dead letter of this consumer is being delivered:
// one delivery at a time for a (record, consumer).
func (m *Machine) retryRuns(consumer int32) bool {
	for i := range m.retries {
		if m.retries[i].Consumer == consumer && m.retries[i].running {
			return true
		}
	}
	return false
}

// retryReady reports whether a retry may start now, or once its event is loaded.
func (m *Machine) retryReady(r *retry) bool {
	l := m.lane(r.Consumer)
	return l != nil && l.hosted() && !r.running && m.due(r.DueAt) && m.due(r.heldUntil)
}

// startRetries starts the retries that may start, and forgets those that never will.
func (m *Machine) startRetries() {
	for i := 0; i < len(m.retries); {
		if m.startRetry(&m.retries[i]) {
			i++
		} else {
			m.retries = slices.Delete(m.retries, i, i+1)
		}
	}
}

// startRetry starts a retry if it may start. stays is false where it can never run: then its
// dead letter is open again.
func (m *Machine) startRetry(r *retry) (stays bool) {
	if r.running {
		return true // its outcome may be on its way to the database within its handler's transaction
	}
	l := m.lane(r.Consumer)
	if l == nil || l.c.Status == core.Disabled || l.c.Status == core.Retired {
		m.reopen(r, "", core.CodeConsumerGone, "its consumer is no longer there")
		return false
	}
	if !m.retryReady(r) || l.running || m.retryRuns(r.Consumer) || l.writeAhead != notAhead || !m.findEvent(r) {
		return true
	}
	switch {
	case r.event == nil:
		m.reopen(r, "", core.CodeEventPruned, "the event is no longer there")
		return false
	case r.Crashes >= m.opts.CrashBudget:
		m.reopen(r, core.DeadCrashes, core.CodeCrash, "the process ended during each of its runs")
		return false
	}
	m.tryRetry(r, l, r.event)
	return true
}

// findEvent keeps a retry's event apart: the cache forgets what younger
// deliveries are past.
func (m *Machine) findEvent(r *retry) (known bool) {
	if r.event != nil {
		return true
	}
	e, known := m.events.get(r.Seq)
	if e != nil {
		event := *e
		r.event = &event
	}
	return known
}

func (m *Machine) tryRetry(r *retry, l *lane, e *core.Event) {
	if m.suspect && r.writeAhead != aheadDone {
		if m.running == 0 && r.writeAhead == notAhead && !m.someAhead(nil) {
			r.writeAhead, r.Started = aheadAsked, true
			r.Attempt++
			m.urgent = true
			m.touch()
		}
		return
	}
	if m.suspect && m.running > 0 {
		return
	}
	if l.c.Transactional && m.retryOwed(r.ID) {
		m.urgent = true // its row is the fence of HandleTx
		return
	}
	attempt := r.Attempt + 1
	if r.writeAhead == aheadDone {
		attempt = r.Attempt
	}
	dead := r.DeadRetry
	r.running = true
	m.running++
	m.do(Start{&core.Work{Record: m.claim.Record, Token: m.claim.Token, Consumer: l.c, Events: []core.Event{*e}, Attempt: attempt,
		Redelivered: true, Checkpoint: l.cp, Dead: &dead, Replay: true}})
}

// retryOwed reports whether the dead letter's row waits to be flushed.
func (m *Machine) retryOwed(id int64) bool {
	this := func(u core.DeadUpdate) bool { return u.ID == id }
	return slices.ContainsFunc(m.acc.DeadUpdates, this) || m.inflight != nil && slices.ContainsFunc(m.inflight.DeadUpdates, this)
}

func (m *Machine) retryNotStarted(w *core.Work, until time.Time) {
	if r := m.retryOf(w.Dead.ID); r != nil {
		r.running, r.heldUntil = false, until
		m.retryUnAhead(r)
	}
}

func (m *Machine) retryUnAhead(r *retry) {
	if r.writeAhead == notAhead {
		return
	}
	r.writeAhead, r.Started = notAhead, false
	r.Attempt--
	m.deadUpdate(core.DeadUpdate{DeadRetry: r.DeadRetry, Status: core.DeadWaiting, At: m.now})
	m.touch()
}

func (m *Machine) retryOf(id int64) *retry {
	for i := range m.retries {
		if m.retries[i].ID == id {
			return &m.retries[i]
		}
	}
	return nil
}

func (m *Machine) retryEnded(w *core.Work, out *core.Outcome) {
	r := m.retryOf(w.Dead.ID)
	if r == nil {
		return
	}
	r.running, r.ran, r.writeAhead = false, true, notAhead
	b := out.Booked
	m.readAgain(b != nil)
	if b == nil {
		decided := Decide(m.now, m.opts.Random, w.Consumer, w, out)
		b = &decided
		m.deadUpdate(*b.Dead)
		if b.Failure != nil {
			m.acc.Failures = append(m.acc.Failures, *b.Failure)
		}
		if b.Skip != nil {
			m.acc.Skips = append(m.acc.Skips, *b.Skip)
		}
		m.urgent = true
	}
	m.count(&b.Counts)
	m.touch()
	if b.Dead.Status == core.DeadWaiting {
		r.DeadRetry = b.Dead.DeadRetry
		return
	}
	m.dropRetry(w.Dead.ID)
}

// reopen ends a retry that cannot run. reason is what its dead letter is then dead for; "": as before.
func (m *Machine) reopen(r *retry, reason core.DeadReason, code, message string) {
	m.deadUpdate(core.DeadUpdate{DeadRetry: r.DeadRetry, Status: core.DeadAgain,
		Reason: reason, Code: code, Message: message, At: m.now})
	m.urgent = true
	m.touch()
}

// planRetries adds the written-ahead attempts to a flush.
func (m *Machine) planRetries() {
	for i := range m.retries {
		if r := &m.retries[i]; r.writeAhead == aheadAsked {
			r.writeAhead = aheadSent
			m.deadUpdate(core.DeadUpdate{DeadRetry: r.DeadRetry, Status: core.DeadWaiting, At: m.now})
		}
	}
}

func (m *Machine) retriesDurable() {
	for i := range m.retries {
		if r := &m.retries[i]; r.writeAhead == aheadSent {
			r.writeAhead = aheadDone
		}
	}
}

func (m *Machine) retriesTakeBack() {
	for i := range m.retries {
		if r := &m.retries[i]; r.writeAhead == aheadSent {
			r.writeAhead = aheadAsked // its update is among those taken back, and is sent again
		}
	}
}
