package listener

import (
	"slices"
	"strings"
)

// Cause says why the claim loop is woken. Wakes are merged, so a Wake can have
// several.
type Cause uint16

// The causes.
const (
	// Granted: this worker became the sentinel. Unbounded.
	Granted Cause = 1 << iota
	// Notified: a notification named records, in Wake.Records, which are all it is about.
	Notified
	// Wanted: consumers that this worker hosts are wanted, for the record in
	// Wake.Records and maybe for others.
	Wanted
	// Due: the next due time, as given to Dry, has come.
	Due
	// Fallback: nothing made an unbounded claim necessary for a whole poll
	// interval. Unbounded. It also comes while the loop is busy, whose bounded
	// claims it completes.
	Fallback
	// Reconnected: notifications may have been missed. Unbounded.
	Reconnected
	// More: a saturated worker leaves work to others.
	More
	// Linger: work ended a moment ago; look again before going to sleep.
	Linger
	// Crowded: the calls of those who append stand in each other's way, so this
	// worker looks by itself for a while. Unbounded.
	Crowded
	// CatchUp: elected, but the sleep lock is not granted because somebody's
	// transaction is long: look for what shorter ones committed. Unbounded.
	CatchUp
)

var causeNames = []struct {
	cause Cause
	name  string
}{
	{Granted, "granted"}, {Notified, "notified"}, {Wanted, "wanted"}, {Due, "due"}, {Fallback, "fallback"},
	{Reconnected, "reconnected"}, {More, "more"}, {Linger, "linger"}, {Crowded, "crowded"}, {CatchUp, "catch_up"},
}

// Each calls f with the name of every single cause in c, for metrics.
func (c Cause) Each(f func(name string)) {
	for _, n := range causeNames {
		if c&n.cause != 0 {
			f(n.name)
		}
	}
}

// String joins the causes' names with "+".
func (c Cause) String() string {
	var names []string
	c.Each(func(name string) { names = append(names, name) })
	if names == nil {
		return "none"
	}
	return strings.Join(names, "+")
}

// maxRecords is how many records a Wake names. More of them are claimed faster
// by one claim of everything due than one by one.
const maxRecords = 16

// Wake tells the claim loop to look for work.
type Wake struct {
	Causes Cause
	// Unbounded asks for a claim that looks at every due mailbox, from the
	// first. It covers Records, which is then empty.
	Unbounded bool
	// Records are to be claimed whether due or not, without repeats.
	Records []int64
}

func (w Wake) merge(v Wake) Wake {
	w.Causes |= v.Causes
	w.Unbounded = w.Unbounded || v.Unbounded
	for _, r := range v.Records {
		if !slices.Contains(w.Records, r) {
			w.Records = append(w.Records, r)
		}
	}
	if len(w.Records) > maxRecords {
		w.Unbounded = true
	}
	if w.Unbounded {
		w.Records = nil
	}
	return w
}

// slot holds the one pending wake. put must not be called concurrently with
// itself; receiving is free to happen at any time.
type slot chan Wake

func newSlot() slot { return make(slot, 1) }

func (s slot) put(w Wake) {
	select {
	case pending := <-s:
		w = pending.merge(w)
	default:
		w = Wake{}.merge(w)
	}
	s <- w
}
