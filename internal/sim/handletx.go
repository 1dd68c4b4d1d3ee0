package sim

import "github.com/keylinehq/keyline/internal/core"

// Tx is a HandleTx transaction: it holds its record's mailbox for key share, so
// that nobody claims the record while it is open.
type Tx struct {
	twin   *Twin
	record *record
	work   core.Work
	worker int64
}

// BeginTx opens a handler's transaction; nil where the claim is lost.
func (t *Twin) BeginTx(worker int64, w core.Work) *Tx {
	if !t.Holds(worker, w.Record, w.Token) {
		return nil
	}
	r := t.record(w.Record)
	r.shared++
	return &Tx{twin: t, record: r, work: w, worker: worker}
}

// Rollback ends the transaction without effect, as a killed backend does.
func (x *Tx) Rollback() { x.record.shared-- }

// TxResult is how a HandleTx transaction ended.
type TxResult int

// The results.
const (
	TxCommitted TxResult = iota
	TxAlready            // the fence failed, and the row says that it had committed before
	TxFenced
)

// Commit writes the booking behind the checkpoint's fence and ends the transaction.
func (x *Tx) Commit(b core.Booking) TxResult {
	t, w := x.twin, x.work
	x.record.shared--
	k := pair{w.Record, w.Consumer.ID}
	row, ok := t.checkpoints[k]
	if w.Dead != nil {
		return x.commitDead(b)
	}
	if (!ok || row.Seq != w.Checkpoint.Seq) && !t.Defects.NoTxFence {
		if ok && t.Holds(x.worker, w.Record, w.Token) && row.Seq > w.Checkpoint.Seq {
			return TxAlready
		}
		return TxFenced
	}
	checkRow(b.Checkpoint)
	t.checkpoints[k] = b.Checkpoint
	t.book(&b)
	return TxCommitted
}

// commitDead is a dead letter's retry: its fence is the dead letter's attempt.
func (x *Tx) commitDead(b core.Booking) TxResult {
	t, w := x.twin, x.work
	for _, d := range t.dead {
		if d.ID != w.Dead.ID {
			continue
		}
		if d.Status == core.DeadWaiting && d.Attempt == w.Dead.Attempt {
			t.book(&b)
			return TxCommitted
		}
		if t.Holds(x.worker, w.Record, w.Token) {
			return TxAlready
		}
	}
	return TxFenced
}

// book writes the rare parts of a booking.
func (t *Twin) book(b *core.Booking) {
	if b.DeadLetter != nil {
		t.deadLetter(b.DeadLetter)
	}
	if b.Dead != nil {
		t.deadUpdate(b.Dead)
	}
	if b.Failure != nil {
		t.failure(*b.Failure)
	}
	if b.Skip != nil {
		t.skip(*b.Skip)
	}
}
