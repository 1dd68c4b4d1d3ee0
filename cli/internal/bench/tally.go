package bench

import (
	"fmt"
	"math"
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
	workload
	// seen has one bit per seq, words of them by record and consumer: consumers of one
	// record run at the same time, and the check should cost little of what is measured.
	seen  []atomic.Uint64
	words int

	left            []count // by consumer
	unfinished      atomic.Int64
	done            chan struct{}
	end             sync.Once
	violations      atomic.Int64
	duplicates      atomic.Int64
	unknown         atomic.Int64
	firstUnexpected atomic.Pointer[string]
}

func newTally(l workload) *tally {
	t := &tally{workload: l, words: (l.events + wordBits - 1) / wordBits, left: make([]count, l.consumers), done: make(chan struct{})}
	t.seen = make([]atomic.Uint64, l.consumers*l.records*t.words)
	for i := range t.left {
		t.left[i].Store(l.total())
	}
	t.unfinished.Store(int64(l.consumers))
	return t
}

const wordBits = 64

// delivered is how many deliveries there were that count.
func (t *tally) delivered() int64 {
	n := t.deliveries()
	for i := range t.left {
		n -= t.left[i].Load()
	}
	return n
}

// count is alone in its cache line.
type count struct {
	atomic.Int64
	_ [56]byte
}

// handle is the whole handler of a consumer.
func (t *tally) handle(consumer int, d *keyline.Delivery) {
	number, err := strconv.Atoi(strings.TrimPrefix(d.Key.Record, recordPrefix))
	if err != nil || number < 0 || number >= t.records || d.Seq < 1 || d.Seq > int64(t.events) {
		what := fmt.Sprintf("%s #%d", d.Key.Record, d.Seq)
		t.firstUnexpected.CompareAndSwap(nil, &what)
		t.unknown.Add(1)
		return
	}
	at, place := (number*t.consumers+consumer)*t.words, int(d.Seq-1)
	word, bit := at+place/wordBits, uint64(1)<<(place%wordBits)
	before := t.seen[word].Or(bit)
	switch {
	case before&bit != 0:
		t.duplicates.Add(1)
		return
	case before != bit-1, bit == 1 && word > at && t.seen[word-1].Load() != math.MaxUint64: // all older ones, and no younger one
		t.violations.Add(1)
	}
	if t.left[consumer].Add(-1) == 0 && t.unfinished.Add(-1) == 0 {
		t.end.Do(func() { close(t.done) })
	}
}

// lost are the deliveries that never came.
func (t *tally) lost() (n int64) {
	n = t.deliveries()
	for i := range t.seen {
		n -= int64(bits.OnesCount64(t.seen[i].Load()))
	}
	return n
}
