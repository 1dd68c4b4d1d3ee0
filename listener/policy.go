package listener

import (
	"math"
	"time"
)

// State is where a worker stands towards those who make work.
type State uint8

// The states.
const (
	// Awake: it looks for work by itself; nobody needs to wake it.
	Awake State = iota
	// Asleep: idle, and another worker has the seat, or none can be had
	// because notifications do not arrive here.
	Asleep
	// Arming: idle and elected: it holds the seat and waits for the sleep lock.
	// Appenders that begin now notify, and it answers.
	Arming
	// Sentinel: idle, and it holds the sleep lock.
	Sentinel
)

// String is the state's name, as in metrics and in the workers table.
func (s State) String() string {
	return [...]string{"awake", "asleep", "arming", "sentinel"}[s]
}

// Timing is the policy's settings; see Config for their meaning.
type Timing struct {
	Fallback, Linger, LingerPoll, CatchUp, DueLag, DueEvery, Rearm, Ping, Crowd time.Duration
}

// Effects is what is to be done after a step of the policy.
type Effects struct {
	// Wake goes into the slot, if it has a cause.
	Wake Wake
	// Arm, if not 0, begins an arming cycle under this term: release, ask for
	// the seat, ask for the sleep lock. A cycle that is under way is cancelled.
	Arm int64
	// Disarm ends the cycle: cancel what is asked, release what is held.
	Disarm bool
	// Ping asks whether the session that holds the lock is alive.
	Ping bool
}

const never = time.Duration(math.MaxInt64)

// after is d after t, or never: a due time that is farther away than a time can be told is not in the past.
func after(t, d time.Duration) time.Duration {
	if sum := t + d; d <= 0 || sum > t {
		return sum
	}
	return never
}

const (
	// pingAfter and pingPause are after how many notifications, and how soon after
	// the last time, the sentinel asks whether their senders stand in line.
	pingAfter = 25
	pingPause = 200 * time.Millisecond
	// crowdAgain is when a crowd is looked for again before it counts, and crowdFor how far apart two such looks may be. One
	// process that is interrupted in its commit makes others stand in line for a moment: it takes a line that stays.
	crowdAgain = 10 * time.Millisecond
	crowdFor   = 100 * time.Millisecond
	// crowdStay is how long the first of a row of crowds keeps the sentinel awake. Many appenders that connect at once stand in line
	// for a moment, too: what was seen once is believed for a moment, and for four times as long each time that it is there again, up to Timing.Crowd
	// (twice as long was tried: with a slow disk the tries cost appenders more in the first seconds).
	crowdStay = 250 * time.Millisecond
)

// Policy decides when a worker sleeps and what wakes it. It is pure: every
// method is told the time (monotonic, from any origin) and returns what to do.
// Live code, the property tests and the simulation in policy_sim_test.go run this same type.
type Policy struct {
	t         Timing
	state     State
	listening bool  // notifications are known to arrive
	term      int64 // of the latest arming cycle
	armed     bool  // a cycle is under way, or complete

	busyAt  time.Duration // when work was last found
	dueWoke time.Duration // when due work last woke this worker
	step    time.Duration // the pause before the catch-up poll after the next
	overdue time.Duration // the last pause before what is due is tried again
	heard   int           // notifications answered since the last ping
	pinged  time.Duration
	crowd   time.Duration // when a crowd was last seen that did not count
	stay    time.Duration // how long the last that counted keeps it awake
	stayed  time.Duration // until when that was

	// When to do what; never, where not at all.
	fallback, linger, catchUp, due, rearm, ping time.Duration
}

// NewPolicy begins awake, with a fallback poll that is due at once: the first
// look.
func NewPolicy(t Timing, now time.Duration) Policy {
	long := now - time.Hour - t.Linger - t.DueEvery
	return Policy{t: t, busyAt: long, dueWoke: long, crowd: long - crowdFor, stayed: long - t.Crowd, fallback: now,
		linger: never, catchUp: never, due: never, rearm: never, ping: never}
}

// State is the current state.
func (p *Policy) State() State { return p.state }

// Next is when Tick wants to be called.
func (p *Policy) Next() time.Duration {
	return min(p.fallback, p.linger, p.catchUp, p.dueAt(), p.rearm, p.ping)
}

// dueAt is when to wake for due work. One worker is enough for it: the others
// leave it to the sentinel for a moment, and look at most every DueEvery. Not
// never, since it may be something that only they know to be due.
func (p *Policy) dueAt() time.Duration {
	if p.due == never || p.state != Asleep {
		return p.due
	}
	return max(after(p.due, p.t.DueLag), p.dueWoke+p.t.DueEvery)
}

// Dry is said by the claim loop when an unbounded claim found nothing. The next
// mailbox that it could claim is due in d, if ok.
func (p *Policy) Dry(now, d time.Duration, ok bool) (e Effects) {
	p.due = never
	if ok {
		p.due = after(now, p.dueIn(d))
	}
	if p.state != Awake {
		return e
	}
	p.fallback = now + p.t.Fallback
	if end := p.busyAt + p.t.Linger; now < end {
		p.linger = min(now+p.t.LingerPoll, end)
		return e
	}
	p.linger = never
	p.state = Asleep
	if p.listening {
		p.arm(now, &e)
	}
	return e
}

// dueIn is when to look for what is due in d. What is due already, and yet was
// not claimed, is locked by somebody's open transaction: it is tried again at
// growing intervals.
func (p *Policy) dueIn(d time.Duration) time.Duration {
	if d > 0 {
		p.overdue = 0
		return d
	}
	p.overdue = min(max(2*p.overdue, p.t.LingerPoll), p.t.DueEvery)
	return p.overdue
}

// Busy is said by the claim loop when it finds so much work that it need not be
// woken, or cannot look for any. A loop that finds a little at a time may keep
// silent: whoever is asleep stays so, and is woken for each.
func (p *Policy) Busy(now time.Duration) (e Effects) {
	p.state, p.busyAt = Awake, max(p.busyAt, now)
	p.due, p.linger, p.overdue = never, never, 0
	p.disarm(&e)
	return e
}

// Crowded is the news that those who append stand in line to notify. Where it comes
// twice in a row, whoever holds the term stays awake for a while, so that they need not.
func (p *Policy) Crowded(now time.Duration, term int64) (e Effects) {
	if term != p.term || !p.answers() {
		return e
	}
	if now-p.crowd > crowdFor {
		p.crowd, p.ping = now, min(p.ping, now+crowdAgain)
		return e
	}
	e = p.Busy(now)
	if now-p.stayed > p.t.Crowd {
		p.stay = 0
	}
	p.stay = min(max(4*p.stay, crowdStay), p.t.Crowd)
	p.stayed = now + p.stay
	p.busyAt = p.stayed
	p.look(now, Crowded, &e)
	return e
}

// Heard is a notification; hosted are the consumers that this worker runs.
func (p *Policy) Heard(now time.Duration, n Note, hosted []int32) (e Effects) {
	switch n.kind {
	case noteMore:
		// Whatever the state: the loop may be at the end of a claim that began
		// before this was sent.
		e.Wake = Wake{Causes: More}
	case noteWants:
		// Likewise; and no grant would make up for it, as the one that is
		// granted the lock need not host the consumer.
		if n.wantsAny(hosted) {
			e.Wake = Wake{Causes: Wanted, Records: []int64{n.record}}
		}
	case noteRecord:
		if p.answers() {
			e.Wake = Wake{Causes: Notified, Records: []int64{n.record}}
			p.pingSoon(now)
		}
	case noteUnknown:
		if p.answers() {
			e.Wake = Wake{Causes: Notified, Unbounded: true}
		}
	}
	return e
}

// pingSoon asks after a number of calls whether those who call stand in line.
func (p *Policy) pingSoon(now time.Duration) {
	p.heard++
	if p.state == Sentinel && p.heard >= pingAfter {
		p.ping = min(p.ping, max(now, p.pinged+pingPause))
	}
}

// answers: a notification that names a record is for the elected one. Others
// can ignore it: if they are elected later, they look at everything after that.
func (p *Policy) answers() bool { return p.state == Arming || p.state == Sentinel }

// Elected is the news that the term's cycle has the seat.
func (p *Policy) Elected(now time.Duration, term int64) {
	if term != p.term || p.state != Asleep || !p.armed {
		return
	}
	p.state = Arming
	p.step = p.t.CatchUp
	p.catchUp = now + p.step
}

// Granted is the news that the term's cycle has the sleep lock: every
// transaction that decided not to notify has ended, so look once more.
func (p *Policy) Granted(now time.Duration, term int64) (e Effects) {
	if term != p.term || p.state != Arming {
		return e
	}
	p.state = Sentinel
	p.catchUp, p.rearm, p.ping = never, never, now+p.t.Ping
	p.look(now, Granted, &e)
	return e
}

// Lost is the news that the term's session failed: what it held is gone.
func (p *Policy) Lost(now time.Duration, term int64) (e Effects) {
	if term == p.term && p.armed {
		p.arm(now, &e)
	}
	return e
}

// Link says whether notifications arrive. Without them nobody may take the
// seat: the others would rely on an ear that does not hear.
func (p *Policy) Link(now time.Duration, up bool) (e Effects) {
	p.listening = up
	if !up {
		p.disarm(&e)
		return e
	}
	p.look(now, Reconnected, &e)
	if p.state == Asleep {
		p.arm(now, &e)
	}
	return e
}

// Tick does what has come due.
func (p *Policy) Tick(now time.Duration) (e Effects) {
	if p.linger <= now {
		p.linger = never
		e.Wake = e.Wake.merge(Wake{Causes: Linger})
	}
	if p.dueAt() <= now {
		p.due, p.dueWoke = never, now
		e.Wake = e.Wake.merge(Wake{Causes: Due})
	}
	if p.catchUp <= now {
		p.step *= 2
		p.catchUp = now + p.step
		p.look(now, CatchUp, &e)
	}
	if p.fallback <= now {
		p.look(now, Fallback, &e)
	}
	if p.ping <= now {
		p.ping, p.pinged, p.heard = now+p.t.Ping, now, 0
		e.Ping = true
	}
	if p.rearm <= now {
		p.arm(now, &e)
	}
	return e
}

// look wakes for an unbounded claim, which does the fallback's duty too. No
// other wake postpones the fallback: a stream of them must not starve it.
func (p *Policy) look(now time.Duration, c Cause, e *Effects) {
	e.Wake = e.Wake.merge(Wake{Causes: c, Unbounded: true})
	p.fallback = now + p.t.Fallback
}

// arm begins a cycle, from idle.
func (p *Policy) arm(now time.Duration, e *Effects) {
	p.term++
	p.state, p.armed = Asleep, true
	p.catchUp, p.ping = never, never
	p.rearm = now + p.t.Rearm
	e.Arm = p.term
}

// disarm ends the cycle, if there is one.
func (p *Policy) disarm(e *Effects) {
	if p.answers() {
		p.state = Asleep
	}
	e.Disarm = p.armed
	p.armed = false
	p.catchUp, p.ping, p.rearm = never, never, never
}
