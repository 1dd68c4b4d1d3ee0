package listener

import (
	"fmt"
	"slices"
	"time"
)

func (s *twin) workerSteps(w *twinWorker, add func(string, func())) {
	name := func(what string) string { return fmt.Sprintf("w%d %s", w.id, what) }
	if len(w.inbox) > 0 {
		add(name("hears"), func() {
			note := w.inbox[0]
			w.inbox = w.inbox[1:]
			s.apply(w, w.policy.Heard(s.now, ParseNote(note), w.hosts))
		})
	}
	if w.hears != w.known {
		add(name("link"), func() {
			w.known = w.hears
			s.apply(w, w.policy.Link(s.now, w.known))
		})
	}
	if run := s.armStep(w); run != nil {
		add(name("arms"), run)
	}
	switch {
	case w.phase == phaseIdle && len(w.slot) > 0 && !w.saturated:
		add(name("wakes"), func() { w.plan, w.phase = <-w.slot, phaseClaim })
	case w.phase == phaseClaim:
		add(name("claims"), func() { s.claim(w) })
	case w.phase == phaseReturn:
		add(name("returns"), func() { s.returned(w) })
	}
	// Timers may be late in any order.
	if next := w.policy.Next(); next < s.now+s.horizon {
		add(name("ticks"), func() {
			s.now = max(s.now, next)
			s.apply(w, w.policy.Tick(s.now))
		})
	}
}

func (s *twin) faultSteps(w *twinWorker, add func(string, func())) {
	name := func(what string) string { return fmt.Sprintf("w%d %s", w.id, what) }
	add(name("link changes"), func() {
		w.hears = !w.hears
		if !w.hears {
			w.inbox = nil
		} else if w.known { // the worker never saw it go: lib/pq says both
			s.apply(w, w.policy.Link(s.now, false))
			w.known = false
		}
	})
	if w.alive {
		add(name("session dies"), func() {
			w.alive = false
			s.seat.drop(w)
			s.sleep.drop(w)
		})
	}
	if w.policy.State() == Sentinel {
		add(name("is in a crowd"), func() {
			s.seen["crowded"]++
			for range 2 { // once does not count
				s.apply(w, w.policy.Crowded(s.now, w.want))
			}
		})
	}
	if w.want != 0 && w.policy.State() != Sentinel {
		add(name("rearms"), func() {
			p := &w.policy
			p.rearm = s.now
			s.apply(w, p.Tick(s.now))
		})
	}
	add(name("saturation"), func() {
		w.saturated = !w.saturated
		if w.saturated {
			w.dry = false
			s.apply(w, w.policy.Busy(s.now))
			return
		}
		if w.phase == phaseIdle {
			w.plan, w.phase = Wake{}, phaseClaim
		}
	})
}

// armStep is what the armer does next: nil, if it waits.
func (s *twin) armStep(w *twinWorker) func() {
	release := func() {
		if w.cancelled && s.sleep.holder == w {
			s.seen["granted though cancelled"]++
		}
		s.seat.drop(w)
		s.sleep.drop(w)
		w.alive, w.cancelled, w.stage = true, false, stageFree
	}
	switch {
	case w.stage > stageFree && w.term != w.want: // cancelled
		return func() {
			w.cancelled = w.stage != stageHeld
			if w.stage == stageSleep && s.sleep.holder == w && s.choose(2) == 0 {
				// Its answer came before the cancel did.
				s.apply(w, w.policy.Granted(s.now, w.term))
			}
			w.stage = stageOwed
		}
	case w.stage == stageOwed:
		if w.want == 0 && s.seat.holder != w && !slices.Contains(s.seat.queue, w) {
			return nil
		}
		return release
	case w.stage == stageFree && w.want != 0:
		return func() {
			w.stage, w.term = stageSeat, w.want
			if w.alive {
				s.seat.ask(w)
			}
		}
	case w.stage > stageFree && !w.alive:
		return func() {
			w.stage = stageOwed
			s.apply(w, w.policy.Lost(s.now, w.term))
		}
	case w.stage == stageSeat && s.seat.holder == w:
		return func() { w.stage = stageElected; w.policy.Elected(s.now, w.term) }
	case w.stage == stageElected:
		return func() { w.stage = stageSleep; s.sleep.ask(w) }
	case w.stage == stageSleep && s.sleep.holder == w:
		return func() { w.stage = stageHeld; s.apply(w, w.policy.Granted(s.now, w.term)) }
	}
	return nil
}

// claim is the claim statement, at the moment when it sees the database.
func (s *twin) claim(w *twinWorker) {
	w.phase, w.found, w.hasDue = phaseReturn, nil, false
	blind := !w.plan.Unbounded && s.choose(2) == 0
	var rest []twinRecord
	for _, r := range s.work {
		named := slices.Contains(w.plan.Records, r.id)
		mine := r.wants == 0 || slices.Contains(w.hosts, r.wants)
		switch {
		case mine && (named || (r.due <= s.now && !blind)):
			w.found = append(w.found, r)
			continue
		case mine && (!w.hasDue || r.due < w.nextDue):
			w.nextDue, w.hasDue = r.due, true
		}
		rest = append(rest, r)
	}
	s.work = rest
}

// returned is the claim loop with the statement's answer.
func (s *twin) returned(w *twinWorker) {
	switch {
	case len(w.found) > 0:
		s.claimed += len(w.found)
		calm := s.choose(2) == 0
		if !calm {
			s.apply(w, w.policy.Busy(s.now))
		}
		// What it was called for, and no more: it need not look at everything.
		w.dry = w.dry && calm && (w.plan.Causes == Notified || s.callsHide) && len(w.plan.Records) > 0 && w.allNamed()
		if s.retries > 0 && s.choose(4) == 0 { // one delivery failed: due again later
			s.ids++
			s.work = append(s.work, twinRecord{id: s.ids, due: s.now + retryIn})
			s.retries--
			s.seen["retry"]++
			if w.dry && (!w.hasTold || s.now+retryIn < w.told) {
				s.dry(w, retryIn, true)
			}
		}
		w.plan, w.phase = Wake{}, phaseClaim
		if w.dry {
			s.seen["calm"]++
			w.phase = phaseIdle
		}
	case !w.plan.Unbounded:
		w.plan, w.phase = Wake{Unbounded: true}, phaseClaim
	case w.saturated:
		w.phase = phaseIdle
	default:
		w.phase = phaseIdle
		s.dry(w, w.nextDue-s.now, w.hasDue)
	}
}

func (s *twin) dry(w *twinWorker, d time.Duration, ok bool) {
	w.dry, w.told, w.hasTold = true, s.now+d, ok
	s.apply(w, w.policy.Dry(s.now, d, ok))
}

// allNamed reports whether every record that was named has been claimed.
func (w *twinWorker) allNamed() bool {
	for _, id := range w.plan.Records {
		if !slices.ContainsFunc(w.found, func(r twinRecord) bool { return r.id == id }) {
			return false
		}
	}
	return true
}
