package supervisor

import (
	"time"

	"github.com/keylinehq/keyline/internal/core"
)

// lease decides how long a worker may believe that it is believed alive. All
// times are monotonic.
//
// An observer marks a worker lost once it has seen the same beat for a whole
// lease. The beat of a renewal cannot be seen before the renewal began, so
// nobody can mark the worker before begin + length: the trust window runs from
// the begin of the last renewal that succeeded, and ends a margin earlier, in
// which the handlers are cancelled and the actors fenced.
type lease struct {
	length, every time.Duration
	begun         time.Duration // begin of the last successful renewal
	due           time.Duration // when to renew next
	failures      int           // since then
}

// trustMargin is the share of a lease that is kept for ending in time, and for
// clocks that do not run at quite the same pace.
const trustMargin = 10

// renewed: a renewal that began then has succeeded.
func (l *lease) renewed(begun time.Duration) {
	l.begun = max(l.begun, begun)
	l.due = l.begun + l.every
	l.failures = 0
}

// failed: a renewal has failed, or its answer is not known; the next one
// follows soon.
func (l *lease) failed(now time.Duration) {
	l.failures++
	l.due = now + min(l.every/20<<min(l.failures-1, 8), l.every/4)
}

// ends is when the trust ends.
func (l *lease) ends() time.Duration { return l.begun + l.length - l.length/trustMargin }

// trusted reports whether the worker may go on.
func (l *lease) trusted(now time.Duration) bool { return now < l.ends() }

// observer decides which other workers are lost. It believes nothing but what
// it saw itself, without a gap, on its own monotonic clock: so neither a clock
// step nor an outage of the database kills the living.
type observer struct {
	self  int64
	grace time.Duration // silence that is forgiven beyond a lease
	// gap is the longest pause between two looks, and the longest that a look
	// may take, before what was seen earlier counts for nothing.
	gap  time.Duration
	last time.Duration // end of the last look
	seen map[int64]sighting
}

type sighting struct {
	beat  int64
	since time.Duration // end of the look that first saw it
}

// forget drops what was seen: the observer was not connected all along.
func (o *observer) forget() { o.seen = nil }

// look takes what one look read, from its begin to its end, and returns the
// beats whose workers are lost.
func (o *observer) look(begin, end time.Duration, beats []core.Beat) []core.Beat {
	if begin-o.last > o.gap || end-begin > o.gap {
		o.forget()
	}
	o.last = end
	seen := make(map[int64]sighting, len(beats))
	var lost []core.Beat
	for _, b := range beats {
		if b.Worker == o.self {
			continue
		}
		s, known := o.seen[b.Worker]
		if !known || s.beat != b.Beat {
			s = sighting{b.Beat, end}
		}
		seen[b.Worker] = s
		// The beat stood from the end of the look that first saw it to the begin
		// of this one, at least.
		// Nothing is added to the lease: with a grace that says never the sum would be in the past.
		if begin-s.since-b.Lease >= o.grace {
			lost = append(lost, b)
		}
	}
	o.seen = seen
	return lost
}
