package supervisor

import (
	"sync"
	"time"

	"github.com/keylinehq/keyline/actors"
	"github.com/keylinehq/keyline/internal/clock"
	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/keylinetype"
)

// Limits are what is local to this process about one consumer.
type Limits struct {
	// MaxInFlight is how many of its handlers may run at once; 0: 64.
	MaxInFlight int
	Breaker     keylinetype.Breaker
}

// gate admits handlers: at most max at once, at most maxTx that run in a transaction, and at most
// MaxInFlight of each consumer. Those that must wait are queued per consumer, first in, first out,
// and consumers take turns, so that a slow one's long queue holds up nobody else.
//
// Who waits for a connection has to wait here: let in, it would take a place from those that need none, and begin
// whatever has been said of its consumer meanwhile.
type gate struct {
	clock  clock.Clock
	limits map[string]Limits
	max    int
	maxTx  int

	begin  func(*actors.Ticket)
	refuse func(*actors.Ticket, time.Time)

	mu       sync.Mutex
	inFlight int
	inTx     int // of these
	queued   int
	lanes    map[int32]*lane
	turns    []*lane // the order of turns
	turn     int
}

// lane is one consumer at the gate.
type lane struct {
	id       int32
	name     string
	tx       bool
	max      int
	inFlight int
	queue    actors.Queue
	oldest   time.Duration // since when the queue has not been empty; of no meaning while it is
	breaker  breaker
	probe    *actors.Ticket
	done     int64 // runs that ended, for the queue's estimate
	doneMark int64

	// Totals over the worker's life. Refused: by an open breaker, or to make room.
	completed, failed, refused int64
}

func newGate(c clock.Clock, maxInFlight, maxTx int, limits map[string]Limits) *gate {
	return &gate{clock: c, max: maxInFlight, maxTx: maxTx, limits: limits, lanes: map[int32]*lane{},
		begin: (*actors.Ticket).Begin, refuse: (*actors.Ticket).Refuse}
}

// lane finds a consumer's; the lock is held.
func (g *gate) lane(c *core.Consumer) *lane {
	if l := g.lanes[c.ID]; l != nil {
		return l
	}
	limits := g.limits[c.Name]
	if limits.MaxInFlight <= 0 {
		limits.MaxInFlight = defaultMaxInFlight
	}
	l := &lane{id: c.ID, name: c.Name, tx: c.Transactional, max: limits.MaxInFlight, breaker: newBreaker(limits.Breaker)}
	g.lanes[c.ID] = l
	g.turns = append(g.turns, l)
	return l
}

// Admit implements actors.Gate.
func (g *gate) Admit(t *actors.Ticket) actors.Admission {
	g.mu.Lock()
	defer g.mu.Unlock()
	l := g.lane(t.Work.Consumer)
	if l.breaker.opened || l.breaker.over {
		a := l.breaker.allow(g.clock.Mono())
		if !a.ok {
			l.refused++
			return actors.Admission{Verdict: actors.Refused, Until: g.clock.Now().Add(a.wait)}
		}
		if a.probe {
			l.probe = t
		}
	}
	if g.inFlight < g.max && l.queue.Len() == 0 && g.hasRoom(l) {
		g.enter(l)
		return actors.Admission{Verdict: actors.Admitted}
	}
	if l.queue.Len() == 0 {
		l.oldest = g.clock.Mono()
	}
	l.queue.Push(t)
	g.queued++
	return actors.Admission{Verdict: actors.Queued}
}

// hasRoom says whether what limits this consumer lets one more run.
func (g *gate) hasRoom(l *lane) bool {
	return l.inFlight < l.max && (!l.tx || g.inTx < g.maxTx)
}

func (g *gate) enter(l *lane) {
	g.inFlight++
	l.inFlight++
	if l.tx {
		g.inTx++
	}
}

func (g *gate) leave(l *lane) {
	g.inFlight--
	l.inFlight--
	if l.tx {
		g.inTx--
	}
}

// Withdraw implements actors.Gate.
func (g *gate) Withdraw(t *actors.Ticket) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	l := g.lane(t.Work.Consumer)
	if !l.queue.Remove(t) {
		return false
	}
	g.queued--
	g.endProbe(l, t)
	return true
}

// endProbe forgets a probe that did not happen or said nothing.
func (g *gate) endProbe(l *lane, t *actors.Ticket) {
	if l.probe == t {
		l.probe = nil
		l.breaker.withdrawn(true)
	}
}

// Release implements actors.Gate.
func (g *gate) Release(t *actors.Ticket, r actors.Result) (tripped bool) {
	var next [4]*actors.Ticket
	g.mu.Lock()
	l := g.lane(t.Work.Consumer)
	g.leave(l)
	l.done++
	if r == actors.Nothing {
		g.endProbe(l, t)
	} else {
		tripped = g.count(l, t, r == actors.Failed)
	}
	started := g.dispatch(next[:0])
	g.mu.Unlock()
	for _, t := range started {
		g.begin(t)
	}
	return tripped
}

func (g *gate) count(l *lane, t *actors.Ticket, failed bool) bool {
	if failed {
		l.failed++
	} else {
		l.completed++
	}
	probe := l.probe == t
	if probe {
		l.probe = nil
	}
	return l.breaker.ended(g.clock.Mono(), failed, probe)
}

// dispatch gives free places to queued tickets, consumer by consumer.
func (g *gate) dispatch(started []*actors.Ticket) []*actors.Ticket {
	for passed := 0; g.queued > 0 && g.inFlight < g.max && passed < len(g.turns); {
		l := g.turns[g.turn%len(g.turns)]
		g.turn = (g.turn + 1) % len(g.turns)
		if l.queue.Len() == 0 || !g.hasRoom(l) || l.breaker.over && l.breaker.held(g.clock.Mono()) {
			passed++
			continue
		}
		passed = 0
		started = append(started, l.queue.Pop())
		g.queued--
		g.enter(l)
	}
	return started
}

// trip opens a consumer's breaker and refuses what is queued. It reports
// whether it was closed, or half-open, before.
func (g *gate) trip(c *core.Consumer) bool {
	g.mu.Lock()
	l := g.lane(c)
	now := g.clock.Mono()
	if !l.breaker.trip(now) {
		g.mu.Unlock()
		return false
	}
	l.probe = nil
	until := g.clock.Now().Add(l.breaker.until - now)
	out := g.take(l, 0)
	g.mu.Unlock()
	for _, t := range out {
		g.refuse(t, until)
	}
	return true
}

// take removes all but the first keep tickets from a lane's queue.
func (g *gate) take(l *lane, keep int) []*actors.Ticket {
	var out []*actors.Ticket
	for l.queue.Len() > keep {
		t := l.queue.PopLast()
		g.endProbe(l, t)
		out = append(out, t)
	}
	g.queued -= len(out)
	l.refused += int64(len(out))
	return out
}

// nudge starts what could have started: after a trip that was called for and
// never came, nothing else would.
func (g *gate) nudge() {
	g.mu.Lock()
	started := g.dispatch(nil)
	g.mu.Unlock()
	for _, t := range started {
		g.begin(t)
	}
}

// The shedding of queues: a queue that does not move within shedAge is cut down
// to what it will run within about that time.
const (
	shedAge   = time.Second
	shedLater = 5 * time.Second
)

// shed makes room in a worker that is filling up: records whose delivery will
// not get its turn soon are refused, so that they go back and other consumers'
// records can come in. It is called every interval.
func (g *gate) shed(interval time.Duration) {
	g.mu.Lock()
	now := g.clock.Mono()
	until := g.clock.Now().Add(shedLater)
	var out []*actors.Ticket
	for _, l := range g.turns {
		moved := l.done - l.doneMark
		l.doneMark = l.done
		if l.queue.Len() == 0 || now-l.oldest < shedAge {
			continue
		}
		soon := int(float64(moved) * float64(shedAge) / float64(max(interval, 1)))
		out = append(out, g.take(l, max(soon, l.max))...)
	}
	g.mu.Unlock()
	for _, t := range out {
		g.refuse(t, until)
	}
}

// ConsumerHealth is a consumer at this worker.
type ConsumerHealth struct {
	Name      string       `json:"name"`
	Breaker   BreakerState `json:"breaker"`
	InFlight  int          `json:"in_flight"`
	Queued    int          `json:"queued"`
	Completed int64        `json:"completed"`
	Failed    int64        `json:"failed"`
	Refused   int64        `json:"refused"`
}

func (g *gate) health() []ConsumerHealth {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.clock.Mono()
	out := make([]ConsumerHealth, 0, len(g.turns))
	for _, l := range g.turns {
		out = append(out, ConsumerHealth{Name: l.name, Breaker: l.breaker.state(now), InFlight: l.inFlight,
			Queued: l.queue.Len(), Completed: l.completed, Failed: l.failed, Refused: l.refused})
	}
	return out
}
