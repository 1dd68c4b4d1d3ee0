package listener

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// The twin: appenders, the two advisory locks, notifications, arming sessions
// and claim loops as small state machines that run the real Policy. One step at
// a time is chosen from those that are possible, so a test decides the
// interleaving. It keeps to what Postgres promises and no more: a request that
// is cancelled stays in the queue (and may be granted) until it is released; a
// session that dies frees its locks before its worker knows; a claim that does
// not look at everything may find nothing.

const (
	day     = 24 * time.Hour
	retryIn = 50 * time.Millisecond
)

// twinTiming has no fallback and no rearming within any run, only what is asked
// for by name.
var twinTiming = Timing{
	Fallback: 10000 * day, Rearm: 1000 * day, Ping: 2000 * day,
	Linger: 30 * time.Millisecond, LingerPoll: 5 * time.Millisecond, CatchUp: 10 * time.Millisecond,
	DueLag: 100 * time.Millisecond, DueEvery: time.Second, Crowd: 40 * time.Millisecond,
}

type twinLock struct {
	holder *twinWorker
	queue  []*twinWorker
	shared []*twinTx
}

func (l *twinLock) settle() {
	if l.holder == nil && len(l.queue) > 0 && len(l.shared) == 0 {
		l.holder, l.queue = l.queue[0], l.queue[1:]
	}
}

func (l *twinLock) ask(w *twinWorker) {
	l.queue = append(l.queue, w)
	l.settle()
}

func (l *twinLock) drop(w *twinWorker) {
	if l.holder == w {
		l.holder = nil
	}
	l.queue = slices.DeleteFunc(l.queue, func(q *twinWorker) bool { return q == w })
	l.settle()
}

// tryShared fails if somebody holds or waits for the lock exclusively.
func (l *twinLock) tryShared(tx *twinTx) bool {
	if l.holder != nil || len(l.queue) > 0 {
		return false
	}
	l.shared = append(l.shared, tx)
	return true
}

func (l *twinLock) dropShared(tx *twinTx) {
	l.shared = slices.DeleteFunc(l.shared, func(s *twinTx) bool { return s == tx })
	l.settle()
}

// twinRecord is a mailbox: committed, unclaimed work.
type twinRecord struct {
	id    int64
	due   time.Duration
	wants int32 // 0: anybody's
}

type twinTx struct {
	ops   []string // append, wants, savepoint, rollback, commit, abort
	made  []twinRecord
	notes []string
	lock  bool // holds the sleep lock shared
	save  struct {
		made, notes int
		lock        bool
	}
	visible bool
}

type twinWorker struct {
	id     int
	policy Policy
	hosts  []int32
	slot   slot

	// The link.
	hears bool // the server sends notifications to it
	known bool // what the worker believes
	deaf  bool // stays without them
	inbox []string

	// The arming session.
	alive bool
	want  int64
	term  int64
	stage twinStage
	// cancelled: the cycle ended before it was known to be complete.
	cancelled bool

	// The claim loop.
	phase     twinPhase
	plan      Wake
	found     []twinRecord
	nextDue   time.Duration
	hasDue    bool
	saturated bool
	// dry: Dry was said, with what is told, and is still true.
	dry     bool
	told    time.Duration
	hasTold bool
}

type twinStage int

const (
	stageOwed twinStage = iota // Release comes first
	stageFree
	stageSeat // asked for the seat
	stageElected
	stageSleep // asked for the sleep lock
	stageHeld
)

type twinPhase int

const (
	phaseIdle twinPhase = iota
	phaseClaim
	phaseReturn
)

type twinStep struct {
	name string
	run  func()
}

type twin struct {
	now         time.Duration
	seat, sleep twinLock
	workers     []*twinWorker
	txs         []*twinTx
	work        []twinRecord
	ids         int64
	claimed     int
	retries     int // how many more deliveries may fail
	choose      func(n int) int
	horizon     time.Duration // timers that are due later do not fire
	trace       []string
	seen        map[string]int // how often a situation came up

	// What mutants break.
	drop      Cause // no wake for these causes
	unshared  bool  // an appender does not keep the sleep lock to its end
	callsHide bool  // a call by name is taken for all there is, whatever came with it
}

func newTwin(choose func(n int) int, timing Timing, hosts ...[]int32) *twin {
	s := &twin{choose: choose, horizon: day, seen: map[string]int{}}
	for i, h := range hosts {
		s.workers = append(s.workers, &twinWorker{id: i, policy: NewPolicy(timing, 0), hosts: h, slot: newSlot()})
	}
	return s
}

func (s *twin) apply(w *twinWorker, e Effects) {
	if e.Disarm {
		w.want = 0
	}
	if e.Arm != 0 {
		w.want = e.Arm
	}
	if e.Wake.Causes &^= s.drop; e.Wake.Causes != 0 {
		e.Wake.Causes.Each(func(name string) { s.seen["wake "+name]++ })
		w.slot.put(e.Wake)
	}
}

// steps lists what can happen next. Faults only if they are asked for.
func (s *twin) steps(faults bool) []twinStep {
	var out []twinStep
	add := func(name string, run func()) { out = append(out, twinStep{name, run}) }
	for i, tx := range s.txs {
		if len(tx.ops) > 0 || tx.visible {
			add(fmt.Sprintf("tx%d", i), func() { s.txStep(tx) })
		}
	}
	for _, w := range s.workers {
		s.workerSteps(w, add)
		if faults {
			s.faultSteps(w, add)
		}
	}
	return out
}

func (s *twin) txStep(tx *twinTx) {
	if tx.visible { // its commit can be seen; now its locks and notes go
		tx.visible = false
		s.sleep.dropShared(tx)
		for _, w := range s.workers {
			if w.hears {
				w.inbox = append(w.inbox, tx.notes...)
			}
		}
		return
	}
	op := tx.ops[0]
	tx.ops = tx.ops[1:]
	switch op {
	case "append", "wants":
		s.ids++
		r := twinRecord{id: s.ids, due: 0}
		note := fmt.Sprint(r.id)
		if op == "wants" {
			r.wants = 7
			note = fmt.Sprintf("wants:%d:7", r.id)
			// A flush names one of the records that want the same.
			s.ids++
			tx.made = append(tx.made, twinRecord{id: s.ids, wants: 7})
		}
		tx.made = append(tx.made, r)
		if op == "append" && (tx.lock || s.sleep.tryShared(tx)) {
			if tx.lock = !s.unshared; s.unshared {
				s.sleep.dropShared(tx)
			}
			s.seen["decided: nobody sleeps"]++
			return
		}
		s.seen["decided: notify"]++
		tx.notes = append(tx.notes, note)
	case "savepoint":
		tx.save.made, tx.save.notes, tx.save.lock = len(tx.made), len(tx.notes), tx.lock
	case "rollback": // to the savepoint
		tx.made, tx.notes = tx.made[:tx.save.made], tx.notes[:tx.save.notes]
		if tx.lock && !tx.save.lock {
			tx.lock = false
			s.sleep.dropShared(tx)
		}
	case "abort":
		tx.ops = nil
		s.sleep.dropShared(tx)
	case "commit":
		s.work = append(s.work, tx.made...)
		tx.visible = true
	}
}

func (s *twin) do(steps []twinStep) {
	if len(steps) == 0 {
		return
	}
	step := steps[s.choose(len(steps))]
	s.trace = append(s.trace, step.name)
	step.run()
}

// but leaves out the steps of transactions that stay open.
func (s *twin) but(open func(*twinTx) bool, steps []twinStep) []twinStep {
	return slices.DeleteFunc(steps, func(st twinStep) bool {
		var i int
		_, err := fmt.Sscanf(st.name, "tx%d", &i)
		return err == nil && open(s.txs[i])
	})
}

func (s *twin) addSeen(to map[string]int) {
	for k, n := range s.seen {
		to[k] += n
	}
}

// settle lets everything happen that can, except that transactions for which
// open says so stay as they are, and that no fallback poll ever comes. It fails
// if that never ends.
func (s *twin) settle(open func(*twinTx) bool) error {
	for _, w := range s.workers {
		if !w.deaf && !w.hears && w.known { // both changes are told
			w.known = false
			s.apply(w, w.policy.Link(s.now, false))
		}
		w.hears = !w.deaf
		if w.saturated {
			w.saturated = false
			if w.phase == phaseIdle {
				w.plan, w.phase = Wake{}, phaseClaim
			}
		}
	}
	for range 20000 {
		can := s.but(open, s.steps(false))
		if len(can) == 0 {
			return nil
		}
		s.do(can)
	}
	return fmt.Errorf("never comes to rest")
}

// waiting is the committed work that somebody could claim and nobody did.
func (s *twin) waiting() (lost []int64) {
	for _, r := range s.work {
		if slices.ContainsFunc(s.workers, func(w *twinWorker) bool {
			return !w.deaf && (r.wants == 0 || slices.Contains(w.hosts, r.wants))
		}) {
			lost = append(lost, r.id)
		}
	}
	return lost
}

// fingerprint is the state without its history: two runs with the same one go
// on alike.
func (s *twin) fingerprint() string {
	var b strings.Builder
	for _, w := range s.workers {
		p := w.policy
		for _, at := range []*time.Duration{&p.busyAt, &p.dueWoke, &p.fallback, &p.linger, &p.catchUp, &p.due, &p.rearm, &p.ping} {
			if *at != never {
				*at = min(max(*at-s.now, -day), day)
			}
		}
		p.busyAt = max(p.busyAt, -p.t.Linger) // longer ago is all the same
		want, term := w.want-p.term, w.term-p.term
		p.term = 0
		pending := Wake{}
		if len(w.slot) > 0 {
			pending = <-w.slot
			w.slot <- pending
		}
		fmt.Fprintf(&b, "%+v|%v%v%v|%v|%d,%d,%d|%d%v%v|%v%v|%v%v\n", p, w.hears, w.known, w.alive, w.inbox, want, term, w.stage,
			w.phase, w.plan, w.found, w.hasDue, w.nextDue, pending, w.saturated)
	}
	for _, tx := range s.txs {
		fmt.Fprintf(&b, "%v%v%v%v%v%v\n", tx.ops, tx.made, tx.notes, tx.lock, tx.save, tx.visible)
	}
	held := func(l twinLock) {
		fmt.Fprintf(&b, "%v%d%d|", l.holder != nil, len(l.queue), len(l.shared))
	}
	held(s.seat)
	held(s.sleep)
	fmt.Fprintf(&b, "%v %d", s.work, s.retries)
	return b.String()
}

func (s *twin) String() string {
	var b strings.Builder
	for _, w := range s.workers {
		fmt.Fprintf(&b, "w%d %v want=%d term=%d stage=%d; ", w.id, w.policy.State(), w.want, w.term, w.stage)
	}
	fmt.Fprintf(&b, "trace: %s", strings.Join(s.trace, ", "))
	return b.String()
}
