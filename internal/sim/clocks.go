package sim

import "time"

// Times. The twin's Now is the database's clock, by which due times are
// decided, and which may be set. A worker has a reading of it, taken when it
// joins and with each renewal, and carries it on by its monotonic clock, by
// which its timers run: between a step and the next renewal the two differ.

// mono is the time that nobody can set.
func (r *run) mono() time.Duration { return r.twin.Now.Sub(epochStart) - r.stepped }

// now is the time that a worker's machines are told.
func (r *run) now(w *worker) time.Time {
	at := r.twin.Now.Add(w.skew)
	if at.After(r.high) {
		r.high = at
	}
	return at
}

// latest is the latest time that anybody can have taken for the present.
func (r *run) latest() time.Time {
	if r.twin.Now.After(r.high) {
		r.high = r.twin.Now
	}
	return r.high
}

// clockActions are what happens to the clocks.
func (r *run) clockActions(a *actions) {
	if !r.cfg.Clocks || r.calm {
		return
	}
	a.add(1, func() { r.stepClock() })
	for _, w := range r.workers {
		if !w.frozen {
			a.add(2, func() { r.readClock(w) })
		}
	}
}

// stepClock sets the database's clock. No worker knows before it renews.
func (r *run) stepClock() {
	d := time.Duration(r.ch.IntN(6000)-3000) * time.Millisecond
	r.latest()
	r.twin.Now = r.twin.Now.Add(d)
	r.stepped += d
	for _, w := range r.workers {
		w.skew -= d
	}
	r.met(ClockStep)
	r.logf("the database's clock is set by %v", d)
}

// readClock takes a reading, which is off by half a round trip at most.
func (r *run) readClock(w *worker) {
	w.skew = time.Duration(r.ch.IntN(41)-20) * time.Millisecond
	r.logf("w%d reads the clock, off by %v", w.name, w.skew)
}
