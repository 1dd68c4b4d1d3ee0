package supervisor

import (
	"context"
	"time"
)

// Wakes tells the claim loop when to look for work, and others when this
// worker sleeps.
//
// The loop drives itself while it finds work. It says Busy whenever it has
// found much, or has no room for more, and Dry when a claim that looked at
// everything found nothing; then it waits for a wake. After a grant of the
// sleep lock (or a reconnect) the wake is Unbounded, and the loop looks at
// everything once more before it sleeps on. The fallback poll and due times
// come as wakes too. Busy and Dry must not block.
type Wakes interface {
	// Wait returns the next wake. Wakes that come meanwhile are merged into
	// one, never dropped. It is called from one goroutine, again and again.
	Wait(ctx context.Context) (Wake, error)
	// Busy: awake, nobody needs to call. A loop that finds a little now and then
	// does not say it: it stays dry, and is called for each.
	Busy()
	// Dry: nothing to do. The next mailbox that this worker could claim is due
	// in d, if ok. It is said again with a shorter d where a hand-back of this
	// worker's makes one due earlier.
	Dry(d time.Duration, ok bool)
	// More asks other idle workers to look: there is more here than this one
	// has room for. It may block; it is called from a goroutine of its own.
	More()
}

// Wake is a reason to look for work.
type Wake struct {
	// Unbounded asks for a claim that looks at every due mailbox.
	Unbounded bool
	// Records are to be claimed whether due or not.
	Records []int64
	// Look asks for a claim of whatever is due, too. Without it the records are
	// all that can have come up since the loop was dry.
	Look bool
	// Cause names the reason, for counting.
	Cause string
}

// merge joins a wake that has not been acted on with a new one.
func (w Wake) merge(v Wake) Wake {
	w.Unbounded = w.Unbounded || v.Unbounded
	w.Look = w.Look || v.Look
	w.Records = append(w.Records, v.Records...)
	if v.Cause != "" {
		w.Cause = v.Cause
	}
	return w
}
