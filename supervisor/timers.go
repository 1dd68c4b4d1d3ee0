package supervisor

import (
	"container/heap"
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/keylinehq/keyline/internal/clock"
)

// timers wakes records at their times: one goroutine, one clock timer, one heap
// for all of them.
//
// A record changes its mind with nearly every step, and nearly always to a
// later time. So the heap keeps the earliest time that a record has asked for;
// when that comes, it looks at what the record wants by then. Setting a later
// time costs two atomic operations and no lock.
type timers struct {
	clock clock.Clock
	mu    sync.Mutex
	heap  alarmHeap
	poke  chan struct{} // one slot: the earliest time changed
}

// alarm is one record's place in the timers.
type alarm struct {
	fire  func()
	want  atomic.Int64 // when, monotonic; 0: not at all
	armed atomic.Int64 // when it stands in the heap; 0: not in it
	at    time.Duration
	index int
}

func newTimers(c clock.Clock) *timers {
	return &timers{clock: c, poke: make(chan struct{}, 1)}
}

// set makes a fire at the monotonic time at, in place of any earlier wish.
func (t *timers) set(a *alarm, at time.Duration) {
	at = max(at, 1)
	a.want.Store(int64(at))
	if armed := a.armed.Load(); armed != 0 && armed <= int64(at) {
		return // the goroutine sees the new wish when that time comes
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	switch armed := a.armed.Load(); {
	case armed == 0:
		a.at = at
		heap.Push(&t.heap, a)
	case armed <= int64(at):
		return
	default:
		a.at = at
		heap.Fix(&t.heap, a.index)
	}
	a.armed.Store(int64(at))
	if a.index == 0 {
		select {
		case t.poke <- struct{}{}:
		default:
		}
	}
}

// clear makes a not fire; a place in the heap may stay until its time.
func (t *timers) clear(a *alarm) { a.want.Store(0) }

// run fires alarms until ctx ends.
func (t *timers) run(ctx context.Context) error {
	timer := t.clock.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		if next := t.fireDue(t.clock.Mono()); next == never {
			timer.Stop()
		} else {
			timer.Reset(max(next-t.clock.Mono(), 0))
		}
		select {
		case <-timer.C():
		case <-t.poke:
		case <-ctx.Done():
			return nil
		}
	}
}

// fireDue fires what is due and returns when the next is.
func (t *timers) fireDue(now time.Duration) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	for len(t.heap) > 0 {
		a := t.heap[0]
		if a.at > now {
			return a.at
		}
		// Not in the heap, then read the wish: whoever sets one meanwhile sees
		// that it must come here.
		a.armed.Store(0)
		want := time.Duration(a.want.Load())
		if want > now {
			a.at = want
			a.armed.Store(int64(want))
			heap.Fix(&t.heap, 0)
			continue
		}
		heap.Pop(&t.heap)
		if want != 0 && a.want.CompareAndSwap(int64(want), 0) {
			a.fire()
		}
	}
	return never
}

type alarmHeap []*alarm

func (h alarmHeap) Len() int           { return len(h) }
func (h alarmHeap) Less(i, j int) bool { return h[i].at < h[j].at }
func (h alarmHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

func (h *alarmHeap) Push(x any) {
	a := x.(*alarm)
	a.index = len(*h)
	*h = append(*h, a)
}

func (h *alarmHeap) Pop() any {
	old := *h
	a := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return a
}
