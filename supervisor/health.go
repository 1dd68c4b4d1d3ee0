package supervisor

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/keylinehq/keyline/internal/clock"
)

// LoopHealth is one background loop of the worker.
type LoopHealth struct {
	Name string `json:"name"`
	OK   bool   `json:"ok"`
	// Error is the last failure's text while the loop has not worked since.
	Error string `json:"error,omitempty"`
	// Failures is how often it has failed, in all.
	Failures int `json:"failures"`
	// Since is when its present state began.
	Since time.Time `json:"since"`
}

// health is the state of the loops.
type health struct {
	clock clock.Clock
	mu    sync.Mutex
	loops map[string]*loopState
}

type loopState struct {
	err      error
	failures int
	since    time.Time
}

func newHealth(c clock.Clock) *health { return &health{clock: c, loops: map[string]*loopState{}} }

func (h *health) add(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.loops[name] = &loopState{since: h.clock.Now()}
}

func (h *health) failed(name string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	l := h.loops[name]
	if l.err == nil {
		l.since = h.clock.Now()
	}
	l.err = err
	l.failures++
}

// worked: the loop has done what it is for.
func (h *health) worked(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if l := h.loops[name]; l.err != nil {
		l.err, l.since = nil, h.clock.Now()
	}
}

func (h *health) lastError(name string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if l := h.loops[name]; l != nil {
		return l.err
	}
	return errors.New("not started")
}

func (h *health) snapshot() []LoopHealth {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := make([]LoopHealth, 0, len(h.loops))
	for name, l := range h.loops {
		s := LoopHealth{Name: name, OK: l.err == nil, Failures: l.failures, Since: l.since}
		if l.err != nil {
			s.Error = l.err.Error()
		}
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b LoopHealth) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// stats are totals over the worker's life.
type stats struct {
	claims, claimed    atomic.Int64
	fenced, lost       atomic.Int64
	recovered, orphans atomic.Int64
	breakerTrips       atomic.Int64
	wakeMu             sync.Mutex
	wakes              map[string]int64
}

func (s *stats) woken(cause string) {
	s.wakeMu.Lock()
	defer s.wakeMu.Unlock()
	if s.wakes == nil {
		s.wakes = map[string]int64{}
	}
	s.wakes[cause]++
}

// Health is a worker as its operator sees it. It holds no payloads.
type Health struct {
	// Worker is the present incarnation, 0 while there is none.
	Worker int64 `json:"worker"`
	// State is "starting", "running", "fenced", "stopping" or "stopped".
	State     string           `json:"state"`
	Resident  int              `json:"resident"`
	Loops     []LoopHealth     `json:"loops"`
	Consumers []ConsumerHealth `json:"consumers"`

	// Totals over the worker's life.

	Claims       int64            `json:"claims"`  // claim calls
	Claimed      int64            `json:"claimed"` // records
	Settled      int64            `json:"settled"`
	HandedBack   int64            `json:"handed_back"`
	FencedClaims int64            `json:"fenced_claims"` // records whose claim was lost
	Fenced       int64            `json:"fenced"`        // times this worker was
	Lost         int64            `json:"lost"`          // workers that it marked lost
	Recovered    int64            `json:"recovered"`     // claims that it recovered
	Orphans      int64            `json:"orphans"`       // claims that it handed back unheld
	BreakerTrips int64            `json:"breaker_trips"`
	Wakes        map[string]int64 `json:"wakes"` // by cause
}

// Healthy reports whether the worker has joined and every loop works.
func (h Health) Healthy() bool {
	if h.State != "running" {
		return false
	}
	for _, l := range h.Loops {
		if !l.OK {
			return false
		}
	}
	return true
}

// Health is the present state.
func (s *Supervisor) Health() Health {
	h := Health{Worker: s.Worker(), State: s.state(), Resident: int(s.room.n.Load()),
		Loops: s.health.snapshot(), Consumers: s.gate.health(),
		Claims: s.stats.claims.Load(), Claimed: s.stats.claimed.Load(), Fenced: s.stats.fenced.Load(),
		Lost: s.stats.lost.Load(), Recovered: s.stats.recovered.Load(), Orphans: s.stats.orphans.Load(),
		BreakerTrips: s.stats.breakerTrips.Load(), Wakes: map[string]int64{}}
	s.table.mu.Lock()
	h.Settled, h.HandedBack, h.FencedClaims = s.table.settled, s.table.handedBack, s.table.fenced
	s.table.mu.Unlock()
	s.stats.wakeMu.Lock()
	for cause, n := range s.stats.wakes {
		h.Wakes[cause] = n
	}
	s.stats.wakeMu.Unlock()
	return h
}

func (s *Supervisor) state() string {
	select {
	case <-s.life.done:
		return "stopped"
	default:
	}
	switch {
	case s.draining.Load():
		return "stopping"
	case s.inc.Load() != nil:
		return "running"
	case s.fencedWorker.Load() != 0:
		return "fenced"
	}
	return "starting"
}

// published is what others may read of this worker in the workers table.
func (s *Supervisor) published() []byte {
	state, err := json.Marshal(struct {
		State     string           `json:"state"`
		Resident  int              `json:"resident"`
		Consumers []ConsumerHealth `json:"consumers"`
	}{s.state(), int(s.room.n.Load()), s.gate.health()})
	if err != nil { // of these types there is none
		return []byte("{}")
	}
	return state
}
