package supervisor

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/keylinehq/keyline/actors"
	"github.com/keylinehq/keyline/actors/delivery"
	"github.com/keylinehq/keyline/internal/core"
)

// place is a seat with the supervisor's side of it: it is the seat's host.
type place struct {
	s     *Supervisor
	seat  *actors.Seat
	alarm alarm

	// Guarded by the table's lock.
	taken   bool
	claim   core.Claim
	gen     uint64
	since   time.Duration // when it was taken, or last asked after
	head    int64         // as last told to the seat
	suspect bool
}

// table is all places and who sits there.
type table struct {
	mu     sync.Mutex
	places map[*place]struct{}
	free   []*place
	taken  int
	// changed is closed when a place has become free or is gone, if somebody waits.
	changed chan struct{}

	settled, handedBack, fenced int64 // records, over the worker's life
}

func newTable() *table { return &table{places: map[*place]struct{}{}} }

// take seats a claim on a free place, or on a new one, which has no actor yet.
func (t *table) take(c core.Claim, gen uint64, head int64, now time.Duration, fresh func() *place) (p *place, isNew bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := len(t.free); n > 0 {
		p = t.free[n-1]
		t.free[n-1] = nil
		t.free = t.free[:n-1]
	} else {
		p, isNew = fresh(), true
		t.places[p] = struct{}{}
	}
	p.taken, p.claim, p.gen, p.since, p.head, p.suspect = true, c, gen, now, head, c.Crashes > 0
	t.taken++
	return p, isNew
}

// end frees a place; one that is not reusable is gone. It reports whether a
// record was there, and whether it was a suspect.
func (t *table) end(p *place, e actors.End) (was, suspect bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, known := t.places[p]; !known {
		return false, false
	}
	was, suspect = p.taken, p.suspect
	if !was { // its actor has ended while it was free
		t.free = slices.DeleteFunc(t.free, func(f *place) bool { return f == p })
	}
	if was {
		t.taken--
		switch e.Why {
		case delivery.StopSettled:
			t.settled++
		case delivery.StopHandedBack:
			t.handedBack++
		case delivery.StopFenced:
			t.fenced++
		}
	}
	p.taken, p.suspect, p.claim = false, false, core.Claim{}
	if e.Reusable {
		t.free = append(t.free, p)
	} else {
		delete(t.places, p)
	}
	t.notifyLocked()
	return was, suspect
}

// notify makes those in wait look again.
func (t *table) notify() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.notifyLocked()
}

func (t *table) notifyLocked() {
	if t.changed != nil {
		close(t.changed)
		t.changed = nil
	}
}

// wait returns when done, which is called with the lock held, says so.
func (t *table) wait(ctx context.Context, done func() bool) error {
	for {
		t.mu.Lock()
		if done() {
			t.mu.Unlock()
			return nil
		}
		if t.changed == nil {
			t.changed = make(chan struct{})
		}
		changed := t.changed
		t.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// of counts the taken places of an incarnation; the lock is held.
func (t *table) of(gen uint64) int {
	n := 0
	for p := range t.places {
		if p.taken && p.gen == gen {
			n++
		}
	}
	return n
}

// each calls f for every taken place, without the lock.
func (t *table) each(f func(p *place)) {
	t.mu.Lock()
	all := make([]*place, 0, t.taken)
	for p := range t.places {
		if p.taken {
			all = append(all, p)
		}
	}
	t.mu.Unlock()
	for _, p := range all {
		f(p)
	}
}

// held appends the claims that sit here.
func (t *table) held(out []core.Held) []core.Held {
	t.mu.Lock()
	defer t.mu.Unlock()
	for p := range t.places {
		if p.taken {
			out = append(out, core.Held{Record: p.claim.Record, Token: p.claim.Token})
		}
	}
	return out
}

// resident is a record that has been here for a while.
type resident struct {
	place *place
	claim core.Claim
	head  int64
}

// residents are the records that were not asked after for age.
func (t *table) residents(now, age time.Duration) []resident {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []resident
	for p := range t.places {
		if p.taken && now-p.since >= age {
			out = append(out, resident{p, p.claim, p.head})
		}
	}
	return out
}

// told notes that a resident was asked after, and which head it was told.
func (t *table) told(r resident, now time.Duration, head int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if r.place.taken && r.place.claim.Token == r.claim.Token {
		r.place.since, r.place.head = now, head
	}
}

// trim takes all but keep of the free places out.
func (t *table) trim(keep int) []*place {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.taken > 0 || len(t.free) <= keep {
		return nil
	}
	out := append([]*place(nil), t.free[keep:]...)
	clear(t.free[keep:])
	t.free = t.free[:keep]
	for _, p := range out {
		delete(t.places, p)
	}
	return out
}

// The place as the seat's host.

// LoadEvents implements actors.Host.
func (p *place) LoadEvents(r actors.Request, ranges []core.EventRange) {
	p.s.events.add(eventsItem{p.seat, r, ranges})
}

// Reload implements actors.Host.
func (p *place) Reload(r actors.Request, registry bool) {
	p.s.loader.reload(reloadItem{p.seat, r, registry})
}

// WakeAt implements actors.Host.
func (p *place) WakeAt(at time.Time) {
	c := p.s.cfg.Clock
	p.s.timers.set(&p.alarm, after(c.Mono(), at.Sub(c.Now())))
}

// Cleared implements actors.Host.
func (p *place) Cleared(record, token int64) {
	p.s.table.mu.Lock()
	p.suspect = false
	p.s.table.mu.Unlock()
	p.s.suspectEnded(record, token)
}

// Ended implements actors.Host.
func (p *place) Ended(e actors.End) {
	p.s.timers.clear(&p.alarm)
	was, suspect := p.s.table.end(p, e)
	if !was {
		return
	}
	if suspect {
		p.s.suspectEnded(e.Record, e.Token)
	}
	if !e.DueAt.IsZero() {
		p.s.due.offer(e.DueAt)
	}
	p.s.room.leave(1)
}
