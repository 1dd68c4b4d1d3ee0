package supervisor

import (
	"sync"
	"sync/atomic"
	"time"
)

// room counts the records that are claimed, from the claim to their end, and
// calls the claim loop when there is room for as many as it waits for.
type room struct {
	max  int64
	n    atomic.Int64
	want atomic.Int64 // 0: nobody waits
	c    chan struct{}
	// empty is called when the last record has left.
	empty func()
}

func newRoom(limit int, empty func()) *room {
	return &room{max: int64(limit), c: make(chan struct{}, 1), empty: empty}
}

func (r *room) enter(n int) { r.n.Add(int64(n)) }

func (r *room) leave(n int) {
	left := r.n.Add(-int64(n))
	if left == 0 && n > 0 {
		r.empty()
	}
	free := r.max - left
	if w := r.want.Load(); w > 0 && free >= w && r.want.CompareAndSwap(w, 0) {
		signal(r.c)
	}
}

func (r *room) free() int { return int(r.max - r.n.Load()) }

// await asks for a signal on c once so many are free, perhaps at once.
func (r *room) await(n int) {
	r.want.Store(int64(n))
	r.leave(0)
}

// dueTimes keeps the earliest time at which something that this worker has
// handed back is due again.
type dueTimes struct {
	mu sync.Mutex
	at time.Time // zero: nothing new
	c  chan struct{}
}

func newDueTimes() *dueTimes { return &dueTimes{c: make(chan struct{}, 1)} }

func (d *dueTimes) offer(at time.Time) {
	d.mu.Lock()
	earlier := d.at.IsZero() || at.Before(d.at)
	if earlier {
		d.at = at
	}
	d.mu.Unlock()
	if earlier {
		signal(d.c)
	}
}

// take returns the earliest time offered since the last take.
func (d *dueTimes) take() (time.Time, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	at := d.at
	d.at = time.Time{}
	return at, !at.IsZero()
}

// wakeSlot holds the wakes that the claim loop has not taken.
type wakeSlot struct {
	mu   sync.Mutex
	wake Wake
	any  bool
	c    chan struct{}
}

func newWakeSlot() *wakeSlot { return &wakeSlot{c: make(chan struct{}, 1)} }

func (s *wakeSlot) put(w Wake) {
	s.mu.Lock()
	s.wake = s.wake.merge(w)
	s.any = true
	s.mu.Unlock()
	signal(s.c)
}

func (s *wakeSlot) take() (Wake, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w, any := s.wake, s.any
	s.wake, s.any = Wake{}, false
	return w, any
}

// signal fills a one-slot channel.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
