package sim

import (
	"maps"
	"math"
	"slices"
	"time"

	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/keylinetype"
)

// Sweeps are what a registry change leaves to be done record by record.
type sweep string

const (
	sweepNone     sweep = ""
	sweepWake     sweep = "wake"
	sweepClear    sweep = "clear"
	sweepBackfill sweep = "backfill"
)

// consumerRow is a consumers row with its sweep's progress.
type consumerRow struct {
	core.Consumer
	sweep sweep
	// at is the last record that the sweep has passed, over once it has passed
	// all; left are those that it found held by an appender and comes back to.
	at   int64
	left map[int64]bool
}

const over = math.MaxInt64

// Local is what a process brings of a consumer that it hosts.
type Local struct {
	Revision  int
	Versions  []int
	Window    int
	BatchSize int
}

// Registry reads the registered consumers as a process sees them.
func (t *Twin) Registry(local map[string]Local) *core.Registry {
	list := make([]*core.Consumer, len(t.consumers))
	for i, row := range t.consumers {
		c := row.Consumer
		if l, ok := local[c.Name]; ok && l.Revision >= c.Revision && c.Status != core.Retired {
			c.Hosted, c.Window, c.BatchSize = true, l.Window, l.BatchSize
		}
		list[i] = &c
	}
	return core.NewRegistry(t.epoch, t.ordering, list, nil)
}

// Epoch is the registry's.
func (t *Twin) Epoch() int64 { return t.epoch }

// Register adds a consumer by its start rule and returns its id.
func (t *Twin) Register(c core.Consumer) int32 {
	c.ID, c.Status = int32(len(t.consumers)+1), core.Active
	row := &consumerRow{Consumer: c}
	if c.Start.Kind != "" && c.Start.Kind != keylinetype.StartNow && !c.ContractOnly {
		row.Status = core.Backfilling
		row.begin(sweepBackfill)
	} else {
		row.begin(sweepWake)
	}
	t.consumers = append(t.consumers, row)
	t.epoch++
	return c.ID
}

// Update changes what a consumer's newer revision changes.
func (t *Twin) Update(id int32, change func(*core.Consumer)) {
	row := t.consumers[id-1]
	change(&row.Consumer)
	row.Revision++
	if row.sweep == sweepNone || row.sweep == sweepWake { // the others end in one
		row.begin(sweepWake)
	}
	t.epoch++
}

var transitions = map[core.Status]map[core.Status]sweep{
	core.Active:      {core.Paused: sweepWake, core.Disabled: sweepClear, core.Retired: sweepClear},
	core.Paused:      {core.Active: sweepWake, core.Disabled: sweepClear, core.Retired: sweepClear},
	core.Disabled:    {core.Active: sweepWake, core.Retired: sweepClear},
	core.Backfilling: {core.Disabled: sweepClear, core.Retired: sweepClear},
}

// SetStatus changes a consumer's status; false where it is refused.
func (t *Twin) SetStatus(id int32, to core.Status) bool {
	row := t.consumers[id-1]
	next, ok := transitions[row.Status][to]
	if !ok || row.Status == core.Disabled && to == core.Active && row.sweep == sweepClear {
		return false
	}
	row.Status = to
	row.begin(next)
	t.epoch++
	return true
}

// begin begins a sweep; what an earlier one has left is still to be done.
func (c *consumerRow) begin(s sweep) {
	c.sweep, c.at = s, 0
	if c.left == nil {
		c.left = map[int64]bool{}
	}
}

// Sweep does one chunk of one consumer's sweep; it reports whether it did anything.
func (t *Twin) Sweep(id int32, limit int) bool {
	row := t.consumers[id-1]
	if row.sweep == sweepNone {
		return false
	}
	if row.sweep == sweepClear {
		if t.clear(id, limit) == 0 {
			t.endSweep(row)
		}
		return true
	}
	progress := row.at < over
	if progress {
		t.pass(row, limit)
	} else {
		progress = t.comeBack(row, limit)
	}
	if row.at == over && len(row.left) == 0 {
		t.endSweep(row)
		return true
	}
	return progress
}

// clear deletes some rows of a consumer.
func (t *Twin) clear(id int32, limit int) (n int) {
	for _, r := range t.records {
		k := pair{r.id, id}
		if _, ok := t.checkpoints[k]; ok && n < limit {
			delete(t.checkpoints, k)
			n++
		}
	}
	return n
}

// pass goes on to the next records. Those that are not there yet when it has
// passed all are none of its business.
func (t *Twin) pass(row *consumerRow, limit int) {
	for n := 0; n < limit; n++ {
		if row.at++; row.at > int64(len(t.records)) {
			row.at = over
			return
		}
		r := t.records[row.at-1]
		switch {
		case r.head == 0, row.sweep == sweepWake && !t.concerns(row, r):
		case r.open != nil:
			row.left[r.id] = true
		default:
			t.sweepRecord(row, r)
		}
	}
}

// comeBack does what was held and is no more.
func (t *Twin) comeBack(row *consumerRow, limit int) bool {
	n := 0
	for _, id := range slices.Sorted(maps.Keys(row.left)) {
		if r := t.record(id); r.open == nil && n < limit {
			t.sweepRecord(row, r)
			delete(row.left, id)
			n++
		}
	}
	return n > 0
}

// concerns reports whether a wake sweep has anything to do on a record.
func (t *Twin) concerns(row *consumerRow, r *record) bool {
	if m := r.mailbox; m != nil && m.ClaimedBy == 0 && (m.DueAt.After(t.Now) || m.Wants != nil) {
		return true
	}
	k, ok := t.checkpoints[pair{r.id, row.ID}]
	return ok && row.Status == core.Active && k.Seq < r.head
}

// SweepAll sweeps, in chunks, until nothing more can be done now.
func (t *Twin) SweepAll(limit int) {
	for _, row := range t.consumers {
		for t.Sweep(row.ID, limit) {
		}
	}
}

// endSweep goes on to what follows: a backfilled consumer becomes active, and
// what a change left to do is made due.
func (t *Twin) endSweep(row *consumerRow) {
	switch row.sweep {
	case sweepBackfill:
		row.Status = core.Active
		t.epoch++
		row.begin(sweepWake)
	case sweepClear:
		clear(row.left)
		row.begin(sweepWake)
	case sweepWake, sweepNone:
		row.begin(sweepNone)
	}
}

func (t *Twin) sweepRecord(row *consumerRow, r *record) {
	switch row.sweep {
	case sweepBackfill:
		t.backfill(row, r)
	case sweepWake:
		if !t.Defects.NoResumeSweep {
			t.wakeRecord(row, r)
		}
	case sweepClear, sweepNone:
	}
}

// wakeRecord makes a record due now that has a mailbox, or on which the
// consumer is behind by its row. What is due for longer keeps its place.
func (t *Twin) wakeRecord(row *consumerRow, r *record) {
	if r.mailbox == nil {
		if k, ok := t.checkpoints[pair{r.id, row.ID}]; ok && row.Status == core.Active && k.Seq < r.head {
			r.mailbox = &Mailbox{DueAt: t.Now}
		}
		return
	}
	if m := r.mailbox; m.ClaimedBy == 0 && (m.DueAt.After(t.Now) || m.Wants != nil) {
		if m.DueAt.After(t.Now) {
			m.DueAt = t.Now
		}
		m.Wants, m.WantsDueAt = nil, time.Time{}
	}
}

// backfill writes a new consumer's row at its start position. A settled record
// that has nothing from the start time on needs none.
func (t *Twin) backfill(row *consumerRow, r *record) {
	k := pair{r.id, row.ID}
	if _, ok := t.checkpoints[k]; ok {
		return
	}
	seq := int64(0)
	for i := range r.events {
		if row.Start.Kind == keylinetype.StartAt && r.events[i].CreatedAt.Before(row.Start.Time) {
			seq = r.events[i].Seq
		}
	}
	if row.Start.Kind == keylinetype.StartAt && seq == r.head && r.cursor == r.head && r.mailbox == nil {
		return
	}
	t.checkpoints[k] = core.Checkpoint{Record: r.id, Consumer: row.ID, Seq: seq, State: core.Ready, LiveFrom: r.head}
}

// sweeping reports whether a sweep has yet to pass a record; what a clearing frees is woken after it.
func (t *Twin) sweeping(recordID int64) bool {
	return slices.ContainsFunc(t.consumers, func(c *consumerRow) bool {
		return c.sweep == sweepClear || c.sweep != sweepNone && (c.at < recordID || c.left[recordID])
	})
}
