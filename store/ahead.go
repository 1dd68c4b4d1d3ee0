package store

import (
	"sync"

	"github.com/keylinehq/keyline/internal/core"
)

// aheadBytes is how many bytes of payload are read ahead above one position of one record; an event that has more is read alone.
// However large payloads are, a backlog of thousands of records with many events each has to find room in a worker.
const aheadBytes = 64 << 10

// readAhead is how many events are read above each position. What is too much is left out as it arrives, and has come over
// the network in vain: so fewer are asked for next, until all that comes is kept again.
type readAhead struct {
	mu    sync.Mutex
	limit int // 0: as many as are asked for
}

func (a *readAhead) most(asked int) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.limit == 0 {
		return asked
	}
	return min(a.limit, asked)
}

// read takes how many events of a read were left out.
func (a *readAhead) read(dropped int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case dropped > 0 && a.limit == 0:
		a.limit = aheadMost
	case dropped > 0:
		a.limit = max(a.limit/2, 1)
	case a.limit >= aheadMost:
		a.limit = 0
	case a.limit > 0:
		a.limit *= 2
	}
}

// aheadMost is the first limit, and the last one before there is none.
const aheadMost = 32

// position is where a read of a record's events begins: above this seq.
type position struct{ record, seq int64 }

// ration is what has been kept of the events above one position, which come in the order of their seqs.
type ration struct {
	limit, asked int // how many come at most, and how many whoever asked believes may come
	n, bytes     int
	last         int // where the last one is kept
}

// take keeps an event, or leaves it out where there is too much already. The last one that is kept then says so; and where
// no more come than were asked of the database, it is not known what follows.
func (r *ration) take(kept *[]core.Event, e core.Event) bool {
	size := len(e.Payload)
	if r.n > 0 && r.bytes+size > aheadBytes {
		(*kept)[r.last].Cut = true
		r.bytes = aheadBytes + 1 // nor any that is smaller
		return false
	}
	r.n++
	r.bytes += size
	r.last = len(*kept)
	e.Cut = r.n == r.limit && r.limit < r.asked
	*kept = append(*kept, e)
	return true
}
