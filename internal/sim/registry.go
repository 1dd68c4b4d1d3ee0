package sim

import (
	"slices"

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
	// swept are the records that the sweep has done: those that an appender
	// holds are passed over and revisited.
	swept map[int64]bool
}

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
		if l, ok := local[c.Name]; ok && l.Revision >= c.Revision {
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
	if c.Start.Kind != "" && c.Start.Kind != keylinetype.StartNow {
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
	if row.sweep == sweepNone {
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
	if !ok || row.Status == core.Disabled && to == core.Active && row.sweep != sweepNone {
		return false
	}
	row.Status = to
	row.begin(next)
	t.epoch++
	return true
}

func (c *consumerRow) begin(s sweep) { c.sweep, c.swept = s, map[int64]bool{} }

// Sweep does one chunk of one consumer's sweep; it reports whether there was one.
func (t *Twin) Sweep(id int32, limit int) bool {
	row := t.consumers[id-1]
	if row.sweep == sweepNone {
		return false
	}
	done, left := 0, false
	for _, r := range t.records {
		if r.head == 0 || row.swept[r.id] {
			continue
		}
		if r.open != nil && row.sweep != sweepClear || done == limit {
			left = true
			continue
		}
		t.sweepRecord(row, r)
		row.swept[r.id] = true
		done++
	}
	if !left {
		t.endSweep(row)
	}
	return true
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
		row.begin(sweepWake)
	case sweepWake, sweepNone:
		row.begin(sweepNone)
	}
}

func (t *Twin) sweepRecord(row *consumerRow, r *record) {
	k := pair{r.id, row.ID}
	switch row.sweep {
	case sweepBackfill:
		t.backfill(row, r)
	case sweepClear:
		delete(t.checkpoints, k)
	case sweepWake:
		if !t.Defects.NoResumeSweep && (r.mailbox != nil || row.Status == core.Active && t.Position(r.id, row.ID) < r.head) {
			t.makeDue(r)
		}
	case sweepNone:
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
	return slices.ContainsFunc(t.consumers, func(c *consumerRow) bool { return c.sweep == sweepClear || c.sweep != sweepNone && !c.swept[recordID] })
}
