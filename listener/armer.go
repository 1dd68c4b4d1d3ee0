package listener

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/keylinehq/keyline/internal/clock"
	"github.com/keylinehq/keyline/internal/core"
)

const (
	// callTimeout bounds the calls that do not wait for a lock.
	callTimeout = 10 * time.Second
	// stopTimeout bounds the last release at a stop: after it the session is
	// closed, which gives up the locks too.
	stopTimeout = 2 * time.Second
	// retryMin and retryMax are the pauses after failures of the session.
	retryMin = 100 * time.Millisecond
	retryMax = 5 * time.Second
)

// armer carries out arming cycles on a goroutine of its own: a cancelled
// request took 100 ms, which is no time to keep a claim loop waiting.
type armer struct {
	session core.Arming
	clock   clock.Clock
	log     *slog.Logger

	// The reports; called without locks held.
	elected, granted, lost, crowded func(term int64)

	mu     sync.Mutex
	want   int64 // the wanted term; 0: none
	ping   bool
	cancel context.CancelFunc // of the blocking call under way; nil: none
	poke   chan struct{}
}

func newArmer(session core.Arming, c clock.Clock, log *slog.Logger) *armer {
	return &armer{session: session, clock: c, log: log, poke: make(chan struct{}, 1)}
}

// arm asks for a cycle under a term, or with 0 for none. It does not block.
func (a *armer) arm(term int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.want, a.ping = term, false
	if a.cancel != nil {
		a.cancel()
	}
	a.wake()
}

// check asks for a ping. It does not block.
func (a *armer) check() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ping = true
	a.wake()
}

func (a *armer) wake() {
	select {
	case a.poke <- struct{}{}:
	default:
	}
}

// run works until ctx ends, then leaves no lock behind.
func (a *armer) run(ctx context.Context) {
	c := cycle{armer: a}
	// It connects before it is needed: until it is elected, appenders wake nobody. Where it cannot, it is
	// not tried again for nothing, as the pauses in between would be in the way once it is.
	if err := c.release(ctx, callTimeout); err != nil {
		a.log.DebugContext(ctx, "arming session not connected yet", "error", err)
	}
	for {
		want, ping := a.next()
		switch {
		case ctx.Err() != nil:
			c.stop(ctx)
			return
		case want != c.held || (want == 0 && c.owed):
			c.advance(ctx, want)
		case ping && want != 0:
			c.pingHeld(ctx)
		default:
			select {
			case <-a.poke:
			case <-ctx.Done():
			}
		}
	}
}

// next reads what is wanted, and takes the wish for a ping.
func (a *armer) next() (want int64, ping bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	want, ping = a.want, a.ping
	a.ping = false
	return want, ping
}

// begin makes the context of a blocking call, which ends when another term is
// wanted. ok is false where that is so already.
func (a *armer) begin(ctx context.Context, term int64) (call context.Context, end func(), ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.want != term {
		return nil, nil, false
	}
	call, cancel := context.WithCancel(ctx)
	a.cancel = cancel
	return call, func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.cancel = nil
		cancel()
	}, true
}

// cycle is what the armer's goroutine knows of the locks.
type cycle struct {
	*armer
	held int64 // the term that has been granted; 0: none
	// clean: a Release has succeeded and nothing was asked since. Initially
	// false, as it is Release that connects.
	clean bool
	// owed: locks may be held, so a Release is due even if none is wanted.
	owed     bool
	warned   bool
	failures int
}

// advance goes one step towards the wanted term: release, or elect and request.
func (c *cycle) advance(ctx context.Context, want int64) {
	if !c.clean {
		c.held = 0
		if err := c.release(ctx, callTimeout); err != nil {
			c.failed(ctx, "release", err)
		}
		return
	}
	if want == 0 {
		return
	}
	call, end, ok := c.begin(ctx, want)
	if !ok {
		return
	}
	defer end()
	// From here on the locks' state is unknown until a Release has succeeded:
	// a request that is cancelled may have been granted all the same.
	c.clean, c.owed = false, true
	what := "elect"
	err := c.session.Elect(call)
	if err == nil {
		c.elected(want)
		what = "request"
		err = c.session.Request(call)
	}
	switch {
	case err == nil:
		c.held, c.failures, c.warned = want, 0, false
		c.granted(want)
	case call.Err() != nil: // cancelled: the next step releases
	default:
		c.lost(want)
		c.failed(ctx, what, err)
	}
}

// release ends whatever is held. A new session begins with it too.
func (c *cycle) release(ctx context.Context, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := c.session.Release(ctx)
	if err == nil {
		c.clean, c.owed = true, false
	}
	return err
}

func (c *cycle) pingHeld(ctx context.Context) {
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	switch crowded, err := c.session.Ping(call); {
	case err != nil && ctx.Err() == nil:
		term := c.held
		c.held = 0
		c.lost(term)
		c.failed(ctx, "ping", err)
	case err == nil && crowded:
		c.crowded(c.held)
	}
}

// failed waits before the next try, and logs the first of a run of failures.
func (c *cycle) failed(ctx context.Context, what string, err error) {
	if ctx.Err() != nil {
		return
	}
	level := slog.LevelDebug
	if !c.warned {
		level, c.warned = slog.LevelWarn, true
	}
	c.log.Log(ctx, level, "arming session failed; polling until it is back", "call", what, "error", err)
	pause := min(retryMin<<min(c.failures, 10), retryMax)
	c.failures++
	if clock.Sleep(ctx, c.clock, pause) != nil {
		return // ctx has ended, which run looks at
	}
}

// stop releases what may be held and closes the session.
func (c *cycle) stop(ctx context.Context) {
	if c.owed {
		if err := c.release(context.WithoutCancel(ctx), stopTimeout); err != nil {
			c.log.DebugContext(ctx, "arming session not released; closing it", "error", err)
		}
	}
	c.session.Close()
}
