package supervisor

import (
	"time"

	"github.com/keylinehq/keyline/keylinetype"
)

// BreakerState is where a circuit breaker stands.
type BreakerState string

// The states of a breaker.
const (
	BreakerClosed   BreakerState = "closed"
	BreakerOpen     BreakerState = "open"
	BreakerHalfOpen BreakerState = "half_open"
)

// breakerSlots is how finely a breaker's period slides.
const breakerSlots = 10

// breaker is one consumer's circuit breaker over all records of this worker. It
// does no I/O and is told the time (monotonic).
//
// Closed, it counts runs in a sliding period. ended reports when a failure
// takes the share of failures over the threshold; supervision then escalates
// and the root calls trip. Nothing starts in between. Open, nothing starts until
// the cool-down has passed; then one probe at a time may run: a success closes
// the breaker, a failure opens it again.
type breaker struct {
	cfg   keylinetype.Breaker
	slots [breakerSlots]struct {
		at           int64 // number of the slot's time span
		runs, failed int
	}

	over    bool // a failure has called for a trip, which is on its way
	overAt  time.Duration
	opened  bool
	until   time.Duration // open: when the first probe may run
	probing bool
	probed  time.Duration // when the running probe began
}

func newBreaker(cfg keylinetype.Breaker) breaker {
	if cfg.Threshold == 0 {
		cfg.Threshold = 0.5
	}
	if cfg.MinRuns == 0 {
		cfg.MinRuns = 20
	}
	if cfg.Period == 0 {
		cfg.Period = 10 * time.Second
	}
	if cfg.CoolDown == 0 {
		cfg.CoolDown = 15 * time.Second
	}
	return breaker{cfg: cfg}
}

// admission is a breaker's answer.
type admission struct {
	ok    bool
	probe bool          // ok, as the probe
	wait  time.Duration // not ok: ask again after so long
}

// allow asks whether a run may start.
func (b *breaker) allow(now time.Duration) admission {
	switch {
	case b.held(now):
		return admission{wait: b.cfg.CoolDown}
	case !b.opened:
		return admission{ok: true}
	case now < b.until:
		return admission{wait: b.until - now}
	case b.probing && now-b.probed < b.cfg.CoolDown:
		// The probe decides. It may take long; those who wait come back often
		// enough to be there when it has.
		return admission{wait: max(b.cfg.CoolDown/5, time.Millisecond)}
	}
	// The first probe, or one in place of a probe that hangs.
	b.probing, b.probed = true, now
	return admission{ok: true, probe: true}
}

// overHold is how long starts wait for a trip that was called for. It comes at
// once, unless the one who is to make it has just failed.
const overHold = time.Second

// held: nothing starts until the trip that was called for is made.
func (b *breaker) held(now time.Duration) bool { return b.over && now-b.overAt < overHold }

func (b *breaker) callForTrip(now time.Duration) bool {
	b.over, b.overAt = true, now
	return true
}

// withdrawn: an allowed run did not happen, or says nothing.
func (b *breaker) withdrawn(probe bool) {
	if probe {
		b.probing = false
	}
}

// ended counts a run. It reports whether this failure calls for a trip.
func (b *breaker) ended(now time.Duration, failed, probe bool) (over bool) {
	if b.cfg.Disabled {
		return false
	}
	if b.opened {
		if !probe {
			return false // begun before it opened
		}
		b.probing = false
		if failed {
			return b.callForTrip(now)
		}
		b.opened, b.over = false, false
		b.slots = [breakerSlots]struct {
			at           int64
			runs, failed int
		}{}
		return false
	}
	s := &b.slots[b.slot(now)%breakerSlots]
	if at := b.slot(now); s.at != at {
		s.at, s.runs, s.failed = at, 0, 0
	}
	s.runs++
	if !failed {
		return false
	}
	s.failed++
	runs, failures := b.counts(now)
	if runs < b.cfg.MinRuns || float64(failures) < b.cfg.Threshold*float64(runs) {
		return false
	}
	return b.callForTrip(now)
}

// trip opens the breaker for a cool-down; it reports whether that is news.
func (b *breaker) trip(now time.Duration) bool {
	if b.cfg.Disabled || (b.opened && now < b.until) {
		return false
	}
	b.opened, b.probing, b.over = true, false, false
	b.until = after(now, b.cfg.CoolDown)
	return true
}

func (b *breaker) state(now time.Duration) BreakerState {
	switch {
	case !b.opened:
		return BreakerClosed
	case now < b.until:
		return BreakerOpen
	}
	return BreakerHalfOpen
}

func (b *breaker) counts(now time.Duration) (runs, failed int) {
	oldest := b.slot(now) - breakerSlots
	for _, s := range b.slots {
		if s.at > oldest {
			runs += s.runs
			failed += s.failed
		}
	}
	return runs, failed
}

// slot numbers time spans of a tenth of the period, from 1.
func (b *breaker) slot(now time.Duration) int64 {
	return int64(now/max(b.cfg.Period/breakerSlots, 1)) + 1
}
