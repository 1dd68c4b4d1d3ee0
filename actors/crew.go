package actors

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/asynkron/protoactor-go/actor"
)

// Crew is the goroutines that a worker's actors and handlers run on. A
// goroutine that is made anew for every message, as the actor library does, and
// for every handler, grows its stack each time; these keep theirs. (Seen: more
// than half of a drain's processor time went into growing stacks.)
type Crew struct {
	queue   chan *mailbox
	n       int // goroutines that run actors
	closed  atomic.Bool
	workers sync.WaitGroup

	mu      sync.Mutex
	jobs    []job // handlers to run, from taken on
	taken   int
	waiting atomic.Int32 // how many
	idle    []*hand
	rousing bool // a hand has been woken and has not looked yet
	off     bool
}

const (
	// crewQueue is how many actors may wait to be run; beyond it each gets a
	// goroutine of its own.
	crewQueue = 8192
	// idleHands is how many goroutines are kept for the next handlers.
	idleHands = 256
	// throughput is how many messages are handled between two recovers, and
	// maxTurns how often that is done before other actors have their turn.
	throughput = 50
	maxTurns   = 4
)

// NewCrew starts the goroutines that run actors. Receives do not block, so one
// per processor is enough.
func NewCrew() *Crew {
	c := &Crew{queue: make(chan *mailbox, crewQueue), n: runtime.GOMAXPROCS(0)}
	for range c.n {
		c.workers.Go(c.work)
	}
	return c
}

// Props makes the properties of an actor that runs on the crew.
func (c *Crew) Props(producer actor.Producer) *actor.Props {
	return actor.PropsFromProducer(producer, actor.WithMailbox(func() actor.Mailbox { return &mailbox{crew: c} }))
}

// InlineProps makes the properties of an actor that runs on the goroutine of
// whoever sends to it (the library calls that a synchronized dispatcher): for one that
// does next to nothing, where the way to another goroutine would be most of the cost.
func InlineProps(producer actor.Producer) *actor.Props {
	return actor.PropsFromProducer(producer, actor.WithMailbox(func() actor.Mailbox { return &mailbox{} }))
}

func (c *Crew) work() {
	for m := range c.queue {
		if m == nil {
			return
		}
		m.run()
		// The handlers that it started run next, here, while all that they and
		// their record touch is in this processor's cache. Without this all records of a
		// batch began before the first handler ran: measured, a tenth less throughput.
		if c.waiting.Load() > 0 {
			runtime.Gosched()
		}
	}
}

func (c *Crew) schedule(m *mailbox) {
	if !c.closed.Load() {
		select {
		case c.queue <- m:
			return
		default:
		}
	}
	go m.run()
}

type job struct {
	ctx    context.Context
	ticket *Ticket
}

// run has a ticket's handler run, on a goroutine that perhaps has run others
// before. One hand at a time is woken for what waits, and wakes the next if it finds
// more than it takes: quick handlers follow each other on one goroutine, and one that
// takes its time keeps nobody.
func (c *Crew) run(ctx context.Context, t *Ticket) {
	c.mu.Lock()
	if len(c.jobs) == cap(c.jobs) && c.taken > len(c.jobs)/2 {
		n := copy(c.jobs, c.jobs[c.taken:])
		clear(c.jobs[n:])
		c.jobs, c.taken = c.jobs[:n], 0
	}
	c.jobs = append(c.jobs, job{ctx, t})
	c.waiting.Add(1)
	h := c.rouse()
	c.mu.Unlock()
	h.wake()
}

// hand is a goroutine that runs handlers, one after the other.
type hand struct {
	crew   *Crew
	called chan struct{} // nil: it is new
}

// rouse chooses the hand to wake, nil where one is on its way; the lock is held.
func (c *Crew) rouse() *hand {
	if c.rousing || len(c.jobs) == c.taken {
		return nil
	}
	c.rousing = true
	n := len(c.idle)
	if n == 0 {
		return &hand{crew: c}
	}
	h := c.idle[n-1]
	c.idle[n-1] = nil
	c.idle = c.idle[:n-1]
	return h
}

func (h *hand) wake() {
	switch {
	case h == nil:
	case h.called == nil:
		h.called = make(chan struct{}, 1)
		go h.serve()
	default:
		h.called <- struct{}{}
	}
}

// serve is a hand's life. A handler that ends its goroutine (runtime.Goexit)
// ends the hand with it.
func (h *hand) serve() {
	c := h.crew
	c.mu.Lock()
	c.rousing = false
	for {
		j, any := c.take()
		if any {
			next := c.rouse()
			c.mu.Unlock()
			next.wake()
			j.ticket.exec(j.ctx)
			c.mu.Lock()
			continue
		}
		kept := !c.off && len(c.idle) < idleHands
		if kept {
			c.idle = append(c.idle, h)
		}
		c.mu.Unlock()
		if !kept {
			return
		}
		if _, open := <-h.called; !open {
			return
		}
		c.mu.Lock()
		c.rousing = false
	}
}

// take takes the job that has waited longest; the lock is held.
func (c *Crew) take() (j job, any bool) {
	if c.taken == len(c.jobs) {
		return job{}, false
	}
	j, c.jobs[c.taken] = c.jobs[c.taken], job{}
	c.waiting.Add(-1)
	if c.taken++; c.taken == len(c.jobs) {
		c.jobs, c.taken = c.jobs[:0], 0
	}
	return j, true
}

// Close lets the goroutines end: at once where they are idle, else after what
// they are at. It waits for those that run actors, not for handlers. What is
// scheduled later runs on goroutines of its own.
func (c *Crew) Close() {
	c.mu.Lock()
	idle := c.idle
	c.idle, c.off = nil, true
	c.mu.Unlock()
	for _, h := range idle {
		close(h.called)
	}
	if c.closed.CompareAndSwap(false, true) {
		for range c.n {
			c.queue <- nil
		}
		c.workers.Wait()
	}
}
