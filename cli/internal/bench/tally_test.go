package bench

import (
	"testing"

	"github.com/keylinehq/keyline"
)

// give hands deliveries of the first record to consumer 0, by seq.
func give(t *tally, seqs ...int64) {
	for _, seq := range seqs {
		t.handle(0, &keyline.Delivery{Event: keyline.Event{Key: keyline.Key{Record: recordPrefix + "0"}, Seq: seq}})
	}
}

func isDone(t *tally) bool {
	select {
	case <-t.done:
		return true
	default:
		return false
	}
}

func TestTallySeesWhatGoesWrong(t *testing.T) {
	for _, tc := range []struct {
		name                         string
		seqs                         []int64
		violations, duplicates, lost int64
		unknown                      int64
		done                         bool
	}{
		{"all in order", []int64{1, 2, 3}, 0, 0, 0, 0, true},
		{"the last one is missing", []int64{1, 2}, 0, 0, 1, 0, false},
		{"one in the middle is missing", []int64{1, 3}, 1, 0, 1, 0, false},
		{"two are swapped", []int64{1, 3, 2}, 2, 0, 0, 0, true},
		{"one comes twice", []int64{1, 2, 2, 3}, 0, 1, 0, 0, true},
		{"one comes again later", []int64{1, 2, 3, 1}, 0, 1, 0, 0, true},
		{"one that nobody appended", []int64{1, 2, 3, 4}, 0, 0, 0, 1, true},
		{"none", nil, 0, 0, 3, 0, false},
	} {
		c := newTally(workload{records: 1, events: 3, consumers: 1})
		give(c, tc.seqs...)
		if c.violations.Load() != tc.violations || c.duplicates.Load() != tc.duplicates || c.lost() != tc.lost ||
			c.unknown.Load() != tc.unknown || isDone(c) != tc.done {
			t.Errorf("%s: violations %d, duplicates %d, lost %d, unknown %d, done %v", tc.name,
				c.violations.Load(), c.duplicates.Load(), c.lost(), c.unknown.Load(), isDone(c))
		}
	}
}

func TestTallyKeepsLongStreams(t *testing.T) {
	const events = 3*wordBits + 1
	c := newTally(workload{records: 1, events: events, consumers: 1})
	for seq := int64(1); seq <= events; seq++ {
		give(c, seq)
	}
	if c.violations.Load() != 0 || c.duplicates.Load() != 0 || c.lost() != 0 || !isDone(c) || c.delivered() != events {
		t.Errorf("violations %d, duplicates %d, lost %d, done %v", c.violations.Load(), c.duplicates.Load(), c.lost(), isDone(c))
	}
	c = newTally(workload{records: 1, events: events, consumers: 1})
	give(c, wordBits+1) // nothing before it
	if c.violations.Load() != 1 || c.lost() != events-1 {
		t.Errorf("violations %d, lost %d", c.violations.Load(), c.lost())
	}
}

func TestMedian(t *testing.T) {
	for _, tc := range []struct {
		list []float64
		want float64
	}{{[]float64{3}, 3}, {[]float64{3, 1, 2}, 2}, {[]float64{4, 1, 2, 3}, 2.5}} {
		if got := median(tc.list); got != tc.want {
			t.Errorf("median of %v is %v", tc.list, got)
		}
	}
}
