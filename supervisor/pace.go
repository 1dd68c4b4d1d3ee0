package supervisor

import (
	"math"
	"time"
)

const never = time.Duration(math.MaxInt64)

// after is d after t, or never: what is farther away than a time can be told is not in the past.
func after(t, d time.Duration) time.Duration {
	if sum := t + d; d <= 0 || sum > t {
		return sum
	}
	return never
}

// paceConfig is what a pace goes by.
type paceConfig struct {
	minBatch, maxBatch int
	// poll is the longest pause between claims while a little is found. Where a
	// claim is quick it is shorter: pollShare times what the last one took.
	poll      time.Duration
	moreEvery time.Duration // between two calls for others
	// calm is how many records per second may be found without this worker being
	// busy: so few that those who append may as well wake it for each.
	calm float64
}

const (
	// pollShare: a claim loop that finds little claims a third of the time at most.
	pollShare = 2
	// pollLeast is what timers can do.
	pollLeast = time.Millisecond
	// recordsAtOnce is how many are claimed by name. More take fewer statements
	// together, with whatever else is due.
	recordsAtOnce = 3
	// calmFor is how long more than cfg.calm may come before it counts.
	calmFor = 100 * time.Millisecond
)

// pace decides when the claim loop claims, how much, and what it says to the
// wakes. It does no I/O and is told the time (monotonic).
type pace struct {
	cfg   paceConfig
	batch int
	next  time.Duration // when to claim without being woken; never: only when woken
	wake  Wake          // not acted on yet
	woken bool
	full  bool // the last claim got all it asked for
	// patience is until when to wait for room for a whole batch; 0: not waiting.
	patience time.Duration

	dry      bool          // Dry was said, and nothing was found since that makes it untrue
	told     time.Duration // the due time that was said with it
	lastMore time.Duration

	// level are the records found of late: it drains by cfg.calm per second.
	level   float64
	levelAt time.Duration
}

func newPace(cfg paceConfig) *pace {
	return &pace{cfg: cfg, batch: cfg.minBatch, wake: Wake{Unbounded: true}, woken: true, next: never, lastMore: -time.Hour}
}

// action is what the loop does next.
type action struct {
	// claim, if limit > 0.
	limit     int
	unbounded bool
	records   []int64
	// else wait: for a wake, until the time given (monotonic, or never), and,
	// if room > 0, until there is room for so many.
	until time.Duration
	room  int
	// busy and more are to be said first.
	busy, more bool
}

// decide says what to do now, with room for free records.
func (p *pace) decide(now time.Duration, free int) action {
	if !p.woken && p.next > now {
		return action{until: p.next}
	}
	if wait, ok := p.crowded(now, free); ok {
		// Awake without being able to act: somebody else must listen.
		wait.busy = true
		p.dry = false
		if p.full && now-p.lastMore >= p.cfg.moreEvery {
			wait.more = true
			p.lastMore = now
		}
		return wait
	}
	p.patience = 0
	// A claim that goes on where the last one ended is for full load alone:
	// otherwise every claim looks at everything.
	a := action{limit: min(p.batch, free), unbounded: p.wake.Unbounded || !p.full || len(p.wake.Records) > 0}
	if len(p.wake.Records) <= recordsAtOnce && len(p.wake.Records) <= a.limit {
		a.records = p.wake.Records
	}
	return a
}

// crowded says how to wait where there is too little room. At full load that is
// less than a batch, for a moment: not to claim by ones.
func (p *pace) crowded(now time.Duration, free int) (action, bool) {
	if p.full && !p.woken && free < p.batch {
		if p.patience == 0 {
			p.patience = now + p.cfg.poll
		}
		if now < p.patience {
			return action{until: p.patience, room: p.batch}, true
		}
	}
	if free <= 0 {
		return action{until: never, room: 1}, true
	}
	return action{}, false
}

// claimed takes a claim's result: a is what was decided, took how long it was
// under way. It says whether to be busy, or to ask for the next due time and then be dry.
func (p *pace) claimed(now, took time.Duration, a action, got int) (busy, dry bool) {
	p.woken, p.wake = false, Wake{}
	p.full = got >= a.limit
	switch {
	case p.full:
		p.batch = min(p.batch*2, p.cfg.maxBatch)
	case got < a.limit/4:
		p.batch = max(p.batch/2, p.cfg.minBatch)
	}
	switch {
	case p.full:
		p.next = now
	case got > 0:
		p.next = now + min(max(pollShare*took, pollLeast), p.cfg.poll)
	case !a.unbounded:
		// It began where the last one ended: only a look at everything may say
		// that there is nothing.
		p.woken, p.wake = true, Wake{Unbounded: true}
	default:
		p.next = never
		return false, true
	}
	if got > 0 {
		p.dry = false
	}
	return p.found(now, got) || p.full, false
}

// claimedRecords takes the result of claiming the named records of a, and says
// whether to be busy. Whoever was dry, and got what it was called for, still is:
// it hears of whatever else comes. All others look at everything.
func (p *pace) claimedRecords(now time.Duration, a action, got int) (busy bool) {
	busy = p.found(now, got)
	if p.dry && !busy && got == len(a.records) && !p.wake.Look && !p.wake.Unbounded {
		p.woken, p.wake = false, Wake{}
		return false
	}
	p.wake.Records, p.wake.Look = nil, true // owed, whatever else comes first
	p.dry = p.dry && got == 0
	return busy
}

// found counts records, and reports whether they are more than a calm worker has.
func (p *pace) found(now time.Duration, got int) bool {
	most := p.cfg.calm * calmFor.Seconds()
	p.level = max(p.level-(now-p.levelAt).Seconds()*p.cfg.calm, 0)
	p.levelAt = now
	p.level = min(p.level+float64(got), 2*most)
	return got > 0 && p.level > most
}

// failed: the claim's outcome is unknown; look at everything after the pause.
func (p *pace) failed(at time.Duration) {
	p.woken = false
	p.wake = p.wake.merge(Wake{Unbounded: true})
	p.next = at
	p.dry = false
}

// stillDry says whether what was last said about due times still holds, and how long it is until then.
func (p *pace) stillDry(now time.Duration) (d time.Duration, ok, known bool) {
	if !p.dry || p.told <= now {
		return 0, false, false
	}
	return p.told - now, p.told != never, true
}

// saidDry notes what was said to the wakes.
func (p *pace) saidDry(now, d time.Duration, ok bool) {
	p.dry, p.told = true, never
	if ok {
		p.told = after(now, d)
	}
}

// wakeUp adds a wake.
func (p *pace) wakeUp(w Wake) {
	p.wake = p.wake.merge(w)
	p.woken = true
}

// dueAgain: this worker has handed back a record that is due in d. It reports
// whether Dry must be said again, with d.
func (p *pace) dueAgain(now, d time.Duration) bool {
	at := after(now, d)
	if !p.dry || at >= p.told {
		return false
	}
	p.told = at
	return true
}
