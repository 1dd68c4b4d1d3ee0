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
	// seen has one bit per seq, by record and consumer: consumers of one record
	// run at the same time, and the check should cost little of what is measured.
	seen      []atomic.Uint64
	consumers int

	left            []count // by consumer
	unfinished      atomic.Int64
	done            chan struct{}
	end             sync.Once
	violations      atomic.Int64
	duplicates      atomic.Int64
	unknown         atomic.Int64
	firstUnexpected atomic.Pointer[string]
}

func newTally(prefix string, consumers, records, events int) *tally {
	t := &tally{prefix: prefix, events: events, consumers: consumers, seen: make([]atomic.Uint64, consumers*records),
		left: make([]count, consumers), done: make(chan struct{})}
	for i := range t.left {
		t.left[i].Store(int64(records) * int64(events))
	}
	t.unfinished.Store(int64(consumers))
	return t
}

// count is alone in its cache line.
type count struct {
	atomic.Int64
	_ [56]byte
}

// handle is the whole handler of a consumer.
func (t *tally) handle(consumer int, d *keyline.Delivery) {
	number, err := strconv.Atoi(strings.TrimPrefix(d.Key.Record, t.prefix))
	if err != nil || number < 0 || number >= len(t.seen)/t.consumers || d.Seq < 1 || d.Seq > int64(t.events) {
		what := fmt.Sprintf("%s #%d", d.Key.Record, d.Seq)
		t.firstUnexpected.CompareAndSwap(nil, &what)
		t.unknown.Add(1)
		return
	}
	bit := uint64(1) << (d.Seq - 1)
	before := t.seen[number*t.consumers+consumer].Or(bit)
	switch {
	case before&bit != 0:
		t.duplicates.Add(1)
		return
	case before != bit-1: // all older ones, and no younger one
		t.violations.Add(1)
	}
	if t.left[consumer].Add(-1) == 0 && t.unfinished.Add(-1) == 0 {
		t.end.Do(func() { close(t.done) })
	}
}

// lost are the deliveries that never came.
func (t *tally) lost() (n int64) {
	for i := range t.seen {
		n += int64(t.events - bits.OnesCount64(t.seen[i].Load()))
	}
	return n
}
