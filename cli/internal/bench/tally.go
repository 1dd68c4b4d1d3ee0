package bench

import (
	"fmt"
	"math/bits"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/keylinehq/keyline"
)

// tally is what the handlers check: that each consumer gets each event of each
// record once, and not before the older ones.
type tally struct {
	prefix string
	events int
	seen   [][]atomic.Uint64 // by consumer and record: one bit per seq

	left            atomic.Int64
	done            chan struct{}
	end             sync.Once
	violations      atomic.Int64
	duplicates      atomic.Int64
	unknown         atomic.Int64
	firstUnexpected atomic.Pointer[string]
}

func newTally(prefix string, consumers, records, events int) *tally {
	t := &tally{prefix: prefix, events: events, seen: make([][]atomic.Uint64, consumers), done: make(chan struct{})}
	for i := range t.seen {
		t.seen[i] = make([]atomic.Uint64, records)
	}
	t.left.Store(int64(consumers) * int64(records) * int64(events))
	return t
}

// handle is the whole handler of a consumer.
func (t *tally) handle(consumer int, d *keyline.Delivery) {
	number, err := strconv.Atoi(strings.TrimPrefix(d.Key.Record, t.prefix))
	if err != nil || number < 0 || number >= len(t.seen[consumer]) || d.Seq < 1 || d.Seq > int64(t.events) {
		what := fmt.Sprintf("%s #%d", d.Key.Record, d.Seq)
		t.firstUnexpected.CompareAndSwap(nil, &what)
		t.unknown.Add(1)
		return
	}
	bit := uint64(1) << (d.Seq - 1)
	before := t.seen[consumer][number].Or(bit)
	switch {
	case before&bit != 0:
		t.duplicates.Add(1)
		return
	case before != bit-1: // all older ones, and no younger one
		t.violations.Add(1)
	}
	if t.left.Add(-1) == 0 {
		t.end.Do(func() { close(t.done) })
	}
}

// lost are the deliveries that never came.
func (t *tally) lost() (n int64) {
	for _, records := range t.seen {
		for i := range records {
			n += int64(t.events - bits.OnesCount64(records[i].Load()))
		}
	}
	return n
}
