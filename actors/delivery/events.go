package delivery

import (
	"cmp"
	"slices"
	"sort"

	"github.com/keylinehq/keyline/internal/core"
)

// cache holds the events that are loaded, and which stretches of the stream
// they cover: within a covered stretch, a seq that is missing has been pruned.
type cache struct {
	// events are ascending, without repeats. What has once been in the slice is
	// never changed in place: works have parts of it.
	events  []core.Event
	covered []stretch         // ascending, apart
	asked   []core.EventRange // the ranges that are on their way
	askedTo int64             // the head when they were asked for
}

// stretch covers the events with after < seq <= to.
type stretch struct{ after, to int64 }

func (c *cache) reset() {
	*c = cache{covered: c.covered[:0], asked: c.asked[:0]}
}

func (c *cache) last() int64 {
	if len(c.events) == 0 {
		return 0
	}
	return c.events[len(c.events)-1].Seq
}

// load takes a Loaded's events: those above the base and above each row that is not parked.
func (c *cache) load(l *core.Loaded, limit int) {
	c.insert(l.Events)
	head := max(l.Head, c.last())
	c.cover(l.Base, head, limit, l.Events)
	for i := range l.Checkpoints {
		if k := &l.Checkpoints[i]; k.State != core.Parked {
			c.cover(k.Seq, head, limit, l.Events)
		}
	}
}

// add takes the answer to the ranges asked for, which may overlap.
func (c *cache) add(events []core.Event) {
	slices.SortFunc(events, bySeq)
	events = slices.CompactFunc(events, sameSeq)
	c.insert(events)
	for _, r := range c.asked {
		c.cover(r.From, max(c.askedTo, c.last()), r.Limit, events)
	}
	c.asked = c.asked[:0]
}

// cover notes that the first limit events above after are loaded: up to the
// last of them, or to the head where there were fewer, or to where the answer was cut.
func (c *cache) cover(after, head int64, limit int, events []core.Event) {
	i := sort.Search(len(events), func(i int) bool { return events[i].Seq > after })
	to := head
	if len(events)-i >= limit {
		to = events[i+limit-1].Seq
	}
	if k := slices.IndexFunc(events[i:], func(e core.Event) bool { return e.Cut }); k >= 0 {
		to = min(to, events[i+k].Seq)
	}
	if to <= after {
		return
	}
	merged := stretch{after, to}
	kept := c.covered[:0]
	for _, s := range c.covered {
		if s.after <= merged.to && merged.after <= s.to {
			merged = stretch{min(s.after, merged.after), max(s.to, merged.to)}
		} else {
			kept = append(kept, s)
		}
	}
	c.covered = append(kept, merged)
	slices.SortFunc(c.covered, func(a, b stretch) int { return cmp.Compare(a.after, b.after) })
}

func bySeq(a, b core.Event) int    { return cmp.Compare(a.Seq, b.Seq) }
func sameSeq(a, b core.Event) bool { return a.Seq == b.Seq }

// insert takes events that are ascending, without repeats.
func (c *cache) insert(events []core.Event) {
	if len(events) == 0 {
		return
	}
	switch {
	case len(c.events) == 0:
		c.events = slices.Clip(events)
		return
	case events[0].Seq > c.last():
		c.events = append(c.events, events...)
		return
	}
	c.events = slices.Concat(c.events, events)
	slices.SortStableFunc(c.events, bySeq)
	c.events = slices.CompactFunc(c.events, sameSeq)
}

// next returns the first event above seq. known is false where it is not
// loaded; where known is true and the event nil, there is none up to the seq `to`.
func (c *cache) next(seq int64) (e *core.Event, to int64, known bool) {
	for _, s := range c.covered {
		if s.after <= seq && seq < s.to {
			i := c.search(seq)
			if i < len(c.events) && c.events[i].Seq <= s.to {
				return &c.events[i], c.events[i].Seq, true
			}
			return nil, s.to, true
		}
	}
	return nil, 0, false
}

// get returns the event with this seq; known is false where it is not loaded.
func (c *cache) get(seq int64) (e *core.Event, known bool) {
	e, _, known = c.next(seq - 1)
	if e != nil && e.Seq != seq {
		e = nil
	}
	return e, known
}

func (c *cache) search(seq int64) int {
	if len(c.events) > 0 {
		// Streams rarely have gaps.
		if i := seq + 1 - c.events[0].Seq; i >= 0 && i < int64(len(c.events)) && c.events[i].Seq == seq+1 {
			return int(i)
		}
	}
	return sort.Search(len(c.events), func(i int) bool { return c.events[i].Seq > seq })
}

// keptBytes is how many bytes of payload are much, be they of few events.
const keptBytes = 64 << 10

// bytes is the size of the payloads that are kept.
func (c *cache) bytes() (n int) {
	for i := range c.events {
		n += len(c.events[i].Payload)
	}
	return n
}

// forget drops events up to seq, once there are many, or much.
func (c *cache) forget(seq int64, limit int) {
	if len(c.events) < 4*limit && c.bytes() < keptBytes {
		return
	}
	i := c.search(seq)
	c.events = slices.Clone(c.events[i:])
	kept := c.covered[:0]
	for _, s := range c.covered {
		if s.to > seq {
			kept = append(kept, stretch{max(s.after, seq), s.to})
		}
	}
	c.covered = kept
}
