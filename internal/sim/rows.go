package sim

import (
	"cmp"
	"maps"
	"slices"

	"github.com/keylinehq/keyline/internal/core"
)

// Rows are a store's tables as they stand.
type Rows struct {
	Epoch     int64
	Consumers []ConsumerRow // by id
	Records   []RecordRow   // by id; those that some append to has committed
}

// ConsumerRow is a consumers row.
type ConsumerRow struct {
	ID       int32
	Name     string
	Status   core.Status
	Revision int
	// Sweep is what a registry change has left to be done; "" nothing.
	Sweep string
	// Left are the records that it found held by an appender and comes back to, by id.
	Left []int64
}

// RecordRow is a records row with all that is about the record.
type RecordRow struct {
	ID           int64
	Key          string
	Head, Cursor int64
	Mailbox      *Mailbox          // nil: there is none
	Checkpoints  []core.Checkpoint // by consumer
	DeadLetters  []DeadRow         // by seq and consumer
	Failures     []core.Failure    // by seq, consumer and attempt; without messages
	Skips        []core.Skip       // likewise
	Commands     []CommandRow      // by id; without the dead letter that it is about
}

// Rows copies the tables.
func (t *Twin) Rows() Rows {
	rows := Rows{Epoch: t.epoch}
	for _, c := range t.consumers {
		rows.Consumers = append(rows.Consumers, ConsumerRow{c.ID, c.Name, c.Status, c.Revision, string(c.sweep), slices.Sorted(maps.Keys(c.left))})
	}
	for _, r := range t.records {
		if r.head > 0 {
			rows.Records = append(rows.Records, t.recordRow(r))
		}
	}
	return rows
}

func (t *Twin) recordRow(r *record) RecordRow {
	row := RecordRow{ID: r.id, Key: r.key.Record, Head: r.head, Cursor: r.cursor}
	if r.mailbox != nil {
		m := *r.mailbox
		m.Wants = slices.Clone(m.Wants)
		row.Mailbox = &m
	}
	for _, c := range t.consumers {
		if k, ok := t.checkpoints[pair{r.id, c.ID}]; ok {
			row.Checkpoints = append(row.Checkpoints, k)
		}
	}
	for _, d := range t.dead {
		if d.Record == r.id {
			row.DeadLetters = append(row.DeadLetters, *d)
		}
	}
	slices.SortFunc(row.DeadLetters, func(a, b DeadRow) int {
		return cmp.Or(cmp.Compare(a.Seq, b.Seq), cmp.Compare(a.Consumer, b.Consumer))
	})
	for _, k := range attempts(t.failures, r.id) {
		row.Failures = append(row.Failures, t.failures[k])
	}
	for _, k := range attempts(t.skips, r.id) {
		row.Skips = append(row.Skips, t.skips[k])
	}
	for _, c := range t.commands {
		if c.Record == r.id {
			row.Commands = append(row.Commands, *c)
		}
	}
	return row
}

func attempts[T any](of map[attemptKey]T, record int64) []attemptKey {
	return slices.SortedFunc(func(yield func(attemptKey) bool) {
		for k := range maps.Keys(of) {
			if k.record == record && !yield(k) {
				return
			}
		}
	}, func(a, b attemptKey) int {
		return cmp.Or(cmp.Compare(a.seq, b.seq), cmp.Compare(a.consumer, b.consumer), cmp.Compare(a.attempt, b.attempt))
	})
}
