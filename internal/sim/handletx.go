package sim

import "github.com/keylinehq/keyline/internal/core"

// Tx is a HandleTx transaction: it holds its record's mailbox for key share, so
// that nobody claims the record while it is open.
type Tx struct {
	twin   *Twin
	record *record
	work   core.Work
}

// BeginTx opens a handler's transaction; nil where the claim is lost.
func (t *Twin) BeginTx(worker int64, w core.Work) *Tx {
	if !t.Holds(worker, w.Record, w.Token) {
		return nil
	}
	r := t.record(w.Record)
	r.shared++
	return &Tx{twin: t, record: r, work: w}
}

// Rollback ends the transaction without effect, as a killed backend does.
func (x *Tx) Rollback() { x.record.shared-- }

// Commit writes the booking behind its fence and ends the transaction. It is
// false where the row is not where it was expected: then nothing was written.
func (x *Tx) Commit(b *core.Booking) bool {
	t, w := x.twin, x.work
	x.record.shared--
	if w.Dead != nil {
		// A dead letter's retry: its fence is the dead letter's attempt.
		d := t.deadByID(w.Dead.ID)
		if d == nil || d.Status != core.DeadWaiting || d.Attempt != w.Dead.Attempt {
			return false
		}
		t.book(b)
		return true
	}
	k := pair{w.Record, w.Consumer.ID}
	if row, ok := t.checkpoints[k]; !ok || row.Seq != w.Fence {
		return false
	}
	checkRow(b.Checkpoint)
	t.checkpoints[k] = b.Checkpoint
	t.book(b)
	return true
}

// Look is what is read after a commit whose reply was lost, or that found its
// row moved: whether the claim is still held, and whether the row says what b says.
func (t *Twin) Look(worker int64, w *core.Work, b *core.Booking) (mine, has bool) {
	mine = t.Holds(worker, w.Record, w.Token)
	if w.Dead != nil {
		d := t.deadByID(w.Dead.ID)
		u := b.Dead
		return mine, d != nil && u != nil && d.Status == u.Status && d.Attempt == u.Attempt && d.Granted == u.Granted &&
			(u.Status != core.DeadWaiting || d.DueAt.Equal(u.DueAt))
	}
	row, ok := t.checkpoints[pair{w.Record, w.Consumer.ID}]
	c := b.Checkpoint
	return mine, ok && row.Seq == c.Seq && row.State == c.State && row.Attempt == c.Attempt && row.Granted == c.Granted &&
		row.Crashes == c.Crashes && row.NextAttemptAt.Equal(c.NextAttemptAt)
}

func (t *Twin) deadByID(id int64) *DeadRow {
	for _, d := range t.dead {
		if d.ID == id {
			return d
		}
	}
	return nil
}

// book writes the rare parts of a booking.
func (t *Twin) book(b *core.Booking) {
	if b.DeadLetter != nil {
		t.deadLetter(b.DeadLetter)
	}
	if b.Dead != nil {
		t.deadUpdate(b.Dead, t.record(b.Dead.Record).mailbox.Token)
	}
	if b.Failure != nil {
		t.failure(*b.Failure)
	}
	if b.Skip != nil {
		t.skip(*b.Skip)
	}
}
