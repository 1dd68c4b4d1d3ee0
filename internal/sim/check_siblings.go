package sim

import (
	"slices"

	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/keylinetype"
)

// siblings: lockstep and all_for_one.
func (c *checker) siblings(t *task) {
	w := &t.work
	if t.h.reg.Epoch != c.twin.epoch || t.h.reload {
		return // the machine may not know yet
	}
	rec, first := c.twin.record(w.Record), w.Events[0].Seq
	for _, row := range c.twin.consumers {
		k := pair{w.Record, row.ID}
		if row.ID == w.Consumer.ID {
			continue
		}
		if c.lockstep() && (row.Status == core.Active || row.Status == core.Paused) && !row.ContractOnly {
			for seq := c.nextSeq(rec, row, c.twin.Position(rec.id, row.ID)); seq > 0 && seq < first; seq = c.nextSeq(rec, row, seq) {
				if !c.doneWith(dkey{k, seq}, w, true) && !c.unsupportedPasses(rec, row, seq) && !c.passed(row, &rec.events[seq-1], w.Token) {
					fail("lockstep: record %d seq %d begins for consumer %d, seq %d is not terminal for consumer %d", rec.id, first, w.Consumer.ID, seq, row.ID)
				}
			}
		}
		cp, ok := c.twin.checkpoints[k]
		own, isHead := c.head(w)
		if ok && row.Scope == keylinetype.AllForOne && row.Status == core.Active && !c.commanded(rec.id, row.ID) && len(c.revisions[row.ID]) == 0 &&
			!(isHead && (own.State == core.Backoff || own.State == core.Started && c.inTrouble[pair{rec.id, w.Consumer.ID}])) && !c.failedBefore(w) && !c.waitsForOlder(rec, k, w) && !c.runs(t.h, row.ID) && c.heldBack(k, cp) {
			fail("all_for_one: record %d seq %d begins for consumer %d while consumer %d is in %s", rec.id, first, w.Consumer.ID, row.ID, cp.State)
		}
	}
}

// failedBefore: the delivery is in trouble itself; two such do not wait for each other.
func (c *checker) failedBefore(w *core.Work) bool {
	h := c.seen[dkey{pair{w.Record, w.Consumer.ID}, w.Events[0].Seq}]
	return h != nil && h.last.attempt > 0
}

// waitsForOlder: under lockstep a consumer in trouble waits for older events of its siblings.
func (c *checker) waitsForOlder(rec *record, k pair, w *core.Work) bool {
	next := c.nextSeq(rec, c.twin.consumers[k.consumer-1], c.twin.Position(rec.id, k.consumer))
	return c.lockstep() && w.Events[0].Seq < next
}

func (c *checker) unsupportedPasses(rec *record, row *consumerRow, seq int64) bool {
	return c.applies(row, &rec.events[seq-1]) == core.UnsupportedVersion && row.OnUnsupported != keylinetype.WaitUnsupported
}

func (c *checker) heldBack(k pair, cp core.Checkpoint) bool {
	if cp.State == core.Parked {
		return cp.ErrorCode != core.CodeUnsupportedVersion
	}
	return cp.State == core.Backoff && cp.NextAttemptAt.After(c.r.latest())
}

func (c *checker) runs(h *holding, consumer int32) bool {
	return slices.ContainsFunc(h.w.runs, func(t *task) bool { return t.h == h && t.work.Consumer.ID == consumer })
}
