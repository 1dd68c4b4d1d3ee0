package delivery

import (
	"slices"
	"time"

	"github.com/keylinehq/keyline/internal/core"
)

// Machine is the state of one claimed record. It is not safe for concurrent use.
type Machine struct {
	reg  *core.Registry
	opts Options
	now  time.Time

	claim       core.Claim
	tenant, key string
	head        int64 // the committed head as last heard of
	base        int64 // the cursor in the database: where consumers without a row stand

	lanes   []lane
	events  cache
	retries []retry
	// commands wait to be applied: for their consumer to be idle.
	commands []core.Command

	// acc gathers what the next flush carries beside positions; inflight is
	// what the flush on its way carries, to be taken back if the registry moved;
	// spare is one that was answered, to be used again as acc.
	acc, inflight, spare *core.Flush
	// urgent: a failure is to be written without waiting for siblings.
	urgent     bool
	dirtySince time.Time // when the oldest unflushed outcome came; zero: none

	running   int // Starts that are not answered
	flushing  bool
	ending    bool // the flush on its way asks for the end of the claim
	loading   bool
	reloading bool
	stale     bool // a reload is due
	draining  bool
	release   bool // hand-back could not be had: release
	stopped   bool

	suspect bool // deliveries run one at a time, written ahead
	unclean bool // the last claim ended by recovery
	turn    int  // where the next search for a suspect's delivery begins

	busyPause time.Duration // the pause after an appender held the record
	busySince time.Time
	busyUntil time.Time

	wakeAt  time.Time // the last WakeAt
	effects []Effect
}

// lane is one consumer on this record.
type lane struct {
	c *core.Consumer
	// db is the row as the database has it, nil where there is none. Like all
	// that few lanes have it is apart: thousands of records are resident.
	db *core.Checkpoint
	// cp is the position and retry state now, ahead of db by what is unflushed.
	cp core.Checkpoint
	// planned is what the flush on its way makes of the row.
	planned   plan
	plannedCP *core.Checkpoint
	// doubt: a flush that was refused may have been carried out by an earlier
	// try, whose answer was lost: db may be older than the database.
	doubt bool

	running bool
	work    *core.Work // what runs; the lane's own, used again
	inHand  int        // how many events the running work has
	// beyond counts the events run (or running) and not yet durable, inFlush
	// those of them that the flush on its way makes durable.
	beyond, inFlush int
	// owes: a skip or dead letter of it waits to be flushed; owing: it is on its way.
	owes, owing bool
	heldUntil   time.Time // an open breaker's probe time
	singleUntil int64     // after a failed batch: batches of one up to this seq
	redeliver   int       // how many events above untried may have run under an earlier claim
	redeliverTo int64     // events up to it may have run before
	untold      bool      // the row does not say which may have: redeliver is a guess
	untried     int64     // the last event begun here that may have run under an earlier claim
	tried       int64     // the last event that has ended here
	// reconsidered: parked for its version, and looked at by this registry.
	reconsidered bool
	clearTo      int64 // events up to it do not concern the consumer, or are done with
	ran          bool  // ran once under this claim
	writeAhead   stage
	aheadOf      *core.Checkpoint // what was written ahead of
	replay       bool             // an operator asked for the head again
	// mine: it was active under this claim, or an operator has moved it under this claim, so that cp is ahead of the database.
	mine bool
}

// plan is what a flush does to a checkpoint row.
type plan uint8

const (
	leave plan = iota
	upsert
	remove
)

// stage is how far a suspect's written-ahead attempt has come.
type stage uint8

const (
	notAhead   stage = iota
	aheadAsked       // in cp, waiting for a flush to carry it
	aheadSent        // in the flush on its way
	aheadDone        // durable: the run may start
)

// New returns the machine of a record that has just been claimed and loaded,
// and its first effects.
func New(reg *core.Registry, loaded core.Loaded, opts Options) (*Machine, []Effect) {
	m := &Machine{}
	return m, m.Reset(reg, loaded, opts)
}

// Reset makes the machine that of another record, reusing its memory. The
// effects are valid until the next call.
func (m *Machine) Reset(reg *core.Registry, loaded core.Loaded, opts Options) []Effect {
	opts.setDefaults()
	*m = Machine{
		reg: reg, opts: opts, now: opts.Now, claim: loaded.Claim, tenant: loaded.Tenant, key: loaded.Key,
		head: loaded.Head, base: loaded.Base, suspect: loaded.Crashes > 0, unclean: loaded.Unclean || loaded.Crashes > 0,
		lanes: m.lanes[:0], retries: m.retries[:0], effects: m.effects[:0], events: m.events, commands: loaded.Commands,
		acc: empty(m.acc), spare: m.spare,
	}
	m.events.reset()
	m.events.load(&loaded, opts.LoadLimit)
	m.head = max(m.head, m.events.last())
	m.lanes = slices.Grow(m.lanes, len(reg.Consumers))[:len(reg.Consumers)]
	for i, c := range reg.Consumers {
		m.set(&m.lanes[i], c, &loaded)
	}
	for _, d := range loaded.Retries {
		m.addRetry(d)
	}
	m.afterLoad()
	m.advance()
	return m.effects
}

// empty makes f, which nobody has any more, ready to gather again.
func empty(f *core.Flush) *core.Flush {
	if f == nil {
		return &core.Flush{}
	}
	*f = core.Flush{Upserts: f.Upserts[:0], Deletes: f.Deletes[:0], Counts: f.Counts[:0]}
	return f
}

func (o *Options) setDefaults() {
	if o.FlushDelay == 0 {
		o.FlushDelay = 100 * time.Millisecond
	}
	if o.CrashBudget == 0 {
		o.CrashBudget = 3
	}
	if o.LoadLimit == 0 {
		o.LoadLimit = 64
	}
	if o.Random == nil {
		o.Random = func() float64 { return 0.5 }
	}
}

// Step takes one message and returns what to do. The effects are valid until the next call.
func (m *Machine) Step(now time.Time, msg Message) []Effect {
	m.effects = m.effects[:0]
	if back := m.now.Sub(now); back > 0 {
		m.setBack(back)
	}
	m.now = now
	if m.stopped {
		return nil
	}
	switch msg := msg.(type) {
	case *Ended:
		m.ended(msg.Work, &msg.Outcome)
	case NotStarted:
		m.notStarted(msg.Work, msg.Until)
	case *Flushed:
		m.flushed(msg.Result)
	case EventsLoaded:
		m.loading = false
		m.events.add(msg.Events)
		m.head = max(m.head, m.events.last())
	case Reloaded:
		m.reloaded(msg.Registry, &msg.Loaded)
	case News:
		m.head = max(m.head, msg.Head)
		m.stale = m.stale || msg.Pending
	case RegistryMoved:
		m.stale = true
	case Tick:
		m.wakeAt = time.Time{} // the clock may have been set back since: then it is asked for again
	case Drain:
		m.drain()
	case Fenced:
		m.stop(StopFenced)
	}
	if !m.stopped {
		m.advance()
	}
	return m.effects
}

// Claim returns the claim that the machine works under.
func (m *Machine) Claim() core.Claim { return m.claim }

// setBack moves the times that this machine has set itself along with a clock
// that was set back: they are pauses of its own, and would all be longer by the step. Due times
// that the database keeps stay as they are there.
func (m *Machine) setBack(by time.Duration) {
	move := func(t *time.Time) {
		if !t.IsZero() {
			*t = t.Add(-by)
		}
	}
	move(&m.dirtySince)
	move(&m.busySince)
	move(&m.busyUntil)
	for i := range m.lanes {
		move(&m.lanes[i].heldUntil)
	}
	for i := range m.retries {
		move(&m.retries[i].heldUntil)
	}
}

// advance does all that can be done now. The order matters: commands change
// heads, heads decide starts, and only when nothing can start may the claim end.
func (m *Machine) advance() {
	if m.reloading {
		return
	}
	if m.stale && !m.flushing {
		m.stale, m.reloading = false, true
		m.do(Reload{})
		return
	}
	m.dropAhead()
	m.applyCommands()
	m.passOver()
	if !m.draining && !m.ending {
		m.startRetries()
		m.startLanes()
		m.requestEvents()
	}
	m.considerFlush()
	if !m.stopped {
		m.setTimer()
	}
}

func (m *Machine) do(e Effect) { m.effects = append(m.effects, e) }

func (m *Machine) stop(why StopReason) {
	m.stopped = true
	m.do(Stop{why})
}

func (m *Machine) drain() {
	if m.draining {
		return
	}
	m.draining = true
	if m.running > 0 {
		m.do(Withdraw{})
	}
}

// setTimer asks for the earliest time at which something becomes possible
// without any other message.
func (m *Machine) setTimer() {
	var at time.Time
	earlier := func(t time.Time) {
		if t.After(m.now) && (at.IsZero() || t.Before(at)) {
			at = t
		}
	}
	if m.flushing || m.reloading {
		return // the answer comes
	}
	if !m.dirtySince.IsZero() {
		earlier(m.dirtySince.Add(m.opts.FlushDelay))
	}
	earlier(m.busyUntil)
	if !m.draining {
		for i := range m.lanes {
			l := &m.lanes[i]
			if l.hosted() && !l.running {
				earlier(l.heldUntil)
				earlier(l.cp.NextAttemptAt)
			}
		}
		for i := range m.retries {
			earlier(later(m.retries[i].DueAt, m.retries[i].heldUntil))
		}
	}
	if !at.IsZero() && !at.Equal(m.wakeAt) {
		m.wakeAt = at
		m.do(WakeAt{at})
	}
}
