package store

import (
	"testing"
	"time"

	"github.com/keylinehq/keyline/internal/core"
)

func TestAFlushThatCannotBeEncodedFailsAloneAndDoesNotBlockItsLane(t *testing.T) {
	r := newRig(t)
	c := r.register(definition("c"))
	var flushes []core.Flush
	for i := range 4 {
		flushes = append(flushes, everything(r.load(r.claimOne(r.append(keyOf(i), "t", "t"))), c))
	}
	flushes[1].Failures[0].At = time.Date(12345, 1, 1, 0, 0, 0, 0, time.UTC) // no JSON time
	for i, res := range r.flushed(flushes...) {
		if want := map[bool]core.FlushStatus{true: core.FlushFenced, false: core.FlushKept}[i == 1]; res.Status != want {
			t.Errorf("%d: %+v", i, res)
		}
	}
}

func TestAFlushNeverOvertakesAnEarlierOneOfItsRecord(t *testing.T) {
	l := &lane{ring: make(chan struct{}, 1)}
	add := func(record, epoch int64, head int64) {
		l.queue = append(l.queue, ahead(core.Flush{Record: record, Head: head}, epoch))
	}
	add(1, 1, 1)
	add(2, 2, 1) // of another epoch: it waits, and so does what follows it
	add(2, 1, 2)
	add(2, 1, 3)
	seen := map[int64]int64{}
	for len(l.queue) > 0 {
		batch, _ := l.take()
		for i, p := range batch {
			if p.epoch != batch[0].epoch || (i > 0 && batch[i-1].flush.Record >= p.flush.Record) {
				t.Fatalf("batch %+v", batch)
			}
			if p.flush.Head != seen[p.flush.Record]+1 {
				t.Errorf("record %d: %d after %d", p.flush.Record, p.flush.Head, seen[p.flush.Record])
			}
			seen[p.flush.Record] = p.flush.Head
		}
	}
}
