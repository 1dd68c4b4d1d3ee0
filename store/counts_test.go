package store

import (
	"testing"

	"github.com/keylinehq/keyline/internal/core"
)

func (r *rig) completed() int64 {
	r.Helper()
	return get[int64](r, "select coalesce(sum(completed), 0)::bigint from keyline.consumer_health")
}

// counted is a flush that settles a record of one event, which its consumer completed.
func counted(c core.Claim, consumer int32) core.Flush {
	f := core.Flush{Record: c.Record, Token: c.Token, Head: 1, Cursor: 1, Then: core.Settle}
	f.Counts = []core.Counts{{Consumer: consumer, Completed: 1}}
	return f
}

// What is put off to the next batch is counted there, not in both.
func TestALockedRecordsDeliveriesAreCountedOnce(t *testing.T) {
	r := newRig(t)
	c := r.register(definition("c"))
	ids := r.appendTo("r", 3)
	tx := r.begin()
	var flushes []core.Flush
	for _, id := range ids {
		flushes = append(flushes, counted(r.claimOne(id), c))
	}
	r.in(tx, "select from keyline.mailboxes where record_id = $1 for update", ids[1])
	waits := r.together(flushes...)
	for _, i := range []int{0, 2} {
		if res := soon(r, waits[i], "a flush beside a locked record"); res.Status != core.FlushGone {
			t.Errorf("%+v", res)
		}
	}
	if n := r.completed(); n != 2 {
		t.Errorf("with one put off, %d are counted", n)
	}
	r.rollbackTx(tx)
	if res := soon(r, waits[1], "the locked one"); res.Status != core.FlushGone {
		t.Errorf("%+v", res)
	}
	if n := r.completed(); n != 3 {
		t.Errorf("of 3 deliveries %d are counted", n)
	}
}

func TestAFencedRecordsDeliveriesAreNotCounted(t *testing.T) {
	r := newRig(t)
	c := r.register(definition("c"))
	ids := r.appendTo("r", 3)
	var flushes []core.Flush
	for _, id := range ids {
		flushes = append(flushes, counted(r.claimOne(id), c))
	}
	r.exec("update keyline.mailboxes set token = nextval('keyline.tokens') where record_id = $1", ids[1])
	for i, wait := range r.together(flushes...) {
		want := core.FlushResult{Record: ids[i], Token: flushes[i].Token, Status: core.FlushGone, Head: 1}
		if i == 1 {
			want.Status, want.Head = core.FlushFenced, 0
		}
		if res := soon(r, wait, "a flush"); res != want {
			t.Errorf("record %d: %+v, want %+v", i, res, want)
		}
	}
	if n := r.completed(); n != 2 {
		t.Errorf("of 2 deliveries that count %d are counted", n)
	}
}
