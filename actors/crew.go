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

	mu   sync.Mutex
	idle []*hand
	off  bool
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
		runtime.Gosched()
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

// hand is a goroutine that runs handlers, one after the other.
type hand struct {
	crew *Crew
	next chan job
	kept bool // it is with the idle ones, or has been given its next job
}

type job struct {
	ctx    context.Context
	ticket *Ticket
}

// run runs a ticket's handler on a goroutine that has nothing else to do, and
// perhaps has run others before.
func (c *Crew) run(ctx context.Context, t *Ticket) {
	c.mu.Lock()
	var h *hand
	if n := len(c.idle); n > 0 {
		h = c.idle[n-1]
		c.idle = c.idle[:n-1]
	}
	c.mu.Unlock()
	if h == nil {
		h = &hand{crew: c, next: make(chan job, 1)}
		go h.serve()
	}
	h.next <- job{ctx, t}
}

// serve is a hand's life. A handler that ends its goroutine (runtime.Goexit)
// ends the hand with it.
func (h *hand) serve() {
	for j := range h.next {
		h.kept = false
		j.ticket.exec(j.ctx, h)
		if !h.kept {
			return
		}
	}
}

// rest puts a hand whose handler has returned back, where there are not enough.
// It is called before the handler's place is given on: the next handler then
// most often gets this very goroutine, which needs no waking.
func (h *hand) rest() {
	c := h.crew
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.off || len(c.idle) >= idleHands {
		return
	}
	h.kept = true
	c.idle = append(c.idle, h)
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
		close(h.next)
	}
	if c.closed.CompareAndSwap(false, true) {
		for range c.n {
			c.queue <- nil
		}
		c.workers.Wait()
	}
}
